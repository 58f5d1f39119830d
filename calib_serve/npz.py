"""Files of arrays (.npz, .npy), read without trust: whatever is wrong with one is a ValueError.

What a damaged or a hostile one raises comes from zip, zlib, the header's parser and the allocator, so
it is gathered here once. Nothing is unpickled, and a zip bomb is refused unread.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

__all__ = ["ZIP_ERRORS", "map_npy", "read_npz", "refuse_bomb"]

ZIP_ERRORS = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError),
    *(MemoryError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
    tokenize.TokenError,
)
"""What reading a damaged zip of arrays raises; RuntimeError for one that is encrypted or too deep."""

_RATIO = 100  # weights and logits shrink to a half, seldom to a tenth
_SMALL = 64 << 20  # bytes that no machine will miss


def read_npz(
    source: Path | bytes, *, wanted: Callable[[str], bool] = lambda _name: True
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """The ``wanted`` arrays of an .npz file or its bytes, and the names of all; ValueError for what is none.

    >>> read_npz(b"PK not really")
    Traceback (most recent call last):
    ValueError: not an .npz archive of arrays: File is not a zip file
    """
    try:
        # Opened here: numpy leaves a torn file open.
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise ValueError("it holds one array")
            with zipfile.ZipFile(file) as archive:
                refuse_bomb(archive)
            file.seek(0)
            with NpzFile(file, allow_pickle=False) as arrays:
                names = tuple(arrays.files)
                found = {name: arrays[name] for name in names if wanted(name)}
        if odd := [name for name, value in found.items() if not isinstance(value, np.ndarray)]:
            raise ValueError(f"{odd[0]!r} is not an array")
    except ZIP_ERRORS as error:
        raise ValueError(f"not an .npz archive of arrays: {str(error) or type(error).__name__}") from error
    return found, names


def map_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file, memory-mapped; ValueError for what is none."""
    try:
        with path.open("rb") as file:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        # numpy divides by the size of an item, and a file must not end the process.
        if not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"it holds items of {dtype.itemsize} bytes, {shape} of them")
        return np.lib.format.open_memmap(path, "r")
    except ZIP_ERRORS as error:
        raise ValueError(f"not an .npy file: {str(error) or type(error).__name__}") from error


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def refuse_bomb(archive: zipfile.ZipFile) -> None:
    """ValueError for an archive that unpacks to very much more than it weighs."""
    packed = sum(entry.compress_size for entry in archive.infolist())
    whole = sum(entry.file_size for entry in archive.infolist())
    if whole > max(_SMALL, _RATIO * packed):
        raise ValueError(f"it unpacks from {packed} to {whole} bytes, as a zip bomb does")

"""Read untrusted array files (.npz, .npy): any defect raises ValueError.

Damaged or hostile files raise errors of zip, zlib, the header parser and the allocator; this module converts
them. Nothing is unpickled, and zip bombs are refused before they are unpacked.
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

__all__ = ["ZIP_ERRORS", "map_npy", "most_unpacked", "read_npz", "refuse_bomb"]

ZIP_ERRORS = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError),
    *(MemoryError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
    tokenize.TokenError,
)
"""Errors of reading a damaged zip of arrays; RuntimeError is for one that is encrypted or too deep."""

_RATIO = 100  # weights and logits compress to a half, seldom to a tenth
_SMALL = 64 << 20  # bytes; what unpacks to less is no bomb


def read_npz(
    source: Path | bytes, *, wanted: Callable[[str], bool] = lambda _name: True
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """The ``wanted`` arrays of an .npz file or its bytes, and the names of all; ValueError if invalid.

    >>> read_npz(b"PK not really")
    Traceback (most recent call last):
    ValueError: not an .npz archive of arrays: File is not a zip file
    """
    try:
        # Opened here: numpy leaves a damaged file open.
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
    """The array of an .npy file, memory-mapped; ValueError for an invalid file."""
    try:
        with path.open("rb") as file:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        # numpy divides by the item size: 0 would crash the process.
        if not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"it holds items of {dtype.itemsize} bytes, {shape} of them")
        return np.lib.format.open_memmap(path, "r")
    except ZIP_ERRORS as error:
        raise ValueError(f"not an .npy file: {str(error) or type(error).__name__}") from error


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def most_unpacked(packed: int) -> int:
    """How many bytes ``packed`` bytes may unpack to without being taken for a bomb."""
    return max(_SMALL, _RATIO * packed)


def refuse_bomb(archive: zipfile.ZipFile) -> None:
    """ValueError for an archive that unpacks to far more than its size."""
    packed = sum(entry.compress_size for entry in archive.infolist())
    whole = sum(entry.file_size for entry in archive.infolist())
    if whole > most_unpacked(packed):
        raise ValueError(f"it unpacks from {packed} to {whole} bytes, as a zip bomb does")

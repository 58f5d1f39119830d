"""Arrays (.npz, .npy) and tables (CSV, Parquet) in files of others.

Nothing is unpickled, and bombs are refused before they are unpacked.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, MissingDependency
from calib_serve.core.files import open_regular

ZIP_ERRORS = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError),
    *(MemoryError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
    tokenize.TokenError,
)
"""Errors of reading a damaged zip of arrays; RuntimeError is for one that is encrypted or too deep."""

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PLAIN = ("UNICODE", "INT", "LONG", "FLOAT")
_OTHER = object()  # what is no plain value
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
LONGEST_LINE = 16 << 20  # characters of a table's line: scores of a million classes


def read_npz(
    source: Path | bytes, *, wanted: Callable[[str], bool] = lambda _name: True
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Read the ``wanted`` arrays of an .npz file or its bytes, and the names of all; ValueError if invalid.

    >>> read_npz(b"PK not really")
    Traceback (most recent call last):
    ValueError: not an .npz archive of arrays: File is not a zip file
    """
    try:
        # Opened here: numpy leaves a damaged file open.
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            if file.read(6) == b"\x93NUMPY":
                raise ValueError("it holds one array")
            with zipfile.ZipFile(file) as archive:
                refuse_bomb(archive)
            file.seek(0)
            with NpzFile(file, allow_pickle=False) as arrays:
                names = tuple(arrays.files)
                found = {name: _array_of(arrays, name) for name in names if wanted(name)}
        if odd := [name for name, value in found.items() if not isinstance(value, np.ndarray)]:
            raise ValueError(f"{odd[0]!r} is not an array")
    except ZIP_ERRORS as error:
        raise ValueError(f"not an .npz archive of arrays: {str(error) or type(error).__name__}") from error
    return found, names


def _array_of(arrays: NpzFile, name: str) -> Any:
    """Read an array of the archive, also one of objects that are texts or numbers, as pandas has names."""
    archive: Any = arrays.zip
    member = name if name in archive.namelist() else f"{name}.npy"
    with archive.open(member) as file:
        if file.read(6) != b"\x93NUMPY":
            return arrays[name]
    with archive.open(member) as file:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if not dtype.hasobject:
            return arrays[name]
        found = np.empty(math.prod(shape), object)
        found[:] = plain_values(file.read(), found.size)
    return found.reshape(shape)


def plain_values(pickled: bytes, count: int) -> list[Any]:
    """Read the ``count`` texts and numbers of a pickled array of objects as data; nothing is unpickled.

    ValueError where it holds anything else: only the list of values is looked at, no name is followed.

    >>> import pickle
    >>> plain_values(pickle.dumps(np.array(["cat", None, "cat"], object)), 3)
    ['cat', None, 'cat']
    """
    memo: list[Any] = []
    values: list[Any] = []
    inside, last = False, None
    for code, argument, _ in pickletools.genops(pickled):
        name = code.name
        if name in ("MARK", "FRAME") or (inside and name in ("APPENDS", "APPEND") and len(values) < count):
            continue
        if inside and name in ("APPENDS", "APPEND") and len(values) == count:
            return values
        if name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo.append(last)
            continue
        last = _plain_value(name, argument, memo)
        inside = inside or name == "EMPTY_LIST"
        if inside and name != "EMPTY_LIST":
            if last is _OTHER:
                break
            values.append(last)
    raise ValueError("its arrays of objects hold other things than texts and numbers; save them as texts")


def _plain_value(name: str, argument: Any, memo: list[Any]) -> Any:
    """The text or number that one code of a pickle puts on the stack, if any."""
    if name in ("BINGET", "LONG_BINGET"):
        return memo[argument]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    return argument if any(plain in name for plain in _PLAIN) else _OTHER


def map_npy(path: Path) -> NDArray[Any]:
    """Map the array of an .npy file into memory; ValueError for an invalid file."""
    try:
        with open_regular(path) as file:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        # numpy divides by the item size: 0 would crash the process.
        if not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"it holds items of {dtype.itemsize} bytes, {shape} of them")
        return np.lib.format.open_memmap(path, "r")
    except ZIP_ERRORS as error:
        raise ValueError(f"not an .npy file: {str(error) or type(error).__name__}") from error


def most_unpacked(packed: int) -> int:
    """The number of bytes that ``packed`` bytes may unpack to without being taken for a bomb."""
    # Weights and logits compress to a half, seldom to a tenth.
    return max(64 << 20, 100 * packed)


def refuse_bomb(archive: zipfile.ZipFile) -> None:
    """Raise ValueError for an archive that unpacks to far more than its size."""
    packed = sum(entry.compress_size for entry in archive.infolist())
    whole = sum(entry.file_size for entry in archive.infolist())
    if whole > most_unpacked(packed):
        raise ValueError(f"it unpacks from {packed} to {whole} bytes, as a zip bomb does")


def check_header(path: Path, names: Sequence[str]) -> None:
    """Raise InputError where two columns have one name: one of them would be lost."""
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"{path} names a column twice: {', '.join(twice)[:200]}")


def open_parquet(path: Path, *, texts: Sequence[str] = ()) -> Any:
    """Open a ``pyarrow.parquet.ParquetFile`` whose footer promises no more than its size allows.

    Of the columns ``texts`` each text is read once, as a dictionary. Raises InputError where it cannot be
    read, is a bomb, or names a column twice.
    """
    try:
        from pyarrow import parquet, types  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("pyarrow") from error
    with parquet_errors(path):
        with parquet.ParquetFile(path) as file:
            told, schema, packed = file.metadata, file.schema_arrow, path.stat().st_size
            names, flat = schema.names, [one.name for one in schema if not types.is_nested(one.type)]
            said = sum(told.row_group(i).total_byte_size for i in range(told.num_row_groups))
        check_header(path, names)
        # Runs of one value are said to be short, and are not when they are unpacked.
        whole = max(said, told.num_rows * told.num_columns * 8)
        if whole > most_unpacked(packed):
            raise InputError(f"it unpacks from {packed} to {whole} bytes, as a bomb does; write it in parts")
        return parquet.ParquetFile(path, read_dictionary=[name for name in texts if name in flat])


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raise InputError, which names the file, where pyarrow cannot read it."""
    from pyarrow import ArrowException  # noqa: PLC0415 - it was imported to open the file

    try:
        yield
    except InputError:
        raise
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read {path}: {error}") from error

"""Tables of others, CSV and Parquet: a column that is named twice, a ragged row, or a bomb is refused."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError, MissingDependency
from calib_serve.npz import most_unpacked

__all__ = ["check_header", "csv_rows", "open_parquet"]

_NUMBER = 8  # bytes of a value in memory, at least


def check_header(path: Path, names: Sequence[str]) -> None:
    """InputError where two columns have one name: one of them would be lost."""
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"{path} names a column twice: {', '.join(twice)[:200]}")


def csv_rows(path: Path) -> tuple[tuple[str, ...], Iterator[dict[str, str]]]:
    """The column names of a CSV file and its rows; InputError where it cannot be read, or a row is ragged."""
    names = next(_read(path), [])
    check_header(path, names)
    return tuple(names), _rows(path, names)


def _rows(path: Path, names: Sequence[str]) -> Iterator[dict[str, str]]:
    lines = _read(path)
    next(lines, None)
    for number, cells in enumerate((line for line in lines if line), 1):
        if len(cells) != len(names):
            raise InputError(
                f"row {number} of {path} has {len(cells)} of {len(names)} cells; a text with a comma belongs "
                "in quotes"
            )
        yield dict(zip(names, cells, strict=True))


def _read(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.reader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def open_parquet(path: Path, *, texts: Sequence[str] = ()) -> Any:
    """The ``pyarrow.parquet.ParquetFile``, whose footer promises no more than its size allows.

    Of the columns ``texts`` each text is read once, as a dictionary. Raises InputError where it cannot be
    read, is a bomb, or names a column twice.
    """
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            told, names, packed = file.metadata, file.schema_arrow.names, path.stat().st_size
            said = sum(told.row_group(i).total_byte_size for i in range(told.num_row_groups))
        check_header(path, names)
        # Runs of one value are said to be short, and are not when they are unpacked.
        whole = max(said, told.num_rows * told.num_columns * _NUMBER)
        if whole > most_unpacked(packed):
            raise InputError(f"it unpacks from {packed} to {whole} bytes, as a bomb does; write it in parts")
        return parquet.ParquetFile(path, read_dictionary=[name for name in texts if name in names])
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read {path}: {error}") from error

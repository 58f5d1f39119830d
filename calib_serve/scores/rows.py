"""Rows of tables, whatever the format: texts with a separator, JSON lines, Parquet.

Texts may be separated by commas, semicolons, tabs, bars or blanks, and packed by gzip. Tables of scores read
cells in pieces (``cells_of``), and those of texts and files a mapping a row (``read_rows``).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from calib_serve.core.data_files import (
    LONGEST_LINE,
    check_header,
    most_unpacked,
    open_parquet,
    parquet_errors,
)
from calib_serve.core.errors import InputError
from calib_serve.core.files import open_regular, short_lines
from calib_serve.core.names import named_once, shown

TEXTS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")
"""Endings of texts, before .gz where they are packed."""


def is_json(path: Path) -> bool:
    """Tell by its name whether each line of a text is a JSON object."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson", ".json"))


def read_rows(path: Path, columns: Sequence[str]) -> tuple[Sequence[str] | None, Iterator[Mapping[str, Any]]]:
    """The names of a table's columns, None where each row has its own, and its rows.

    Args:
        path: Parquet, JSON lines or a text of columns; texts may be packed (.gz).
        columns: Names of the columns that are read of Parquet.

    Raises:
        InputError: Where the file cannot be read, also while rows are read; it names the file.
    """
    if path.suffix == ".parquet":
        return _parquet(path, columns)
    if is_json(path):
        return None, _of_text(path)
    with naming(path), open_lines(path) as lines:
        names, _, _ = cells_of(lines)
        check_header(path, names)
    return names, _of_text(path)


def _of_text(path: Path) -> Iterator[dict[str, Any]]:
    # Opened anew: a caller that only wants the names may never read on, and the file would stay open.
    with naming(path), open_lines(path) as lines:
        if is_json(path):
            yield from objects_of(lines)
        else:
            names, rows, _ = cells_of(lines)
            yield from (dict(zip(names, row, strict=True)) for row in rows)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to an InputError that lacks it."""
    try:
        yield
    except InputError as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from error


def _parquet(path: Path, columns: Sequence[str]) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    file = open_parquet(path)
    # Only what is asked for is unpacked: such tables may hold pictures beside their labels.
    names = file.schema_arrow.names
    read = [name for name in columns if name in names]

    def rows() -> Iterator[Mapping[str, Any]]:
        with parquet_errors(path), file:
            for batch in file.iter_batches(4096, columns=read):
                yield from batch.to_pylist()

    return names, rows()


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a text for its lines, unpacked up to a limit; InputError where it cannot be read."""
    try:
        # A pipe or a device of this name would never end.
        with open_regular(path) as file, _text(path, file) as text:
            yield short_lines(text, path, limit=LONGEST_LINE)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _text(path: Path, file: IO[bytes]) -> IO[str]:
    if path.suffix.lower() == ".gz":
        unpacked = _Bounded(gzip.GzipFile(fileobj=file), most_unpacked(path.stat().st_size))
        file = io.BufferedReader(unpacked)
    # Spreadsheets put a byte order mark before the first name.
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


class _Bounded(io.RawIOBase):
    """A stream that unpacks ``most`` bytes; InputError beyond."""

    def __init__(self, packed: Any, most: int) -> None:
        self._packed, self._left = packed, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InputError("it unpacks to far more than its size, as a bomb does; unpack it first")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._packed.close()
        super().close()


def cells_of(lines: Iterator[str], *, row_names: bool = False) -> tuple[list[str], Iterator[list[str]], str]:
    """The column names and the rows of a text with a separator, each as long as the names, and the separator.

    The separator is what the first line has most of outside of quotes. ``row_names``: a first row that is
    longer by one cell begins with its name, as R writes them.
    """
    # By the header alone: a comma in a later row may be a decimal one.
    line = next(lines, "")
    mark = max(",;\t|", key=lambda one: _outside_quotes(line, one))
    mark = mark if _outside_quotes(line, mark) else (" " if " " in line.strip() else ",")
    reader = csv.reader(chain([line], lines), delimiter=mark, skipinitialspace=mark == " ")
    names = next(reader, [])
    first = next((row for row in reader if row), None)
    # Not in texts of users: there a cell too many is an unquoted comma, and the text would be cut.
    if row_names and first is not None and len(first) == len(names) + 1:
        names = ["", *names]
    rest = (row for row in reader if row)
    return names, _even(chain([] if first is None else [first], rest), len(names)), mark


def _outside_quotes(line: str, mark: str) -> int:
    return sum(part.count(mark) for part in line.split('"')[::2])


def _even(rows: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise InputError(
                f"row {number} has {len(row)} of {width} cells; a text with a separator belongs in quotes"
            )
        yield row


def objects_of(lines: Iterator[str], *, alone: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines, a list as {``alone``: list}; InputError, by row, for another line."""
    for number, line in enumerate((line for line in lines if line.strip()), 1):
        try:
            row = json.loads(line, object_pairs_hook=named_once)
        except (ValueError, RecursionError) as error:
            raise InputError(f"row {number} is no JSON: {error}; each line is one JSON object") from None
        row = {alone: row} if alone and isinstance(row, list) else row
        if not isinstance(row, dict):
            raise InputError(f"row {number} is {shown(row)}; a row is an object, each line one JSON object")
        yield row

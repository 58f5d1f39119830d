"""Labels in a file: CSV, Parquet, or JSON lines; bad ones become dead letters.

Files are streamed: a row, or a thousand of Parquet, at a time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from calib_serve.core.data_files import check_header, open_parquet
from calib_serve.core.errors import InputError
from calib_serve.core.files import short_lines
from calib_serve.integrations.collect.reading import (
    USUAL,
    LabelFields,
    LabelRow,
    read_label,
    read_label_message,
)
from calib_serve.integrations.collect.source import DeadLetter

_LONGEST_PACKED = 1 << 16  # bytes of a text of Parquet, before it is unpacked
_LINE = 1 << 20  # bytes, or characters

_Rows = Iterator["dict[str, Any] | list[str]"]
"""By column, or the cells of a row that has more or fewer than the header."""

KINDS = (".csv", ".parquet", ".jsonl", ".ndjson")
"""How the name of a file of labels ends."""

# How files begin that are called .csv and are none.
_OTHERS = {
    b"\x1f\x8b": "compressed; unpack it",
    b"PK": "an archive or a workbook; save the table as CSV",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PAR1": "Parquet; let its name end with .parquet",
}


def _table(rows: _Rows, path: Path, name: str, columns: LabelFields) -> Iterator[LabelRow]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            where = f"{name} row {number}"
            if isinstance(row, dict):
                yield read_label(row, where, columns)
            else:
                told = f"it has {len(row)} cells, the header has others; a text with a comma needs quotes"
                yield LabelRow(where, [], [DeadLetter("malformed", told, where, item=row)])
    except InputError as error:
        where, told = f"{name} behind row {number}", str(error).replace(str(path), name)
        yield LabelRow(where, [], [DeadLetter("unreadable", told, where, item={"file": name})])


def _csv(path: Path) -> tuple[list[str], _Rows]:
    lines = _cells(path)
    names = next(lines, [])
    check_header(path, names)

    def rows() -> _Rows:
        for cells in lines:
            if len(cells) == len(names):
                yield dict(zip(names, cells, strict=True))
            elif cells:
                yield cells

    return names, rows()


def _cells(path: Path) -> Iterator[list[str]]:
    try:
        with path.open("rb") as file:
            begin = file.peek(4)
            if other := next((told for mark, told in _OTHERS.items() if begin.startswith(mark)), ""):
                raise InputError(f"{path} is {other}")
            # One text of another encoding spoils its own row, and that only if it is read.
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            yield from csv.reader(short_lines(text, path, limit=_LINE), strict=True)
    except csv.Error as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _parquet(path: Path, columns: Sequence[str]) -> tuple[list[str], _Rows]:
    # As a dictionary, a long text that is named in every row stays one text.
    file = open_parquet(path, texts=columns)
    names = list(file.schema_arrow.names)
    return names, _parquet_rows(path, file, [name for name in columns if name in names])


def _parquet_rows(path: Path, file: Any, columns: Sequence[str]) -> _Rows:
    from pyarrow import ArrowException, compute, types  # noqa: PLC0415 - an optional extra

    try:
        with file:
            for batch in file.iter_batches(1_000, columns=columns):
                for column in (one for one in batch.columns if types.is_dictionary(one.type)):
                    if (compute.max(compute.binary_length(column.dictionary)).as_py() or 0) > _LONGEST_PACKED:
                        raise InputError(f"{path} holds a text of more than {_LONGEST_PACKED} bytes")
                yield from batch.to_pylist()
    except InputError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _lines(path: Path, name: str, columns: LabelFields) -> Iterator[LabelRow]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE):
            number += 1
            where = f"{name} line {number}"
            if not line.endswith(b"\n") and len(line) == _LINE:
                told, reason, ends = f"a line of more than {_LINE} bytes", "malformed", _ends(file)
                if not ends:
                    told, reason = f"{told}, whose end was not found: what follows was not read", "unreadable"
                yield LabelRow(where, [], [DeadLetter(reason, told, where, content=line[:1000])])
                if not ends:
                    return
            elif line.strip():
                yield read_label_message(line, where, columns)
            else:
                yield LabelRow(where, [], [])


def _ends(file: IO[bytes]) -> bool:
    """Skip the rest of a line; False where it is endless, as a device's is."""
    for _ in range((64 << 20) // _LINE):
        more = file.readline(_LINE)
        if not more or more.endswith(b"\n"):
            return True
    return False


def read_label_rows(path: Path, name: str = "", columns: LabelFields = USUAL) -> Iterator[LabelRow]:
    """Read the rows of a file called ``name``; InputError at once where it is no table of labels.

    Where it breaks off in the middle, its last row is a dead letter that says so. What is called neither
    .parquet nor .jsonl or .ndjson is read as CSV, once and in order, so it may be a pipe. OSError is not
    wrapped.
    """
    name, kind = name or str(path), path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        return _lines(path, name, columns)
    names, rows = _parquet(path, list(columns.names.values())) if kind == ".parquet" else _csv(path)
    columns.check(names, name)
    return _table(rows, path, name, columns)

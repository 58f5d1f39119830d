"""Labels of a file or of a message, row by row; bad ones become dead letters, each alone.

Files are CSV, Parquet or JSON lines, and are streamed: a row, or a thousand of Parquet, at a time.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, NamedTuple

from calib_serve.core.data_files import check_header, open_parquet, parquet_errors
from calib_serve.core.errors import InputError, Refused
from calib_serve.core.files import short_lines
from calib_serve.core.names import shown
from calib_serve.core.options.label import LabelColumns
from calib_serve.receipts import read_json

_LONGEST = 10_000  # characters of a text: a receipt has a tenth of that
_LONGEST_PACKED = 1 << 16  # bytes of a text of Parquet, before it is unpacked
_LINE = 1 << 20  # bytes, or characters

_Rows = Iterator["dict[str, Any] | list[str]"]
"""By column, or the cells of a row that has more or fewer than the header."""

# How files begin that are called .csv and are none.
_OTHERS = {
    b"\x1f\x8b": "compressed; unpack it",
    b"PK": "an archive or a workbook; save the table as CSV",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PAR1": "Parquet; let its name end with .parquet",
}


@dataclass(frozen=True)
class DeadLetter:
    """A label that cannot be counted.

    Args:
        reason: Reason of a refused label, or "unreadable" of a file.
        message: The same in words.
        where: The place that it came from.
        item: Value of its JSON, where it has one.
        content: Bytes as they came; None: ``item`` says it.
        time: Seconds since 1970.
    """

    reason: str
    message: str
    where: str
    item: Any = None
    content: bytes | None = None
    time: float = field(default_factory=time.time)

    def json(self) -> bytes:
        """Write a line of JSON: a label and a field ``dead``, which readers of labels pass over."""
        dead = {"reason": self.reason, "message": self.message, "where": self.where, "time": self.time}
        found: dict[str, Any] = {"item": self.item}
        if self.content is not None:
            found = _content(self.content)
        elif isinstance(self.item, dict):
            found = self.item
        # A table may hold what JSON has no form for, such as a time.
        return json.dumps({**found, "dead": dead}, default=str).encode()


def _content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _check_columns(columns: LabelColumns, there: Sequence[str], name: str) -> None:
    """Raise InputError where the table called ``name`` lacks a column that is needed."""
    lack = [one for one in columns.asked if one not in there]
    either = [columns.names[one] for one in ("receipt", "id") if one in columns.names]
    if not set(either) & set(there):
        lack = [" or ".join(either), *(one for one in lack if one not in either)]
    if lack:
        raise InputError(
            f"{name} has no column {', '.join(lack)}, it has {', '.join(map(shown, there))}"[:400]
            + "; name yours: --column id=NAME (id_column=), receipt=NAME, label=NAME"
        )


USUAL = LabelColumns()
"""receipt or id, and label."""


class LabelRow(NamedTuple):
    """The labels of a row or a message, as the watch takes them, and its dead letters."""

    where: str
    labels: list[dict[str, Any]]
    dead: list[DeadLetter]


def read_label_message(content: bytes | None, where: str, columns: LabelColumns = USUAL) -> LabelRow:
    """Read a label, or a list of them, of JSON.

    >>> read_label_message(b'[{"id": "order-17", "label": 3.0, "at": "noon"}, 7]', "t/0@9").labels
    [{'id': 'order-17', 'label': 3}]
    """
    try:
        found = read_json((content or b"").decode())
    except ValueError:
        return LabelRow(where, [], [DeadLetter("malformed", "it is no JSON", where, content=content or b"")])
    rows = [read_label(one, where, columns) for one in (found if isinstance(found, list) else [found])]
    return LabelRow(
        where, [one for row in rows for one in row.labels], [one for row in rows for one in row.dead]
    )


def read_label(item: Any, where: str, columns: LabelColumns = USUAL) -> LabelRow:
    """Read one label; an invalid one is not sent, as its whole batch would be refused for it."""
    if not isinstance(item, Mapping):
        told = 'a label is an object, such as {"id": "order-17", "label": 3}'
        return LabelRow(where, [], [DeadLetter("malformed", told, where, item=item)])
    found = {field: item[name] for field, name in columns.names.items() if not _missing(item.get(name))}
    if columns.by:
        found["by"] = columns.by
    try:
        return LabelRow(where, [_label(found)], [])
    except Refused as refusal:
        return LabelRow(
            where, [], [DeadLetter(refusal.reason, str(refusal), where, item=found or dict(item))]
        )


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _label(found: Mapping[str, Any]) -> dict[str, Any]:
    """The label to send, from these fields; Refused for invalid ones."""
    for value in found.values():
        if isinstance(value, str):
            _check_text(value)
    sent: dict[str, Any] = {}
    if "receipt" in found:
        sent["receipt"] = _text(found["receipt"], "receipt")
    elif "id" in found:
        sent |= {one: _text(found[one], one) for one in ("id", "model") if one in found}
    else:
        raise Refused("malformed", "it has neither a receipt nor an id")
    if "label" not in found:
        raise Refused("bad_label", "it has no label")
    by = found.get("by")  # a column of that name may also say who labelled
    sent["label"] = _class(found["label"], by)
    if by in ("id", "name"):
        sent["by"] = by
    if "segment" in found:
        sent["segment"] = _text(found["segment"], "segment")
    return sent


def _check_text(text: str) -> None:
    if len(text) > _LONGEST:
        raise Refused("malformed", f"a text has {len(text)} characters, of which it may have {_LONGEST}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused("malformed", f"the text {shown(text)} is not UTF-8") from error


def _whole(value: Any) -> Any:
    """A whole number from the float or decimal in which pandas or a database wrote it.

    >>> _whole(3.0), _whole(3.5), _whole(Decimal("7.00")), _whole(1e300), _whole("3.0")
    (3, 3.5, 7, 1e+300, '3.0')
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return value


def _text(value: Any, what: str) -> str:
    whole = _whole(value)
    if isinstance(whole, int) and not isinstance(whole, bool):
        return str(whole)
    if not isinstance(value, str):
        raise Refused("malformed", f"its {what} is neither a text nor a whole number: {shown(value)}")
    return value


def _class(value: Any, by: Any) -> Any:
    if not isinstance(value, (str, bool, int, float, Decimal)):
        raise Refused("malformed", f"its label is neither a text nor a number: {shown(value)}")
    if by == "name":
        return str(value)
    whole = _whole(value)
    if isinstance(whole, (float, Decimal)):
        raise Refused("bad_label", f"a label is a class id or a class name, got {str(value)[:40]}")
    return whole


def _table(rows: _Rows, path: Path, columns: LabelColumns) -> Iterator[LabelRow]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            where = f"{path} row {number}"
            if isinstance(row, dict):
                yield read_label(row, where, columns)
            else:
                told = f"it has {len(row)} cells, the header has others; a text with a comma needs quotes"
                yield LabelRow(where, [], [DeadLetter("malformed", told, where, item=row)])
    except InputError as error:
        where = f"{path} behind row {number}"
        yield LabelRow(where, [], [DeadLetter("unreadable", str(error), where, item={"file": str(path)})])


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
    from pyarrow import compute, types  # noqa: PLC0415 - an optional extra

    with parquet_errors(path), file:
        for batch in file.iter_batches(1_000, columns=columns):
            for column in (one for one in batch.columns if types.is_dictionary(one.type)):
                if (compute.max(compute.binary_length(column.dictionary)).as_py() or 0) > _LONGEST_PACKED:
                    raise InputError(f"{path} holds a text of more than {_LONGEST_PACKED} bytes")
            yield from batch.to_pylist()


def _lines(path: Path, columns: LabelColumns) -> Iterator[LabelRow]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE):
            number += 1
            where = f"{path} line {number}"
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


def read_label_rows(path: Path, columns: LabelColumns = USUAL) -> Iterator[LabelRow]:
    """Read the rows of a file; InputError at once where it is no table of labels.

    Where it breaks off in the middle, its last row is a dead letter that says so. What is called neither
    .parquet nor .jsonl or .ndjson is read as CSV, once and in order, so it may be a pipe. OSError is not
    wrapped.
    """
    kind = path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        return _lines(path, columns)
    names, rows = _parquet(path, list(columns.names.values())) if kind == ".parquet" else _csv(path)
    _check_columns(columns, names, str(path))
    return _table(rows, path, columns)

"""The labels in a message of JSON, or in a file: CSV, Parquet, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calib_serve.collect.source import DeadLetter
from calib_serve.errors import InputError
from calib_serve.watch.items import read_json
from calib_serve.watch.sender import LABEL_COLUMNS, read_labels

__all__ = ["KINDS", "Row", "read_label", "read_message", "read_rows"]

KINDS = (".csv", ".parquet", ".jsonl", ".ndjson")
"""How the name of a file of labels ends."""

Row = tuple[list[dict[str, Any]], list[DeadLetter]]
"""The labels of a row, and what of it can be none."""

_LONGEST = 10_000  # characters of a text: a receipt has a tenth of that
_LINE = 1 << 20  # bytes


def read_message(content: bytes | None, where: str) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    """The labels in it, of their known fields, and what can be none.

    >>> read_message(b'[{"id": "order-17", "label": 3, "at": "noon"}, 7]', "t/0@9")[0]
    [{'id': 'order-17', 'label': 3}]
    """
    try:
        found = read_json((content or b"").decode())
    except ValueError:
        return [], [DeadLetter("malformed", "it is no JSON", where, content=content or b"")]
    labels, dead = [], []
    for item in found if isinstance(found, list) else [found]:
        kept, letters = read_label(item, where)
        labels += kept
        dead += letters
    return labels, dead


def read_label(item: Any, where: str) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    """The same of one label; what cannot be one is not sent, as its whole batch would be refused for it."""
    if not isinstance(item, dict):
        told = 'a label is an object, such as {"id": "order-17", "label": 3}'
        return [], [DeadLetter("malformed", told, where, item=item)]
    kept = {name: item[name] for name in LABEL_COLUMNS if item.get(name) not in (None, "")}
    for name, value in kept.items():
        if not isinstance(value, (str, int, float, bool)):
            return [], [DeadLetter("malformed", f"{name} is neither a text nor a number", where, item=item)]
        if isinstance(value, str) and len(value) > _LONGEST:
            told = f"{name} has {len(value)} characters, of which a label has at most {_LONGEST}"
            return [], [DeadLetter("malformed", told, where, item=item)]
    return [kept], []


def read_rows(path: Path, name: str) -> Iterator[Row]:
    """The rows of a file that people call ``name``; a dead letter at the end if the rest is unreadable."""
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        yield from _lines(path, name)
        return
    number = 0
    try:
        for number, row in enumerate(read_labels(path), 1):
            yield read_label(row, f"{name} row {number}")
    except InputError as error:
        told = str(error).replace(str(path), name)
        yield [], [DeadLetter("unreadable", told, f"{name} behind row {number}", item={"file": name})]


def _lines(path: Path, name: str) -> Iterator[Row]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE):
            number += 1
            where = f"{name} line {number}"
            if not line.endswith(b"\n") and len(line) == _LINE:
                while (more := file.readline(_LINE)) and not more.endswith(b"\n"):
                    pass
                told = f"a line of more than {_LINE} bytes"
                yield [], [DeadLetter("malformed", told, where, content=line[:1000])]
            elif line.strip():
                yield read_message(line, where)
            else:
                yield [], []

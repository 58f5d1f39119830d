"""The labels in a file: CSV, Parquet, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calib_serve.collect.dead_letters import DeadLetter
from calib_serve.collect.messages import read_label, read_message
from calib_serve.errors import InputError
from calib_serve.watch.sender import read_labels

__all__ = ["KINDS", "Row", "read_rows"]

KINDS = (".csv", ".parquet", ".jsonl", ".ndjson")
"""How the name of a file of labels ends."""

Row = tuple[list[dict[str, Any]], list[DeadLetter]]
"""The labels of a row, and what of it can be none."""

_LONGEST = 1 << 20  # bytes of a line


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
        while line := file.readline(_LONGEST):
            number += 1
            where = f"{name} line {number}"
            if not line.endswith(b"\n") and len(line) == _LONGEST:
                while (more := file.readline(_LONGEST)) and not more.endswith(b"\n"):
                    pass
                told = f"a line of more than {_LONGEST} bytes"
                yield [], [DeadLetter("malformed", told, where, content=line[:1000])]
            elif line.strip():
                yield read_message(line, where)
            else:
                yield [], []

"""The items of a batch from untrusted JSON or NDJSON; bounded before anything is parsed."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

from calib_serve.core.errors import InputError

MOST_ITEMS = 10_000
"""Items of one batch."""

MOST_BRACKETS = 20 * MOST_ITEMS
"""``[`` and ``{`` of one batch: an item has two, more are in names. Millions of empty lists fit into four
megabytes, and take ten times as long to parse as items do."""

_LINE = re.compile(rb"\S[^\n]*")  # NDJSON ends lines by \n alone; JSON takes a \r before it


class TooManyItems(InputError):
    """A batch of more items, or brackets, than allowed."""


def read_document(body: bytes) -> Any:
    """Read a JSON document; TooManyItems where it may be too large, InputError where it is invalid.

    >>> read_document(b'{"items": [1, 2]}')
    {'items': [1, 2]}
    """
    _check_brackets(body)
    try:
        return read_json(body)
    except ValueError as error:
        raise InputError("the body is not JSON") from error


def read_lines(body: bytes) -> list[Any]:
    r"""Read NDJSON, an item a line; None for a line that is not JSON. TooManyItems beyond the limit.

    >>> read_lines(b"1\n\n[\n2\n")
    [1, None, 2]
    """
    # Lines are counted before any is parsed: two million of them fit into four megabytes.
    lines = [found.group() for found in islice(_LINE.finditer(body), MOST_ITEMS + 1)]
    check_number(len(lines), "more")
    _check_brackets(body)
    return [_line(line) for line in lines]


def check_number(items: int, told: str = "") -> None:
    """Check the number of items of a batch.

    Args:
        items: Number of items.
        told: The same for the error; empty: the number itself.

    Raises:
        TooManyItems: Where it is too large.
    """
    if items > MOST_ITEMS:
        raise TooManyItems(f"a batch has at most {MOST_ITEMS} items, got {told or items}")


def _check_brackets(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") > MOST_BRACKETS:
        raise TooManyItems(f"a batch has at most {MOST_BRACKETS} brackets; send smaller ones")


def read_json(text: bytes | str) -> Any:
    """Read JSON; ValueError for every document that cannot be read, deep ones too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _line(line: bytes) -> Any:
    try:
        return read_json(line)
    except ValueError:
        return None

"""The items of a batch: cut into batches to be sent, and read from untrusted JSON, bounded before parsing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from calib_serve.core.errors import InputError

MOST_ITEMS = 10_000
"""Items of one batch."""

MOST_BRACKETS = 20 * MOST_ITEMS
"""``[`` and ``{`` of one batch: an item has two, more are in names. Millions of empty lists fit into four
megabytes, and take ten times as long to parse as items do."""

WIRE_ITEMS = 500
"""Items of a batch that is sent."""

WIRE_BYTES = 1 << 20
"""Bytes of its JSON: a quarter of what a watch takes, which then keeps the connection."""

T = TypeVar("T")
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


def batch_items(batch: Mapping[str, Any]) -> Any:
    """The items of a batch: that it replaces labels is said of each that does not say so itself.

    >>> batch_items({"items": [{"label": 1}], "replaces": True})
    [{'replaces': True, 'label': 1}]
    """
    items = batch.get("items")
    if "replaces" not in batch or not isinstance(items, list):
        return items
    of_all = {"replaces": batch["replaces"]}
    return [of_all | one if isinstance(one, dict) else one for one in items]


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


def in_batches(items: Iterable[T], size: Callable[[T], int], *, most: int = WIRE_ITEMS) -> Iterator[list[T]]:
    """Group items in their order into batches to be sent, of ``WIRE_BYTES`` unless one alone has more.

    Args:
        items: Items.
        size: The bytes that an item takes over the wire.
        most: Items of a batch.
    """
    batch, held = list[T](), 0
    for item in items:
        more = size(item)
        if batch and (len(batch) == most or held + more > WIRE_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += more
    if batch:
        yield batch


def row_size(row: Any) -> int:
    """The bytes that plain values for JSON take over the wire."""
    return len(json.dumps(row)) + 2

"""Replies of a server as their clients read them: numbers and format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LEAVES = {str, int, float, bool, type(None)}
Leaf = Union["Rounded", str]
"""A number, or a text without its numbers."""


def as_json(reply: Any) -> Any:
    """A reply as its client reads it: JSON's types; other objects become the names of their types."""
    if isinstance(reply, (dict, list)) and _is_json(reply):
        return reply  # as most are: to write and read it again costs more than to compare it
    if isinstance(reply, (bytes, bytearray)):
        reply = reply.decode("utf-8", "replace")
    if isinstance(reply, str):
        try:
            return json.loads(reply)
        except ValueError:
            return reply
    try:
        return json.loads(json.dumps(reply))
    except (TypeError, ValueError):
        return f"{type(reply).__name__}"


def _is_json(value: Any) -> bool:
    """Whether a dict or list has JSON's own types all the way down."""
    if type(value) is dict and not {*map(type, value)} <= {str}:
        return False
    inside = [*value.values()] if type(value) is dict else value
    types = {*map(type, inside)}
    return types <= _LEAVES or (
        types <= _LEAVES | {dict, list} and all(_is_json(one) for one in inside if type(one) in (dict, list))
    )


class Rounded(NamedTuple):
    """A number in a reply.

    Args:
        value: The number as it is written.
        step: Unit that it is rounded to.
    """

    value: float
    step: float


def leaves(reply: Any, place: str = "reply") -> dict[str, Leaf]:
    """Map each place in a reply to its number or text; numbers inside of texts are read, too.

    Args:
        reply: Parsed JSON.
        place: Name of the reply, with which each place begins.

    >>> leaves({"top": ["cat", 0.25], "says": "cat: 93.5 %"})["reply.says, number 1"]
    Rounded(value=93.5, step=0.1)
    """
    if isinstance(reply, Mapping):
        return {k: v for key, one in reply.items() for k, v in leaves(one, f"{place}.{key}").items()}
    if isinstance(reply, list):
        return {k: v for i, one in enumerate(reply) for k, v in leaves(one, f"{place}[{i}]").items()}
    leaf, numbers = _read_leaf(reply)
    return {place: leaf} | {f"{place}, number {i}": one for i, one in enumerate(numbers, 1)}


def value_at(reply: Any, path: Sequence[str | int]) -> Any:
    """The part of a reply at a path; None where there is none.

    Args:
        reply: Parsed JSON.
        path: Keys and positions, from the outside.
    """
    for step in path:
        is_item = isinstance(reply, list) and isinstance(step, int) and step < len(reply)
        if not is_item and not (isinstance(reply, Mapping) and step in reply):
            return None
        reply = reply[step]
    return reply


def leaf_of(reply: Any, path: Sequence[str | int]) -> Leaf | None:
    """The number or text at a path of a reply; None where there is none.

    Args:
        reply: Parsed JSON.
        path: Keys and positions, from the outside; "#1" behind a text is the first number in it.

    >>> leaf_of({"says": "cat: 93.5 %"}, ("says", "#1"))
    Rounded(value=93.5, step=0.1)
    """
    last = path[-1] if path else ""
    text = value_at(reply, path[:-1]) if isinstance(last, str) and last.startswith("#") else None
    if isinstance(text, str):
        numbers, at = _read_leaf(text)[1], int(str(last)[1:]) - 1
        return numbers[at] if at < len(numbers) else None
    value = value_at(reply, path)
    return None if value is None or isinstance(value, (Mapping, list)) else _read_leaf(value)[0]


def _read_leaf(value: Any) -> tuple[Leaf, list[Rounded]]:
    """A leaf, and the numbers inside of it where it is a text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _shown(repr(value)), []
    # Longer texts are pictures and such.
    if not isinstance(value, str) or len(value) > 4_000:
        return str(value), []
    numbers = _NUMBER.findall(value)
    # A number that came as text is a number to its reader.
    if [value.strip()] == numbers:
        return _shown(numbers[0]), []
    return _NUMBER.sub("#", value), [_shown(text) for text in numbers]


def _shown(text: str) -> Rounded:
    mantissa, _, exponent = text.lower().partition("e")
    if "n" in mantissa:  # NaN or infinite
        return Rounded(float(text), 0.0)
    return Rounded(float(text), 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def same_format(before: Any, after: Any) -> bool:
    """Whether two replies have the same keys, lengths and types all the way down: one parser reads both.

    Keys of mappings whose values are numbers may be class names, whose order is the scores': they may differ.
    A list of labels may be of another length, as thresholds decide it; one of fractions may not.

    Args:
        before: Parsed JSON.
        after: Parsed JSON.

    >>> same_format({"cat": 0.9}, {"dog": 0.5}), same_format([1, 2], "x")
    (True, False)
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        if all(isinstance(v, (int, float)) for v in (*before.values(), *after.values())):
            return len(before) == len(after)
        return set(before) == set(after) and all(same_format(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        fractions = any(isinstance(one, float) for one in (*before, *after))
        return (len(before) == len(after) or not fractions) and all(map(same_format, before, after))
    numbers = (int, float)
    return type(before) is type(after) or (isinstance(before, numbers) and isinstance(after, numbers))

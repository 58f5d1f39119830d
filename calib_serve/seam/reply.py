"""Read a handler's replies: their format, and the numbers in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from calib_serve.metrics import sigmoid, softmax

__all__ = ["Leaf", "Shown", "as_json", "leaves", "same_format", "shown_as", "shows"]

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LONGEST = 4_000  # characters of a text whose numbers are read: pictures and such are longer

_CLOSE = 2e-3  # replies round to three decimals at least, or else show no confidence


def as_json(reply: Any) -> Any:
    """A reply as its client reads it: JSON's types; text stays text, and other objects become their text."""
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


class Shown(NamedTuple):
    """A number in a reply, and the unit that it is rounded to."""

    value: float
    step: float


Leaf = Union[Shown, str]
"""A number, or a text without its numbers."""


def leaves(reply: Any, place: str = "reply") -> dict[str, Leaf]:
    """All numbers and texts of a reply, also the numbers inside of texts, by where they are.

    >>> leaves({"top": ["cat", 0.25], "says": "cat: 93.5 %"})["reply.says, number 1"]
    Shown(value=93.5, step=0.1)
    """
    if isinstance(reply, Mapping):
        return {k: v for key, one in reply.items() for k, v in leaves(one, f"{place}.{key}").items()}
    if isinstance(reply, list):
        return {k: v for i, one in enumerate(reply) for k, v in leaves(one, f"{place}[{i}]").items()}
    if isinstance(reply, (int, float)) and not isinstance(reply, bool):
        return {place: _shown(repr(reply))}
    if not isinstance(reply, str) or len(reply) > _LONGEST:
        return {place: str(reply)}
    numbers = _NUMBER.findall(reply)
    if [reply.strip()] == numbers:
        return {place: _shown(numbers[0])}
    found: dict[str, Leaf] = {place: _NUMBER.sub("#", reply)}
    return found | {f"{place}, number {i}": _shown(text) for i, text in enumerate(numbers, 1)}


def _shown(text: str) -> Shown:
    number = Decimal(text) if text.lower() not in ("nan", "inf", "-inf") else None
    if number is None:
        return Shown(float(text), 0.0)
    exponent = number.as_tuple().exponent
    return Shown(float(number), 10.0**exponent if isinstance(exponent, int) else 0.0)


def same_format(before: Any, after: Any) -> bool:
    """Whether both have the same keys, lengths and types all the way down, so that one parser reads both.

    Keys of mappings whose values are numbers may be class names, whose order is the scores': they may differ.
    A list of labels may be of another length, as thresholds decide it; one of fractions may not.

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


def shown_as(reply: Any, row: Sequence[float]) -> Literal["sigmoid", "softmax"] | None:
    """What a reply makes of a row of scores (K,), as far as its numbers show."""
    shown, z = _numbers(reply), np.array([row])
    if len(row) > 1 and _holds(shown, softmax(z).max()):
        return "softmax"
    each = sigmoid(z)[0].tolist()
    found = [
        x for x in shown if any(_holds([x], p) for p in (*each, *(1 - p for p in each if len(each) == 1)))
    ]
    # Most of its numbers: among many logits, some are like a sigmoid by chance.
    return "sigmoid" if len(found) >= min(2, len(row)) and 2 * len(found) > len(shown) else None


def shows(reply: Any, confidence: float) -> bool:
    """Whether one of the numbers in a reply is the ``confidence``, as a share or in percent."""
    return _holds(_numbers(reply), confidence)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, str):
        try:
            return [float(value.strip().rstrip("%"))]
        except ValueError:
            return []
    return [float(value)] if isinstance(value, float) else []


def _holds(numbers: list[float], wanted: float) -> bool:
    return any(abs(x - wanted) < _CLOSE or abs(x - 100 * wanted) < 100 * _CLOSE for x in numbers)

"""Replies of a server as their clients read them: numbers, format, and the activation that they show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Union

import numpy as np

from calib_serve.scores.kinds import sigmoid, softmax

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LONGEST_TEXT = 4_000  # characters of a text whose numbers are read: pictures and such are longer
Leaf = Union["Rounded", str]
"""A number, or a text without its numbers."""


def as_json(reply: Any) -> Any:
    """A reply as its client reads it: JSON's types; other objects become the names of their types."""
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
    if isinstance(reply, (int, float)) and not isinstance(reply, bool):
        return {place: _shown(repr(reply))}
    if not isinstance(reply, str) or len(reply) > _LONGEST_TEXT:
        return {place: str(reply)}
    numbers = _NUMBER.findall(reply)
    # A number that came as text is a number to its reader.
    if [reply.strip()] == numbers:
        return {place: _shown(numbers[0])}
    found: dict[str, Leaf] = {place: _NUMBER.sub("#", reply)}
    return found | {f"{place}, number {i}": _shown(text) for i, text in enumerate(numbers, 1)}


def _shown(text: str) -> Rounded:
    number = Decimal(text)
    exponent = number.as_tuple().exponent  # a letter, of NaN and of the infinite
    return Rounded(float(number), 10.0**exponent if isinstance(exponent, int) else 0.0)


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


def shown_as(reply: Any, row: Sequence[float]) -> Literal["sigmoid", "softmax"] | None:
    """The activation that a reply applies to scores, as far as its numbers show; None: neither.

    Args:
        reply: Parsed JSON.
        row: Scores of one sample (K,).
    """
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
    """Whether one of the numbers in a reply is the confidence, as a share or in percent.

    Args:
        reply: Parsed JSON.
        confidence: Probability of the predicted class.
    """
    return _holds(_numbers(reply), confidence)


def _numbers(reply: Any) -> list[float]:
    """List a reply's numbers, those inside of texts too; whole ones are class ids or counts."""
    return [one.value for one in leaves(reply).values() if isinstance(one, Rounded) and one.step < 1]


def _holds(numbers: list[float], wanted: float) -> bool:
    # Replies round to three decimals at least, or else show no confidence.
    return any(abs(x - wanted) < 2e-3 or abs(x - 100 * wanted) < 0.2 for x in numbers)

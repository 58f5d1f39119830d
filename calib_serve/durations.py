"""Lengths of time as people write them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from calib_serve.errors import InputError

__all__ = ["as_duration", "parse_duration"]

_UNITS: Mapping[str, float] = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


def parse_duration(text: str, *, what: str = "a time") -> float:
    """Seconds of "0", "90s", "30m", "6h" or "7d"; InputError, which names ``what``, for anything else.

    >>> parse_duration("6h"), parse_duration("90")
    (21600.0, 90.0)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InputError(f"{what} is a number with s, m, h or d, such as 6h; got {text!r}")
    return seconds


def as_duration(seconds: float) -> str:
    """The inverse, in the largest unit that gives a whole number.

    >>> as_duration(2_592_000.0), as_duration(5400.0), as_duration(0.5)
    ('30d', '90m', '0.5s')
    """
    for unit, size in _UNITS.items():
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"

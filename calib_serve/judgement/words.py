"""Numbers as they stand in sentences."""

from __future__ import annotations

import math

__all__ = ["MINUS", "chance", "percent", "points", "rounded_up", "signed_points"]

MINUS = "\N{MINUS SIGN}"


def percent(value: float, digits: int = 1) -> str:
    r"""A fraction in percent.

    >>> percent(0.0475)
    '4.8\xa0%'
    """
    return "unknown" if not math.isfinite(value) else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def points(value: float, digits: int = 1) -> str:
    r"""A difference of two fractions, without its sign.

    >>> points(-0.0362)
    '3.6\xa0points'
    """
    return "unknown" if not math.isfinite(value) else f"{100 * abs(value):.{digits}f}\N{NO-BREAK SPACE}points"


def signed_points(value: float) -> str:
    """A difference of two fractions in points, with its sign.

    >>> signed_points(0.0412), signed_points(-0.0001)
    ('+4.1', '0.0')
    """
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def chance(p: float) -> str:
    """How small a chance is.

    >>> chance(0.0004), chance(0.0312)
    ('less than one in a thousand', '0.031')
    """
    return "less than one in a thousand" if p < 0.001 else f"{min(p, 1):.3f}"


def rounded_up(number: float) -> int:
    """To two digits, upwards.

    >>> rounded_up(12_345)
    13000
    """
    unit = int(10.0 ** max(math.floor(math.log10(max(number, 1))) - 1, 0))
    return math.ceil(number / unit) * unit

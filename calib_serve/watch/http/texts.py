"""Numbers as the page writes them; what is not known is "n/a"."""

from __future__ import annotations

import math
import time

from calib_serve.receipts import DAY
from calib_serve.watch.estimates import Number

__all__ = ["between", "count", "duration", "interval", "percent", "plain", "signed", "when"]


def when(seconds: float) -> str:
    """A moment, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if math.isfinite(seconds) else "unknown"


def duration(seconds: float) -> str:
    """Two or more of its unit."""
    for unit, size in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def count(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}" if math.isfinite(value) else "n/a"


def percent(value: float, digits: int = 1) -> str:
    """A share in percent."""
    return "n/a" if math.isnan(value) else f"{value * 100:.{digits}f} %"


def signed(value: float) -> str:
    """A difference of shares, in points."""
    return "n/a" if math.isnan(value) else f"{value * 100:+.1f} points"


def between(number: Number) -> str:
    """The ends of an interval, in points."""
    if math.isnan(number.low):
        return "not known"
    return f"{number.low * 100:.1f} to {number.high * 100:.1f}"


def interval(number: Number) -> str:
    """A difference and its interval, in points."""
    return "n/a" if math.isnan(number.value) else f"{number.value * 100:+.1f} ({between(number)})"


def plain(value: float) -> str:
    """A number without a unit."""
    return "n/a" if math.isnan(value) else f"{value:.3f}"

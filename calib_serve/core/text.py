"""Numbers as text for sentences and tables of commands, the report and the watch page."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "unknown"
_UNIT = "\N{NO-BREAK SPACE}"

NAMED_IN_A_SENTENCE = 10
"""Classes or labels that a sentence names; of more it names these."""
NAMED_IN_A_MESSAGE = 5
"""Names, ids or labels that an error shows of many."""


def a_few(names: Iterable[object]) -> str:
    """Name the first of some names, and how many more there are.

    >>> a_few(["cat", "dog"]), a_few(range(12))
    ('cat, dog', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more')
    """
    every = [str(name) for name in names]
    more = len(every) - NAMED_IN_A_SENTENCE
    return ", ".join(every[:NAMED_IN_A_SENTENCE]) + (f" and {more:,} more" if more > 0 else "")


def percent(value: float, digits: int = 1) -> str:
    r"""Write a fraction in percent.

    >>> percent(0.0475)
    '4.8\xa0%'
    """
    return f"{100 * value:.{digits}f}{_UNIT}%" if math.isfinite(value) else UNKNOWN


def percent_change(before: float, after: float) -> str:
    r"""Write two fractions in percent, one after the other.

    >>> percent_change(0.255, 0.0339)
    '25.5 -> 3.4\xa0%'
    """
    return f"{percent(before).removesuffix(f'{_UNIT}%')} -> {percent(after)}"


def metric(value: float, *, share: bool, sign: bool = False) -> str:
    r"""Write a metric as tables have it: a share in percent to two digits, else to four; with its sign.

    >>> metric(0.0123, share=True), metric(0.25, share=False, sign=True), metric(math.inf, share=False)
    ('1.23\xa0%', '+0.2500', 'infinite')
    """
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else "infinite"
    plus = "+" if sign else ""
    text = f"{100 * value:{plus}.2f}{_UNIT}%" if share else f"{value:{plus}.4f}"
    return text.replace("-", MINUS)


def points(value: float) -> str:
    r"""Write a difference of two fractions in points, without its sign.

    >>> points(-0.0362)
    '3.6\xa0points'
    """
    return f"{100 * abs(value):.1f}{_UNIT}points" if math.isfinite(value) else UNKNOWN


def signed_points(value: float) -> str:
    """Write a difference of two fractions in points, with its sign.

    >>> signed_points(0.0412), signed_points(-0.0001)
    ('+4.1', '0.0')
    """
    if not math.isfinite(value):
        return UNKNOWN
    text = f"{100 * value:+.1f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", MINUS)


def span(low: float, high: float, digits: int = 1) -> str:
    """Write the ends of an interval of fractions, in percent or points.

    >>> span(0.031, 0.0542)
    '3.1 to 5.4'
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return UNKNOWN
    return f"{100 * low:.{digits}f} to {100 * high:.{digits}f}".replace("-", MINUS)


def printable(text: str) -> str:
    r"""A user's text on one line, without control and direction characters, and shortened.

    >>> printable("cat\x00\u202egod")
    'cat��god'
    """
    # A right-to-left mark in a class name would turn round what stands beside it.
    clean = "".join(ch if ch.isprintable() else "\N{REPLACEMENT CHARACTER}" for ch in str(text))
    return clean if len(clean) <= 80 else f"{clean[:79]}…"


def fact_lines(name: str, value: Any) -> list[tuple[str, str]]:
    """Write a fact for people, a line for each value in it, named by its place; none for an empty one.

    >>> fact_lines("fit", {"steps": [{"kind": "mixture"}], "shares": [0.25, 0.75], "note": ""})
    [('fit: steps 1: kind', 'mixture'), ('fit: shares', '0.25, 0.75')]
    """
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in fact_lines(f"{name}: {key}", item)]
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return [line for i, item in enumerate(value, 1) for line in fact_lines(f"{name} {i}", item)]
    if value in (None, "", []):
        return []
    found = value if isinstance(value, list) else [value]
    text = ", ".join(f"{one:.6g}" if isinstance(one, float) else str(one) for one in found[:12])
    more = f" and {len(found) - 12} more" if len(found) > 12 else ""
    return [(printable(name), printable(text + more))]


def file_size(count: float) -> str:
    """Write a number of bytes.

    >>> file_size(94_208), file_size(1.25e7)
    ('94.2 kB', '12.5 MB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def count(value: float) -> str:
    """Write a number of things.

    >>> count(12345.0)
    '12,345'
    """
    return f"{value:,.0f}" if math.isfinite(value) else UNKNOWN


def decimals(value: float, digits: int = 3) -> str:
    """Write a number without a unit.

    >>> decimals(0.71349)
    '0.713'
    """
    return f"{value:.{digits}f}".replace("-", MINUS) if math.isfinite(value) else UNKNOWN


def when(seconds: float) -> str:
    """Write a moment, given in seconds since 1970, in UTC.

    >>> when(86400.0), when(1e300)
    ('1970-01-02 00:00 UTC', 'after the year 9999')
    """
    if seconds >= 253_402_300_800.0:  # beyond the calendar, as after an endless time to live
        return "after the year 9999"
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if math.isfinite(seconds) else UNKNOWN


def chance(p: float) -> str:
    """Write a small probability.

    >>> chance(0.0004), chance(0.0312)
    ('less than one in a thousand', '0.031')
    """
    return "less than one in a thousand" if p < 0.001 else f"{min(p, 1):.3f}"


def p_value(p: float) -> str:
    """Write a p-value in brackets, behind the tested number; "" where nothing was tested.

    >>> p_value(0.0004), p_value(0.0312)
    (' (p < 0.001)', ' (p = 0.031)')
    """
    small = small_p(p)
    return f" (p {small if small[0] == '<' else f'= {small}'})" if small else ""


def small_p(p: float) -> str:
    """Write a p-value for tables; "" where nothing was tested.

    >>> small_p(0.0004), small_p(0.0312)
    ('< 0.001', '0.031')
    """
    return "" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def rounded_up(number: float) -> int:
    """Round up to two digits.

    >>> rounded_up(12_345)
    13000
    """
    unit = int(10.0 ** max(math.floor(math.log10(max(number, 1))) - 1, 0))
    return math.ceil(number / unit) * unit

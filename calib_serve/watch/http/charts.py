"""Promises and error budgets as bars: SVG of states, styled by the page's stylesheet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calib_serve.pages.charts import WIDE, picture
from calib_serve.watch.contracts import ClauseState

__all__ = ["budget_bar", "digits", "promise_bar"]

_EDGE = 6.0
_AROUND = 0.25  # of it on either side


def digits(one: ClauseState) -> int:
    """Of percent, as many as tell the errors that are promised apart: 1 for 98 %, 3 for 99.99 %."""
    clause = one.clause
    allowed = clause.promise if clause.kind == "calibration" else 1 - clause.promise
    return max(math.ceil(-math.log10(allowed) - 1e-9) - 1, 1)


@dataclass(frozen=True)
class _Scale:
    """Maps shares in [low, high] to the drawing."""

    low: float
    high: float

    @classmethod
    def around(cls, *shares: float, least: float) -> _Scale:
        known = [one for one in shares if math.isfinite(one)]
        span = max(max(known) - min(known), least)
        return cls(max(min(known) - _AROUND * span, 0.0), min(max(known) + _AROUND * span, 1.0))

    def x(self, share: float) -> float:
        inside = min(max((share - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(_EDGE + inside * (WIDE - 2 * _EDGE), 2)


def promise_bar(one: ClauseState) -> str:
    """The value with its confidence sequence, and the promise; shaded: where it is kept."""
    promise, at_most = one.clause.promise, one.clause.kind == "calibration"
    places = digits(one)
    scale = _Scale.around(promise, one.value, one.low, one.high, least=2 * 10.0 ** -(places + 1))
    line, middle = scale.x(promise), (_EDGE + WIDE - _EDGE) / 2
    kept = (_EDGE, line) if at_most else (line, WIDE - _EDGE)
    parts = [
        f'<rect class="floor" x="{kept[0]:g}" y="20" width="{kept[1] - kept[0]:.2f}" height="22"/>',
        f'<line class="grid" x1="{_EDGE}" x2="{WIDE - _EDGE}" y1="31" y2="31"/>',
    ]
    if math.isfinite(one.low) and math.isfinite(one.high):
        low, high = scale.x(one.low), scale.x(one.high)
        parts.append(f'<rect class="bar" x="{low}" y="26" width="{max(high - low, 1):.2f}" height="10"/>')
        parts += [
            f'<line class="interval after" x1="{x}" x2="{x}" y1="24" y2="38"/>'
            for x in dict.fromkeys((low, high))
        ]
    if math.isfinite(one.value):
        parts.append(f'<circle class="dot after" cx="{scale.x(one.value)}" cy="31" r="4"/>')
    anchor = "start" if line < middle else "end"
    parts += [
        f'<line class="promise" x1="{line}" x2="{line}" y1="17" y2="44"/>',
        f'<text class="tick" x="{line}" y="12" text-anchor="{anchor}">{_promised(promise, at_most)}</text>',
        f'<text class="tick" x="{_EDGE}" y="56">{scale.low:.{places}%}</text>',
        f'<text class="tick" x="{WIDE - _EDGE}" y="56" text-anchor="end">{scale.high:.{places}%}</text>',
    ]
    return picture(_told(one, at_most), 60, parts)


def _promised(promise: float, at_most: bool) -> str:
    return f"promised: {100 * promise:.10g} % or {'less' if at_most else 'more'}"


def _told(one: ClauseState, at_most: bool) -> str:
    told = _promised(one.clause.promise, at_most)
    if math.isfinite(one.value):
        told += f"; by labels {one.value:.{digits(one)}%}"
    if math.isfinite(one.low) and math.isfinite(one.high):
        told += f"; at any time between {one.low:.{digits(one)}%} and {one.high:.{digits(one)}%}"
    return told


def budget_bar(left: float) -> str:
    """The share of the error budget that is left; nothing of one that is not known."""
    if math.isnan(left):
        return ""
    wide = WIDE - 2 * _EDGE
    parts = [f'<rect class="floor" x="{_EDGE}" y="2" width="{wide}" height="12"/>']
    if left > 0:
        parts.append(f'<rect class="left" x="{_EDGE}" y="2" width="{min(left, 1) * wide:.2f}" height="12"/>')
    else:
        parts.append(f'<rect class="spent" x="{_EDGE}" y="2" width="{wide}" height="12"/>')
    told = (
        f"{left:.0%} of the error budget is left"
        if left >= 0
        else f"the error budget is overspent by {-left:.0%}"
    )
    return picture(told, 16, parts)

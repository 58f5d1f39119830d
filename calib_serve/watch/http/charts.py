"""The page's figures as SVG: plain functions of sums and states, styled by the page's own CSS classes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calib_serve.bins import Bins
from calib_serve.receipts import DAY
from calib_serve.watch.contracts import ClauseState
from calib_serve.watch.estimates import BinRow
from calib_serve.watch.ledger import Sums

__all__ = ["Point", "budget_bar", "confidences", "curve", "digits", "promise_bar", "reliability"]

_WIDE, _HIGH, _LEFT, _FOOT, _PAD = 360.0, 300.0, 40.0, 34.0, 10.0


@dataclass(frozen=True)
class _Frame:
    """Maps data in [x0, x1] x [0, top] to the drawing."""

    x0: float = 0.0
    x1: float = 1.0
    top: float = 1.0
    wide: float = _WIDE
    high: float = _HIGH

    def x(self, value: float) -> float:
        span = max(self.x1 - self.x0, 1e-12)
        return round(_LEFT + (value - self.x0) / span * (self.wide - _LEFT - _PAD), 2)

    def y(self, value: float) -> float:
        return round(self.high - _FOOT - min(max(value / self.top, 0), 1) * (self.high - _FOOT - _PAD), 2)

    def svg(self, title: str, parts: Sequence[str]) -> str:
        return (
            f'<svg viewBox="0 0 {self.wide:g} {self.high:g}" role="img" aria-label="{title}">'
            f"<title>{title}</title>{''.join(parts)}</svg>"
        )

    def grid(self, *, percent: bool = True, x_axis: bool = True) -> list[str]:
        """Lines and numbers of the axes."""
        out = []
        for i in range(5):
            share = i / 4
            value = share * self.top
            y = self.y(value)
            text = f"{value:.0%}" if percent and self.top >= 0.2 else f"{value:.1%}"
            out.append(f'<line class="grid" x1="{_LEFT}" x2="{self.wide - _PAD}" y1="{y}" y2="{y}"/>')
            out.append(f'<text class="tick" x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{text}</text>')
            if x_axis:
                out.append(
                    f'<text class="tick" x="{self.x(share)}" y="{self.high - _FOOT + 16}" '
                    f'text-anchor="{"end" if i == 4 else "middle"}">{share:.0%}</text>'
                )
        return out

    def caption(self, text: str) -> str:
        middle = (self.wide + _LEFT) / 2
        return f'<text class="axis" x="{middle:g}" y="{self.high - 3}" text-anchor="middle">{text}</text>'


def reliability(bins: Sequence[BinRow]) -> str:
    """Accuracy against confidence by bin, with 95 % intervals; the diagonal is calibration."""
    f = _Frame()
    parts = [*f.grid(), f'<line class="ideal" x1="{f.x(0)}" y1="{f.y(0)}" x2="{f.x(1)}" y2="{f.y(1)}"/>']
    for row in bins:
        if not row.labels:
            continue
        kind = "fine" if row.low <= row.confidence <= row.high else "off"
        kind = kind if row.covered else "few"
        x = f.x(row.confidence)
        parts += [
            f'<line class="interval {kind}" x1="{x}" x2="{x}" y1="{f.y(row.low)}" y2="{f.y(row.high)}"/>',
            f'<circle class="dot {kind}" cx="{x}" cy="{f.y(row.accuracy)}" r="4"><title>'
            f"confidence {row.confidence:.1%}, accuracy {row.accuracy:.1%}, {int(row.labels)} labels"
            "</title></circle>",
        ]
    return f.svg("Reliability diagram: accuracy against confidence", [*parts, f.caption("confidence")])


def confidences(sums: Sums, reference: Bins | None) -> str:
    """Shares of confidences by bin: served predictions as bars, the artifact's reference as steps."""
    served = sums.predictions if sums.predictions.any() else sums.feedback.count
    share = served / max(served.sum(), 1)
    expected = None if reference is None else reference.count / reference.n
    top = max(float(share.max()), 0.0 if expected is None else float(expected.max()), 0.1)
    f = _Frame(top=math.ceil(top * 10) / 10)
    edges = np.linspace(0, 1, len(share) + 1).tolist()
    parts = f.grid()
    for i, value in enumerate(share.tolist()):
        x, y = f.x(edges[i]), f.y(value)
        parts.append(
            f'<rect class="bar" x="{x + 1:.2f}" y="{y}" width="{f.x(edges[i + 1]) - x - 2:.2f}" '
            f'height="{f.y(0) - y:.2f}">'
            f"<title>{edges[i]:.0%} to {edges[i + 1]:.0%}: {value:.1%}</title></rect>"
        )
    if expected is not None:
        steps = [
            (f.x(edge), f.y(v)) for i, v in enumerate(expected.tolist()) for edge in (edges[i], edges[i + 1])
        ]
        parts.append(f'<polyline class="reference" points="{_points(steps)}"/>')
    return f.svg("Histogram of confidences against the reference", [*parts, f.caption("confidence")])


@dataclass(frozen=True)
class Point:
    """The ECE of predictions made in [start, end), seconds since 1970, with its interval; NaN: not known."""

    start: float
    end: float
    ece: float
    low: float
    high: float


def curve(
    points: Sequence[Point], marks: Sequence[float], *, since: float, until: float, narrow: bool = False
) -> str:
    """ECE by the time of the prediction with 95 % intervals, and incidents as vertical lines.

    Where nothing is known there is a gap. ``since`` and ``until``: the ends of the axis.
    """
    wide, high = _WIDE if narrow else 2 * _WIDE, 0.75 * _HIGH
    known = [p for p in points if math.isfinite(p.ece)]
    if not known or not until > since:
        middle = f'<text class="axis" x="{wide / 2:g}" y="{high / 2:g}" text-anchor="middle">'
        return _Frame(wide=wide, high=high).svg(
            "ECE over time: not enough labels yet", [f"{middle}Not enough labels yet.</text>"]
        )
    # Wide intervals of sparse times must not flatten the rest.
    top = max(0.05, min(2 * max(p.ece for p in known), max(p.high for p in known)))
    f = _Frame(x0=since, x1=until, top=top, wide=wide, high=high)
    parts = f.grid(percent=False, x_axis=False)
    for run in _runs(points):
        # A point alone is drawn as wide as its time.
        ends = [run[0].start, run[0].end] if len(run) == 1 else [(p.start + p.end) / 2 for p in run]
        line = [(f.x(at), p.ece, p.low, p.high) for at, p in zip(ends, run * len(ends), strict=False)]
        upper, lower = [(x, f.y(h)) for x, _, _, h in line], [(x, f.y(w)) for x, _, w, _ in reversed(line)]
        parts.append(f'<polygon class="floor" points="{_points([*upper, *lower])}"/>')
        parts.append(f'<polyline class="ece" points="{_points([(x, f.y(e)) for x, e, *_ in line])}"/>')
    for at in marks:
        if since <= at <= until:
            x = f.x(at)
            parts.append(
                f'<line class="alarm" x1="{x}" x2="{x}" y1="{_PAD}" y2="{f.y(0)}">'
                "<title>incident</title></line>"
            )
    return f.svg("ECE by time of prediction", [*parts, *_times(f), f.caption("time of the prediction, UTC")])


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The stretches in which every point is known and follows the one before."""
    run: list[Point] = []
    for point in points:
        if run and not (math.isfinite(point.ece) and point.start <= run[-1].end):
            yield run
            run = []
        if math.isfinite(point.ece):
            run.append(point)
    if run:
        yield run


def _times(f: _Frame) -> list[str]:
    """Times along the axis, as hours and minutes or as days."""
    form = "%H:%M" if f.x1 - f.x0 <= 2 * DAY else "%b %d"
    parts = []
    last = 4 if f.wide > _WIDE else 2
    for i in range(last + 1):
        at = f.x0 + (f.x1 - f.x0) * i / last
        anchor = "start" if i == 0 else "end" if i == last else "middle"
        text = time.strftime(form, time.gmtime(at))
        parts.append(
            f'<text class="tick" x="{f.x(at)}" y="{f.high - _FOOT + 16}" text-anchor="{anchor}">{text}</text>'
        )
    return parts


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in pairs)


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
        return round(_EDGE + inside * (_WIDE - 2 * _EDGE), 2)


def promise_bar(one: ClauseState) -> str:
    """The value with its confidence sequence, and the promise; shaded: where it is kept."""
    promise, at_most = one.clause.promise, one.clause.kind == "calibration"
    places = digits(one)
    scale = _Scale.around(promise, one.value, one.low, one.high, least=2 * 10.0 ** -(places + 1))
    line, middle = scale.x(promise), (_EDGE + _WIDE - _EDGE) / 2
    kept = (_EDGE, line) if at_most else (line, _WIDE - _EDGE)
    parts = [
        f'<rect class="floor" x="{kept[0]:g}" y="20" width="{kept[1] - kept[0]:.2f}" height="22"/>',
        f'<line class="grid" x1="{_EDGE}" x2="{_WIDE - _EDGE}" y1="31" y2="31"/>',
    ]
    if math.isfinite(one.low) and math.isfinite(one.high):
        low, high = scale.x(one.low), scale.x(one.high)
        parts.append(f'<rect class="bar" x="{low}" y="26" width="{max(high - low, 1):.2f}" height="10"/>')
        parts += [
            f'<line class="interval fine" x1="{x}" x2="{x}" y1="24" y2="38"/>'
            for x in dict.fromkeys((low, high))
        ]
    if math.isfinite(one.value):
        parts.append(f'<circle class="dot fine" cx="{scale.x(one.value)}" cy="31" r="4"/>')
    anchor = "start" if line < middle else "end"
    parts += [
        f'<line class="promise" x1="{line}" x2="{line}" y1="17" y2="44"/>',
        f'<text class="tick" x="{line}" y="12" text-anchor="{anchor}">{_promised(promise, at_most)}</text>',
        f'<text class="tick" x="{_EDGE}" y="56">{scale.low:.{places}%}</text>',
        f'<text class="tick" x="{_WIDE - _EDGE}" y="56" text-anchor="end">{scale.high:.{places}%}</text>',
    ]
    return _svg(_told(one, at_most), 60, parts)


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
    wide = _WIDE - 2 * _EDGE
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
    return _svg(told, 16, parts)


def _svg(title: str, high: int, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDE:g} {high}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )

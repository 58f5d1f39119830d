"""The page's three figures as SVG: plain functions of sums, styled by the page's own CSS classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calib_serve.bins import Bins
from calib_serve.watch.drift.statistics import wilson
from calib_serve.watch.history import Point
from calib_serve.watch.ledger.sums import Sums

__all__ = ["confidences", "curve", "reliability"]

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


def reliability(bins: Bins) -> str:
    """Accuracy against confidence by bin, with 95 % Wilson intervals; the diagonal is calibration."""
    f = _Frame()
    parts = [*f.grid(), f'<line class="ideal" x1="{f.x(0)}" y1="{f.y(0)}" x2="{f.x(1)}" y2="{f.y(1)}"/>']
    low, high = wilson(bins.correct, bins.count)
    for i in np.flatnonzero(bins.count).tolist():
        c, a = bins.confidence[i] / bins.count[i], bins.correct[i] / bins.count[i]
        off = not low[i] <= c <= high[i]
        kind = "off" if off else "fine"
        parts += [
            f'<line class="interval {kind}" x1="{f.x(c)}" x2="{f.x(c)}" '
            f'y1="{f.y(low[i])}" y2="{f.y(high[i])}"/>',
            f'<circle class="dot {kind}" cx="{f.x(c)}" cy="{f.y(a)}" r="4"><title>'
            f"confidence {c:.1%}, accuracy {a:.1%}, {int(bins.count[i])} labels</title></circle>",
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


def curve(points: Sequence[Point], alarms: Sequence[float], *, span: int = 12, least: float = 50) -> str:
    """ECE over time with its noise floor, over ``span`` steps at a time; alarms as vertical lines."""
    rows = []
    for i in range(len(points)):
        window = points[max(0, i - span + 1) : i + 1]
        bins = window[0].sums.feedback
        for point in window[1:]:
            bins = bins + point.sums.feedback
        if bins.n >= least:
            rows.append((points[i].time, bins.ece(), bins.noise_floor()))
    wide, high = 2 * _WIDE, 0.75 * _HIGH
    if len(rows) < 2:
        middle = f'<text class="axis" x="{wide / 2:g}" y="{high / 2:g}" text-anchor="middle">'
        return _Frame(wide=wide, high=high).svg(
            "ECE over time: not enough labels yet",
            [f"{middle}The curve starts after two steps with labels.</text>"],
        )
    top = max(max(ece for _, ece, _ in rows) * 1.1, 0.05)
    f = _Frame(x0=rows[0][0], x1=rows[-1][0], top=top, wide=wide, high=high)
    floor = [(f.x(t), f.y(n)) for t, _, n in rows]
    area = [*floor, (f.x(rows[-1][0]), f.y(0)), (f.x(rows[0][0]), f.y(0))]
    parts = [
        *f.grid(percent=False, x_axis=False),
        f'<polygon class="floor" points="{_points(area)}"/>',
        f'<polyline class="ece" points="{_points([(f.x(t), f.y(e)) for t, e, _ in rows])}"/>',
    ]
    for at in alarms:
        if rows[0][0] <= at <= rows[-1][0]:
            x = f.x(at)
            parts.append(
                f'<line class="alarm" x1="{x}" x2="{x}" y1="{_PAD}" y2="{f.y(0)}"><title>alarm</title></line>'
            )
    hours = (rows[-1][0] - rows[0][0]) / 3600
    says = f"the last {hours:.1f} hours" if hours >= 1 else f"the last {hours * 60:.0f} minutes"
    return f.svg(
        "Expected calibration error over time, its noise floor and alarms", [*parts, f.caption(says)]
    )


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in pairs)

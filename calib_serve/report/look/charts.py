"""Charts of the report and the watch page as SVG: plain functions of numbers, styled by ``look.css``."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

WIDE = 360.0
"""The width of a chart, in its own units."""

_HIGH, _LEFT, _FOOT, _HEAD, _PAD = 300.0, 40.0, 34.0, 20.0, 10.0
_DAY = 86_400.0
_LONGEST = 30  # characters of a name in a legend
_VAGUE = 0.3  # an interval this wide, around what was said, tells too little to be drawn


@dataclass(frozen=True)
class _Frame:
    """The map from data in [x0, x1] x [0, top] to the drawing."""

    x0: float = 0.0
    x1: float = 1.0
    top: float = 1.0
    wide: float = WIDE
    high: float = _HIGH

    def x(self, value: float) -> float:
        span = max(self.x1 - self.x0, 1e-12)
        return round(_LEFT + (value - self.x0) / span * (self.wide - _LEFT - _PAD), 2)

    def y(self, value: float) -> float:
        share = min(max(value / self.top, 0), 1)
        return round(self.high - _FOOT - share * (self.high - _FOOT - _HEAD), 2)

    def svg(self, title: str, parts: Sequence[str]) -> str:
        return picture(title, self.high, parts, wide=self.wide)

    def grid(self, *, x_axis: bool = True) -> list[str]:
        """Draw lines and numbers of the axes."""
        out = []
        digits = 0 if self.top >= 0.2 else 1
        for i in range(5):
            share = i / 4
            y, text = self.y(share * self.top), f"{share * self.top:.{digits}%}"
            out.append(f'<line class="grid" x1="{_LEFT}" x2="{self.wide - _PAD}" y1="{y}" y2="{y}"/>')
            out.append(f'<text class="tick" x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{text}</text>')
            if x_axis:
                anchor = "end" if i == 4 else "middle"
                place = f'x="{self.x(share)}" y="{self.high - _FOOT + 16}" text-anchor="{anchor}"'
                out.append(f'<text class="tick" {place}>{share:.0%}</text>')
        return out

    def captions(self, across: str, up: str) -> str:
        """Name the axes."""
        middle = (self.wide + _LEFT) / 2
        return (
            f'<text class="axis" x="{middle:g}" y="{self.high - 3}" text-anchor="middle">{across}</text>'
            f'<text class="axis" x="4" y="10">{up}</text>'
        )


def picture(title: str, high: float, parts: Sequence[str], *, wide: float = WIDE) -> str:
    """An ``<svg>`` element.

    Args:
        title: Title for screen readers, which holds no user's text.
        high: Height, in the picture's own units.
        parts: Elements, as text.
        wide: Width, in the same units.
    """
    return (
        f'<svg viewBox="0 0 {wide:g} {high:g}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class Dot:
    """Predictions of about one confidence.

    Args:
        confidence: Mean confidence, in [0, 1].
        accuracy: Share of right ones.
        low: Lower end of its interval.
        high: Upper end of its interval.
        share: Their share of all predictions.
        count: Number of samples that accuracy is known from.
    """

    confidence: float
    accuracy: float
    low: float
    high: float
    share: float
    count: float

    @property
    def beyond(self) -> bool:
        """Whether the confidence lies outside of the interval: more than chance."""
        return not self.low <= self.confidence <= self.high

    @property
    def vague(self) -> bool:
        """Whether the interval is too wide to show anything."""
        return not self.beyond and not self.high - self.low < _VAGUE


@dataclass(frozen=True)
class DotSeries:
    """The dots of one model.

    Args:
        name: Name of the model.
        style: "before" or "after".
        dots: Predictions by confidence.
    """

    name: str
    style: str
    dots: Sequence[Dot]


def reliability_diagram(
    series: Sequence[DotSeries], *, across: str = "confidence", up: str = "accuracy"
) -> str:
    """Draw accuracy against confidence with intervals; hollow: more than chance, grey: too few to tell.

    Args:
        series: One model, or two to compare.
        across: Caption of the horizontal axis.
        up: Caption of the vertical axis.
    """
    f = _Frame()
    parts = [*f.grid(), f'<line class="ideal" x1="{f.x(0)}" y1="{f.y(0)}" x2="{f.x(1)}" y2="{f.y(1)}"/>']
    drawn = [(one.style, dot) for one in series for dot in one.dots]
    for style, dot in sorted(drawn, key=lambda one: not one[1].vague):
        x, r = f.x(dot.confidence), round(3 + 4 * math.sqrt(dot.share), 2)
        if not dot.vague:
            ends = f'y1="{f.y(dot.low)}" y2="{f.y(dot.high)}"'
            parts.append(f'<line class="interval {style}" x1="{x}" x2="{x}" {ends}/>')
        kind = "few" if dot.vague else f"{style} beyond" if dot.beyond else style
        told = f"{across} {dot.confidence:.1%}, {up} {dot.accuracy:.1%}, {int(dot.count):,} samples"
        circle = f'<circle class="dot {kind}" cx="{x}" cy="{f.y(dot.accuracy)}" r="{3 if dot.vague else r}">'
        parts.append(f"{circle}<title>{told}</title></circle>")
    parts += _legend([(one.name, one.style) for one in series]) if len(series) > 1 else []
    return f.svg(f"Reliability diagram: {up} against {across}", [*parts, f.captions(across, up)])


def _legend(names: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f'<circle class="dot {style}" cx="{_LEFT + 12:g}" cy="{_HEAD + 14 + 18 * i:g}" r="4"/>'
        f'<text class="{style}" x="{_LEFT + 22:g}" y="{_HEAD + 18 + 18 * i:g}">{_short(name)}</text>'
        for i, (name, style) in enumerate(names)
    ]


def _short(name: str) -> str:
    return html.escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


def histogram(edges: Sequence[float], shares: Sequence[float], reference: Sequence[float] | None) -> str:
    """Draw shares of confidences by bin as bars, and a reference's as steps.

    Args:
        edges: Edges of the bins (bins + 1,).
        shares: Share of the predictions in each bin (bins,).
        reference: The same of the reference (bins,); None: none is drawn.
    """
    top = max(*shares, *(reference or ()), 0.1)
    f = _Frame(top=math.ceil(top * 10) / 10)
    parts = f.grid()
    for low, high, value in zip(edges, edges[1:], shares, strict=False):
        x, y = f.x(low), f.y(value)
        size = f'width="{f.x(high) - x - 2:.2f}" height="{f.y(0) - y:.2f}"'
        told = f"{low:.0%} to {high:.0%}: {value:.1%}"
        parts.append(f'<rect class="bar" x="{x + 1:.2f}" y="{y}" {size}><title>{told}</title></rect>')
    if reference is not None:
        steps = [(f.x(at), f.y(v)) for i, v in enumerate(reference) for at in (edges[i], edges[i + 1])]
        parts.append(f'<polyline class="reference" points="{_points(steps)}"/>')
    return f.svg("Histogram of confidences", [*parts, f.captions("confidence", "share of predictions")])


@dataclass(frozen=True)
class Step:
    """The ECE of predictions made in a span of time.

    Args:
        start: Seconds since 1970.
        end: Seconds since 1970, beyond the span.
        ece: Expected calibration error.
        chance: ECE that chance alone gives.
    """

    start: float
    end: float
    ece: float
    chance: float


def ece_by_time(steps: Sequence[Step], marks: Sequence[float], *, narrow: bool = False) -> str:
    """Draw ECE by the time of the prediction, the ECE of chance dotted, and incidents as vertical lines.

    Args:
        steps: ECE of each span, in order of time.
        marks: Begin of each incident, in seconds since 1970.
        narrow: Whether it is drawn for a narrow screen.
    """
    wide, high = WIDE if narrow else 2 * WIDE, 0.75 * _HIGH
    if not steps:
        middle = f'<text class="axis" x="{wide / 2:g}" y="{high / 2:g}" text-anchor="middle">'
        return picture("ECE over time: no labels yet", high, [f"{middle}No labels yet.</text>"], wide=wide)
    since, until = steps[0].start, steps[-1].end
    top = max(0.05, *(1.1 * max(one.ece, one.chance) for one in steps))
    f = _Frame(x0=since, x1=until, top=top, wide=wide, high=high)
    parts = f.grid(x_axis=False)
    for style, values in (("ideal", [s.chance for s in steps]), ("ece", [s.ece for s in steps])):
        line = [
            (f.x(at), f.y(v)) for s, v in zip(steps, values, strict=True) for at in (s.start, s.end)
        ]  # fmt: skip
        parts.append(f'<polyline class="{style}" points="{_points(line)}"/>')
    for at in marks:
        if since <= at <= until:
            ends = f'x1="{f.x(at)}" x2="{f.x(at)}" y1="{_HEAD}" y2="{f.y(0)}"'
            parts.append(f'<line class="alarm" {ends}><title>incident</title></line>')
    return f.svg(
        "ECE by time of prediction", [*parts, *_times(f), f.captions("time of the prediction, UTC", "ECE")]
    )


def _times(f: _Frame) -> list[str]:
    """Draw times along the axis, as hours and minutes or as days."""
    form = "%H:%M" if f.x1 - f.x0 <= 2 * _DAY else "%b %d"
    last = 4 if f.wide > WIDE else 2
    parts = []
    for i in range(last + 1):
        at = f.x0 + (f.x1 - f.x0) * i / last
        anchor = "start" if i == 0 else "end" if i == last else "middle"
        place = f'x="{f.x(at)}" y="{f.high - _FOOT + 16}" text-anchor="{anchor}"'
        parts.append(f'<text class="tick" {place}>{time.strftime(form, time.gmtime(at))}</text>')
    return parts


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in pairs)

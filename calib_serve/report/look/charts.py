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
_SQUARE = WIDE - _LEFT - _PAD + _FOOT + _HEAD  # the height of a chart whose two axes are as long
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25)  # between the lines of a grid


@dataclass(frozen=True)
class _Frame:
    """The map from data in [x0, x1] x [y0, top] to the drawing."""

    x0: float = 0.0
    x1: float = 1.0
    top: float = 1.0
    wide: float = WIDE
    high: float = _HIGH
    foot: float = _FOOT
    y0: float = 0.0

    def x(self, value: float) -> float:
        span = max(self.x1 - self.x0, 1e-12)
        return round(_LEFT + (value - self.x0) / span * (self.wide - _LEFT - _PAD), 2)

    def y(self, value: float) -> float:
        share = min(max((value - self.y0) / (self.top - self.y0), 0), 1)
        return round(self.high - self.foot - share * (self.high - self.foot - _HEAD), 2)

    def svg(self, title: str, parts: Sequence[str]) -> str:
        return picture(title, self.high, parts, wide=self.wide)

    def grid(self, *, x_axis: bool = True) -> list[str]:
        """Draw lines and numbers of the axes."""
        out = []
        for at, text in _ticks(self.y0, self.top):
            y = self.y(at)
            out.append(f'<line class="grid" x1="{_LEFT}" x2="{self.wide - _PAD}" y1="{y}" y2="{y}"/>')
            out.append(f'<text class="tick" x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{text}</text>')
        for at, text in _ticks(self.x0, self.x1) if x_axis else ():
            anchor = "end" if at == self.x1 else "middle"
            place = f'x="{self.x(at)}" y="{self.high - self.foot + 16}" text-anchor="{anchor}"'
            out.append(f'<text class="tick" {place}>{text}</text>')
        return out

    def captions(self, across: str, up: str) -> str:
        """Name the axes."""
        middle = (self.wide + _LEFT) / 2
        return (
            f'<text class="axis" x="{middle:g}" y="{self.high - self.foot + 31:g}" text-anchor="middle">'
            f"{across}</text>"
            f'<text class="axis" x="4" y="10">{up}</text>'
        )


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Three to six numbers of an axis, with their texts."""
    step = next((one for one in _STEPS if (high - low) / one <= 5), _STEPS[-1])
    digits = 0 if step >= 0.01 else 1
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, f"{i * step:.{digits}%}") for i in range(first, last + 1)]


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
        return not self.beyond and not self.high - self.low < 0.3


@dataclass(frozen=True)
class DotSeries:
    """The dots of one model.

    Args:
        name: Name of the model.
        style: "before" of raw scores, "after" of calibrated ones, "model-a" or "model-b" of two models.
        dots: Predictions by confidence.
        dense: Those of the one dot that holds most of them, in parts.
    """

    name: str
    style: str
    dots: Sequence[Dot]
    dense: Sequence[Dot] = ()


def reliability_diagram(
    series: Sequence[DotSeries], *, across: str = "confidence", up: str = "accuracy"
) -> str:
    """Draw accuracy against confidence with intervals; hollow: more than chance, pale: too few to tell.

    Where one dot at an end holds most predictions, a second panel shows its parts.

    Args:
        series: One model, or two to compare.
        across: Caption of the horizontal axis.
        up: Caption of the vertical axis.
    """
    legend = 18.0 * len(series) if len(series) > 1 else 0.0
    f = _Frame(high=_SQUARE + legend, foot=_FOOT + legend)
    parts = [*f.grid(), f'<line class="ideal" x1="{f.x(0)}" y1="{f.y(0)}" x2="{f.x(1)}" y2="{f.y(1)}"/>']
    drawn = [(one.style, dot) for one in series for dot in one.dots]
    for style, dot in sorted(drawn, key=lambda one: not one[1].vague):
        parts += _dot(f, f.x(dot.confidence), style, dot, (across, up))
    parts += _legend(f, [(one.name, one.style) for one in series]) if legend else []
    title = f"Reliability diagram: {up} against {across}"
    parts.append(f.captions(across, up))
    if not any(one.dense for one in series):
        return f.svg(title, parts)
    return f'<div class="pair">{f.svg(title, parts)}{_parts(series, f, across, up)}</div>'


def _parts(series: Sequence[DotSeries], beside: _Frame, across: str, up: str) -> str:
    """Draw the parts of the densest dot in slots of one width: dots are what came, dashes what was said."""
    low, high = _dense_range([dot for one in series for dot in one.dense])
    slots = max(len(one.dense) for one in series)
    f = _Frame(x1=slots, y0=low, top=high, high=beside.high, foot=beside.foot)
    parts = f.grid(x_axis=False)
    for i, one in enumerate(series):
        for slot, dot in enumerate(one.dense):
            x, y = f.x(slot + (i + 1) / (len(series) + 1)), f.y(dot.confidence)
            said = f'x1="{x - 8:.2f}" x2="{x + 8:.2f}" y1="{y}" y2="{y}"'
            parts += [f'<line class="said {one.style}" {said}/>', *_dot(f, x, one.style, dot, (across, up))]
    parts.append(f.captions(f"the densest dot in {slots} parts, by {across} (dashes)", up))
    return f.svg(f"The densest dot of the diagram in parts: {up}, and {across} as dashes", parts)


def _dense_range(dots: Sequence[Dot]) -> tuple[float, float]:
    """The range of an axis, in whole steps, that holds dots, their intervals and confidences."""
    values = [v for dot in dots for v in (dot.confidence, dot.low, dot.high)]
    low, high = max(min(values), 0.0), min(max(values), 1.0)
    step = next((one for one in _STEPS if (high - low) / one <= 5), _STEPS[-1])
    return math.floor(low / step) * step, max(math.ceil(high / step - 1e-9), 1) * step


def _dot(f: _Frame, x: float, style: str, dot: Dot, axes: tuple[str, str]) -> list[str]:
    """Draw one dot, with its interval unless it is too wide to show anything."""
    r = 3 if dot.vague else round(3 + 4 * math.sqrt(dot.share), 2)
    kind = f"{style} few" if dot.vague else f"{style} beyond" if dot.beyond else style
    across, up = axes
    told = f"{across} {dot.confidence:.1%}, {up} {dot.accuracy:.1%}, {int(dot.count):,} samples"
    circle = f'<circle class="dot {kind}" cx="{x}" cy="{f.y(dot.accuracy)}" r="{r}">'
    ends = f'y1="{f.y(dot.low)}" y2="{f.y(dot.high)}"'
    interval = "" if dot.vague else f'<line class="interval {style}" x1="{x}" x2="{x}" {ends}/>'
    return [interval, f"{circle}<title>{told}</title></circle>"]


def _legend(f: _Frame, names: Sequence[tuple[str, str]]) -> list[str]:
    """Name the series below the axis, where no data lie."""
    first = f.high - f.foot + 49
    return [
        f'<circle class="dot {style}" cx="{_LEFT + 12:g}" cy="{first - 4 + 18 * i:g}" r="4"/>'
        f'<text class="{style}" x="{_LEFT + 22:g}" y="{first + 18 * i:g}">{_short(name)}</text>'
        for i, (name, style) in enumerate(names)
    ]


def _short(name: str) -> str:
    return html.escape(name if len(name) <= 44 else f"{name[:43]}…")


def histogram(
    edges: Sequence[float],
    shares: Sequence[float],
    reference: Sequence[float] | None,
    *,
    styles: tuple[str, str] = ("before", "after"),
) -> str:
    """Draw shares of confidences by bin as bars, and a reference's as steps.

    Args:
        edges: Edges of the bins (bins + 1,).
        shares: Share of the predictions in each bin (bins,).
        reference: The same of the reference (bins,); None: none is drawn.
        styles: Of the reference and of the bars, as those of ``DotSeries``.
    """
    top = max(*shares, *(reference or ()), 0.1)
    f = _Frame(top=math.ceil(top * 10) / 10)
    parts = f.grid()
    for low, high, value in zip(edges, edges[1:], shares, strict=False):
        x, y = f.x(low), f.y(value)
        size = f'width="{f.x(high) - x - 2:.2f}" height="{f.y(0) - y:.2f}"'
        told = f"{low:.0%} to {high:.0%}: {value:.1%}"
        parts.append(
            f'<rect class="bar {styles[1]}" x="{x + 1:.2f}" y="{y}" {size}><title>{told}</title></rect>'
        )
    if reference is not None:
        steps = [(f.x(at), f.y(v)) for i, v in enumerate(reference) for at in (edges[i], edges[i + 1])]
        parts.append(f'<polyline class="reference {styles[0]}" points="{_points(steps)}"/>')
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
    form = "%H:%M" if f.x1 - f.x0 <= 2 * 86_400.0 else "%b %d"
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

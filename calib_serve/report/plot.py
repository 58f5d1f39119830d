"""Plots: each prepared record, drawn into your own matplotlib axes.

    figure, axes = plt.subplots()
    plot_reliability(axes, reliability(probs, labels))

Confidence and accuracy are drawn in percent. Every function returns the axes it drew into.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from calib_serve.metrics import SmoothReliability
from calib_serve.report.prepare import BinCountCurve, Density, Histogram, Reliability, RiskCoverage

_PROLOGUE = re.compile(r"\A.*?(?=<svg)|<metadata>.*?</metadata>", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) width="[^"]*"| height="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')

PALETTE: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#1b1f24",
        "muted": "#5b6471",
        "grid": "#dfe3e8",
        "band": "#e3e9ef",
        "before": "#b8541a",
        "after": "#0f6ba8",
        "right": "#1c7c5c",
        "wrong": "#b02a4c",
    }
)
"""Names of what a colour means; each pair tells apart in print and with any colour vision."""

STYLE: Mapping[Any, Any] = MappingProxyType(
    {
        "axes.edgecolor": PALETTE["muted"],
        "axes.labelcolor": PALETTE["muted"],
        "axes.titlecolor": PALETTE["ink"],
        "axes.titlelocation": "left",
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlepad": 10,
        "axes.labelsize": 9.5,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "font.size": 9.5,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "svg.fonttype": "none",
        "text.color": PALETTE["ink"],
        # A name such as "$\frac" is text, not mathematics.
        "text.parse_math": False,
        "xtick.color": PALETTE["muted"],
        "ytick.color": PALETTE["muted"],
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }
)
"""What the report draws with: ``with matplotlib.rc_context(STYLE): ...``."""

_ODDS_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.999999)
_COLORS = ("after", "before", "right", "wrong", "ink", "muted")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the report's style, without changing the caller's; missing glyphs do not warn.

    Text stays text in the SVG, so the reader's own fonts draw it.
    """
    with mpl.rc_context(dict(STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_svg(figure: Figure, *, name: str, title: str, text: str) -> Markup:
    """Write ``figure`` as an ``<svg>`` element with a title and ``text`` as its alternative.

    ``name`` prefixes every id in it, so that many such figures share one page. The palette's
    colours become CSS variables (``var(--ink)``), which a dark page sets anew.
    """
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = _PROLOGUE.sub("", file.getvalue())
    head, body = svg.split(">", 1)
    head = _SIZE.sub(r"\1", head)
    for meaning, color in PALETTE.items():
        # A dark page sets the variables anew; fixed colours would vanish on it.
        body = body.replace(color, f"var(--{meaning})")
    body = _ID.sub(rf"\g<1>{name}-", body)
    label = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(text)}</desc>'
    described = f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
    return Markup(described + label + body)  # noqa: S704 - matplotlib escapes its text, we ours


def _percent(axes: Axes, *, x: bool = False, y: bool = False, decimals: int | None = 0) -> None:
    if x:
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=decimals))
    if y:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def _grid(axes: Axes, axis: Any = "both") -> None:
    axes.grid(True, axis=axis, color=PALETTE["grid"], linewidth=0.7)
    axes.tick_params(length=0)


def plot_reliability(
    axes: Axes, data: Reliability, *, color: str = PALETTE["after"], title: str = ""
) -> Axes:
    """Draw accuracy against confidence, with Wilson intervals and the band of a calibrated model.

    A point outside of the grey band is more than chance.

    Args:
        axes: Where to draw; they are returned.
        data: As ``reliability`` prepares it.
        color: Of lines and markers.
        title: Of the axes.
    """
    full = data.count > 0
    x, y = data.confidence[full], data.accuracy[full]
    left, width = data.edges[:-1][full], np.diff(data.edges)[full]
    _grid(axes)
    axes.bar(
        left + width / 2,
        (data.expected_high - data.expected_low)[full],
        width * 0.98,
        bottom=data.expected_low[full],
        color=PALETTE["band"],
        label="where a calibrated model lies",
    )
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)))
    axes.vlines(x, np.minimum(x, y), np.maximum(x, y), color=color, linewidth=5, alpha=0.22)
    spread = np.maximum([y - data.low[full], data.high[full] - y], 0)
    axes.errorbar(
        x, y, yerr=spread, fmt="none", ecolor=color, elinewidth=1.2, capsize=2.5, label="its 95 % interval"
    )
    # The area of a point grows with its share of predictions.
    area = 14 + 90 * np.sqrt(data.count[full] / data.n)
    axes.plot(x, y, color=color, linewidth=1.2, alpha=0.55)
    axes.scatter(x, y, s=area, color=color, edgecolors="none", zorder=3, clip_on=False, label="this model")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title=title)
    axes.set_aspect("equal", adjustable="box")
    _percent(axes, x=True, y=True)
    return axes


def plot_smooth_reliability(
    axes: Axes, data: SmoothReliability, *, color: str = PALETTE["after"], label: str = "", title: str = ""
) -> Axes:
    """Draw accuracy against confidence as a curve with its pointwise band, thick where many predictions lie.

    Args:
        axes: Where to draw; they are returned.
        data: As ``calib_serve.metrics.smooth_reliability`` prepares it.
        color: Of lines and markers.
        label: Entry in the legend.
        title: Of the axes.
    """
    _grid(axes)
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)))
    x = data.confidence
    axes.fill_between(x, data.low, data.high, color=color, alpha=0.16, linewidth=0)
    axes.plot(x, data.accuracy, color=color, linewidth=1, label=label or None)
    half = 0.012 * np.sqrt(data.density / max(float(data.density.max()), 1e-9))
    thick = (data.accuracy - half, data.accuracy + half)
    axes.fill_between(x, *thick, color=color, alpha=0.75, linewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title=title)
    axes.set_aspect("equal", adjustable="box")
    _percent(axes, x=True, y=True)
    return axes


def plot_counts(axes: Axes, data: Reliability, *, color: str = PALETTE["after"]) -> Axes:
    """Draw how many predictions are behind each point; the count is written above its bar.

    Args:
        axes: Where to draw; they are returned.
        data: As ``reliability`` prepares it.
        color: Of lines and markers.
    """
    width = np.diff(data.edges)
    axes.bar(data.edges[:-1] + width / 2, data.count, width * 0.9, color=color, alpha=0.75)
    for left, w, count in zip(data.edges, width, data.count, strict=False):
        if count:
            axes.annotate(
                f"{int(count):,}",
                (left + w / 2, count),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=6.5,
                color=PALETTE["muted"],
            )
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="predictions")
    axes.set_ylim(0, float(data.count.max()) * 1.2)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    axes.tick_params(length=0)
    _percent(axes, x=True)
    return axes


def plot_histogram(axes: Axes, data: Histogram, *, color: str = PALETTE["after"], title: str = "") -> Axes:
    """Draw the histogram of confidences as shares, with the mean confidence and the accuracy as lines.

    Args:
        axes: Where to draw; they are returned.
        data: As ``confidence_histogram`` prepares it.
        color: Of lines and markers.
        title: Of the axes.
    """
    width = np.diff(data.edges)
    total = max(float(data.count.sum()), 1)
    axes.bar(data.edges[:-1] + width / 2, data.count / total, width * 0.92, color=color, alpha=0.7)
    _grid(axes, "y")
    axes.axvline(
        data.mean_confidence,
        color=PALETTE["ink"],
        linewidth=1.3,
        label=f"mean confidence {data.mean_confidence:.1%}",
    )
    axes.axvline(
        data.accuracy,
        color=PALETTE["ink"],
        linewidth=1.3,
        linestyle=(0, (3, 2)),
        label=f"accuracy {data.accuracy:.1%}",
    )
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of predictions", title=title)
    axes.legend(loc="upper left")
    _percent(axes, x=True, y=True)
    return axes


def plot_density(axes: Axes, data: Density, *, title: str = "") -> Axes:
    """Draw where right and wrong predictions have their confidence, evenly spaced in log-odds.

    Args:
        axes: Where to draw; they are returned.
        data: As ``confidence_density`` prepares it.
        title: Of the axes.
    """
    x = data.log_odds
    for name, density, count in (("right", data.right, data.n_right), ("wrong", data.wrong, data.n_wrong)):
        color = PALETTE[name]
        axes.fill_between(x, density, color=color, alpha=0.18, linewidth=0)
        style = "-" if name == "right" else (0, (5, 2))
        axes.plot(x, density, color=color, linewidth=1.6, linestyle=style, label=f"{name} ({count:,})")
    _grid(axes)
    ticks = np.array([t for t in _ODDS_TICKS if data.grid[0] <= t <= data.grid[-1]])
    axes.set_xticks(np.log(ticks) - np.log1p(-ticks), [f"{100 * t:.6g}%" for t in ticks])
    axes.tick_params("x", labelsize=8)
    axes.set(xlim=(x[0], x[-1]), xlabel="confidence, in log-odds", ylabel="density", title=title)
    axes.set_ylim(0, 1.45 * max(data.right.max(), data.wrong.max(), 1e-9))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.legend(loc="upper left", title=f"AUROC {data.auroc:.3f}", alignment="left", ncols=2)
    return axes


def plot_risk_coverage(
    axes: Axes,
    data: RiskCoverage,
    *,
    color: str = PALETTE["after"],
    label: str = "",
    marked: bool = True,
    width: float = 1.7,
) -> Axes:
    """Draw the error by how much is answered.

    Args:
        axes: Where to draw; they are returned.
        data: As ``risk_coverage`` prepares it.
        color: Of lines and markers.
        label: Entry in the legend.
        marked: Whether to mark the point where the target is met.
        width: Of the line, in points.
    """
    axes.plot(data.coverage, data.risk, color=color, linewidth=width, alpha=0.9, label=label or None)
    found = data.abstention
    if marked and found.answered:
        axes.axhline(data.target, color=PALETTE["muted"], linewidth=0.9, linestyle=(0, (4, 3)))
        axes.plot([found.answered], [found.risk], "o", color=color, markersize=7)
        says = f"answer from {found.threshold:.1%} on:\n{found.answered:.0%} of all, "
        says += f"{found.risk:.1%} wrong"
        axes.annotate(
            says,
            (found.answered, found.risk),
            xytext=(-12, 26),
            textcoords="offset points",
            ha="right",
        )
    _grid(axes)
    axes.set(
        xlim=(0, 1.005), xlabel="share of inputs answered, the most confident first", ylabel="share wrong"
    )
    # The rate of the first few answers is too noisy to scale the axis.
    settled = data.risk[data.coverage > 0.05]
    axes.set_ylim(0, max(1.15 * float(settled.max(initial=0)), 1.6 * data.target))
    _percent(axes, x=True)
    _percent(axes, y=True, decimals=None)
    return axes


def plot_bin_counts(
    axes: Axes, data: BinCountCurve, *, color: str = PALETTE["after"], label: str = ""
) -> Axes:
    """Draw ECE by bin count: equal-width (solid), equal-mass (dashed), and by chance (dotted).

    Args:
        axes: Where to draw; they are returned.
        data: As ``bin_count_curve`` prepares it.
        color: Of lines and markers.
        label: Entry in the legend.
    """
    named = f"{label}, " if label else ""
    axes.plot(data.bins, data.equal_width, "-o", color=color, markersize=3.5, label=f"{named}equal width")
    axes.plot(
        data.bins,
        data.equal_mass,
        "s",
        linestyle=(0, (5, 2)),
        color=color,
        markersize=3.5,
        label=f"{named}equal mass",
    )
    axes.plot(
        data.bins,
        data.noise_floor,
        color=color,
        alpha=0.7,
        linewidth=1,
        linestyle=(0, (1, 2)),
        label=f"{named}if calibrated",
    )
    _grid(axes)
    axes.set(xlabel="number of bins", ylabel="ECE")
    axes.set_ylim(bottom=0)
    _percent(axes, y=True, decimals=None)
    return axes


class CurveLike(Protocol):
    """One line: ``y`` at each ``x``, between ``low`` and ``high`` (empty where there is no spread)."""

    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def x(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def y(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def low(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def high(self) -> Sequence[float]: ...  # noqa: D102


def plot_curves(axes: Axes, lines: Iterable[CurveLike], *, log_x: bool = False) -> Axes:
    """Draw each line in its own colour and dash, its spread shaded."""
    for i, line in enumerate(lines):
        color = PALETTE[_COLORS[i % len(_COLORS)]]
        marker = "o" if len(line.x) < 50 else ""
        axes.plot(
            line.x,
            line.y,
            color=color,
            linestyle=_DASHES[i // 2 % len(_DASHES)],
            marker=marker,
            markersize=4,
            label=line.label,
        )
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.12, linewidth=0)
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True, color=PALETTE["grid"], linewidth=0.7)
    axes.set_ylim(bottom=0)
    axes.legend()
    return axes


def draw_curves(
    lines: Iterable[CurveLike], *, title: str, x_label: str, y_label: str, log_x: bool = False
) -> Figure:
    """Draw a figure of ``plot_curves``, in the report's style.

    Args:
        lines: Lines, with their names and spread.
        title: Title of the figure.
        x_label: Caption of the horizontal axis.
        y_label: Caption of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
    """
    with drawing():
        figure = Figure(figsize=(8, 4.4), layout="constrained")
        axes = plot_curves(figure.subplots(), lines, log_x=log_x)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return figure

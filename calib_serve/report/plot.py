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

from calib_serve.metrics import DecisionCurve, SmoothReliability
from calib_serve.report.prepare import Density, Histogram, Reliability, RiskCoverage

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
        "model-a": "#6b3fa0",
        "model-b": "#8f6a00",
        "right": "#1c7c5c",
        "wrong": "#b02a4c",
    }
)
"""Names of what a colour means: ``before`` are raw scores, ``after`` calibrated ones, ``model-a`` and
``model-b`` two models; each pair tells apart in print and with any colour vision."""

LINES = ("model-a", "model-b", "right", "wrong", "ink", "muted")
"""Colours of several lines, of which each is a model or method."""


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
        "figure.facecolor": "white",
        "axes.facecolor": "white",
        "savefig.facecolor": "auto",
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


def legend_beside(axes: Axes) -> None:
    """Name what is drawn below the axes, or in the emptiest corner where nothing makes room for it.

    Args:
        axes: Where it was drawn.
    """
    figure = axes.get_figure(root=True)
    if figure is None or figure.get_layout_engine() is None:
        axes.legend(loc="best", frameon=False)
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)


def _grid(axes: Axes, axis: Any = "both") -> None:
    axes.grid(True, axis=axis, color=PALETTE["grid"], linewidth=0.7)
    axes.tick_params(length=0)


def plot_reliability(axes: Axes, data: Reliability, *, color: str | None = None) -> Axes:
    """Draw accuracy against confidence, with the range that chance gives a calibrated model.

    A point outside of its box is more than chance; one of few predictions is small and pale.

    Args:
        axes: Where to draw; they are returned.
        data: As ``reliability`` prepares it.
        color: Of the points and boxes; by default that of calibrated scores.
    """
    color = color or PALETTE["after"]
    full = data.count > 0
    x, y = data.confidence[full], data.accuracy[full]
    left, width = data.edges[:-1][full], np.diff(data.edges)[full]
    _of_accuracy(axes)
    axes.bar(
        left + width / 2,
        (data.expected_high - data.expected_low)[full],
        width * 0.98,
        bottom=data.expected_low[full],
        color=color,
        alpha=0.15,
        label="where a calibrated model lies",
    )
    inside = (y >= data.expected_low[full]) & (y <= data.expected_high[full])
    few = inside & (data.high - data.low >= 0.3)[full]  # as ``Dot.vague``
    # No line joins the points: it would be drawn through ranges of two predictions.
    axes.plot(x, y, linestyle="none", color=color)
    how: dict[str, Any] = {"color": color, "edgecolors": "none", "zorder": 3, "clip_on": False}
    axes.scatter(x[few], y[few], s=14, alpha=0.4, **how)
    # The area of a point grows with its share of predictions.
    area = 14 + 90 * np.sqrt(data.count[full] / data.n)
    axes.scatter(x[~few], y[~few], s=area[~few], label="this model", **how)
    return axes


def _of_accuracy(axes: Axes) -> None:
    """Begin a diagram of accuracy against confidence, with the line on which the two are equal."""
    _grid(axes)
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.set_aspect("equal", adjustable="box")
    _percent(axes, x=True, y=True)


def plot_smooth_reliability(
    axes: Axes, data: SmoothReliability, *, color: str | None = None, label: str = ""
) -> Axes:
    """Draw accuracy against confidence as a curve with its pointwise band, thick where many predictions lie.

    Args:
        axes: Where to draw; they are returned.
        data: As ``calib_serve.metrics.smooth_reliability`` prepares it.
        color: Of lines and markers; by default that of calibrated scores.
        label: Entry in the legend.
    """
    color = color or PALETTE["after"]
    _of_accuracy(axes)
    x = data.confidence
    axes.fill_between(x, data.low, data.high, color=color, alpha=0.16, linewidth=0)
    axes.plot(x, data.accuracy, color=color, linewidth=1, label=label or None)
    half = 0.012 * np.sqrt(data.density / max(float(data.density.max()), 1e-9))
    thick = (data.accuracy - half, data.accuracy + half)
    axes.fill_between(x, *thick, color=color, alpha=0.75, linewidth=0)
    return axes


def plot_histogram(axes: Axes, data: Histogram, *, color: str | None = None) -> Axes:
    """Draw the histogram of confidences as shares, with the mean confidence and the accuracy as lines.

    Args:
        axes: Where to draw; they are returned.
        data: As ``confidence_histogram`` prepares it.
        color: Of lines and markers; by default that of calibrated scores.
    """
    color = color or PALETTE["after"]
    width = np.diff(data.edges)
    total = max(float(data.count.sum()), 1)
    axes.bar(data.edges[:-1] + width / 2, data.count / total, width * 0.92, color=color, alpha=0.7)
    _grid(axes, "y")
    for name, at, dash in (
        ("mean confidence", data.mean_confidence, "-"),
        ("accuracy", data.accuracy, (0, (3, 2))),
    ):
        label = f"{name} {at:.1%}"
        axes.axvline(at, color=PALETTE["ink"], linewidth=1.3, linestyle=dash, label=label)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of predictions")
    legend_beside(axes)
    _percent(axes, x=True, y=True)
    return axes


def plot_density(axes: Axes, data: Density) -> Axes:
    """Draw where right and wrong predictions have their confidence, evenly spaced in log-odds.

    Args:
        axes: Where to draw; they are returned.
        data: As ``confidence_density`` prepares it.
    """
    x = np.log(data.grid) - np.log1p(-data.grid)  # evenly spaced
    for name, density, count in (("right", data.right, data.n_right), ("wrong", data.wrong, data.n_wrong)):
        color = PALETTE[name]
        axes.fill_between(x, density, color=color, alpha=0.18, linewidth=0)
        style = "-" if name == "right" else (0, (5, 2))
        axes.plot(x, density, color=color, linewidth=1.6, linestyle=style, label=f"{name} ({count:,})")
    _grid(axes)
    ticks = np.array([t for t in _ODDS_TICKS if data.grid[0] <= t <= data.grid[-1]])
    axes.set_xticks(np.log(ticks) - np.log1p(-ticks), [f"{100 * t:.6g}%" for t in ticks])
    axes.tick_params("x", labelsize=8)
    axes.set(xlim=(x[0], x[-1]), xlabel="confidence, in log-odds", ylabel="density")
    axes.set_ylim(0, 1.45 * max(data.right.max(), data.wrong.max(), 1e-9))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.legend(loc="upper left", title=f"AUROC {data.auroc:.3f}", alignment="left", ncols=2)
    return axes


def plot_risk_coverage(
    axes: Axes,
    data: RiskCoverage,
    *,
    color: str | None = None,
    label: str = "",
    marked: bool = True,
    width: float = 1.7,
) -> Axes:
    """Draw the error by how much is answered.

    Args:
        axes: Where to draw; they are returned.
        data: As ``risk_coverage`` prepares it.
        color: Of lines and markers; by default that of calibrated scores.
        label: Entry in the legend.
        marked: Whether to mark the point where the target is met.
        width: Of the line, in points.
    """
    color = color or PALETTE["after"]
    highest = axes.get_ylim()[1] if axes.lines else 0.0  # of another model
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
    axes.set_ylim(0, max(highest, 1.15 * float(settled.max(initial=0)), 1.6 * data.target))
    _percent(axes, x=True)
    _percent(axes, y=True, decimals=None)
    return axes


def plot_decision_curve(
    axes: Axes, data: DecisionCurve, *, color: str | None = None, label: str = "", band: bool = True
) -> Axes:
    """Draw net benefits by threshold, with those of treating all and none in grey.

    Args:
        axes: Where to draw; they are returned.
        data: As ``calib_serve.metrics.decision_curve`` makes it.
        color: Of the line; by default that of calibrated scores.
        label: Entry in the legend.
        band: Whether to shade the intervals, each of its threshold alone.
    """
    color, grey = color or PALETTE["after"], PALETTE["muted"]
    x, model, every = data.thresholds, np.array(data.model), np.array(data.all)
    first = not any(line.get_gid() == "all" for line in axes.lines)
    if first:  # models of the same samples share it
        axes.plot(x, every, color=grey, linewidth=1, linestyle=(0, (4, 3)), label="treat all", gid="all")
        axes.axhline(0, color=grey, linewidth=1, linestyle=(0, (1, 2)), label="treat none")
    axes.plot(x, model, color=color, linewidth=1.7, label=label or None)
    if band:
        ends = ([e.low for e in data.model], [e.high for e in data.model])
        axes.fill_between(x, *ends, color=color, alpha=0.14, linewidth=0)
    _grid(axes)
    top = max(float(model.max()), float(every[0]), 0.01)
    axes.set(xlim=(0, 1), xlabel="threshold of P(y = 1)", ylabel="net benefit, true positives per sample")
    axes.set_ylim(-0.25 * top, max(1.15 * top, 0.0 if first else axes.get_ylim()[1]))
    _percent(axes, x=True)
    return axes


class _CurveLike(Protocol):
    """One line: ``y`` at each ``x``, between ``low`` and ``high`` (empty where there is no spread)."""

    @property
    def label(self) -> str: ...
    @property
    def x(self) -> Sequence[float]: ...
    @property
    def y(self) -> Sequence[float]: ...
    @property
    def low(self) -> Sequence[float]: ...
    @property
    def high(self) -> Sequence[float]: ...


def plot_curves(axes: Axes, lines: Iterable[_CurveLike], *, log_x: bool = False) -> Axes:
    """Draw each line in its own colour and dash, its spread shaded."""
    for i, line in enumerate(lines):
        color = PALETTE[LINES[i % len(LINES)]]
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
    _grid(axes)
    axes.set_ylim(bottom=0)
    axes.legend()
    return axes


def draw_curves(
    lines: Iterable[_CurveLike], *, title: str, x_label: str, y_label: str, log_x: bool = False
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

"""Lines with their spread, as studies draw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from calib_serve.report.plot import PALETTE
from calib_serve.report.svg import drawing

__all__ = ["Line", "draw_curves", "plot_curves"]

_COLORS = ("after", "before", "right", "wrong", "ink", "muted")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


class Line(Protocol):
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


def plot_curves(axes: Axes, lines: Iterable[Line], *, log_x: bool = False) -> Axes:
    """Each line in its own colour and dash, its spread shaded."""
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
    lines: Iterable[Line], *, title: str, x_label: str, y_label: str, log_x: bool = False
) -> Figure:
    """A figure of ``plot_curves``, in the report's style."""
    with drawing():
        figure = Figure(figsize=(8, 4.4), layout="constrained")
        axes = plot_curves(figure.subplots(), lines, log_x=log_x)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return figure

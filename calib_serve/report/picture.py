"""What every figure of the report is: drawn, with its heading and its text alternative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from calib_serve.report.contents import Side

__all__ = ["WIDTH", "Picture", "beside"]

WIDTH = 8.6  # inches of a page-wide figure


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn figure, its heading, what it means, and ``text``, its alternative for screen readers.

    ``header`` and ``rows`` are its numbers as a table.
    """

    name: str
    title: str
    caption: str
    text: str
    figure: Figure
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def beside(
    sides: Sequence[Side], height: float, draw: Callable[..., object], *, share: bool = True
) -> Figure:
    """One panel per side; ``share`` their vertical axis, so that they compare by eye."""
    figure = Figure(figsize=(WIDTH * len(sides) / 2 + 0.2, height), layout="constrained")
    panels = figure.subplots(1, len(sides), squeeze=False, sharey=share)[0]
    for axes, side in zip(panels, sides, strict=True):
        draw(axes, side)
        if share:
            axes.label_outer()
    return figure

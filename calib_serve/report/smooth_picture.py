"""The report's reliability diagram without bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from calib_serve.report.contents import Side
from calib_serve.report.picture import Picture, beside
from calib_serve.report.plot import PALETTE, plot_smooth_reliability
from calib_serve.report.verdict import percent

__all__ = ["smooth_picture"]


def smooth_picture(sides: Sequence[Side]) -> Picture:
    """The smooth reliability diagram of each side."""

    def draw(axes: Axes, side: Side) -> None:
        if side.smooth is not None:
            title = f"{side.name}: smooth ECE {percent(side.smooth.ece)}"
            plot_smooth_reliability(axes, side.smooth, color=PALETTE[side.color], title=title)

    return Picture(
        "smooth",
        "The same without bins",
        "Accuracy among predictions of about this confidence, by a kernel as wide as the smooth ECE. The "
        "line is thick where many predictions lie. The shaded band is how far chance moves it, point by "
        "point (95 %): where it holds the dashed line, chance alone may explain the difference.",
        " ".join(
            f"{side.name}: smooth ECE {percent(side.smooth.ece)}, n = {side.smooth.n:,}."
            for side in sides
            if side.smooth is not None
        ),
        beside(sides, 4.4, draw),
        ("model", "confidence", "accuracy", "95 % band"),
        tuple(
            (
                side.name,
                percent(c),
                percent(a),
                f"{percent(low)} to {percent(high)}" if np.isfinite(low) else "",
            )
            for side in sides
            if (data := side.smooth) is not None
            for c, a, low, high in zip(
                *(values[::16] for values in (data.confidence, data.accuracy, data.low, data.high)),
                strict=True,
            )
            if np.isfinite(a)
        ),
    )


def _band(low: float, high: float) -> str:
    return f"{percent(low)} to {percent(high)}" if np.isfinite(low) else ""

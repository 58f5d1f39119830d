"""The report's figures: each drawn from its prepared record, with a text alternative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calib_serve.report.contents import Contents, Side
from calib_serve.report.plot import (
    PALETTE,
    drawing,
    plot_bin_counts,
    plot_counts,
    plot_density,
    plot_histogram,
    plot_reliability,
    plot_risk_coverage,
    plot_smooth_reliability,
)
from calib_serve.report.prepare import Reliability
from calib_serve.report.verdict import percent, points

__all__ = ["WIDTH", "Picture", "beside", "label_picture", "pictures"]

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


def _smooth(sides: Sequence[Side]) -> Picture:
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
            (side.name, percent(c), percent(a), _band(low, high))
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


class Drawn(Protocol):
    """What a reliability diagram is drawn of."""

    @property
    def name(self) -> str: ...

    @property
    def color(self) -> str: ...

    @property
    def reliability(self) -> Reliability: ...


@dataclass(frozen=True, eq=False)
class Diagram:
    """A reliability diagram with its name and color."""

    name: str
    color: str
    reliability: Reliability


def label_picture(sides: Sequence[Drawn]) -> Picture:
    """The reliability diagram of all labels' decisions."""
    with drawing():
        return replace(
            _reliability(sides),
            title="Do the decisions' confidences mean what they say?",
            caption="Each point is the decisions of one confidence range, of all labels together: is the "
            "label true, at P above 0.5? Their confidence is the larger of P and 1 - P.",
        )


def pictures(contents: Contents) -> tuple[Picture, ...]:
    """All figures of a report, in its order."""
    with drawing():
        positive = (_positive,) if contents.after.positive is not None else ()
        smooth = (_smooth,) if contents.after.smooth is not None else ()
        makers = (_reliability, *smooth, *positive, _histograms, _densities, _risk, _bin_counts)
        return tuple(make(contents.sides) for make in makers)


def _reliability(sides: Sequence[Drawn]) -> Picture:
    figure = Figure(figsize=(WIDTH * len(sides) / 2 + 0.2, 6.3), layout="constrained")
    grid = figure.subplots(
        2, len(sides), squeeze=False, sharex="col", gridspec_kw={"height_ratios": [3.4, 1]}
    )
    for column, side in enumerate(sides):
        color = PALETTE[side.color]
        title = f"{side.name}: ECE {percent(side.reliability.ece)}"
        plot_reliability(grid[0, column], side.reliability, color=color, title=title).set_xlabel("")
        grid[0, column].set_aspect("auto")  # so that it lines up with its counts
        plot_counts(grid[1, column], side.reliability, color=color)
    handles, labels = grid[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    for axes in grid[:, 1:].flat:
        axes.set_ylabel("")
    rows = [
        (
            side.name,
            f"{100 * data.edges[b]:.0f} to {100 * data.edges[b + 1]:.0f} %",
            f"{int(data.count[b]):,}",
            percent(data.confidence[b]),
            percent(data.accuracy[b]),
            f"{percent(data.low[b])} to {percent(data.high[b])}",
        )
        for side in sides
        for data in (side.reliability,)
        for b in np.flatnonzero(data.count)
    ]
    return Picture(
        "reliability",
        "Does confidence mean what it says?",
        "Each point is the predictions of one confidence range: on the dashed line it is right as often as "
        "it says; below, overconfident; above, underconfident. Larger points speak for more predictions. "
        "The bars are 95 % intervals. A point outside of its grey box is more than chance.",
        " ".join(_say_reliability(side) for side in sides),
        figure,
        ("model", "confidence range", "predictions", "mean confidence", "accuracy", "95 % interval"),
        tuple(rows),
    )


def _positive(sides: Sequence[Side]) -> Picture:
    of_class = [Diagram(side.name, side.color, side.positive) for side in sides if side.positive is not None]
    picture = _reliability(of_class)
    for axes in picture.figure.axes:
        axes.set_xlabel(axes.get_xlabel().replace("confidence", "P(y = 1)"))
        axes.set_ylabel(axes.get_ylabel().replace("accuracy", "share of class 1"))
    return replace(
        picture,
        name="positive",
        title="Does P(y = 1) mean what it says?",
        caption="Each point is the samples of one range of P(y = 1): on the dashed line class 1 is true as "
        "often as it says; below, P is too high; above, too low. The top class's confidence hides errors "
        "that cancel, such as a share of class 1 that changed.",
        text=" ".join(
            f"{side.name}: ECE of P(y = 1) {percent(side.reliability.ece, 2)}, n = {side.reliability.n:,}."
            for side in of_class
        ),
        header=(
            "model",
            "range of P(y = 1)",
            "samples",
            "mean P(y = 1)",
            "share of class 1",
            "95 % interval",
        ),
    )


def _say_reliability(side: Drawn) -> str:
    data = side.reliability
    full = np.flatnonzero(data.count)
    gap = data.confidence[full] - data.accuracy[full]
    outside = (data.accuracy[full] < data.expected_low[full]) | (
        data.accuracy[full] > data.expected_high[full]
    )
    worst = full[np.argmax(np.abs(gap) * np.sqrt(data.count[full]))]
    return (
        f"{side.name}: {len(full)} ranges of confidence hold predictions, accuracy is below confidence in "
        f"{int((gap > 0).sum())} of them and outside of what chance allows in {int(outside.sum())}. Most "
        f"telling: of {int(data.count[worst]):,} predictions at {percent(data.confidence[worst])} confidence "
        f"{percent(data.accuracy[worst])} are right."
    )


def _histograms(sides: Sequence[Side]) -> Picture:
    def draw(axes: object, side: Side) -> None:
        plot_histogram(axes, side.histogram, color=PALETTE[side.color], title=side.name)  # type: ignore[arg-type]

    rows = [
        (
            side.name,
            f"{100 * data.edges[b]:.0f} to {100 * data.edges[b + 1]:.0f} %",
            f"{int(data.count[b]):,}",
        )
        for side in sides
        for data in (side.histogram,)
        for b in np.flatnonzero(data.count)
    ]
    return Picture(
        "histograms",
        "How confident is it?",
        "The share of predictions at each confidence. For a calibrated model the two lines meet: on average "
        "it is as confident as it is right.",
        " ".join(
            f"{side.name}: mean confidence {percent(side.histogram.mean_confidence)}, accuracy "
            f"{percent(side.histogram.accuracy)}, apart by "
            f"{points(side.histogram.mean_confidence - side.histogram.accuracy)}."
            for side in sides
        ),
        beside(sides, 3.2, draw),
        ("model", "confidence range", "predictions"),
        tuple(rows),
    )


def _densities(sides: Sequence[Side]) -> Picture:
    def draw(axes: object, side: Side) -> None:
        plot_density(axes, side.density, title=side.name)  # type: ignore[arg-type]

    return Picture(
        "densities",
        "Does confidence tell right from wrong?",
        "Where right and where wrong predictions have their confidence. The further apart, the better: the "
        "AUROC is the chance that a right prediction is more confident than a wrong one, 0.5 for a coin. "
        "A good calibration moves the curves and keeps them apart.",
        " ".join(
            f"{side.name}: AUROC {side.density.auroc:.3f}; right predictions are most dense at "
            f"{percent(_peak(side.density.grid, side.density.right), 0)} confidence, wrong ones at "
            f"{percent(_peak(side.density.grid, side.density.wrong), 0)}."
            for side in sides
        ),
        beside(sides, 3.2, draw, share=False),
        ("model", "right predictions", "wrong predictions", "AUROC"),
        tuple(
            (s.name, f"{s.density.n_right:,}", f"{s.density.n_wrong:,}", f"{s.density.auroc:.4f}")
            for s in sides
        ),
    )


def _peak(grid: np.ndarray, density: np.ndarray) -> float:
    return float(grid[density.argmax()]) if density.any() else float("nan")


def _risk(sides: Sequence[Side]) -> Picture:
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    for side in sides:
        marked = side is sides[-1]
        plot_risk_coverage(
            axes,
            side.risk_coverage,
            color=PALETTE[side.color],
            label=side.name,
            marked=marked,
            width=1.7 if marked else 3.5,
        )
    axes.legend(loc="upper left")
    return Picture(
        "risk",
        "What if it may abstain?",
        "Answering only the most confident inputs makes fewer mistakes. The marked threshold is sure, "
        "at 95 %, to keep the share of mistakes on such data below the dashed line. Calibrating makes the "
        "threshold mean what it says; the curve itself moves only if the order of confidences does.",
        " ".join(_say_risk(side) for side in sides),
        figure,
        ("model", "answer from confidence", "share answered", "share wrong", "at most (95 %)"),
        tuple(_risk_row(side) for side in sides),
    )


def _say_risk(side: Side) -> str:
    found, target = side.risk_coverage.abstention, side.risk_coverage.target
    everything = f"{side.name}: answering everything, {percent(1 - side.metrics.accuracy.value)} are wrong"
    if not found.answered:
        return f"{everything}; no threshold is sure to bring that down to {percent(target, 2)}."
    return (
        f"{everything}; answering from {percent(found.threshold)} confidence on, {percent(found.answered)} "
        f"are answered and {percent(found.risk)} of these are wrong."
    )


def _risk_row(side: Side) -> tuple[str, ...]:
    found = side.risk_coverage.abstention
    if not found.answered:
        return (side.name, "none", "", "", "")
    shares = (found.threshold, found.answered, found.risk, found.risk_high)
    return (side.name, *(percent(share, 2) for share in shares))


def _bin_counts(sides: Sequence[Side]) -> Picture:
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    for side in sides:
        plot_bin_counts(axes, side.bin_counts, color=PALETTE[side.color], label=side.name)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    rows = [
        (side.name, str(count), percent(wide, 2), percent(mass, 2), percent(floor, 2))
        for side in sides
        for count, wide, mass, floor in zip(
            side.bin_counts.bins,
            side.bin_counts.equal_width,
            side.bin_counts.equal_mass,
            side.bin_counts.noise_floor,
            strict=True,
        )
    ]
    return Picture(
        "bins",
        "How much of the ECE is its binning?",
        "The same predictions, binned more and more finely. Where a solid line comes near its dotted one, "
        "the ECE is what chance alone would give.",
        " ".join(
            f"{side.name}: between {percent(side.bin_counts.equal_width.min(), 2)} and "
            f"{percent(side.bin_counts.equal_width.max(), 2)} over {side.bin_counts.bins.min()} to "
            f"{side.bin_counts.bins.max()} equal-width bins."
            for side in sides
        ),
        figure,
        ("model", "bins", "equal width", "equal mass", "if calibrated"),
        tuple(rows),
    )

"""The report's figures: each drawn from its prepared record, with a text alternative and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from calib_serve.core.text import count, decimals, percent, span
from calib_serve.metrics import DecisionCurve, Estimate
from calib_serve.report.comparison import ComparedClassifier, Diagram
from calib_serve.report.look import Cell, Table
from calib_serve.report.look.charts import Dot, DotSeries, histogram, reliability_diagram
from calib_serve.report.plot import (
    PALETTE,
    drawing,
    inline_svg,
    legend_beside,
    plot_decision_curve,
    plot_density,
    plot_risk_coverage,
    plot_smooth_reliability,
)
from calib_serve.report.prepare import Reliability


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its heading, its caption, ``text`` for screen readers, and its numbers."""

    name: str
    title: str
    caption: str
    text: str
    drawn: Figure | Markup
    numbers: Table

    @property
    def svg(self) -> Markup:
        """The figure as an ``<svg>`` element."""
        if isinstance(self.drawn, Markup):
            return self.drawn
        return inline_svg(self.drawn, name=self.name, title=self.title, text=self.text)


def _figure(height: float) -> Figure:
    return Figure(figsize=(5.6, height), layout="constrained")  # its text can be read on a phone


def _dots(data: Reliability) -> list[Dot]:
    """The bins of a reliability diagram that hold predictions."""
    shares = data.count / data.count.sum()
    columns = (data.confidence, data.accuracy, data.low, data.high, shares, data.samples)
    return [Dot(*map(float, row)) for row in np.column_stack(columns)[data.count > 0]]


def _smooth(sides: Sequence[ComparedClassifier]) -> Picture:
    """A figure of each side's smooth reliability diagram."""
    axes = (figure := _figure(4.6)).subplots()
    known = [(side, side.smooth) for side in sides if side.smooth is not None]
    for side, data in known:
        plot_smooth_reliability(axes, data, color=PALETTE[side.color], label=side.name)
    legend_beside(axes)
    rows = [
        (side.name, percent(c), percent(a), span(low, high))
        for side, data in known
        for c, a, low, high in np.column_stack((data.confidence, data.accuracy, data.low, data.high))[::16]
        if np.isfinite(a)
    ]
    return Picture(
        "smooth",
        "The same without bins",
        "Accuracy among predictions of about this confidence, by a kernel as wide as the smooth ECE. The "
        "line is thick where many predictions lie. The shaded band is how far chance moves it, point by "
        "point (95 %): where it holds the dashed line, chance alone may explain the difference.",
        " ".join(f"{side.name}: smooth ECE {percent(data.ece)}, {data.n:,} samples." for side, data in known),
        figure,
        Table("Smooth reliability", ("model", "confidence", "accuracy", "95 % band"), rows),
    )


def pictures(sides: Sequence[ComparedClassifier]) -> tuple[Picture, ...]:
    """All figures of a report below its first diagram, in its order."""
    with drawing():
        smooth = (_smooth,) if sides[-1].smooth is not None else ()
        benefit = (_benefit,) if sides[-1].benefit is not None else ()
        makers = (*smooth, *benefit, _histograms, _densities, _risk)
        return tuple(make(sides) for make in makers)


def diagrams(sides: Sequence[ComparedClassifier]) -> list[Picture]:
    """A diagram of the confidence, of two classes behind one of P(y = 1), which hides nothing."""
    positive = [side.positive for side in sides if side.positive is not None]
    if not positive:
        return [diagram(sides)]
    first = diagram(
        positive,
        name="positive",
        title="Does P(y = 1) mean what it says?",
        across="P(y = 1)",
        up="share of class 1",
    )
    second = diagram(sides)
    hides = " It hides errors that cancel, such as a share of class 1 that changed."
    return [first, replace(second, caption=second.caption + hides)]


def diagram(
    curves: Sequence[Diagram],
    *,
    name: str = "reliability",
    title: str = "Does confidence mean what it says?",
    across: str = "confidence",
    up: str = "accuracy",
) -> Picture:
    """A figure of each side's reliability diagram, in one frame."""
    rows = [
        (
            one.name,
            f"{span(data.edges[b], data.edges[b + 1], 0 if data is one.reliability else 2)} %",
            _samples(data, int(b)),
            percent(data.confidence[b]),
            percent(data.accuracy[b]),
            span(data.low[b], data.high[b]),
        )
        for one in curves
        for data in (one.reliability, one.dense)
        if data is not None
        for b in np.flatnonzero(data.count)
    ]
    dense = " Beside it: the dot that holds most of the samples, in parts of equally many."
    series = [
        DotSeries(one.name, one.color, _dots(one.reliability), () if one.dense is None else _dots(one.dense))
        for one in curves
    ]
    return Picture(
        name,
        title,
        f"On the line: {across} and {up} agree. Hollow: more than chance. Pale: too few to tell."
        + (dense if any(one.dense is not None for one in curves) else ""),
        " ".join(_say_reliability(one, across, up) for one in curves),
        Markup(reliability_diagram(series, across=across, up=up)),  # noqa: S704 - escapes names
        Table(title, ("model", across, "samples", f"mean {across}", up, "95 % interval"), rows),
    )


def _samples(data: Reliability, b: int) -> Cell:
    """How many samples a bin holds, and what they are worth where they weigh."""
    worth = "" if data.rows is None else f"worth {count(float(data.count[b]))}"
    return Cell(count(float(data.samples[b])), worth)


def _say_reliability(side: Diagram, across: str, up: str) -> str:
    data = side.reliability
    full = np.flatnonzero(data.count)
    gap = data.confidence[full] - data.accuracy[full]
    outside = (data.accuracy[full] < data.expected_low[full]) | (
        data.accuracy[full] > data.expected_high[full]
    )
    # Not the largest gap, which is often that of a handful: the one that most samples speak for.
    worst = full[np.argmax(np.abs(gap) * np.sqrt(data.count[full]))]
    return (
        f"{side.name}: {len(full)} ranges of {across} hold predictions, the {up} is below it in "
        f"{int((gap > 0).sum())} of them and outside of what chance allows in {int(outside.sum())}. Most "
        f"telling: of {int(data.samples[worst]):,} predictions at {percent(data.confidence[worst])} the "
        f"{up} is {percent(data.accuracy[worst])}."
    )


def _histograms(sides: Sequence[ComparedClassifier]) -> Picture:
    rows = [
        (
            side.name,
            f"{span(data.edges[b], data.edges[b + 1], 0)} %",
            percent(data.count[b] / data.count.sum()),
        )
        for side in sides
        for data in (side.histogram,)
        for b in np.flatnonzero(data.count)
    ]
    # Bars of two models hide one another: the first is a line.
    *before, after = (side.histogram.count / side.histogram.count.sum() for side in sides)
    reference = before[0].tolist() if before else None
    styles = (sides[0].color, sides[-1].color)
    line = f" The line is {sides[0].name}." if before else ""
    return Picture(
        "histograms",
        "How confident is it?",
        f"The share of predictions at each confidence.{line} A calibrated model is on average as "
        "confident as it is right.",
        " ".join(
            f"{side.name}: mean confidence {percent(side.histogram.mean_confidence)}, accuracy "
            f"{percent(side.histogram.accuracy)}."
            for side in sides
        ),
        Markup(histogram(sides[-1].histogram.edges.tolist(), after.tolist(), reference, styles=styles)),  # noqa: S704 - numbers
        Table("Confidences", ("model", "confidence", "share of predictions"), rows),
    )


def _densities(sides: Sequence[ComparedClassifier]) -> Picture:
    figure = _figure(2.9 * len(sides))
    panels = figure.subplots(len(sides), 1, squeeze=False)[:, 0]
    for axes, side in zip(panels, sides, strict=True):
        plot_density(axes, side.density).set_title(side.name)
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
        figure,
        Table(
            "Right and wrong predictions",
            ("model", "right predictions", "wrong predictions", "AUROC"),
            [
                (s.name, count(s.density.n_right), count(s.density.n_wrong), decimals(s.density.auroc, 4))
                for s in sides
            ],
        ),
    )


def _peak(grid: np.ndarray, density: np.ndarray) -> float:
    return float(grid[density.argmax()]) if density.any() else float("nan")


def _risk(sides: Sequence[ComparedClassifier]) -> Picture:
    axes = (figure := _figure(3.6)).subplots()
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
    legend_beside(axes)
    return Picture(
        "risk",
        "What if it may abstain?",
        "Answering only the most confident inputs makes fewer mistakes. The marked threshold is sure, "
        "at 95 %, to keep the share of mistakes on such data below the dashed line. Calibrating makes the "
        "threshold mean what it says; the curve itself moves only if the order of confidences does.",
        " ".join(_say_risk(side) for side in sides),
        figure,
        Table(
            "Abstention",
            ("model", "answer from confidence", "share answered", "share wrong", "at most (95 %)"),
            [_risk_row(side) for side in sides],
        ),
    )


def _say_risk(side: ComparedClassifier) -> str:
    found, target = side.risk_coverage.abstention, side.risk_coverage.target
    everything = f"{side.name}: answering everything, {percent(1 - side.metrics.accuracy.value)} are wrong"
    if not found.answered:
        return f"{everything}; no threshold is sure to bring that down to {percent(target, 2)}."
    return (
        f"{everything}; answering from {percent(found.threshold)} confidence on, {percent(found.answered)} "
        f"are answered and {percent(found.risk)} of these are wrong."
    )


def _risk_row(side: ComparedClassifier) -> tuple[str, ...]:
    found = side.risk_coverage.abstention
    if not found.answered:
        return (side.name, "none", "", "", "")
    shares = (found.threshold, found.answered, found.risk, found.risk_high)
    return (side.name, *(percent(share, 2) for share in shares))


def _benefit(sides: Sequence[ComparedClassifier]) -> Picture:
    axes = (figure := _figure(3.8)).subplots()
    known = [(side, side.benefit) for side in sides if side.benefit is not None]
    for side, curve in known:
        band = side is sides[-1]
        plot_decision_curve(axes, curve, color=PALETTE[side.color], label=side.name, band=band)
    legend_beside(axes)
    rows = [
        (side.name, percent(t, 0), decimals(model, 4), _ends(model), decimals(every, 4), _ends(over))
        for side, curve in known
        for t, model, every, over in zip(
            curve.thresholds, curve.model, curve.all, curve.over_all, strict=True
        )
    ]
    return Picture(
        "benefit",
        "Is deciding by P(y = 1) worth it?",
        "Net benefit: true positives per sample, less false positives at the price that the threshold says: "
        "who acts from 10 % on takes nine false alarms for one that is right. Worth it where the line is "
        "above both grey ones. The band is a 95 % interval of each threshold alone.",
        " ".join(_say_benefit(side.name, curve) for side, curve in known),
        figure,
        Table(
            "Net benefit",
            ("model", "from", "net benefit", "95 % interval", "treat all", "gain over all, 95 %"),
            rows,
        ),
    )


def _ends(found: Estimate) -> str:
    return f"{decimals(found.low, 4)} to {decimals(found.high, 4)}"


def _say_benefit(name: str, curve: DecisionCurve) -> str:
    ends = zip(curve.model, curve.over_all, strict=True)
    sure = sum(model.low > 0 and over.low > 0 for model, over in ends)
    return f"{name}: surely better than all and none at {sure} of {len(curve.thresholds)} thresholds."

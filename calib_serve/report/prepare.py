"""The numbers of each figure: probabilities and labels in, a small frozen record out.

Nothing here draws. ``plot`` has a function for each record that draws it into your own axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, as_floats, finite
from calib_serve.core.bins import Bins, Edges
from calib_serve.core.errors import ShapeError
from calib_serve.metrics import (
    Abstention,
    Estimate,
    abstention,
    auroc_influence,
    binned,
    binomial_range,
    checked,
    event_bins,
    mean_interval,
    refinement_auroc,
    top_label,
    wilson_interval,
)

_DENSITY_RANGE = (1e-4, 1 - 1e-7)  # beyond it, float32 confidences are 1
_DENSE, _PARTS = 0.6, 8  # the share of samples in one dot that is shown in parts, and in how many


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: each array is (bins,), NaN where a bin holds nothing.

    ``low`` and ``high`` are Wilson's interval of the accuracy. ``expected_low`` and
    ``expected_high`` hold the accuracy of a calibrated model with these confidences in all bins at once, at
    the same level: exact binomial ranges (the consistency bars of Bröcker and Smith 2007). Of weighted
    samples the whole number that they are worth counts.
    """

    edges: Floats
    count: Floats
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    expected_low: Floats
    expected_high: Floats
    ece: float
    n: int
    rows: Floats | None = None
    """How many samples they are, where they weigh and ``count`` is what they are worth."""

    @property
    def samples(self) -> Floats:
        """Samples in each bin (bins,)."""
        return self.count if self.rows is None else self.rows


def reliability(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right", level: float = 0.95
) -> Reliability:
    """Return the reliability diagram of the predicted class.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        level: Coverage of the intervals, a fraction.

    >>> r = reliability([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10)
    >>> r.confidence[~np.isnan(r.confidence)].tolist(), r.accuracy[~np.isnan(r.accuracy)].tolist()
    ([0.6, 0.7], [0.0, 1.0])
    """
    return reliability_of(binned(probs, labels, bins=bins, edges=edges), level=level)


def reliability_of(sums: Bins, *, level: float = 0.95, edges: Floats | None = None) -> Reliability:
    """The reliability diagram of sums per bin: of confidences, or of the probability of one class.

    Args:
        sums: Sums per bin.
        level: Coverage of the intervals, a fraction.
        edges: Of the bins (bins + 1,); of equal width by default.
    """
    bins = len(sums)
    n, full = sums.count, sums.count > 0
    confidence, accuracy = (np.full(bins, np.nan) for _ in range(2))
    confidence[full] = sums.confidence[full] / n[full]
    accuracy[full] = sums.correct[full] / n[full]
    intervals = np.full((4, bins), np.nan)
    for b in np.flatnonzero(full):
        seen = wilson_interval(sums.correct[b], n[b], level=level)
        intervals[:2, b] = seen.low, seen.high
    # Each bin is looked at: all ranges hold at once as often as one says (Bonferroni).
    together = 1 - (1 - level) / max(int(full.sum()), 1)
    intervals[2:, full] = binomial_range(np.minimum(confidence[full], 1), n[full], level=together)
    return Reliability(
        edges=np.linspace(0, 1, bins + 1) if edges is None else edges,
        count=n,
        confidence=confidence,
        accuracy=accuracy,
        low=intervals[0],
        high=intervals[1],
        expected_low=intervals[2],
        expected_high=intervals[3],
        ece=sums.ece(),
        n=round(sums.n),
    )


def dense_bin(diagrams: Sequence[Reliability]) -> tuple[float, float] | None:
    """The bin at either end that holds most samples of one of the diagrams; None where none does.

    Args:
        diagrams: Of models, over the same bins.
    """
    for data in diagrams:
        b = int(data.count.argmax())
        if data.count[b] > _DENSE * data.count.sum() and b in (0, len(data.count) - 1):
            return float(data.edges[b]), float(data.edges[b + 1])
    return None


def within(
    probs: ArrayLike, came: ArrayLike, span: tuple[float, float] | None, *, edges: Edges = "right"
) -> Reliability | None:
    """The reliability diagram of one bin alone, in parts of equally many samples.

    Args:
        probs: Confidences, or probabilities of an event (n,).
        came: Whether each was right, or the event came (n,).
        span: Ends of the bin; None: no diagram.
        edges: Which end the bin holds.
    """
    if span is None:
        return None
    p, y = np.asarray(probs, np.float64), np.asarray(came, np.float64)
    low, high = (p > span[0]) | (span[0] == 0), (p <= span[1])
    if edges == "left":
        low, high = p >= span[0], (p < span[1]) | (span[1] == 1)
    kept = low & high
    if kept.sum() < 2 * _PARTS:
        return None
    sums, ends = event_bins(p[kept], y[kept], bins=_PARTS, strategy="quantile", edges=edges)
    return reliability_of(sums, edges=ends)


def of_rows(data: Reliability, probs: ArrayLike, *, edges: Edges = "right") -> Reliability:
    """The diagram of samples that weigh, with how many there are in each bin.

    Args:
        data: Of rows that are repeated by their weights.
        probs: Confidences, or probabilities of the event, of all samples (n,).
        edges: Which end a bin holds.
    """
    side: Any = "left" if edges == "right" else "right"
    p = np.asarray(probs)
    inside = p[(p >= data.edges[0]) & (p <= data.edges[-1])]
    index = np.searchsorted(data.edges[1:-1], inside, side=side)
    return replace(data, rows=np.bincount(index, minlength=len(data.count)).astype(np.float64))


def event_auroc(
    probs: ArrayLike, came: ArrayLike, *, weight: Floats | None = None, groups: NDArray[np.intp] | None = None
) -> Estimate:
    """Return how well P(y = 1) tells events from others: 0.5 is a coin (DeLong 1988).

    Args:
        probs: Probabilities of the event (n,).
        came: Whether it came (n,).
        weight: (n,), of mean 1; None: all weigh the same.
        groups: Group of each sample, from 0 (n,); None: each is its own.

    >>> event_auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value
    0.75
    """
    p, y = np.asarray(probs, np.float64), np.asarray(came, np.float64)
    area, influence = auroc_influence(p, y, np.ones(len(p)) if weight is None else weight)
    if math.isnan(area):
        return Estimate(area)
    found = mean_interval(influence, groups=groups, weight=weight)
    return Estimate(area, max(area + found.low, 0.0), min(area + found.high, 1.0))


@dataclass(frozen=True, eq=False)
class Histogram:
    """A histogram of confidences (bins,), with the two means that should agree."""

    edges: Floats
    count: Floats
    mean_confidence: float
    accuracy: float


def confidence_histogram(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 20, edges: Edges = "right"
) -> Histogram:
    """Return the histogram of top-1 confidences over equal-width bins.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    sums = binned(probs, labels, bins=bins, edges=edges)
    return Histogram(np.linspace(0, 1, bins + 1), sums.count, sums.mean_confidence(), sums.accuracy())


@dataclass(frozen=True, eq=False)
class Density:
    """Density of confidence among right and among wrong predictions (Singh 2021, fig. 2).

    Both (g,) are per unit of log-odds, log(c / (1 - c)), at the confidences ``grid`` (g,): on a plain axis
    most networks' predictions would lie at its right end. Each integrates to 1 over the log-odds, and is 0
    where there is no such prediction. ``auroc`` says how well the two are told apart.
    """

    grid: Floats
    right: Floats
    wrong: Floats
    n_right: int
    n_wrong: int
    auroc: float


def confidence_density(probs: ArrayLike, labels: ArrayLike) -> Density:
    """Return gaussian kernel densities over the log-odds of confidence, Silverman's bandwidth for each.

    Confidences beyond 0.0001 and 0.9999999 are drawn there.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
    """
    confidence, correct = top_label(probs, labels)
    inside = np.clip(confidence, *_DENSITY_RANGE)
    odds = np.log(inside) - np.log1p(-inside)
    grid = np.linspace(odds.min() - 1.5, odds.max() + 1.5, 201)
    right, wrong = (_kernel_density(odds[part], grid) for part in (correct, ~correct))
    hits = int(correct.sum())
    auroc = refinement_auroc(probs, labels)
    return Density(1 / (1 + np.exp(-grid)), right, wrong, hits, len(correct) - hits, auroc)


def _kernel_density(values: Floats, grid: Floats) -> Floats:
    if not len(values):
        return np.zeros_like(grid)
    low, high = np.quantile(values, [0.25, 0.75])
    # Silverman 1986, eq. 3.31: the smaller of both spreads, so that two humps do not melt into one.
    spread = min(float(values.std()), float(high - low) / 1.349) or float(values.std())
    width = max(0.9 * spread * len(values) ** -0.2, 0.1)  # in log-odds
    # Counted in cells first: a kernel per sample would cost grid times samples.
    fine = np.linspace(grid[0], grid[-1], 2001)
    cell = np.rint((values - fine[0]) / (fine[1] - fine[0])).astype(np.intp)
    mass = np.bincount(cell, minlength=len(fine)) / len(values)
    kernel = np.exp(-0.5 * ((grid[:, None] - fine[None, :]) / width) ** 2)
    return np.asarray(kernel @ mass / (width * math.sqrt(2 * math.pi)))


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Error among the most confident share of predictions, by that share (Geifman 2017).

    ``confidence`` (m,) is the threshold at which ``coverage`` (m,) are answered with ``risk`` (m,).
    ``abstention`` answers the most inputs at a risk of ``target`` or less, with its guarantee.
    """

    coverage: Floats
    risk: Floats
    confidence: Floats
    target: float
    abstention: Abstention


def risk_coverage(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    target: float | None = None,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> RiskCoverage:
    """Return the risk-coverage curve, and the threshold that holds a risk.

    Predictions of equal confidence are answered together.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        target: Risk to hold, in (0, 1); by default half the error of answering everything.
        level: Probability that the threshold holds it.
        groups: Which samples belong together (n,): the threshold is then proved on one of each.

    >>> curve = risk_coverage([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 1])
    >>> curve.confidence.tolist(), curve.risk.round(2).tolist()
    ([0.9, 0.8, 0.7], [0.0, 0.0, 0.33])
    """
    confidence, correct = top_label(probs, labels)
    if target is None:
        target = default_risk(correct)
    order = np.argsort(-confidence, kind="stable")
    ranked, errors = confidence[order], np.cumsum(~correct[order])
    # A threshold cannot part equal confidences: the curve has no points between them.
    ends = np.flatnonzero(np.diff(ranked, append=-1.0))  # the last of each run of equal confidences
    # Four hundred points are finer than a screen shows.
    shown = ends[np.unique(np.linspace(0, len(ends) - 1, 400).astype(np.intp))]
    return RiskCoverage(
        (shown + 1) / len(ranked),
        errors[shown] / (shown + 1),
        ranked[shown],
        target,
        abstention(probs, labels, risk=target, level=level, groups=groups),
    )


def default_risk(correct: ArrayLike) -> float:
    """Half of the error rate of (n,) answers; half an error where there is none."""
    right = as_floats(correct, "correct")
    return max(1 - float(right.mean()), 1 / len(right)) / 2


def to_json(value: Any) -> Any:
    """A prepared record as plain values for JSON: arrays as lists, NaN and infinity as None."""
    if isinstance(value, Estimate):
        return value.as_dict()
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return finite(value)


@dataclass(frozen=True)
class ClassRow:
    """One class: how often it occurs and is predicted, and how well its predictions are calibrated.

    Args:
        name: Its name.
        occurs: Samples that are of it.
        predicted: Predictions that name it.
        confidence: Mean confidence of these predictions; NaN where there are none.
        precision: Share of these predictions that is right.
        gap: Confidence minus precision.
        ece: Of the class's own probability over all samples, one term of the classwise ECE.
        worth: How many samples those that occur and those predicted are worth; None where none weighs.
    """

    name: str
    occurs: int
    predicted: int
    confidence: float
    precision: float
    gap: Estimate
    ece: float
    worth: tuple[int, int] | None = None

    @property
    def certain_gap(self) -> float:
        """The smallest gap that the interval allows; 0 where it holds 0 or is not known."""
        low, high = self.gap.low, self.gap.high
        return 0.0 if math.isnan(low) or math.isnan(high) else max(low, -high, 0.0)


def class_table(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    class_names: Sequence[str] = (),
    bins: int = 15,
    edges: Edges = "right",
    every: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[ClassRow, ...]:
    """Return one row per class, by falling certain gap, then ECE.

    So a rare class with a wide interval never outranks a frequent one that is certainly miscalibrated. The
    intervals hold for all K classes at once (Bonferroni).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        class_names: Names of the classes (K,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        every: Probabilities and class ids of all samples, where these are drawn by their weights.
    """
    p, y = checked(probs, labels)
    names = tuple(class_names) or tuple(str(k) for k in range(p.shape[1]))
    if len(names) != p.shape[1]:
        raise ShapeError(f"{p.shape[1]} classes but {len(names)} class names")
    predicted = p.argmax(axis=1)
    # All classes are looked at, so that one of twenty would seem off by chance.
    together = 1 - 0.05 / p.shape[1]
    rows = [
        _row(name, p[:, k], predicted == k, y == k, level=together, bins=bins, edges=edges)
        for k, name in enumerate(names)
    ]
    if every is not None:
        counts = (np.bincount(ids, minlength=len(rows)) for ids in (every[1], np.argmax(every[0], axis=1)))
        rows = [
            replace(row, occurs=int(occurs), predicted=int(named), worth=(row.occurs, row.predicted))
            for row, occurs, named in zip(rows, *counts, strict=True)
        ]
    return tuple(sorted(rows, key=lambda row: (-row.certain_gap, -row.ece)))


def _row(
    name: str,
    probs: NDArray[np.floating[Any]],
    predicted: NDArray[np.bool_],
    occurs: NDArray[np.bool_],
    *,
    level: float,
    **binning: Any,
) -> ClassRow:
    """The row of one class from its probabilities, predictions and occurrences, each (n,)."""
    own = Bins.tally(np.clip(probs, 0, 1), occurs, **binning)
    counts = int(occurs.sum()), int(predicted.sum())
    if not predicted.any():
        return ClassRow(name, *counts, np.nan, np.nan, Estimate(np.nan), own.ece())
    confidence = float(probs[predicted].mean(dtype=np.float64))
    # Wilson's interval keeps its level where a few predictions are all right or all wrong.
    right = wilson_interval(float(occurs[predicted].sum()), counts[1], level=level)
    gap = Estimate(confidence - right.value, confidence - right.high, confidence - right.low)
    return ClassRow(name, *counts, confidence, right.value, gap, own.ece())

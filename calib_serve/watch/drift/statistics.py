"""Numbers of a model version that need no label, or only bin sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins
from calib_serve.errors import ShapeError
from calib_serve.watch.ledger.sums import Sums

__all__ = ["ExpectedAccuracy", "Shift", "auroc", "compare", "expected_accuracy", "wilson"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shift:
    """How far one histogram is from another; NaN when either is empty.

    ``psi`` population stability index, ``js`` Jensen-Shannon divergence (nats, 0 to log 2), ``ks``
    Kolmogorov-Smirnov distance (0 to 1).
    """

    psi: float
    js: float
    ks: float


def compare(counts: ArrayLike, reference: ArrayLike) -> Shift:
    """Distances between two histograms of counts (bins,), such as confidences or predicted classes.

    Every share is at least 1e-4 in the PSI, so that an empty bin does not make it infinite.

    >>> compare([40, 60], [50, 50]).psi.__round__(4), compare([40, 60], [50, 50]).ks.__round__(4)
    (0.0405, 0.1)
    """
    a, b = np.asarray(counts, np.float64), np.asarray(reference, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ShapeError(f"both histograms must be (bins,), got {a.shape} and {b.shape}")
    if not (a.sum() > 0 and b.sum() > 0):
        return Shift(math.nan, math.nan, math.nan)
    p, q = a / a.sum(), b / b.sum()
    pf, qf = np.maximum(p, 1e-4), np.maximum(q, 1e-4)
    psi = float(((pf - qf) * np.log(pf / qf)).sum())
    mean = (p + q) / 2
    js = (_relative_entropy(p, mean) + _relative_entropy(q, mean)) / 2
    return Shift(psi, js, float(np.abs(np.cumsum(p) - np.cumsum(q)).max()))


def _relative_entropy(p: Floats, q: Floats) -> float:
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


def auroc(bins: Bins) -> float:
    """AUROC of right against wrong predictions by confidence, from bin sums; ties within a bin count half.

    >>> auroc(Bins([2, 2], [0.6, 1.8], [0, 2]))
    1.0
    """
    right, wrong = bins.correct, bins.count - bins.correct
    pairs = float(right.sum() * wrong.sum())
    if not pairs:
        return math.nan
    below = np.cumsum(wrong) - wrong
    return float((right * (below + wrong / 2)).sum()) / pairs


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The accuracy of predictions without labels, if confidence still means what it says.

    ``accuracy`` is their mean confidence; ``standard_error`` is the sampling noise of the accuracy
    around it. ``corrected`` subtracts the gap that labels have shown lately, and ``corrected_error``
    holds the noise of both; NaN without labels.

    To be trusted it needs a calibrated model and a shift in the inputs only: under concept drift
    (the same input now means another class) confidences do not move while accuracy falls, and no
    number made from confidences can tell.
    """

    accuracy: float
    standard_error: float
    corrected: float
    corrected_error: float


def expected_accuracy(sums: Sums) -> ExpectedAccuracy:
    """Estimate the accuracy of all served predictions from their confidences."""
    n = float(sums.predictions.sum())
    if not n:
        return ExpectedAccuracy(math.nan, math.nan, math.nan, math.nan)
    accuracy = float(sums.predictions_confidence.sum()) / n
    error = math.sqrt(_label_variance(sums.predictions, sums.predictions_confidence)) / n
    labels = sums.feedback
    if not labels.n:
        return ExpectedAccuracy(accuracy, error, math.nan, math.nan)
    gap_error = math.sqrt(_label_variance(labels.count, labels.correct)) / labels.n
    return ExpectedAccuracy(accuracy, error, accuracy - labels.signed_gap(), math.hypot(error, gap_error))


def _label_variance(count: Floats, expected: Floats) -> float:
    """Of the number of right predictions; by bin means, so slightly too large rather than too small."""
    full = count > 0
    return float((expected[full] * (1 - expected[full] / count[full])).clip(0).sum())


def wilson(right: Floats, count: Floats, *, z: float = 1.96) -> tuple[Floats, Floats]:
    """Intervals (low, high) of shares (Wilson 1927), at 95 % by default; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        p, n = right / count, count
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)

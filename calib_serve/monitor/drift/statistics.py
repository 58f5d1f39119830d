"""Statistics of a model version without labels, or from bin sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.receipts import Sums


def auroc(bins: Bins) -> float:
    """Compute the AUROC of right against wrong predictions from bin sums; ties within a bin count half.

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
    """The accuracy of predictions without labels, valid while the model is calibrated.

    ``accuracy`` is their mean confidence; ``standard_error`` is the sampling noise of the accuracy
    around it. It holds for a shift in the inputs only: under concept drift (the same input now means
    another class) confidences do not move while accuracy falls, and no number made from confidences
    can show that.
    """

    accuracy: float
    standard_error: float


def expected_accuracy(sums: Sums) -> ExpectedAccuracy:
    """Estimate the accuracy of all served predictions from their confidences; NaN without any."""
    n = float(sums.predictions.sum())
    if not n:
        return ExpectedAccuracy(math.nan, math.nan)
    full = sums.predictions > 0
    right, count = sums.predictions_confidence[full], sums.predictions[full]
    # By bin means: slightly too large rather than too small.
    variance = float((right * (1 - right / count)).clip(0).sum())
    return ExpectedAccuracy(float(right.sum()) / n, math.sqrt(variance) / n)


def wilson(right: Floats, count: Floats, *, z: float = 1.96) -> tuple[Floats, Floats]:
    """Intervals (low, high) of shares (Wilson 1927), at 95 % by default; NaN of no trials."""
    with np.errstate(invalid="ignore", divide="ignore"):
        p, n = right / count, count
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)

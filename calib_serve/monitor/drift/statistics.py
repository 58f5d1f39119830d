"""Statistics of a model version without labels, or from bin sums; and a detector of confidence shifts.

That sees a change of the inputs that changes the model's confidences. It cannot see concept drift, where the
same inputs get the same confidences and other labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.receipts import Sums

_TILTS = np.array([-8.0, -4.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 4.0, 8.0])
_EXTRA = (0.05, 0.2)  # share of all predictions that moves into one bin


class ConfidenceShift:
    """An e-detector (Shin, Ramdas, Rinaldo 2022) of changes in the histogram of confidences.

    ``reference``: the bins of the calibration set. ``tolerance``: by which factor more than the
    reference share any bin may hold without being called a shift (0.25: a quarter more); it covers
    the noise of the reference itself. False alarms: at most one in ``arl`` predictions on average.

    >>> shift = ConfidenceShift(Bins([50, 50], [15, 40], [15, 40]), arl=1000)
    >>> [shift.update([5, 5]), shift.update([4, 6]), shift.update([0, 20])]
    [False, False, True]
    """

    def __init__(self, reference: Bins, *, arl: float = 1_000_000, tolerance: float = 0.25) -> None:
        if not reference.n:
            raise InputError("the reference holds no prediction; pass the artifact's reference bins")
        if not (arl >= 2 and tolerance >= 0):
            raise InputError(f"arl must be at least 2 and tolerance at least 0, got {arl} and {tolerance}")
        self.arl = float(arl)
        # Half a prediction more in every bin: a bin that the calibration set missed is not impossible.
        share = (reference.count + 0.5) / (reference.n + 0.5 * len(reference))
        bets = _alternatives(share)
        self._log_pays = np.log(bets / _nearest(bets, share * (1 + tolerance)))
        self._log_capital = np.full(len(self._log_pays), -math.inf)

    def update(self, counts: ArrayLike) -> bool:
        """Count the next predictions, as a histogram (bins,); True when they raise the alarm.

        After an alarm the detector starts afresh.
        """
        c = np.asarray(counts, np.float64)
        if c.shape != self._log_pays.shape[1:]:
            raise ShapeError(f"counts must be {self._log_pays.shape[1:]}, got {c.shape}")
        n = float(c.sum())
        if not n:
            return False
        # The stake of the whole batch enters at its start: at its end, n has been paid for n.
        self._log_capital = np.logaddexp(self._log_capital, math.log(n)) + self._log_pays @ c
        alarm = self.log_evidence >= math.log(self.arl)
        if alarm:
            self._log_capital[:] = -math.inf
        return alarm

    @property
    def log_evidence(self) -> float:
        """Natural log of the statistic; the threshold is log(arl)."""
        mean = np.logaddexp.reduce(self._log_capital) - math.log(len(self._log_capital))
        return float(mean)


def _alternatives(share: Floats) -> Floats:
    """Histograms to bet on (bets, bins): all confidences lower or higher, or one bin fuller."""
    place = np.linspace(0, 1, len(share))
    tilted = share * np.exp(_TILTS[:, None] * place)
    fuller = [(1 - extra) * share + extra * np.eye(len(share)) for extra in _EXTRA]
    return np.concatenate([tilted / tilted.sum(axis=1, keepdims=True), *fuller])


def _nearest(bets: Floats, most: Floats) -> Floats:
    """Find the histogram nearest to each bet (bets, bins), of those with at most ``most`` in each bin.

    Against it the bet is a fair likelihood ratio, and against all others in that set a losing one
    (the reverse information projection; Larsson, Ramdas, Ruf 2024): min(most, scale x bet), where
    the scale makes it sum to 1.
    """
    low, high = np.ones((len(bets), 1)), np.full((len(bets), 1), 1 / bets.min())
    for _ in range(100):
        scale = (low + high) / 2
        short = np.minimum(most, scale * bets).sum(axis=1, keepdims=True) < 1
        low, high = np.where(short, scale, low), np.where(short, high, scale)
    nearest: Floats = np.minimum(most, high * bets)
    return nearest


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

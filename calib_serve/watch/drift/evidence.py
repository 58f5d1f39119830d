"""An anytime-valid test of calibration: its p-value may be read after any number of labels.

An e-process (Arnold, Henzi, Ziegel 2023): under calibration within the tolerance its chance of
ever exceeding 1 / alpha is at most alpha. Unlike a detector it never starts again, so it answers
"was it ever off", with a p-value that stays right under continuous monitoring.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import bin_index
from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.drift.bets import SHIFTS, payoffs
from calib_serve.watch.drift.detector import TOLERANCE

__all__ = ["Evidence"]

Floats = NDArray[np.float64]


class Evidence:
    """Evidence against calibration so far: half bets on one direction, half on each bin's own.

    ``tolerance``: how far accuracy may be from confidence in every prediction.

    >>> evidence = Evidence(tolerance=0.0)
    >>> evidence.update([0.9] * 20, [0] * 20)
    >>> evidence.p_value < 1e-6
    True
    """

    def __init__(self, *, tolerance: float = TOLERANCE, bins: int = 15) -> None:
        if not 0 <= tolerance < 0.5:
            raise InputError(f"tolerance must be in [0, 0.5), got {tolerance}")
        self.tolerance, self.bins, self.labels = tolerance, bins, 0
        self._signed = np.zeros(2 * len(SHIFTS))
        self._by_bin = np.zeros((bins, 2 * len(SHIFTS)))
        self._most = 0.0

    def update(self, confidence: ArrayLike, correct: ArrayLike) -> None:
        """Take labels: confidences (n,) and whether each prediction was right (n,)."""
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        if c.ndim != 1 or c.shape != y.shape:
            raise ShapeError(f"confidence and correct must both be (n,), got {c.shape} and {y.shape}")
        if not len(c):
            return
        log_pays = np.log(payoffs(c, y, tolerance=self.tolerance))
        signed = self._signed + np.cumsum(log_pays, axis=0)
        bins = _of_bins(self._by_bin).sum() + np.cumsum(self._gains(bin_index(c, bins=self.bins), log_pays))
        self._signed = signed[-1]
        self._most = max(self._most, float(_total(signed, bins).max()))
        self.labels += len(c)

    def _gains(self, index: NDArray[np.intp], log_pays: Floats) -> Floats:
        """What each label adds to the logarithm of the bins' bets (n,); they are kept as they are then."""
        gains = np.empty(len(index))
        for b in np.unique(index).tolist():
            rows = index == b
            path = np.concatenate(
                [self._by_bin[b : b + 1], self._by_bin[b] + np.cumsum(log_pays[rows], axis=0)]
            )
            gains[rows] = np.diff(_of_bins(path))
            self._by_bin[b] = path[-1]
        return gains

    @property
    def log_evidence(self) -> float:
        """Natural log of the e-value now: what a stake of 1 has become."""
        return float(_total(self._signed, _of_bins(self._by_bin).sum()))

    @property
    def p_value(self) -> float:
        """Anytime-valid: at most alpha with a chance of at most alpha, however often one looks."""
        return math.exp(-self._most)


def _of_bins(logs: Floats) -> Floats:
    # Half of each bin's stake is not bet, so that calibrated bins cost little.
    return np.logaddexp(_log_mean(logs), 0) - math.log(2)


def _total(signed: Floats, bins: Floats | np.float64) -> Floats:
    total: Floats = np.logaddexp(_log_mean(signed), bins) - math.log(2)
    return total


def _log_mean(logs: Floats) -> Floats:
    mean: Floats = np.logaddexp.reduce(logs, axis=-1) - math.log(logs.shape[-1])
    return mean

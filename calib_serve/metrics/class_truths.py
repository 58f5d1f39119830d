"""Possible truths behind a sample of class probabilities: their powers, with classes more or less likely."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.metrics.classwise import Residuals
from calib_serve.metrics.scores import row_blocks

__all__ = ["Shift", "fitted_shift", "further_shifts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_LEAST = 1e-30
_MOST = 2.0  # log of the power, either way
_REACH = 4.0  # standard errors beyond the observed error that truths go
_FARTHEST = 200.0
_NEAR = 0.3  # of the way to the farthest


@dataclass(frozen=True, eq=False)
class Shift:
    """Probabilities proportional to p^a e^b: ``log_power`` log a, ``offset`` b (K,).

    >>> Shift(np.log(2.0), np.zeros(2)).applied(np.array([[0.75, 0.25]])).round(6).tolist()  # 9 to 1
    [[0.9, 0.1]]
    """

    log_power: float
    offset: Floats

    def applied(self, probs: Floats) -> Floats:
        """The truths (m, K) behind rows of probabilities (m, K)."""
        z = np.maximum(probs, _LEAST)
        np.log(z, out=z)
        z *= math.exp(self.log_power)
        z += self.offset
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        return z

    def times(self, far: float) -> Shift:
        """As many times as far from no shift."""
        power = float(np.clip(far * self.log_power, -_MOST, _MOST))
        return Shift(power, np.clip(far * self.offset, -3 * _MOST, 3 * _MOST))


def fitted_shift(probs: NDArray[np.floating], labels: Ints) -> Shift:
    """What the labels (n,) say: two scoring steps for the power, one for each class's offset.

    Offsets are shrunk by how much they vary beyond chance (Efron and Morris 1973).
    """
    shift = Shift(0.0, np.zeros(probs.shape[1]))
    for _ in range(2):
        slope = curvature = 0.0
        variance = np.zeros(probs.shape[1])
        surplus = np.bincount(labels, minlength=probs.shape[1]).astype(np.float64)
        for rows, p in row_blocks(probs):
            q, log_p = shift.applied(p), np.log(np.maximum(p, _LEAST))
            mean = np.einsum("ij,ij->i", q, log_p)
            slope += float(log_p[np.arange(len(p)), labels[rows]].sum() - mean.sum())
            curvature += float(np.einsum("ij,ij,ij->i", q, log_p, log_p).sum() - (mean**2).sum())
            surplus -= q.sum(axis=0)
            variance += (q * (1 - q)).sum(axis=0)
        power = math.exp(shift.log_power)
        # One unit of log(power) of prior precision keeps it finite where all are right.
        step = (power * slope - shift.log_power) / (power**2 * curvature + 1)
        shift = Shift(float(np.clip(shift.log_power + np.clip(step, -1, 1), -_MOST, _MOST)), shift.offset)
    variance = np.maximum(variance, 1e-3)
    spread = float((surplus**2 - variance).sum() / (variance**2).sum())
    # A little of the offsets is kept though all be noise: without any the line of truths may have no length.
    spread = max(spread, 0.01 / float(variance.mean()))
    return Shift(shift.log_power, spread * surplus / (spread * variance + 1))


def further_shifts(
    residuals: Residuals, fitted: Shift, observed: float
) -> tuple[tuple[Shift, float], tuple[Shift, float]]:
    """Two shifts on the way of ``fitted`` and their classwise ECEs, of which the second exceeds ``observed``.

    Far shifts are of few classes, as they grow by powers: what lies near is mixed from the first.
    """
    n, classes = residuals.probs.shape
    noise = sum(float((p * (1 - p)).sum()) for _, p in row_blocks(residuals.probs))
    wanted = observed + _REACH * math.sqrt(noise + 4) / (n * classes)
    far, shift = 1.0, fitted
    shown = residuals.true_ece(shift.applied)
    for _ in range(2):
        far = min(far * wanted / max(shown, 1e-12), _FARTHEST)
        shift = fitted.times(far)
        shown = residuals.true_ece(shift.applied)
    near = fitted.times(_NEAR * far)
    return (near, residuals.true_ece(near.applied)), (shift, shown)

"""Logistic regression on a few features by Newton's method: the convex problem of every two-class map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError
from calib_serve.fit.softmax_regression import Minimum

__all__ = ["logistic", "platt_targets"]

Floats = NDArray[np.float64]

_GAP = 1e-14  # of a cross-entropy of order 1
_MOST = 200
_ARMIJO = 1e-4
_SMALLEST = 1e-9  # of a step, below which rounding decides


def platt_targets(positive: NDArray[np.intp], weight: Floats) -> Floats:
    """What a probability is fitted to instead of 0 and 1, (n,): within, by one sample's weight (Platt 1999).

    They keep the optimum finite where a threshold tells the two apart.

    >>> platt_targets(np.array([0, 1]), np.ones(2)).round(3).tolist()
    [0.333, 0.667]
    """
    ones = float(weight @ positive)
    zeros = float(weight.sum()) - ones
    return np.where(positive == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))


def logistic(x: Floats, targets: Floats, weight: Floats) -> Minimum:
    """The coefficients (d,) of least weighted mean cross-entropy of sigmoid(x @ coefficients).

    ``x`` (n, d) finite, its constant a column like any other; ``targets`` (n,) within (0, 1); ``weight``
    (n,). Raises FitError where Newton's method does not converge.
    """
    scale = np.abs(x).max(axis=0)
    scale[scale == 0] = 1
    x, share = x / scale, weight / weight.sum()
    theta = np.zeros(x.shape[1])
    value, p = _objective(x, targets, share, theta)
    for iteration in range(1, _MOST + 1):
        gradient = x.T @ (share * (p - targets))
        step = _newton((x * (share * p * (1 - p))[:, None]).T @ x, gradient)
        gap = float(gradient @ step) / 2
        length = 1.0
        while gap > _GAP and length > _SMALLEST:
            trial = _objective(x, targets, share, theta - length * step)
            if trial[0] <= value - 2 * _ARMIJO * length * gap:
                break
            length /= 2
        if gap <= _GAP or length <= _SMALLEST:
            return Minimum(theta / scale, value, gradient * scale, max(gap, 0.0), iteration, iteration)
        theta, (value, p) = theta - length * step, trial
    raise FitError(f"the logistic regression did not converge in {_MOST} steps; look for extreme scores")


def _objective(x: Floats, targets: Floats, share: Floats, theta: Floats) -> tuple[float, Floats]:
    s = x @ theta
    e = np.exp(-np.abs(s))
    losses = np.maximum(s, 0) + np.log1p(e) - targets * s
    return float(share @ losses), np.where(s >= 0, 1.0, e) / (1 + e)


def _newton(hessian: Floats, gradient: Floats) -> Floats:
    """The Newton step; features of very unlike sizes are scaled alike first."""
    size = np.sqrt(np.diag(hessian))
    size[size == 0] = 1
    found = np.linalg.lstsq(hessian / np.outer(size, size), gradient / size, rcond=1e-13)[0]
    return np.asarray(found / size)

"""Class shares of unlabelled samples by maximum likelihood (Saerens, Latinne, Decaestecker 2002)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError
from calib_serve.metrics.intervals import chi_square_beyond
from calib_serve.priors.shares import as_shares, checked_probs

__all__ = [
    "ChiSquared",
    "EmShares",
    "climbed",
    "em",
    "inverse",
]

Floats = NDArray[np.float64]

_STEPS = 5000
_STILL = 1e-9  # a step that moves no share further is the last


@dataclass(frozen=True, eq=False)
class EmShares:
    """Shares (K,) of maximum likelihood and their ``covariance`` (K, K), by the observed information.

    It leaves out the noise of the calibration itself: these intervals hold where the probabilities are right.
    ``moved``: the likelihood-ratio test that the shares are the old ones. ``n`` samples.
    """

    shares: Floats
    covariance: Floats
    moved: ChiSquared
    n: int

    @property
    def error(self) -> Floats:
        """Standard errors (K,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))


def em(probs: ArrayLike, old: ArrayLike) -> EmShares:
    """Class shares of samples whose probabilities (n, K) are calibrated under the shares ``old`` (K,).

    The fixed point q_k = mean of q_k u_k / sum_j q_j u_j, u = p / old, where the likelihood is largest. It is
    consistent under label shift where every class is calibrated, not the top one alone; ``bbse`` asks less.
    Raises InputError and ShapeError for arrays that cannot be right.

    >>> found = em([[1.0, 0.0]] * 3 + [[0.0, 1.0]], [0.5, 0.5])
    >>> found.shares.tolist()
    [0.75, 0.25]
    >>> found.error.round(4).tolist()  # of a share of 4 draws: sqrt(.75 x .25 / 4)
    [0.2165, 0.2165]
    """
    p = checked_probs(probs)
    if not len(p):
        raise InputError("there are no samples to estimate class shares of")
    before = as_shares(old, p.shape[1])
    ratio = np.maximum(p / before, np.finfo(float).tiny)
    shares = climbed(ratio, np.full(len(p), 1 / len(p)), before)
    mixed = ratio @ shares
    gain = 2 * float(np.log(mixed).sum() - np.log(ratio @ before).sum())
    scaled = ratio / mixed[:, None]
    # The information of one sample is E[v v'] with v = u / sum_j q_j u_j; H q = E[v] = 1 gives the sum.
    information = scaled.T @ scaled / len(p)
    # A share at 0 is held there by a slope, which tells as much as an exponential distribution of that rate.
    slope = np.maximum(1 - scaled.mean(axis=0), 0)
    covariance = (inverse(information + len(p) * np.diag(slope**2)) - np.outer(shares, shares)) / len(p)
    return EmShares(shares, covariance, ChiSquared(max(gain, 0.0), len(shares) - 1), len(p))


def climbed(ratio: Floats, weight: Floats, start: Floats) -> Floats:
    """The shares (K,) of the most likely mixture: rows ``ratio`` (m, K) are proportional to p(row | k).

    ``weight`` (m,) of the rows sums to 1. Two EM steps and their extrapolation (Varadhan 2008, SQUAREM).
    """
    shares = start
    for _ in range(_STEPS):
        first = _step(ratio, weight, shares)
        second = _step(ratio, weight, first)
        change, bend = first - shares, second - 2 * first + shares
        if np.abs(second - first).max() < _STILL:
            return second
        length = -np.linalg.norm(change) / max(float(np.linalg.norm(bend)), np.finfo(float).tiny)
        jumped = np.asarray(shares - 2 * length * change + length**2 * bend)
        better = jumped.min() >= 0 and _likelihood(ratio, weight, jumped) >= _likelihood(
            ratio, weight, second
        )
        shares = _step(ratio, weight, jumped / jumped.sum()) if better else second
    return shares


def _step(ratio: Floats, weight: Floats, shares: Floats) -> Floats:
    moved: Floats = shares * ((weight / (ratio @ shares)) @ ratio)
    return np.asarray(moved / moved.sum())


def _likelihood(ratio: Floats, weight: Floats, shares: Floats) -> float:
    mixed = ratio @ shares
    return float(weight @ np.log(mixed)) if mixed.min() > 0 else -np.inf


def inverse(information: Floats) -> Floats:
    """The inverse of a symmetric matrix; nearly singular ones give large numbers, never an error."""
    scale = 1 / np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    unit = information * np.outer(scale, scale) + 1e-10 * np.eye(len(scale))
    return np.asarray(np.linalg.inv(unit) * np.outer(scale, scale))


_RANK = 1e-9  # of the largest variance: directions that vary less do not vary


@dataclass(frozen=True)
class ChiSquared:
    """A statistic and its degrees of freedom; with 0 of them nothing was tested, and ``p`` is NaN.

    >>> round(ChiSquared(3.841, 1).p, 3), round(ChiSquared(5.991, 2).p, 3), round(ChiSquared(7.815, 3).p, 3)
    (0.05, 0.05, 0.05)
    """

    statistic: float
    dof: int

    @classmethod
    def of(cls, deviation: Floats, covariance: Floats) -> ChiSquared:
        """Wald's test that ``deviation`` (m,) of this ``covariance`` (m, m) is 0, in what does vary."""
        if not len(deviation):
            return cls(0.0, 0)
        values, vectors = np.linalg.eigh(covariance)
        varies = values > _RANK * max(float(values[-1]), np.finfo(float).tiny)
        along = vectors[:, varies].T @ deviation
        return cls(float((along**2 / values[varies]).sum()), int(varies.sum()))

    @property
    def p(self) -> float:
        """The chance of a statistic at least as large."""
        if not self.dof:
            return math.nan
        return chi_square_beyond(self.statistic, self.dof)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        p = self.p
        return {"statistic": self.statistic, "dof": self.dof, "p": None if math.isnan(p) else p}

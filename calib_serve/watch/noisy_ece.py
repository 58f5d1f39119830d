"""The calibration error behind gaps that are known up to noise: an estimate and an interval.

The plain sum of |gap| is biased upward: noise alone makes every gap differ from 0. With normal noise, each
|gap| has a folded normal distribution, whose moments are known. For each possible truth the sum's mean and
quantiles follow, and the truths under which the seen sum is neither too large nor too small make up the
interval (test inversion, so it holds near 0 as well, where a normal interval around the estimate does not).

What is tested are truths along one line: the seen gaps, all made smaller or larger by a multiple of their
own errors (soft thresholding), down to 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NoisyError", "noisy_error"]

Floats = NDArray[np.float64]

_STEPS = 40
_BEYOND = 8.0  # errors by which gaps are made larger at most


@dataclass(frozen=True)
class NoisyError:
    """``value`` is nearly unbiased and can be slightly below 0; ``observed`` is the plain sum of |gap|."""

    value: float
    low: float
    high: float
    observed: float


def noisy_error(gap: Floats, covariance: Floats, share: Floats, *, z: float = 1.96) -> NoisyError:
    """Estimate sum(share |true gap|) with an interval of ``z`` standard errors.

    ``gap`` (b,) as seen, ``covariance`` (b, b) of their errors, ``share`` (b,) of the predictions.

    >>> found = noisy_error(np.array([0.3]), np.array([[0.0001]]), np.array([1.0]))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.3, 0.28, 0.32)
    """
    error = np.sqrt(np.maximum(np.diag(covariance), 1e-18))
    size, observed = np.abs(gap), float(share @ np.abs(gap))
    sign = np.where(gap < 0, -1.0, 1.0)
    together = covariance / np.outer(error, error) * np.outer(share * sign, share * sign)
    quantiles = np.array([0.0, z, -z])
    top = float((size / error).max())

    def at(less: Floats) -> tuple[Floats, Floats]:
        """True sums (3,), and where their quantiles of the seen sum lie (3,), by errors taken off."""
        true = np.maximum(size - less[:, None] * error, 0.0)
        mean, deviation, skewness = _seen(true, error, share, together)
        # Cornish and Fisher 1938: a sum of few folded normals is skewed. The estimate goes by the mean.
        skewed = np.where(quantiles == 0, 0.0, (quantiles**2 - 1) / 6 * skewness)
        return true @ share, mean + (quantiles + skewed) * deviation

    low, high = np.full(3, -_BEYOND), np.full(3, top)  # errors taken off; the sum falls with them
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = at(middle)[1] > observed
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    value, lower, upper = at((low + high) / 2)[0].tolist()
    least = at(np.full(3, top))[1]
    if observed <= least[0]:
        value = observed - float(least[0])
    return NoisyError(
        value, lower if observed > least[1] else 0.0, upper if observed > least[2] else 0.0, observed
    )


def _seen(true: Floats, error: Floats, share: Floats, together: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, standard deviation and skewness (k,) of the seen sum, for true gaps (k, b).

    Folded normal moments (Leone, Nelson, Nottingham 1961). Covariances of absolute values: the first two
    terms of their Hermite series (Mehler 1866).
    """
    from scipy.special import erf  # noqa: PLC0415 - a watch that estimates nothing does not load it

    z = true / error
    density = 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    inside = erf(z / math.sqrt(2))
    mean = error * (density + z * inside)
    square = true * true + error * error
    variance = np.maximum(square - mean * mean, 0.0)
    cube = error**3 * ((z * z + 2) * density + (z**3 + 3 * z) * inside)
    third = cube - 3 * mean * square + 2 * mean**3
    first, second = error * inside, error * density
    apart = together - np.diag(np.diag(together))
    off = np.einsum("ki,ij,kj->k", first, apart, first)
    # Products of two signs of correlations: only their shares remain.
    squares = np.divide(apart**2, np.outer(share, share), out=np.zeros_like(apart), where=apart != 0)
    off += np.einsum("ki,ij,kj->k", second, squares, second) / 2
    alone = variance @ share**2
    total = np.maximum(alone + off, alone / 10)
    return mean @ share, np.sqrt(total), (third @ share**3) / np.maximum(total, 1e-36) ** 1.5

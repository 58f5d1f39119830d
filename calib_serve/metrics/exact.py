"""Exact distributions of shares: intervals of a share, and the coverage that split conformal sets reach."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from calib_serve.errors import InputError
from calib_serve.metrics.intervals import Estimate, quantile_of
from calib_serve.metrics.tails import accuracy_at_least, beta_quantile

__all__ = ["beta_binomial_at_most", "conformal_rank", "coverage_range", "exact_interval"]


def exact_interval(successes: float, n: float, *, level: float = 0.95) -> Estimate:
    """A share and its exact interval (Clopper and Pearson 1934); both numbers may be effective ones.

    >>> str(exact_interval(8, 10))
    '0.8000 [0.4439, 0.9748]'
    """
    quantile_of(level)  # raises for an invalid level
    low, high = _ends(successes, n, (1 - level) / 2)
    return Estimate(successes / n, min(low, successes / n), max(high, successes / n))


@lru_cache(maxsize=4096)  # classes of equally many samples ask the same again and again
def _ends(successes: float, n: float, risk: float) -> tuple[float, float]:
    low = accuracy_at_least(successes, n, risk=risk)
    return low, 1 - accuracy_at_least(n - successes, n, risk=risk)


def conformal_rank(n: int, coverage: float) -> int:
    """The rank k = ceil((n + 1) coverage): the k-th smallest of n scores is the threshold (Vovk 2005).

    Above n there is none: then no finite threshold keeps the promise. Computed without rounding.

    >>> conformal_rank(99, 0.9), conformal_rank(9, 0.9), conformal_rank(8, 0.9)
    (90, 9, 9)
    """
    if not 0 < coverage < 1:
        raise InputError(f"coverage must lie between 0 and 1, got {coverage}; 0.9 means 90 %")
    return math.ceil((n + 1) * Fraction(repr(float(coverage))))


def coverage_range(n: int, coverage: float, *, level: float = 0.95) -> Estimate:
    """The share of new samples that sets from n samples hold: its mean, and where it lies at ``level``.

    It is Beta(k, n + 1 - k) over the draws of the n samples, where no scores are tied (Vovk 2012, prop. 2a).

    >>> str(coverage_range(1000, 0.9))
    '0.9001 [0.8808, 0.9179]'
    """
    quantile_of(level)
    k = conformal_rank(n, coverage)
    if k > n:
        return Estimate(1.0, 1.0, 1.0)
    ends = (beta_quantile(share, k, n + 1 - k) for share in ((1 - level) / 2, (1 + level) / 2))
    return Estimate(k / (n + 1), *ends)


def beta_binomial_at_most(x: int, n: int, a: float, b: float) -> float:
    """P(X <= x) for X ~ Binomial(n, p), p ~ Beta(a, b): how many of n new samples the sets hold.

    >>> round(beta_binomial_at_most(0, 1, 3, 1), 12)  # b / (a + b)
    0.25
    """
    if x < 0 or x >= n:
        return float(x >= n)
    i = np.arange(n)
    # P(i + 1) / P(i) = (n - i)(a + i) / ((i + 1)(b + n - 1 - i)); sums of logarithms do not underflow.
    steps = np.log(n - i) + np.log(a + i) - np.log(i + 1) - np.log(b + n - 1 - i)
    mass = np.concatenate([[0.0], np.cumsum(steps)])
    mass = np.exp(mass - mass.max())
    return float(mass[: x + 1].sum() / mass.sum())

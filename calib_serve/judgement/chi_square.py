"""The chi-square distribution, central and not, by series of positive terms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["below", "beyond", "distance_at", "mixture_beyond", "quantile"]

_LARGE = 20_000.0  # beyond it, Sankaran's approximation is exact to four digits and far faster


def below(x: float, freedom: float, distance: float = 0.0) -> float:
    """P(X <= x) for chi-square of ``freedom`` degrees and noncentrality ``distance``.

    Poisson(distance / 2) mixes central distributions (Johnson, Kotz and Balakrishnan 1995, eq. 29.3), each
    the series x^a e^-x (1 / Γ(a + 1) + x / Γ(a + 2) + ...).

    >>> round(below(2.0, 2), 12) == round(1 - math.exp(-1), 12), round(below(3.0, 3, 4.0), 4)
    (True, 0.202)
    """
    if x <= 0 or not math.isfinite(distance):
        return 0.0
    if max(x, distance) > _LARGE:
        return _sankaran(x, freedom, distance)
    half, a, rate = x / 2, freedom / 2, distance / 2
    most = 60 + math.ceil(half + 12 * math.sqrt(half))  # beyond them the central ones are 0
    steps = np.arange(1, most)
    logs = np.concatenate([[0.0], np.cumsum(math.log(half) - np.log(a + steps))])
    terms = np.exp(logs + a * math.log(half) - half - math.lgamma(a + 1))
    central = np.cumsum(terms[::-1])[::-1]  # of freedom + 2 j degrees
    if not rate:
        return min(float(central[0]), 1.0)
    weights = np.exp(np.concatenate([[0.0], np.cumsum(math.log(rate) - np.log(steps))]) - rate)
    return min(float(weights @ central), 1.0)


def _sankaran(x: float, k: float, distance: float) -> float:
    """Sankaran (1963): a power of it is nearly normal."""
    mean, spread = k + distance, k + 2 * distance
    h = 1 - 2 * mean * (k + 3 * distance) / (3 * spread**2)
    p = spread / mean**2
    m = (h - 1) * (1 - 3 * h)
    z = ((x / mean) ** h - (1 + h * p * (h - 1 - (2 - h) * m * p / 2))) / (
        h * math.sqrt(2 * p) * (1 + m * p / 2)
    )
    return NormalDist().cdf(z)


def beyond(x: float, freedom: float) -> float:
    """P(X > x), central.

    >>> round(beyond(3.841459, 1), 6)
    0.05
    """
    return max(1 - below(x, freedom), 0.0)


@functools.lru_cache(maxsize=256)
def quantile(share: float, freedom: float, distance: float = 0.0) -> float:
    """The x with P(X <= x) = share.

    >>> round(quantile(0.95, 1), 4)
    3.8415
    """
    high = freedom + distance + 10.0
    while below(high, freedom, distance) < share:
        high *= 2
    return _bisect(lambda x: below(x, freedom, distance) < share, 0.0, high)


@functools.lru_cache(maxsize=256)
def distance_at(freedom: float, *, risk: float, power: float) -> float:
    """The noncentrality that is told from 0, at this risk, with this power: of equivalence tests.

    >>> round(math.sqrt(distance_at(1, risk=0.05, power=0.9)), 2)  # about 1.645 + 1.645
    3.29
    """
    limit = quantile(power, freedom)
    high = 10.0 + freedom
    while below(limit, freedom, high) > risk:
        high *= 2
    return _bisect(lambda d: below(limit, freedom, d) > risk, 0.0, high)


def mixture_beyond(x: float, weights: NDArray[np.float64]) -> float:
    """P(sum of weights times chi-squares of one degree > x), by its first three moments (Imhof 1961, sec. 4).

    >>> round(mixture_beyond(3.841459, np.array([1.0])), 6)
    0.05
    """
    first, second, third = (float((weights**i).sum()) for i in (1, 2, 3))
    if not third > 0:
        return 1.0
    freedom = second**3 / third**2
    return beyond((x - first) * math.sqrt(freedom / second) + freedom, freedom)


def _bisect(left: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) else (low, middle)
    return (low + high) / 2

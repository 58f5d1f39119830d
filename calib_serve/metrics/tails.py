"""Tail probabilities of the binomial and of Student's t, by the incomplete beta function."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["accuracy_at_least", "beta_below", "binomial_at_most", "student_beyond", "student_quantile"]

_TINY = 1e-300


def beta_below(x: float, a: float, b: float) -> float:
    """I_x(a, b), the share of Beta(a, b) below x (continued fraction, Numerical Recipes 6.4).

    >>> round(beta_below(0.25, 1, 1), 12), round(beta_below(0.5, 3, 3), 12)
    (0.25, 0.5)
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast for the other tail
        return 1 - beta_below(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction, m = d, 0
    while True:
        m += 1
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15 or m > 10_000:
            return math.exp(log_front) * fraction / a


def _off_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def binomial_at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Binomial(n, p).

    >>> round(binomial_at_most(1, 3, 0.5), 12)  # (1 + 3) / 8
    0.5
    """
    return 1.0 if k >= n else beta_below(1 - p, n - k, k + 1)


def accuracy_at_least(correct: float, n: float, *, risk: float) -> float:
    """The lower bound of a share that fails with probability ``risk`` (Clopper and Pearson 1934).

    >>> round(accuracy_at_least(10, 10, risk=0.05), 4)  # 0.05 ** (1 / 10)
    0.7411
    """
    if correct == 0:
        return 0.0
    return _root(lambda p: beta_below(p, correct, n - correct + 1) - risk, 0.0, 1.0)


def student_beyond(t: float, freedom: float) -> float:
    """P(|T| > |t|), two-sided, for Student's t.

    >>> round(student_beyond(1.0, 1), 12)  # Cauchy
    0.5
    """
    return beta_below(freedom / (freedom + t * t), freedom / 2, 0.5)


def student_quantile(level: float, freedom: float) -> float:
    """The two-sided quantile of Student's t.

    >>> round(student_quantile(0.95, 4), 4)
    2.7764
    """
    high = 1.0
    while student_beyond(high, freedom) > 1 - level:
        high *= 2
    return _root(lambda t: 1 - level - student_beyond(t, freedom), 0.0, high)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses 0, by bisection to the last bits."""
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2

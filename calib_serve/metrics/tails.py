"""Tails and quantiles of the distributions that tests and intervals end in, by ``scipy.special``.

scipy is imported with the first that is asked for: whoever serves predictions imports metrics and needs none.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

__all__ = [
    "accuracy_at_least",
    "beta_below",
    "beta_quantile",
    "binomial_at_most",
    "chi_square_below",
    "chi_square_beyond",
    "chi_square_median",
    "detectable_distance",
    "equivalence_power",
    "student_beyond",
    "student_quantile",
]


@functools.cache
def _special() -> Any:
    from scipy import special  # noqa: PLC0415

    return special


def beta_below(x: float, a: float, b: float) -> float:
    """I_x(a, b), the share of Beta(a, b) below x.

    >>> round(beta_below(0.25, 1, 1), 12), round(beta_below(0.5, 3, 3), 12)
    (0.25, 0.5)
    """
    return float(_special().betainc(a, b, min(max(x, 0.0), 1.0)))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x below which the share of Beta(a, b) lies.

    >>> round(beta_quantile(0.25, 1, 1), 12)
    0.25
    """
    return float(_special().betaincinv(a, b, share))


def binomial_at_most(k: float, n: float, p: float) -> float:
    """P(X <= k) for X ~ Binomial(n, p); both numbers may be effective ones.

    >>> round(binomial_at_most(1, 3, 0.5), 12)  # (1 + 3) / 8
    0.5
    """
    return 1.0 if k >= n else beta_below(1 - p, n - k, k + 1)


def accuracy_at_least(correct: float, n: float, *, risk: float) -> float:
    """The lower bound of a share that fails with probability ``risk`` (Clopper and Pearson 1934).

    >>> round(accuracy_at_least(10, 10, risk=0.05), 4)  # 0.05 ** (1 / 10)
    0.7411
    """
    return 0.0 if correct == 0 else beta_quantile(risk, correct, n - correct + 1)


def student_beyond(t: float, freedom: float) -> float:
    """P(|T| > |t|), two-sided, for Student's t.

    >>> round(student_beyond(1.0, 1), 12)  # Cauchy
    0.5
    """
    return float(2 * _special().stdtr(freedom, -abs(t)))


def student_quantile(level: float, freedom: float) -> float:
    """The two-sided quantile of Student's t.

    >>> round(student_quantile(0.95, 4), 4), round(student_quantile(0.95, math.inf), 4)
    (2.7764, 1.96)
    """
    return float(_special().stdtrit(freedom, (1 + level) / 2))


def chi_square_below(x: float, freedom: float, distance: float = 0.0) -> float:
    """P(X <= x) for chi-square of ``freedom`` degrees and noncentrality ``distance``.

    >>> round(chi_square_below(2.0, 2), 4), round(chi_square_below(3.0, 3, 4.0), 4)  # 1 - 1 / e
    (0.6321, 0.202)
    """
    return float(_special().chndtr(x, freedom, distance)) if math.isfinite(distance) else 0.0


def chi_square_beyond(x: float, freedom: float) -> float:
    """P(X > x) for chi-square of ``freedom`` degrees.

    >>> round(chi_square_beyond(3.841459, 1), 6)
    0.05
    """
    return float(_special().chdtrc(freedom, max(x, 0.0)))


def chi_square_median(freedom: float) -> float:
    """The x with P(X <= x) = 1 / 2.

    >>> round(chi_square_median(2), 12) == round(2 * math.log(2), 12)
    True
    """
    return float(_special().chdtri(freedom, 0.5))


def detectable_distance(freedom: float, *, risk: float, power: float) -> float:
    """The noncentrality that is told from 0, at this risk, with this power: of equivalence tests.

    >>> round(math.sqrt(detectable_distance(1, risk=0.05, power=0.9)), 2)  # about 1.645 + 1.645
    3.29
    """
    limit = _special().chdtri(freedom, 1 - power)
    return float(_special().chndtrinc(limit, freedom, risk))


def equivalence_power(distance: Any, freedom: float, *, risk: float) -> Any:
    """How often calibrated gaps prove that they are not so far from 0, with as many degrees of ``freedom``.

    The inverse of ``detectable_distance``, of distances (...,). Gaps below the median count as it, so that
    few samples prove nothing.

    >>> round(float(equivalence_power(detectable_distance(3, risk=0.05, power=0.9), 3, risk=0.05)), 6)
    0.9
    """
    limit = _special().chndtrix(risk, freedom, distance)
    power = _special().chdtr(freedom, limit)
    return np.where(power > 0.5, power, 0.0)

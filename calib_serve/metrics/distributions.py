"""Tails and quantiles of distributions.

scipy is imported with the first tail that is asked for: whoever serves predictions imports metrics and needs
none.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from calib_serve.core.arrays import Floats


@functools.cache
def scipy_special() -> Any:
    """scipy.special, imported when it is first used."""
    from scipy import special  # noqa: PLC0415

    return special


def beta_below(x: float, a: float, b: float) -> float:
    """I_x(a, b), the share of Beta(a, b) below x.

    Args:
        x: A share; beyond [0, 1] it is clipped.
        a: First shape parameter, above 0.
        b: Second shape parameter, above 0.

    >>> round(beta_below(0.25, 1, 1), 12), round(beta_below(0.5, 3, 3), 12)
    (0.25, 0.5)
    """
    # Effective numbers may round a little beyond the ends.
    return float(scipy_special().betainc(a, b, min(max(x, 0.0), 1.0)))


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x with that share of Beta(a, b) below it.

    >>> round(beta_quantile(0.25, 1, 1), 12)
    0.25
    """
    return float(scipy_special().betaincinv(a, b, share))


def binomial_at_most(k: float, n: float, p: float) -> float:
    """P(X <= k) for X ~ Binomial(n, p).

    Args:
        k: Number of successes, 0 or more; both numbers may be effective ones.
        n: Number of trials.
        p: Probability of a success.

    >>> round(binomial_at_most(1, 3, 0.5), 12)  # (1 + 3) / 8
    0.5
    """
    return 1.0 if k >= n else beta_below(1 - p, n - k, k + 1)


def binomial_range(p: Floats, n: Floats, *, level: float) -> tuple[Floats, Floats]:
    """The least and the largest share (b,) of successes in Binomial(n, p), its exact equal-tailed ranges.

    Args:
        p: Probabilities of a success (b,).
        n: Numbers of trials (b,); of an effective number the whole ones count.
        level: Share of the distribution that each range holds at least.

    >>> [x.tolist() for x in binomial_range(np.array([0.5, 1.0]), np.array([10.0, 3.0]), level=0.95)]
    [[0.2, 1.0], [0.8, 1.0]]
    """
    from scipy import stats  # noqa: PLC0415

    n = np.maximum(np.floor(n + 1e-9), 1.0)
    low, high = (
        np.maximum(stats.binom.ppf(share, n, p), 0) / n for share in ((1 - level) / 2, (1 + level) / 2)
    )
    return low, high


def events_chance(p: Floats, seen: float, weight: Floats | None = None, *, effect: float = 1.0) -> float:
    """The two-sided chance of a sum of events as far from what is expected (Lugannani and Rice 1980).

    Twice the smaller tail of the sum of independent events of unlike probabilities, by a saddlepoint: a rare
    event's tails are far from normal ones.

    Args:
        p: Probabilities of the events (n,).
        seen: Number of events that came true, or the sum of their weights.
        weight: (n,); None: all weigh the same.
        effect: How much more the sum varies as samples come in groups, at least 1.

    >>> round(events_chance(np.full(20, 0.1), 7), 3)  # 2 P(X >= 7), X ~ Binomial(20, 0.1)
    0.005
    """
    w = np.ones(len(p)) if weight is None else weight
    p = np.clip(p, 1e-12, 1 - 1e-12)
    # Of whole numbers each tail holds what was seen; sums of weights are as good as continuous.
    step = 0.0 if weight is not None else 1.0
    return min(2 * min(_tail(p, w, seen, step, effect), _tail(1 - p, w, w.sum() - seen, step, effect)), 1.0)


def _tail(p: Floats, w: Floats, seen: float, step: float, effect: float) -> float:
    """P(sum of events >= seen), where they weigh w (n,); whole numbers have a ``step`` of 1."""
    most, odds, special = float(w.sum()), np.log(p) - np.log1p(-p), scipy_special()
    if seen <= 1e-9 * most:
        return 1.0
    # All of them: the saddlepoint lies at infinity.
    if seen >= most * (1 - 1e-9):
        return math.exp(float(np.log(p).sum()) / effect)
    t, low, high = 0.0, -1000.0 / float(w.min()), 1000.0 / float(w.min())
    for _ in range(80):
        tilted = special.expit(odds + w * t)
        over, variance = float(w @ tilted) - seen, float((w * w) @ (tilted * (1 - tilted)))
        low, high = (low, t) if over > 0 else (t, high)
        if abs(over) <= 1e-9 * most:
            break
        newton = t - over / max(variance, 1e-300)
        t = newton if low < newton < high else (low + high) / 2
    # Logarithms of moments are those of as many samples as the ones in groups are worth.
    moments = float((np.logaddexp(0, odds + w * t) - np.logaddexp(0, odds)).sum())
    far = math.copysign(math.sqrt(max(2 * (t * seen - moments) / effect, 0.0)), t)
    size = math.sqrt(variance / effect) * (-math.expm1(-step * t) if step else t)
    if abs(far) < 1e-3 or abs(size) < 1e-12:  # at the mean both terms below are infinite, and cancel
        return 0.5
    density = math.exp(-(far**2) / 2) / math.sqrt(2 * math.pi)
    return min(max(float(special.ndtr(-far)) + density * (1 / size - 1 / far), 0.0), 1.0)


def accuracy_at_least(correct: float, n: float, *, risk: float) -> float:
    """The lower bound of a share (Clopper and Pearson 1934).

    Args:
        correct: Number of successes, 0 to n; both numbers may be effective ones.
        n: Number of trials.
        risk: Probability that the bound fails.

    >>> round(accuracy_at_least(10, 10, risk=0.05), 4)  # 0.05 ** (1 / 10)
    0.7411
    """
    # The quantile is not defined at a = 0, where the bound is 0.
    return 0.0 if correct == 0 else beta_quantile(risk, correct, n - correct + 1)


def student_beyond(t: float, freedom: float) -> float:
    """The two-sided P(abs(T) > abs(t)) of Student's t.

    >>> round(student_beyond(1.0, 1), 12)  # Cauchy
    0.5
    """
    return float(2 * scipy_special().stdtr(freedom, -abs(t)))


def student_quantile(level: float, freedom: float) -> float:
    """The two-sided quantile of Student's t.

    Args:
        level: Share of the distribution between the two quantiles.
        freedom: Degrees of freedom, above 0; infinity: the normal quantile.

    >>> round(student_quantile(0.95, 4), 4), round(student_quantile(0.95, math.inf), 4)
    (2.7764, 1.96)
    """
    return float(scipy_special().stdtrit(freedom, (1 + level) / 2))


def chi_square_below(x: float, freedom: float, distance: float = 0.0) -> float:
    """P(X <= x) for chi-square of ``freedom`` degrees and noncentrality ``distance``.

    >>> round(chi_square_below(2.0, 2), 4), round(chi_square_below(3.0, 3, 4.0), 4)  # 1 - 1 / e
    (0.6321, 0.202)
    """
    return float(scipy_special().chndtr(x, freedom, distance)) if math.isfinite(distance) else 0.0


def chi_square_beyond(x: float, freedom: float) -> float:
    """P(X > x) for chi-square of ``freedom`` degrees.

    >>> round(chi_square_beyond(3.841459, 1), 6)
    0.05
    """
    return float(scipy_special().chdtrc(freedom, max(x, 0.0)))


def chi_square_median(freedom: float) -> float:
    """The x with P(X <= x) = 1 / 2.

    >>> round(chi_square_median(2), 12) == round(2 * math.log(2), 12)
    True
    """
    return float(scipy_special().chdtri(freedom, 0.5))


def detectable_distance(freedom: float, *, risk: float, power: float) -> float:
    """The noncentrality that a test tells from 0 at this risk with this power, as equivalence tests ask.

    >>> round(math.sqrt(detectable_distance(1, risk=0.05, power=0.9)), 2)  # about 1.645 + 1.645
    3.29
    """
    limit = scipy_special().chdtri(freedom, 1 - power)
    return float(scipy_special().chndtrinc(limit, freedom, risk))


def equivalence_power(distance: Any, freedom: float, *, risk: float) -> Any:
    """How often calibrated gaps prove that they are within ``distance`` of 0, for this ``freedom``.

    The inverse of ``detectable_distance``, of distances (...,). Gaps below the median count as it, so that
    few samples prove nothing.

    >>> round(float(equivalence_power(detectable_distance(3, risk=0.05, power=0.9), 3, risk=0.05)), 6)
    0.9
    """
    limit = scipy_special().chndtrix(risk, freedom, distance)
    power = scipy_special().chdtr(freedom, limit)
    return np.where(power > 0.5, power, 0.0)


def beta_binomial_at_most(x: int, n: int, a: float, b: float) -> float:
    """P(X <= x) for X ~ Binomial(n, p), p ~ Beta(a, b): how many of n new samples the sets hold.

    Args:
        x: Number of successes, of any size.
        n: Number of trials.
        a: First shape parameter, above 0.
        b: Second shape parameter, above 0.

    >>> round(beta_binomial_at_most(0, 1, 3, 1), 12)  # b / (a + b)
    0.25
    """
    from scipy import stats  # noqa: PLC0415

    return float(stats.betabinom.cdf(x, n, a, b))

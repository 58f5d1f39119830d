"""What samples prove of decisions on new ones: thresholds that keep a promise, and a bound of a mean cost."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.metrics.distributions import accuracy_at_least, binomial_at_most
from calib_serve.metrics.samples import group_codes, one_of_each, top_label

ThresholdGoal = Literal["precision", "recall", "budget"]
"""What a threshold keeps: the least share of chosen samples that are of class 1; the least share of class 1
that is chosen; the largest share of all samples that is chosen."""

# Thresholds are fixed before any sample is seen, so that each test is exact, also of tied confidences.
_STEPS = 32  # thresholds to a doubling of the odds c / (1 - c)
_MOST_DOUBLINGS = 20  # above lie confidences that float32 hardly tells from 1
# Doublings of the odds of a confidence of 1 - risk.
_STARTS = (-16, -8, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 8)

# Served probabilities are float32 and rounded: a last bit must not turn samples that are tied with the
# threshold, as many are behind a table.
_MARGIN = 4 * float(np.finfo(np.float32).eps)
_FINE = 1 << 20  # a grid of thresholds down to odds of one in a million


@dataclass(frozen=True)
class Abstention:
    """Answer where confidence reaches a threshold, abstain elsewhere.

    Where no threshold keeps the promise, ``threshold`` is infinite, ``answered`` 0 and the risks NaN.

    Args:
        threshold: Least confidence that is answered.
        answered: Share of the samples that is answered.
        risk: Share of the answers that is wrong.
        risk_high: Upper bound of that share among new samples.
    """

    threshold: float
    answered: float
    risk: float
    risk_high: float


def abstention(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Abstention:
    """Return the confidence from which on few answers are wrong, as is proved of new samples.

    The promise holds with probability ``level`` over draws of samples like these, independent of each other,
    whatever the model. Each threshold is tested once, by the binomial, in an order that is fixed beforehand,
    from the strictest on (Learn then Test, Angelopoulos 2021, section 2.2). Half of 1 - level is spent from
    the confidence 1 - risk on, from which a calibrated model keeps the promise; even shares of the rest from
    15 others. A test that succeeds hands what it had to the next one (the fallback procedure, Wiens 2003).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        risk: Share of the answers that may be wrong, at most.
        level: Probability that the promise holds.
        groups: Which samples belong together (n,); the tests are then of one sample each.
        seed: Seed by which that one is drawn.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> found = abstention(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)
    >>> round(found.threshold, 2), found.answered, found.risk
    (0.6, 0.75, 0.0)
    """
    for name, share in (("risk", risk), ("level", level)):
        if not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {share}; 0.05 means 5 %")
    confidence, correct = top_label(probs, labels)
    codes = group_codes(groups, len(correct))
    # The binomial test needs independent samples: one of each group is.
    rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
    classes = np.shape(probs)[1]
    threshold, high = lowest_threshold(
        confidence[rows], correct[rows], classes=classes, risk=risk, level=level
    )
    answered = confidence >= threshold
    wrong = float((~correct[answered]).mean()) if math.isfinite(threshold) else math.nan
    return Abstention(threshold, float(answered.mean()), wrong, high)


def lowest_threshold(
    confidence: Floats, correct: NDArray[np.bool_], *, classes: int, risk: float, level: float
) -> tuple[float, float]:
    """Return the lowest threshold that passes its test as in ``abstention``, and the bound of its risk.

    Infinite and NaN if none does.

    Args:
        confidence: Probabilities (n,) of what is answered, of independent samples.
        correct: Whether it is right (n,).
        classes: K: below 1 / K, thresholds are not told apart.
        risk: Share of the answers that may be wrong, at most.
        level: Probability that the promise holds.
    """
    order = np.argsort(-confidence)
    falling, errors = -confidence[order], np.concatenate([[0], np.cumsum(~correct[order])])
    best, spent = None, 0.0
    for threshold, share in _sequence(classes, risk):
        spent += (1 - level) * share
        if not spent:
            continue
        # The threshold itself is answered, so ties are on its side.
        n = int(np.searchsorted(falling, -threshold, side="right"))
        k = int(errors[n])
        if n and binomial_at_most(k, n, risk) <= spent:
            best = (threshold, n, k, spent)
        else:
            spent = 0.0
    if best is None:
        return math.inf, math.nan
    threshold, n, k, paid = best
    return threshold, 1 - accuracy_at_least(n - k, n, risk=paid)


def _sequence(classes: int, risk: float) -> Iterator[tuple[float, float]]:
    """Yield thresholds from the strictest to 0, which answers all, and the share of errors spent there.

    They are evenly spaced in the logarithm of the odds, down to a confidence below 1 / K, which all reach.
    """
    last = -math.ceil(math.log2(classes)) * _STEPS
    usual = math.log2((1 - risk) / risk)
    shares = {_step(usual, last): 0.5}
    for doublings in _STARTS:
        step = _step(usual + doublings, last)
        shares[step] = shares.get(step, 0.0) + 0.5 / len(_STARTS)
    for step in range(_MOST_DOUBLINGS * _STEPS, last, -1):
        yield 1 / (1 + 2 ** (-step / _STEPS)), shares.get(step, 0.0)
    yield 0.0, shares.get(last, 0.0)


def _step(doublings: float, last: int) -> int:
    return min(max(round(doublings * _STEPS), last), _MOST_DOUBLINGS * _STEPS)


def most_failures(n: int, share: float, level: float) -> int:
    """Return the most failures among n trials that prove, at a level, that fewer than a share fail.

    Args:
        n: Number of trials.
        share: Share of failures that is to be kept.
        level: Probability that such a proof is right.

    Returns:
        -1 where not even trials without a failure prove it.

    >>> most_failures(28, 0.1, 0.95), most_failures(29, 0.1, 0.95)  # 0.9 ** 29 < 0.05
    (-1, 0)
    """
    return bisect_right(range(n), 1 - level, key=lambda k: binomial_at_most(k, n, share)) - 1


def promised_threshold(
    probs: Floats, positive: NDArray[np.bool_], goal: ThresholdGoal, share: float, *, level: float
) -> float:
    """Return the threshold of P(y = 1) that keeps a share among new samples; NaN where none does.

    Thresholds are tested in a fixed order by the exact binomial (Learn then Test, Angelopoulos 2021). Recall
    and budget change one way with the threshold, so that every sample's own probability is tested in turn,
    which gives the bounds of Wilks (1941): the highest threshold with that recall, the lowest within that
    budget. The precision need not rise with the threshold: the lowest one is found as in ``abstention``.

    Args:
        probs: Calibrated P(y = 1) (n,) of independent samples that they were not fitted to.
        positive: Whether each is of class 1 (n,).
        goal: "precision", "recall" or "budget".
        share: Share to keep.
        level: Probability that it is kept, over the draws of these samples.

    >>> probs = np.arange(1, 60) / 100
    >>> found = promised_threshold(probs, np.ones(59, bool), "recall", 0.95, level=0.95)
    >>> round(found, 4)  # 0.95 ** 59 < 0.05: none is missed
    0.01
    """
    if goal == "precision":
        found = lowest_threshold(probs, positive, classes=_FINE, risk=1 - share, level=level)[0]
        return found if math.isfinite(found) else math.nan
    ordered = np.sort(probs[positive]) if goal == "recall" else -np.sort(-probs)
    allowed = most_failures(len(ordered), 1 - share if goal == "recall" else share, level)
    if allowed < 0:
        return math.nan
    found = float(ordered[allowed])
    if goal == "recall":
        return max(found - _MARGIN, 0.0)
    return found + _MARGIN if found + _MARGIN <= ordered[0] else math.nan  # else none would be chosen


def mean_at_most(
    values: Floats, low: float, high: float, *, level: float = 0.95, rng: np.random.Generator
) -> float:
    """Return an upper bound of the mean that values between two bounds are drawn from.

    It bets against every mean, more where the values vary little, and holds for any distribution
    (Waudby-Smith and Ramdas 2024, theorem 3; Bates 2021, proposition 5).

    Args:
        values: Independent draws (n,).
        low: Least value that there can be.
        high: Largest one.
        level: Probability that the bound holds.
        rng: What draws the order in which they are bet on.

    >>> bound = mean_at_most(np.zeros(100), 0.0, 1.0, rng=np.random.default_rng(0))
    >>> 0.03 < bound < 0.04  # by the binomial 1 - 0.05 ** (1 / 100) = 0.0295
    True
    """
    x = (rng.permutation(values) - low) / (high - low)
    count, enough = np.arange(1, len(x) + 1), -math.log(1 - level)
    mean = (0.5 + np.cumsum(x)) / (1 + count)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (1 + count)
    before = np.concatenate([[0.25], variance[:-1]])
    stake = np.minimum(1.0, np.sqrt(2 * enough / (len(x) * before)))
    known, refuted = 0.0, 1.0
    with np.errstate(divide="ignore"):
        for _ in range(40):
            tried = (known + refuted) / 2
            # Where the bets win that much, means from there on are refuted.
            won = np.cumsum(np.log1p(-stake * (x - tried))).max() > enough
            known, refuted = (known, tried) if won else (tried, refuted)
    return low + (high - low) * refuted

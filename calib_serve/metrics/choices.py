"""Thresholds of P(y = 1) that keep what they promise of new samples, and an upper bound of a mean cost."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.text import percent
from calib_serve.metrics.decisions import lowest_threshold, share_of
from calib_serve.metrics.distributions import binomial_at_most
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.samples import group_codes

ThresholdGoal = Literal["precision", "recall", "budget"]
"""What a threshold keeps: the least share of chosen samples that are of class 1; the least share of class 1
that is chosen; the largest share of all samples that is chosen."""

# Served probabilities are float32 and rounded: a last bit must not turn samples that are tied with the
# threshold, as many are behind a table.
_MARGIN = 4 * float(np.finfo(np.float32).eps)
_FINE = 1 << 20  # a grid of thresholds down to odds of one in a million


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


@dataclass(frozen=True)
class ChoiceEvaluation:
    """What chosen actions came to on samples.

    Args:
        goal: "cost", "precision", "recall" or "budget".
        measured: The mean cost, or the share, with its interval; NaN where no sample tells.
        promised: What it was to be, at most (of cost and budget) or at least.
    """

    goal: str
    measured: Estimate
    promised: float

    def says(self) -> str:
        """A sentence for a person, and another where the promise is surely broken."""
        e, most = self.measured, self.goal in ("cost", "budget")
        as_text = "{:.4g}".format if self.goal == "cost" else percent
        shown = as_text(e.value) + ("" if math.isnan(e.low) else f" ({as_text(e.low)} to {as_text(e.high)})")
        said = f"{self.goal.capitalize()} of the decisions: {shown}"
        said += f" (promised at {'most' if most else 'least'} {as_text(self.promised)})."
        if e.low > self.promised if most else e.high < self.promised:
            said += " That breaks the promise: these samples are not like those that it is of."
        return said

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**vars(self), "measured": self.measured.as_dict()}


def evaluate_choice(
    values: Floats,
    rows: NDArray[np.bool_],
    goal: str,
    promised: float,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> ChoiceEvaluation:
    """Measure the mean of what ``Choice.outcomes`` gives, with its interval.

    Args:
        values: Costs, or 1 where a sample counts and 0 elsewhere (n,).
        rows: Samples that the mean is over (n,).
        goal: "cost", "precision", "recall" or "budget".
        promised: What was to be kept.
        level: Coverage of the interval, a fraction.
        groups: Which samples belong together (n,).
    """
    codes = group_codes(groups, len(values))
    part = None if codes is None else np.unique(codes[rows], return_inverse=True)[1]
    found = Estimate(math.nan)
    if rows.any() and goal == "cost":
        found = mean_interval(values, level=level, groups=part)
    elif rows.any():
        found = share_of(values[rows] == 1, part, level=level)
    return ChoiceEvaluation(goal, found, promised)

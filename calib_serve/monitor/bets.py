"""Evidence about the mean of numbers in [-1, 1] that stays valid however often it is looked at.

A gambler who bets a share b of the wealth that numbers are above m multiplies it by (1 + b x) / (1 + b m)
each time. While the mean so far is m or less, that wealth is a fair game at best, so it ever exceeds 1 /
alpha with a chance of at most alpha (Ville 1939; Waudby-Smith and Ramdas 2024, section 4). The shares are
fixed beforehand and each has a stake of its own, so this holds for the mean of what came so far, however
numbers drift (Choe and Ramdas 2024, theorem 2). All that is kept is a sum of logarithms for each share, for
every m.

``Evidence`` is that a mean is above 0 from some moment on: what was good for long and turns bad is found as
well. While no mean, given what came before, is above 0, its wealth ever reaches 1 / alpha with a chance of at
most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.monitor.measured import FIRST_STAKE, LABELS_OF_LATER_STAKES

BETS: Floats = np.ldexp(0.95, -np.arange(6))
"""The shares: a mean m of numbers whose variance is v is found soonest by m / v."""

# Small differences are found by the largest share or not at all, so it has half of the stake.
_LOG_STAKES: Floats = np.log(BETS / BETS.sum())

FRACTIONS: Floats = np.geomspace(0.002, 0.512, 9)
"""The shares of what it holds that each bet stakes on one outcome."""

ALPHA = 0.05
"""The chance, over all times, that evidence says what is not so: that a kept promise is broken, that a shadow
is what it is not; and that bounds are wrong."""


@dataclass(frozen=True, eq=False)
class MeanBets:
    """The state after ``count`` numbers: for each of ``BETS``, the sums of log(1 + b x) and of log(1 - b x).

    >>> seen = MeanBets().seen([0.2] * 500)
    >>> seen.above(0.1) > math.log(20), seen.below(0.1) < 0
    (True, True)
    >>> low, high = seen.interval()
    >>> 0.15 < low < 0.2 < high < 0.25
    True
    """

    count: float = 0.0
    up: Floats = field(default_factory=lambda: np.zeros(len(BETS)))
    down: Floats = field(default_factory=lambda: np.zeros(len(BETS)))

    def __post_init__(self) -> None:
        shapes = np.shape(self.up), np.shape(self.down)
        sums = np.concatenate([np.ravel(self.up), np.ravel(self.down), [self.count]])
        if shapes != 2 * ((len(BETS),),) or not np.isfinite(sums).all() or self.count < 0:
            raise InputError(f"bets are {len(BETS)} finite sums each way and a count, got {sums.tolist()}")

    def seen(self, numbers: ArrayLike) -> MeanBets:
        """Add these numbers (n,); InputError for any outside [-1, 1]."""
        x = np.asarray(numbers, np.float64)
        if x.ndim != 1 or not (np.abs(x) <= 1).all():  # also NaN
            raise InputError("bets are on numbers in [-1, 1]; scale them")
        stakes = np.multiply.outer(BETS, x)
        return MeanBets(
            self.count + len(x),
            self.up + np.log1p(stakes).sum(axis=1),
            self.down + np.log1p(-stakes).sum(axis=1),
        )

    def flat(self) -> list[Any]:
        """The state as plain values for a store; ``from_flat`` reads it back."""
        return [self.count, self.up.tolist(), self.down.tolist()]

    @classmethod
    def from_flat(cls, kept: Any) -> MeanBets:
        """Rebuild the state from ``flat``; InputError, TypeError or ValueError for anything else."""
        count, up, down = kept
        return cls(float(count), np.asarray(up, np.float64), np.asarray(down, np.float64))

    def above(self, mean: float = 0.0) -> float:
        """The log evidence that the mean so far is above ``mean``, a number in [-1, 1]."""
        return _log_sum(self.up - self.count * np.log1p(BETS * mean))

    def below(self, mean: float = 0.0) -> float:
        """The log evidence that the mean so far is below ``mean``."""
        return _log_sum(self.down - self.count * np.log1p(-BETS * mean))

    def interval(self, *, alpha: float = 0.05) -> tuple[float, float]:
        """A confidence sequence for the mean: valid at all times at once with a chance of 1 - ``alpha``."""
        threshold = math.log(2 / alpha)
        return (
            _last(lambda mean: self.above(mean) >= threshold, -1.0, 1.0),
            _last(lambda mean: self.below(mean) >= threshold, 1.0, -1.0),
        )


def _log_sum(log_wealth: Floats) -> float:
    # Wealth over thousands of bets overflows a float; its logarithm does not.
    parts = log_wealth + _LOG_STAKES
    most = float(parts.max())
    return most + math.log(float(np.exp(parts - most).sum()))


def _last(holds: Callable[[float], bool], begin: float, end: float) -> float:
    """The last place from ``begin`` to ``end`` where a condition holds, by halving; ``begin`` if nowhere."""
    if not holds(begin):
        return begin
    for _ in range(60):  # halve an interval of length 2 to the precision of floats
        middle = (begin + end) / 2
        begin, end = (middle, end) if holds(middle) else (begin, middle)
    return begin


@dataclass(frozen=True, eq=False)
class Evidence:
    """Bets that payoffs have a mean above 0, after ``count`` of them; begin with ``Evidence.none()``.

    Each of ``FRACTIONS`` is a bet. Most of the stake is set at once, and the rest bit by bit later: what
    begins after many good outcomes is found without winning back what these have cost (Shiryaev 1963).
    ``log_worth`` (J,): the logarithm of what each bet holds; ``peak``: the greatest ``log_evidence`` there
    ever was; ``heaviest``: the greatest weight.

    >>> none = Evidence.none()
    >>> none.log_evidence, none.after(np.ones(20)).log_evidence > math.log(20)
    (0.0, True)
    """

    count: int
    log_worth: Floats
    peak: float
    heaviest: float

    @classmethod
    def none(cls) -> Evidence:
        """The state before the first payoff."""
        return cls(0, np.full(len(FRACTIONS), -np.inf), 0.0, 0.0)

    @property
    def log_evidence(self) -> float:
        """The natural logarithm of all that is held."""
        return float(np.logaddexp(np.logaddexp.reduce(self.log_worth), _log_waiting(self.count)))

    def after(self, payoffs: ArrayLike, scale: float = 1.0, *, weights: ArrayLike = 1.0) -> Evidence:
        """Advance by payoffs (n,) of at least -1, in order, whose mean is weighed by ``weights`` (n,) or ().

        ``scale``: how much of ``FRACTIONS`` is staked at a weight of 1. Weights may depend on anything that
        was known before the outcome; for the largest of them all bets are made smaller, as another bound for
        each would weigh them otherwise. ShapeError and InputError for what no bet can take.
        """
        z = np.asarray(payoffs, np.float64)
        r = np.broadcast_to(np.asarray(weights, np.float64), z.shape)
        if z.ndim != 1:
            raise ShapeError(f"payoffs are (n,), got {z.shape}")
        if not ((z >= -1).all() and np.isfinite(z).all() and (r >= 0).all() and np.isfinite(r).all()):
            raise InputError("payoffs must be finite and at least -1, and weights finite and not negative")
        found, run = self, 4096  # the table of all bets at all times has outcomes times bets entries
        for at in range(0, len(z), run):
            found = found._advanced(z[at : at + run], r[at : at + run], scale)
        return found

    def _advanced(self, z: Floats, r: Floats, scale: float) -> Evidence:
        # A bet set before outcome s holds, after outcome t, its stake times the product of factors s to t.
        heaviest = np.maximum.accumulate(np.append(self.heaviest, r))[1:]
        most = 0.9 / np.maximum(heaviest, 1e-300)  # an outcome takes that of a bet at most
        stakes = np.minimum(FRACTIONS * scale, most[:, None]) * r[:, None]
        grown = np.cumsum(np.log1p(stakes * z[:, None]), axis=0)
        before = np.concatenate([np.zeros((1, len(FRACTIONS))), grown[:-1]])
        places = self.count + np.arange(len(z))
        staked = _log_staked(places)[:, None] - math.log(len(FRACTIONS)) - before
        held = np.logaddexp.accumulate(np.concatenate([self.log_worth[None], staked]))[1:] + grown
        waiting = _log_waiting(places + 1)
        total = np.logaddexp(np.logaddexp.reduce(held, axis=1), waiting)
        return Evidence(
            self.count + len(z), held[-1], max(self.peak, float(total.max())), float(heaviest[-1])
        )

    def flat(self) -> list[float]:
        """Flatten the state for a store; ``from_flat`` reads it back."""
        return [float(self.count), self.peak, self.heaviest, *self.log_worth.tolist()]

    @classmethod
    def from_flat(cls, flat: ArrayLike) -> Evidence:
        """Rebuild the state from ``flat``; ShapeError or InputError for other numbers."""
        v = np.asarray(flat, np.float64)
        if v.shape != (3 + len(FRACTIONS),):
            raise ShapeError(f"a state has {3 + len(FRACTIONS)} numbers, got {v.shape}")
        if not ((v < np.inf).all() and (v[:3] >= 0).all() and v[0] == int(v[0])):  # also NaN
            raise InputError("this is no state of evidence")
        return cls(int(v[0]), v[3:], float(v[1]), float(v[2]))


def _log_waiting(count: ArrayLike) -> Floats:
    """The logarithm of the stake that still waits after ``count`` outcomes."""
    n = np.asarray(count, np.float64)
    later = math.log(1 - FIRST_STAKE) - 0.5 * np.log1p(n / LABELS_OF_LATER_STAKES)
    return np.where(n < 1, 0.0, later)


def _log_staked(place: NDArray[np.intp]) -> Floats:
    """The logarithm of the stake that is set before each outcome, counted from 0."""
    before, after = np.exp(_log_waiting(place)), np.exp(_log_waiting(place + 1))
    with np.errstate(divide="ignore"):
        found: Floats = np.log(np.maximum(before - after, 0))
    return found


def units(numbers: Floats, weights: Floats, groups: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The units of a bet: labels, or the means of labels of one group, which may be dependent; 0: no group.

    Returns numbers no further from 0 than the given ones (n,), and the weight of each, which is known before
    any outcome; in the order in which groups and labels came first.
    """
    if not groups.any():
        return numbers, weights
    lone = np.flatnonzero(groups == 0)
    names = groups.copy()
    names[lone] = -1 - np.arange(len(lone))
    _, first, place, count = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    bound = np.zeros(len(count))
    np.maximum.at(bound, place, weights)
    mean = np.bincount(place, weights * numbers) / count / np.maximum(bound, 1e-300)
    # A mean of many equal numbers may round to a little beyond them, and no bet could take it.
    return mean[order].clip(min(numbers.min(), 0.0), max(numbers.max(), 0.0)), bound[order]


def share_bets(right: ArrayLike, promise: float) -> tuple[Floats, float]:
    """Payoffs (n,) of bets that a share below ``promise`` is right, for outcomes (n,), and their scale.

    >>> payoffs, scale = share_bets([1, 0], 0.75)
    >>> payoffs.tolist(), Evidence.none().after(payoffs, scale).count
    ([-1.0, 3.0], 2)
    """
    allowed = 1 - promise
    payoffs: Floats = ((1 - np.asarray(right, np.float64)) - allowed) / allowed
    # The largest bet is on 16 times what may be wrong: for breaches of 3 % to eight times of it.
    return payoffs, 16.0 * allowed / promise

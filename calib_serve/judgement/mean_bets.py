"""Evidence about the mean of numbers in [-1, 1], valid whenever one looks.

A gambler who bets a share b of the wealth that numbers are above m multiplies it by (1 + b x) / (1 + b m)
each time. While the mean so far is m or less, that wealth is a fair game at best, so it ever exceeds 1 /
alpha with a chance of at most alpha (Ville 1939; Waudby-Smith and Ramdas 2024, section 4). The shares are
fixed beforehand and each has a stake of its own, so this holds for the mean of what came so far, however
numbers drift (Choe and Ramdas 2024, theorem 2). All that is kept is a sum of logarithms for each share, for
every m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError

__all__ = ["BETS", "MeanBets"]

Floats = NDArray[np.float64]

BETS: Floats = np.ldexp(0.95, -np.arange(6))
"""The shares: a mean m of numbers whose variance is v is found soonest by m / v."""

# Small differences are found by the largest share or not at all, so it has half of the stake.
_LOG_STAKES: Floats = np.log(BETS / BETS.sum())
_HALVINGS = 60  # of an interval of length 2, to the precision of floats


@dataclass(frozen=True, eq=False)
class MeanBets:
    """What is kept of ``count`` numbers: for each of ``BETS``, the sum of log(1 + b x) and of log(1 - b x).

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

    @classmethod
    def of_successes(cls, successes: float, trials: float) -> MeanBets:
        """Of as many ones, and zeros for the other trials; InputError for more than there are trials.

        >>> low, high = MeanBets.of_successes(900, 1000).interval()
        >>> 0.86 < low < 0.9 < high < 0.94
        True
        """
        if not 0 <= successes <= trials:
            raise InputError(f"there cannot be {successes} successes in {trials} trials")
        return cls(trials, successes * np.log1p(BETS), successes * np.log1p(-BETS))

    def seen(self, numbers: ArrayLike) -> MeanBets:
        """With these (n,) as well; InputError for any outside [-1, 1]."""
        x = np.asarray(numbers, np.float64)
        if x.ndim != 1 or not (np.abs(x) <= 1).all():  # also NaN
            raise InputError("bets are on numbers in [-1, 1]; scale them")
        stakes = np.multiply.outer(BETS, x)
        return MeanBets(
            self.count + len(x),
            self.up + np.log1p(stakes).sum(axis=1),
            self.down + np.log1p(-stakes).sum(axis=1),
        )

    def above(self, mean: float = 0.0) -> float:
        """The log of the evidence that the mean so far is above ``mean``, a number in [-1, 1]."""
        return _log_sum(self.up - self.count * np.log1p(BETS * mean))

    def below(self, mean: float = 0.0) -> float:
        """The same, that it is below."""
        return _log_sum(self.down - self.count * np.log1p(-BETS * mean))

    def interval(self, *, alpha: float = 0.05) -> tuple[float, float]:
        """Where the mean lies, at all times at once with a chance of 1 - ``alpha``; (-1, 1) at first."""
        threshold = math.log(2 / alpha)
        return (
            _last(lambda mean: self.above(mean) >= threshold, -1.0, 1.0),
            _last(lambda mean: self.below(mean) >= threshold, 1.0, -1.0),
        )


def _log_sum(log_wealth: Floats) -> float:
    parts = log_wealth + _LOG_STAKES
    most = float(parts.max())
    return most + math.log(float(np.exp(parts - most).sum()))


def _last(holds: Callable[[float], bool], begin: float, end: float) -> float:
    """The last place from ``begin`` to ``end`` where it holds, by halving; ``begin`` if nowhere."""
    if not holds(begin):
        return begin
    for _ in range(_HALVINGS):
        middle = (begin + end) / 2
        begin, end = (middle, end) if holds(middle) else (begin, middle)
    return begin

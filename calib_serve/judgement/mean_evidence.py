"""What outcomes say of a mean at every moment, and not only at one that was chosen beforehand.

``Evidence`` bets that a mean is above 0, and its wealth is how much speaks for that: while no conditional
mean is above 0 it ever reaches 1 / alpha with a chance of at most alpha (Ville). ``MeanSequence`` bounds a
mean at all times at once, by empirical Bernstein bets (Waudby-Smith and Ramdas 2024, theorem 2).
``share_sequence`` does so for a share of independent outcomes, from their counts alone (Robbins 1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError

__all__ = ["FRACTIONS", "Evidence", "MeanSequence", "share_sequence"]

Floats = NDArray[np.float64]

FRACTIONS: Floats = np.geomspace(0.002, 0.512, 9)
"""The shares of what it holds that each bet stakes on one outcome."""

_AT_ONCE = 0.5  # the stake on a change at the first outcome; the rest is for changes that begin later
_MOST_LOST = 0.9  # the most that an outcome may take of a bet
_ROWS = 4096  # outcomes advanced at once
_LEAST_TRUNCATION = 0.5  # the largest bet of a sequence


@dataclass(frozen=True, eq=False)
class Evidence:
    """Bets that payoffs have a mean above 0, after ``count`` of them; begin with ``Evidence.none()``.

    Each of ``FRACTIONS`` is a bet. Half of the stake is set at once, and the rest bit by bit later: what
    begins after many good outcomes is found without winning back what these have cost (Shiryaev 1963).
    ``log_worth`` (J,): the logarithm of what each bet holds; ``peak``: the greatest ``log_evidence`` there
    ever was.

    >>> none = Evidence.none()
    >>> none.log_evidence, none.after(np.ones(20)).log_evidence > math.log(20)
    (0.0, True)
    """

    count: int
    log_worth: Floats
    peak: float

    @classmethod
    def none(cls) -> Evidence:
        """Before the first payoff."""
        return cls(0, np.full(len(FRACTIONS), -np.inf), 0.0)

    @property
    def log_evidence(self) -> float:
        """The natural logarithm of all that is held."""
        return float(np.logaddexp(np.logaddexp.reduce(self.log_worth), _log_waiting(self.count)))

    def after(self, payoffs: ArrayLike, scale: ArrayLike = 1.0) -> Evidence:
        """After payoffs (n,) of -1 or more, in their order, each staked on ``scale`` times as much.

        ``scale``: (n,) or (); it may depend on anything that was known before the outcome. ShapeError and
        InputError for what no bet can take.
        """
        z = np.asarray(payoffs, np.float64)
        r = np.broadcast_to(np.asarray(scale, np.float64), z.shape)
        if z.ndim != 1:
            raise ShapeError(f"payoffs are (n,), got {z.shape}")
        if not ((z >= -1).all() and np.isfinite(z).all() and (r >= 0).all() and np.isfinite(r).all()):
            raise InputError("payoffs must be finite and at least -1, and scales finite and not negative")
        found = self
        for at in range(0, len(z), _ROWS):
            found = found._advanced(z[at : at + _ROWS], r[at : at + _ROWS])
        return found

    def _advanced(self, z: Floats, r: Floats) -> Evidence:
        # A bet set before outcome s holds, after outcome t, its stake times the product of factors s to t.
        stakes = np.minimum(FRACTIONS * r[:, None], _MOST_LOST)
        grown = np.cumsum(np.log1p(stakes * z[:, None]), axis=0)
        before = np.concatenate([np.zeros((1, len(FRACTIONS))), grown[:-1]])
        places = self.count + np.arange(len(z))
        staked = _log_staked(places)[:, None] - math.log(len(FRACTIONS)) - before
        held = np.logaddexp.accumulate(np.concatenate([self.log_worth[None], staked]), axis=0)[1:] + grown
        waiting = _log_waiting(places + 1)
        total = np.logaddexp(np.logaddexp.reduce(held, axis=1), waiting)
        return Evidence(self.count + len(z), held[-1], max(self.peak, float(total.max())))

    def flat(self) -> list[float]:
        """Everything, for stores; read back by ``from_flat``."""
        return [float(self.count), self.peak, *self.log_worth.tolist()]

    @classmethod
    def from_flat(cls, flat: ArrayLike) -> Evidence:
        """The inverse; ShapeError or InputError for what is none."""
        v = _vector(flat, 2 + len(FRACTIONS))
        if not (v[0] >= 0 and v[0] == int(v[0]) and v[1] >= 0) or np.isnan(v).any() or (v == np.inf).any():
            raise InputError("this is no state of evidence")
        return cls(int(v[0]), v[2:], float(v[1]))


def _log_waiting(count: ArrayLike) -> Floats:
    """The logarithm of the stake that is not set after ``count`` outcomes."""
    n = np.asarray(count, np.float64)
    later = math.log(1 - _AT_ONCE) - np.log1p(np.log(np.maximum(n, 1)))
    return np.where(n < 1, 0.0, later)


def _log_staked(place: NDArray[np.intp]) -> Floats:
    """The logarithm of the stake that is set before each outcome, from 0 on: what no longer waits."""
    before, after = np.exp(_log_waiting(place)), np.exp(_log_waiting(place + 1))
    with np.errstate(divide="ignore"):
        found: Floats = np.log(np.maximum(before - after, 0))
    return found


@dataclass(frozen=True)
class MeanSequence:
    """Bounds of the mean of numbers in [-1, 1] that hold at all times with probability 1 - alpha.

    ``begin`` with a guess of the mean: a wrong one makes it wider, not wrong. The mean is that of all numbers
    so far, each weighed by its bet, which hardly changes after the first hundreds. A sum of ``staked`` bets,
    of ``staked`` times numbers and of their ``variation``; the others are what the next bets depend on.
    """

    alpha: float
    guess: float
    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    staked: float = 0.0
    gained: float = 0.0
    variation: float = 0.0

    def after(self, numbers: ArrayLike, scale: ArrayLike = 1.0) -> MeanSequence:
        """After numbers (n,), each of which lies in [-scale, scale], (n,) or ()."""
        x = np.asarray(numbers, np.float64)
        bound = np.maximum(np.broadcast_to(np.asarray(scale, np.float64), x.shape), 1e-9)
        if x.ndim != 1:
            raise ShapeError(f"numbers are (n,), got {x.shape}")
        if not (np.isfinite(x).all() and np.isfinite(bound).all() and (abs(x) <= bound * (1 + 1e-9)).all()):
            raise InputError("numbers must be finite, and in the range that they are said to have")
        if not len(x):
            return self
        # Everything that a bet depends on is of the numbers before.
        n = self.count + np.arange(len(x))
        totals = self.total + np.concatenate([[0.0], np.cumsum(x)])
        mean = (self.guess + totals[:-1]) / (n + 1)
        off = np.square(x - mean)
        squares = self.squares + np.concatenate([[0.0], np.cumsum(off)])
        variance = (_PRIOR_VARIANCE + squares[:-1]) / (n + 1)
        wanted = np.sqrt(2 * math.log(2 / self.alpha) / (variance * (n + 1) * np.log(2 + n)))
        # x - mean lies within twice the bound: Fan's inequality asks for a bet below one over that.
        most = 2 * np.maximum(bound, np.abs(mean))
        bet = np.minimum(wanted, _LEAST_TRUNCATION / most)
        psi = (-np.log1p(-bet * most) - bet * most) / most**2
        return replace(
            self,
            count=float(n[-1] + 1),
            total=float(totals[-1]),
            squares=float(squares[-1]),
            staked=self.staked + float(bet.sum()),
            gained=self.gained + float(bet @ x),
            variation=self.variation + float(psi @ off),
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """Low and high; -1 and 1 while there is nothing to tell."""
        if not self.staked:
            return -1.0, 1.0
        centre = self.gained / self.staked
        half = (math.log(2 / self.alpha) + self.variation) / self.staked
        return max(centre - half, -1.0), min(centre + half, 1.0)

    def flat(self) -> list[float]:
        """Everything but ``alpha`` and ``guess``, for stores; read back by ``with_flat``."""
        return [self.count, self.total, self.squares, self.staked, self.gained, self.variation]

    def with_flat(self, flat: ArrayLike) -> MeanSequence:
        """The inverse; ShapeError or InputError for what is none."""
        v = _vector(flat, 6)
        if not np.isfinite(v).all() or (v[[0, 2, 3, 5]] < 0).any():
            raise InputError("this is no state of a sequence")
        names = ("count", "total", "squares", "staked", "gained", "variation")
        return replace(self, **dict(zip(names, v.tolist(), strict=True)))


_PRIOR_VARIANCE = 0.05  # of the first numbers; a wrong one makes the bounds wider, not wrong


def share_sequence(successes: float, trials: float, *, alpha: float = 0.05) -> tuple[float, float]:
    """Bounds of the share of ``successes`` in ``trials`` independent ones, right at all times at once.

    Shares whose likelihood is above alpha times that of a Beta(1/2, 1/2) mixture (Robbins 1970).

    >>> low, high = share_sequence(900, 1000)
    >>> round(low, 3), round(high, 3)
    (0.867, 0.927)
    """
    s, f = float(successes), float(trials) - float(successes)
    if not (s >= 0 and f >= 0 and math.isfinite(s + f)):
        raise InputError(f"there cannot be {successes} successes in {trials} trials")
    if not s + f:
        return 0.0, 1.0
    mixed = math.lgamma(s + 0.5) + math.lgamma(f + 0.5) - math.lgamma(s + f + 1) - math.log(math.pi)
    least = mixed + math.log(alpha)

    def inside(share: float) -> bool:
        told = (s * math.log(share) if s else 0.0) + (f * math.log1p(-share) if f else 0.0)
        return told >= least

    best = s / (s + f)
    return _edge(inside, best, 0.0), _edge(inside, best, 1.0)


def _edge(inside: object, best: float, end: float) -> float:
    """Where it ends, between what is inside and an end that is not, by halves."""
    if best == end:
        return end
    within, beyond = best, end
    for _ in range(60):
        middle = (within + beyond) / 2
        if middle in (within, beyond):
            break
        if inside(middle):  # type: ignore[operator]
            within = middle
        else:
            beyond = middle
    return within


def _vector(flat: ArrayLike, length: int) -> Floats:
    try:
        v = np.asarray(flat, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("a state is a list of numbers") from error
    if v.shape != (length,):
        raise ShapeError(f"a state has {length} numbers, got {v.shape}")
    return v

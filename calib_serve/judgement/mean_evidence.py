"""Evidence that a mean is above 0 from some moment on, valid whenever one looks.

``MeanBets`` are about the mean since the start; here what was good for long and turns bad is found as well.
While no mean, given what came before, is above 0, the wealth of the bets ever reaches 1 / alpha with a chance
of at most alpha (Ville 1939).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError

__all__ = ["FRACTIONS", "Evidence", "share_bets"]

Floats = NDArray[np.float64]

FRACTIONS: Floats = np.geomspace(0.002, 0.512, 9)
"""The shares of what it holds that each bet stakes on one outcome."""

_AT_ONCE = 0.7  # the stake on a change at the first outcome; the rest is for changes that begin later
_SOON = 1000.0  # outcomes after which 30 % of the rest is set; later ones have ever less
_MOST_LOST = 0.9  # the most that an outcome may take of a bet
_WIDEST = 16.0  # the largest bet on a share, in what may be wrong: for breaches of 3 % to eight times of it
_ROWS = 4096  # outcomes advanced at once


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
        """Before the first payoff."""
        return cls(0, np.full(len(FRACTIONS), -np.inf), 0.0, 0.0)

    @property
    def log_evidence(self) -> float:
        """The natural logarithm of all that is held."""
        return float(np.logaddexp(np.logaddexp.reduce(self.log_worth), _log_waiting(self.count)))

    def after(self, payoffs: ArrayLike, scale: float = 1.0, *, weights: ArrayLike = 1.0) -> Evidence:
        """After payoffs (n,) of -1 or more, in their order, whose mean is weighed by ``weights`` (n,) or ().

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
        found = self
        for at in range(0, len(z), _ROWS):
            found = found._advanced(z[at : at + _ROWS], r[at : at + _ROWS], scale)
        return found

    def _advanced(self, z: Floats, r: Floats, scale: float) -> Evidence:
        # A bet set before outcome s holds, after outcome t, its stake times the product of factors s to t.
        heaviest = np.maximum.accumulate(np.append(self.heaviest, r))[1:]
        most = _MOST_LOST / np.maximum(heaviest, 1e-300)
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
        """Everything, for stores; read back by ``from_flat``."""
        return [float(self.count), self.peak, self.heaviest, *self.log_worth.tolist()]

    @classmethod
    def from_flat(cls, flat: ArrayLike) -> Evidence:
        """The inverse; ShapeError or InputError for what is none."""
        v = np.asarray(flat, np.float64)
        if v.shape != (3 + len(FRACTIONS),):
            raise ShapeError(f"a state has {3 + len(FRACTIONS)} numbers, got {v.shape}")
        if not ((v < np.inf).all() and (v[:3] >= 0).all() and v[0] == int(v[0])):  # also NaN
            raise InputError("this is no state of evidence")
        return cls(int(v[0]), v[3:], float(v[1]), float(v[2]))


def _log_waiting(count: ArrayLike) -> Floats:
    """The logarithm of the stake that is not set after ``count`` outcomes."""
    n = np.asarray(count, np.float64)
    later = math.log(1 - _AT_ONCE) - 0.5 * np.log1p(n / _SOON)
    return np.where(n < 1, 0.0, later)


def _log_staked(place: NDArray[np.intp]) -> Floats:
    """The logarithm of the stake that is set before each outcome, from 0 on: what no longer waits."""
    before, after = np.exp(_log_waiting(place)), np.exp(_log_waiting(place + 1))
    with np.errstate(divide="ignore"):
        found: Floats = np.log(np.maximum(before - after, 0))
    return found


def share_bets(right: ArrayLike, promise: float) -> tuple[Floats, float]:
    """Payoffs (n,) of bets that less than the share ``promise`` is right, of outcomes (n,), and their scale.

    >>> payoffs, scale = share_bets([1, 0], 0.75)
    >>> payoffs.tolist(), Evidence.none().after(payoffs, scale).count
    ([-1.0, 3.0], 2)
    """
    allowed = 1 - promise
    payoffs: Floats = ((1 - np.asarray(right, np.float64)) - allowed) / allowed
    return payoffs, _WIDEST * allowed / promise

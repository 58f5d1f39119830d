"""Bets that all confidences are off in one direction: Shiryaev-Roberts recursions over several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.watch.drift.bets import SHIFTS
from calib_serve.watch.drift.rounds import Rounds

__all__ = ["SignedBets"]

Floats = NDArray[np.float64]

_BETS = 2 * len(SHIFTS)


@dataclass(frozen=True, eq=False)
class SignedBets:
    """``worth`` (2 K,) of each bet, its CUSUM ``run`` (2 K,), and where that began.

    ``run_start`` (2, 2 K) holds the label and the time of that.
    """

    worth: Floats
    run: Floats
    run_start: Floats

    @classmethod
    def none(cls) -> SignedBets:
        """Nothing won yet."""
        return cls.from_flat(np.zeros(cls.size()))

    def after(self, rounds: Rounds, firsts: NDArray[np.intp]) -> tuple[SignedBets, Floats]:
        """The bets after the blocks that begin at labels ``firsts`` (B,); their worth after each (B, 2 K)."""
        worth = _shiryaev_roberts(self.worth, rounds.pays, rounds.sizes)
        run, run_start = _cusum(self.run, self.run_start, np.log(rounds.pays), firsts, rounds.times)
        return SignedBets(worth[-1], run, run_start), worth

    @property
    def began(self) -> Floats:
        """Label and time (2,) at which the run of the strongest bet began."""
        start: Floats = self.run_start[:, self.worth.argmax()]
        return start

    @staticmethod
    def size() -> int:
        """How many numbers ``flat`` has."""
        return 4 * _BETS

    def flat(self) -> Floats:
        """All in one vector, for stores; read back by ``from_flat``."""
        return np.concatenate([self.worth, self.run, self.run_start.ravel()])

    @classmethod
    def from_flat(cls, flat: Floats) -> SignedBets:
        """The bets behind ``flat()``."""
        worth, run, run_start = np.split(flat, [_BETS, 2 * _BETS])
        return cls(worth, run, run_start.reshape(2, _BETS))


def _shiryaev_roberts(worth: Floats, pays: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Each bet's worth after each block, R = (R + size) pay, from the products of the pays."""
    product = np.cumprod(pays, axis=0)
    before = np.concatenate([np.ones((1, pays.shape[1])), product[:-1]])
    worths: Floats = product * (worth + np.cumsum(sizes[:, None] / before, axis=0))
    return worths


def _cusum(
    run: Floats, start: Floats, gains: Floats, firsts: NDArray[np.intp], times: Floats
) -> tuple[Floats, Floats]:
    """Each bet's CUSUM after all blocks, which begins again once it is not positive, and when it began."""
    walk = np.concatenate([np.maximum(run, 0)[None], np.maximum(run, 0) + np.cumsum(gains, axis=0)])
    low = np.minimum.accumulate(np.concatenate([np.zeros((1, len(run))), walk[1:]]), axis=0)
    fresh = np.concatenate([[run <= 0], walk[1:-1] <= low[:-2]])
    back = len(fresh) - 1 - fresh[::-1].argmax(axis=0)
    began = np.stack([firsts[back], times[back]])
    return walk[-1] - low[-2], np.where(fresh.any(axis=0), began, start)

"""Bets that every confidence bin is off by one size, in a direction of its own that they learn.

They find errors that cancel over bins. They run from many starting times at once, thinned out
geometrically: the older a start is, the farther it is from its neighbours.

A belief is its prior times the likelihoods of the labels since, so the likelihoods of one stretch of
labels serve all starts, and the statistic after each label comes out of a few array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import ShapeError
from calib_serve.watch.drift.bets import SHIFTS, Rounds

__all__ = ["IDLE", "PRIOR", "SPACING", "THIN", "BinBets"]

Floats = NDArray[np.float64]

IDLE = 0.2  # a bin's prior that nothing is wrong with it
PRIOR = np.array([IDLE, (1 - IDLE) / 2, (1 - IDLE) / 2])  # nothing, over-, underconfident
PRIOR.setflags(write=False)
SPACING = 16  # labels between two starting times
THIN = 1.25  # of two starts with ages closer than this ratio, one is enough
_SIZES = len(SHIFTS)


@dataclass(frozen=True, eq=False)
class BinBets:
    """What is known from each of S starting times, the oldest first; K sizes.

    ``starts`` (2, S) label and time, ``capital`` (K, S) its worth, ``belief`` (3, bins, K, S) in
    nothing, over- and underconfidence, ``seen`` (3, bins, S) labels, their confidences, how many were right.
    """

    starts: Floats
    capital: Floats
    belief: Floats
    seen: Floats

    @classmethod
    def none(cls, *, bins: int) -> BinBets:
        """Nothing won yet."""
        return cls.from_flat(np.empty(0), bins=bins)

    @property
    def worth(self) -> float:
        """What all of it is worth."""
        return float(self.capital.sum())

    @property
    def began(self) -> Floats:
        """Label and time (2,) of the start that has won most."""
        start: Floats = self.starts[:, self.capital.sum(axis=0).argmax()]
        return start

    def evidence(self, at: int) -> Floats:
        """How strongly each bin speaks against being calibrated since start ``at`` (bins,), in nats.

        It is how far the belief that nothing is wrong fell, log(prior / now); minus infinity without labels.
        """
        size = int(self.capital[:, at].argmax())
        idle = np.maximum(self.belief[0, :, size, at], np.finfo(float).tiny)
        return np.where(self.seen[0, :, at] > 0, np.log(IDLE / idle), -math.inf)

    def after(self, rounds: Rounds, firsts: NDArray[np.intp]) -> tuple[BinBets, Floats]:
        """The bets after the blocks that begin at labels ``firsts`` (B,); what they are worth then (B,)."""
        due = _due(firsts.tolist(), int(self.starts[0, -1]) if self.starts.size else None)
        logs, seen = _sums(rounds, [*due, len(rounds)], bins=self.seen.shape[1])
        starts = np.concatenate([self.starts, [firsts[due], rounds.times[due]]], axis=1)
        belief = np.concatenate([self.belief, _newborn(logs[:-1])], axis=-1)
        all_seen = np.concatenate([self.seen, -np.moveaxis(seen[:-1], 0, -1)], axis=-1)
        worth, capital, alive = self._ventured(_growth(belief, rounds), due, starts[0].tolist(), rounds.size)
        after = BinBets(
            starts[:, alive],
            capital[:, alive],
            _learned(belief[..., alive], logs[-1]),
            all_seen[..., alive] + seen[-1][..., None],
        )
        return after, worth

    def _ventured(
        self, growth: Floats, due: Sequence[int], starts: Sequence[float], size: int
    ) -> tuple[Floats, Floats, list[int]]:
        """Total capital after each block of ``growth`` (B, K, S'), capital by start, and which starts remain.

        ``growth`` becomes the capital itself: fresh memory would cost more than the arithmetic.
        """
        old = self.capital.shape[1]
        capital = np.concatenate([self.capital, np.zeros((_SIZES, len(due)))], axis=1)
        alive = list(range(old))
        for block, row in enumerate(growth):
            if block in due:
                new, capital = old + due.index(block), capital.copy()
                # Paid for with the labels since the last one started, and this block's.
                since = starts[new] - starts[alive[-1]] if alive else 1
                capital[:, new] = (since + size - 1) / _SIZES
                alive = _thinned([*alive, new], starts, capital)
            capital = np.multiply(capital, row, out=row)
        return growth.sum(axis=(1, 2)), capital, alive

    def flat(self) -> Floats:
        """All in one vector, for stores; read back by ``from_flat``."""
        return np.concatenate([getattr(self, field.name).ravel() for field in fields(self)])

    @classmethod
    def from_flat(cls, flat: Floats, *, bins: int) -> BinBets:
        """The bets behind ``flat()``; ShapeError if its length fits no number of starts."""
        shapes = [(2,), (_SIZES,), (3, bins, _SIZES), (3, bins)]
        sizes = [math.prod(shape) for shape in shapes]
        starts, left = divmod(len(flat), sum(sizes))
        if left:
            raise ShapeError(f"the bets on {bins} bins have no {len(flat)} numbers")
        parts = np.split(flat, np.cumsum(sizes)[:-1] * starts)
        return cls(*(part.reshape(*shape, starts) for part, shape in zip(parts, shapes, strict=True)))


def _due(firsts: Sequence[int], last: int | None) -> list[int]:
    """The blocks at whose first label another start is due."""
    due = []
    for block, first in enumerate(firsts):
        if last is None or first - last >= SPACING:
            due.append(block)
            last = first
    return due


def _thinned(alive: list[int], starts: Sequence[float], capital: Floats) -> list[int]:
    """Let starts of nearly the same age share one belief; capital moves on, so no bet is lost."""
    now = starts[alive[-1]] + SPACING
    keep, age = alive[:1], now - starts[alive[0]]
    for one, heir in pairwise(alive[1:]):
        if age <= THIN * (now - starts[heir]):
            capital[:, heir] += capital[:, one]
            capital[:, one] = 0.0
        else:
            keep.append(one)
            age = now - starts[one]
    return [*keep, *alive[1:][-1:]]


def _sums(rounds: Rounds, cuts: Sequence[int], *, bins: int) -> tuple[Floats, Floats]:
    """Over the blocks before each cut, by bin: ``logs`` (cuts, 2, bins, K) and ``seen`` (cuts, 3, bins)."""
    before = rounds.block < np.array(cuts)[:, None]
    inside = np.arange(bins)[:, None] == rounds.bin
    sums = (before[:, None] & inside).astype(np.float64) @ np.hstack([rounds.logs, rounds.seen])
    logs = sums[..., : 2 * _SIZES].reshape(len(cuts), bins, 2, _SIZES).swapaxes(1, 2)
    return logs, sums[..., 2 * _SIZES :].swapaxes(1, 2)


def _newborn(logs: Floats) -> Floats:
    """Beliefs (3, bins, K, starts) that are the prior once ``logs`` (starts, 2, bins, K) were learned."""
    likelihood = np.concatenate([np.ones_like(logs[:, :1]), np.exp(-logs)], axis=1)
    return np.moveaxis(PRIOR[:, None, None] * likelihood, 0, -1)


def _growth(belief: Floats, rounds: Rounds) -> Floats:
    """What each block multiplies capital with (B, K, S): the mean pay, by what was believed before it."""
    earlier = (rounds.bin[:, None] == rounds.bin) & (rounds.block[:, None] > rounds.block)
    likelihood = np.exp(earlier.astype(np.float64) @ rounds.logs).reshape(-1, 2, _SIZES, 1)
    pays = rounds.by_bin.reshape(-1, 2, _SIZES, 1)
    idle, over, under = (part[rounds.bin] for part in belief)
    over *= likelihood[:, 0]
    under *= likelihood[:, 1]
    total = idle + over
    total += under
    idle *= (rounds.seen[:, 0] / rounds.size)[:, None, None]
    over *= pays[:, 0]
    under *= pays[:, 1]
    idle += over
    idle += under
    idle /= total
    return (
        idle if rounds.size == 1 else np.add.reduceat(idle, np.searchsorted(rounds.block, range(len(rounds))))
    )


def _learned(belief: Floats, logs: Floats) -> Floats:
    """The beliefs after likelihoods with these logarithms (2, bins, K)."""
    belief[1:] *= np.exp(logs)[..., None]
    belief /= belief.sum(axis=0)
    return belief

"""Bets that every part of the predictions is off by one size, in a direction of its own that they learn.

Parts are confidence bins, or predicted classes. These bets find errors that cancel over the parts. They
run from many starting times at once, thinned out geometrically: the older a start is, the farther it is
from its neighbours.

A belief is its prior times the likelihoods of the labels since, so the likelihoods of one stretch of
labels serve all starts, and the statistic after each label comes out of a few array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import ShapeError
from calib_serve.watch.drift.bets import SHIFTS
from calib_serve.watch.drift.rounds import OF_PARTS, Cells

__all__ = ["IDLE", "PRIOR", "SPACING", "THIN", "PartBets"]

Floats = NDArray[np.float64]

IDLE = 0.2  # a part's prior that nothing is wrong with it
PRIOR = np.array([IDLE, (1 - IDLE) / 2, (1 - IDLE) / 2])  # nothing, over-, underconfident
PRIOR.setflags(write=False)
SPACING = 32  # labels between two starting times
THIN = 1.4  # of two starts with ages closer than this ratio, one is enough
_SIZES = len(SHIFTS[OF_PARTS])


@dataclass(frozen=True, eq=False)
class PartBets:
    """What is known from each of S starting times, the oldest first; P parts, K sizes.

    ``paid``: the label up to which the stake, 1 a label, was paid in. ``starts`` (2, S) label and time,
    ``capital`` (K, S) its worth, ``belief`` (3, P, K, S) in nothing, over- and underconfidence, ``seen``
    (3, P, S) labels, their confidences, how many were right.
    """

    paid: int
    starts: Floats
    capital: Floats
    belief: Floats
    seen: Floats

    @classmethod
    def none(cls, labels: int, *, parts: int) -> PartBets:
        """Nothing won yet, ``labels`` labels into the stream."""
        return cls.from_flat(np.array([labels], np.float64), parts=parts)

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
        """How strongly each part speaks against being calibrated since start ``at`` (P,), in nats.

        It is how far the belief that nothing is wrong fell, log(prior / now); minus infinity without labels.
        """
        size = int(self.capital[:, at].argmax())
        idle = np.maximum(self.belief[0, :, size, at], np.finfo(float).tiny)
        return np.where(self.seen[0, :, at] > 0, np.log(IDLE / idle), -math.inf)

    def after(
        self, cells: Cells, firsts: NDArray[np.intp], sizes: NDArray[np.intp], times: Floats
    ) -> tuple[PartBets, Floats]:
        """The bets after blocks of ``sizes`` (B,) that begin at ``firsts``; their worth after each (B,)."""
        due = _due(firsts.tolist(), int(self.starts[0, -1]) if self.starts.size else None)
        through = (firsts + sizes - 1)[due].tolist()
        logs, seen = _sums(cells, [*due, len(firsts)], parts=self.seen.shape[1])
        starts, belief, all_seen = self.starts, self.belief, self.seen
        if due:
            starts = np.concatenate([starts, [firsts[due], times[due]]], axis=1)
            belief = np.concatenate([belief, _newborn(logs[:-1])], axis=-1)
            all_seen = np.concatenate([all_seen, -np.moveaxis(seen[:-1], 0, -1)], axis=-1)
        stakes = np.diff(through, prepend=self.paid)
        growth = _growth(belief, cells, len(firsts))
        worth, capital, alive = self._ventured(growth, due, starts[0].tolist(), stakes.tolist())
        after = PartBets(
            through[-1] if due else self.paid,
            starts[:, alive],
            capital[:, alive],
            _learned(belief[..., alive], logs[-1], np.unique(cells.part)),
            all_seen[..., alive] + seen[-1][..., None],
        )
        return after, worth

    def _ventured(
        self, growth: Floats, due: Sequence[int], starts: Sequence[float], stakes: Sequence[float]
    ) -> tuple[Floats, Floats, list[int]]:
        """Total capital after each block of ``growth`` (B, K, S'), capital by start, and which starts remain.

        ``stakes``: the labels that each new start is paid with, those since the last one's block and its own
        block's. ``growth`` becomes the capital itself: fresh memory would cost more than the arithmetic.
        """
        old = self.capital.shape[1]
        capital = np.concatenate([self.capital, np.zeros((_SIZES, len(due)))], axis=1)
        alive = list(range(old))
        for new, (block, stop) in enumerate(pairwise([0, *due, len(growth)]), old - 1):
            if new >= old:  # the first stretch, which may be empty, has no new start
                capital = capital.copy()
                capital[:, new] = stakes[new - old] / _SIZES
                alive = _thinned([*alive, new], starts, capital)
            if stop > block:
                growth[block] *= capital
                np.multiply.accumulate(growth[block:stop], axis=0, out=growth[block:stop])
                capital = growth[stop - 1]
        return growth.sum(axis=(1, 2)), capital, alive

    def flat(self) -> Floats:
        """All in one vector, for stores; read back by ``from_flat``."""
        arrays = (self.starts, self.capital, self.belief, self.seen)
        return np.concatenate([[self.paid], *(array.ravel() for array in arrays)])

    @classmethod
    def from_flat(cls, flat: Floats, *, parts: int) -> PartBets:
        """The bets behind ``flat()``; ShapeError if its length fits no number of starts."""
        shapes = [(2,), (_SIZES,), (3, parts, _SIZES), (3, parts)]
        sizes = [math.prod(shape) for shape in shapes]
        starts, left = divmod(len(flat) - 1, sum(sizes))
        if left:
            raise ShapeError(f"the bets on {parts} parts have no {len(flat)} numbers")
        arrays = np.split(flat[1:], np.cumsum(sizes)[:-1] * starts)
        return cls(
            int(flat[0]),
            *(array.reshape(*shape, starts) for array, shape in zip(arrays, shapes, strict=True)),
        )


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


def _sums(cells: Cells, cuts: Sequence[int], *, parts: int) -> tuple[Floats, Floats]:
    """Over the blocks before each cut, by part: ``logs`` (cuts, 2, P, K) and ``seen`` (cuts, 3, P)."""
    before = cells.block < np.array(cuts)[:, None]
    inside = np.arange(parts)[:, None] == cells.part
    sums = (before[:, None] & inside).astype(np.float64) @ np.hstack([cells.logs, cells.seen])
    logs = sums[..., : 2 * _SIZES].reshape(len(cuts), parts, 2, _SIZES).swapaxes(1, 2)
    return logs, sums[..., 2 * _SIZES :].swapaxes(1, 2)


def _newborn(logs: Floats) -> Floats:
    """Beliefs (3, parts, K, starts) that are the prior once ``logs`` (starts, 2, parts, K) were learned."""
    likelihood = np.concatenate([np.ones_like(logs[:, :1]), np.exp(-logs)], axis=1)
    return np.moveaxis(PRIOR[:, None, None] * likelihood, 0, -1)


def _growth(belief: Floats, cells: Cells, blocks: int) -> Floats:
    """What each block multiplies capital with (B, K, S): the mean pay, by what was believed before it."""
    earlier = (cells.part[:, None] == cells.part) & (cells.block[:, None] > cells.block)
    likelihood = np.exp(earlier.astype(np.float64) @ cells.logs).reshape(-1, 2, _SIZES, 1)
    pays = cells.pays.reshape(-1, 2, _SIZES, 1)
    idle, over, under = (part[cells.part] for part in belief)
    over *= likelihood[:, 0]
    under *= likelihood[:, 1]
    total = idle + over
    total += under
    if len(cells.block) > blocks:
        idle *= cells.share[:, None, None]
    over *= pays[:, 0]
    under *= pays[:, 1]
    idle += over
    idle += under
    idle /= total
    growth: Floats = idle
    if len(cells.block) > blocks:
        growth = np.add.reduceat(idle, np.searchsorted(cells.block, np.arange(blocks)))
    return growth


def _learned(belief: Floats, logs: Floats, told: NDArray[np.intp]) -> Floats:
    """The beliefs after likelihoods with these logarithms (2, P, K); only the parts ``told`` (T,) learn."""
    new = belief[:, told]
    new[1:] *= np.exp(logs[:, told])[..., None]
    new /= new.sum(axis=0)
    belief[:, told] = new
    return belief

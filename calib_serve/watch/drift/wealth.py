"""What the bets against calibration have won, advanced by many labels at once.

Half of the stake bets that all confidences are off in one direction: a mixture, over sizes, of
Shiryaev-Roberts recursions. Half bets that every bin is off by one size, in a direction of its
own that the bets learn, or not at all: so errors that cancel over bins are found as well. These
run from many starting times at once, thinned out geometrically, and the older a start is, the
farther it is from its neighbours.

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
from calib_serve.watch.drift.bets import SHIFTS, Rounds

__all__ = ["IDLE", "PRIOR", "SIGNED", "SPACING", "SPAN", "THIN", "Wealth"]

Floats = NDArray[np.float64]

SIGNED = 0.5  # the signed bets' share of the stake
IDLE = 0.2  # a bin's prior that nothing is wrong with it
PRIOR = np.array([IDLE, (1 - IDLE) / 2, (1 - IDLE) / 2])  # nothing, over-, underconfident
PRIOR.setflags(write=False)
SPACING = 16  # labels between two starting times
THIN = 1.25  # of two starts with ages closer than this ratio, one is enough
SPAN = 96  # labels at once: each pays 1/10 to 501, and a float holds what 96 of them make
_SIZES = len(SHIFTS)


@dataclass(frozen=True, eq=False)
class Wealth:
    """All that the bets know after ``labels`` labels; K sizes, S starts, the oldest first.

    ``signed`` (2 K,) is the worth of each signed bet, ``run`` (2 K,) its CUSUM, and ``run_start``
    (2, 2 K) the label and the time at which that began. By start: ``starts`` (2, S) label and time,
    ``capital`` (K, S) its worth, ``belief`` (3, bins, K, S) in nothing, over- and underconfidence,
    ``seen`` (3, bins, S) labels, their confidences, how many were right.
    """

    labels: int
    signed: Floats
    run: Floats
    run_start: Floats
    starts: Floats
    capital: Floats
    belief: Floats
    seen: Floats

    @classmethod
    def none(cls, labels: int, *, bins: int) -> Wealth:
        """Nothing won yet, ``labels`` labels into the stream."""
        return cls(labels, **{name: np.zeros(shape) for name, shape in _shapes(bins, 0).items()})

    @property
    def evidence(self) -> float:
        """The statistic: at most the number of labels so far, in expectation, without drift."""
        return SIGNED * float(self.signed.mean()) + (1 - SIGNED) * float(self.capital.sum())

    def after(self, rounds: Rounds) -> tuple[Wealth, Floats]:
        """The wealth after the blocks of up to ``SPAN`` labels, or of one; the statistic after each (B,)."""
        firsts = self.labels + 1 + rounds.size * np.arange(len(rounds))
        due = _due(firsts.tolist(), int(self.starts[0, -1]) if self.starts.size else None)
        logs, seen = _sums(rounds, [*due, len(rounds)], bins=self.seen.shape[1])
        starts = np.concatenate([self.starts, [firsts[due], rounds.times[due]]], axis=1)
        belief = np.concatenate([self.belief, _newborn(logs[:-1])], axis=-1)
        all_seen = np.concatenate([self.seen, -np.moveaxis(seen[:-1], 0, -1)], axis=-1)
        worth, capital, alive = self._ventured(_growth(belief, rounds), due, starts[0].tolist(), rounds.size)
        signed = _shiryaev_roberts(self.signed, rounds.pays, rounds.size)
        run, run_start = _cusum(self.run, self.run_start, np.log(rounds.pays), firsts, rounds.times)
        after = Wealth(
            self.labels + rounds.size * len(rounds),
            signed[-1],
            run,
            run_start,
            starts[:, alive],
            capital[:, alive],
            _learned(belief[..., alive], logs[-1]),
            all_seen[..., alive] + seen[-1][..., None],
        )
        return after, SIGNED * signed.mean(axis=1) + (1 - SIGNED) * worth

    def flat(self) -> Floats:
        """Everything but ``labels`` in one vector, for stores; read back by ``from_flat``."""
        return np.concatenate([getattr(self, name).ravel() for name in _shapes(0, 0)])

    @classmethod
    def from_flat(cls, flat: Floats, *, labels: int, bins: int) -> Wealth:
        """The wealth behind ``flat()``; ShapeError if its length fits no number of starts."""
        fixed, each = (sum(math.prod(shape) for shape in _shapes(bins, s).values()) for s in (0, 1))
        starts, left = divmod(len(flat) - fixed, each - fixed)
        if left or starts < 0:
            raise ShapeError(f"the wealth of {bins} bins has no {len(flat)} numbers")
        parts, at = {}, 0
        for name, shape in _shapes(bins, starts).items():
            parts[name] = flat[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        return cls(labels, **parts)

    def _ventured(
        self, growth: Floats, due: Sequence[int], starts: Sequence[float], size: int
    ) -> tuple[Floats, Floats, list[int]]:
        """What all capital is worth after each block of ``growth`` (B, K, S'), by start, and who is still in.

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


def _shapes(bins: int, starts: int) -> dict[str, tuple[int, ...]]:
    return {
        "signed": (2 * _SIZES,),
        "run": (2 * _SIZES,),
        "run_start": (2, 2 * _SIZES),
        "starts": (2, starts),
        "capital": (_SIZES, starts),
        "belief": (3, bins, _SIZES, starts),
        "seen": (3, bins, starts),
    }


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


def _shiryaev_roberts(worth: Floats, pays: Floats, size: int) -> Floats:
    """Each bet's worth after each block, R = (R + size) pay, from the products of the pays."""
    product = np.cumprod(pays, axis=0)
    before = np.concatenate([np.ones((1, pays.shape[1])), product[:-1]])
    return product * (worth + size * np.cumsum(1 / before, axis=0))


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

"""Bets against calibration, and their worth, advanced by many labels at once.

Every bet is a function of the confidence alone, so it is fixed when the prediction is made, however late the
label comes. Most of the stake bets that all confidences are off in one direction (``SignedBets``), the rest
that every part of the predictions, a bin or a predicted class, is off by one size in a direction of its own
that the bets learn (``PartBets``): these find errors that cancel over the parts. Part bets run from many
starting times at once, thinned out geometrically: the older a start is, the farther apart they are.

A belief is its prior times the likelihoods of the labels since, so the likelihoods of one stretch of labels
serve all starts, and the statistic after each label comes out of a few array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import ShapeError
from calib_serve.monitor.drift.rounds import CLASS_SLOTS, OF_PARTS, SHIFTS, BlockCells, Rounds, weights
from calib_serve.monitor.measured import BINS_STAKE, CLASSES_STAKE, SIGNED_STAKE

PRIOR = np.array([0.2, 0.4, 0.4])
"""A part's prior of nothing, overconfidence and underconfidence."""
PRIOR.setflags(write=False)

SPACING = 32
"""Labels between two starting times."""

THIN = 1.4
"""Of two starts with ages closer than this ratio, one is enough."""

SPAN = 96
"""Blocks at once: each pays 1/10 to 501, and a float holds what 96 of them make."""

_SIZES = len(SHIFTS[OF_PARTS])
_BETS = 2 * len(SHIFTS)


@dataclass(frozen=True, eq=False)
class PartBets:
    """Bets on P parts and K sizes from each of S starting times, the oldest first.

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
        """Begin with nothing won, ``labels`` labels into the stream."""
        return cls.from_flat(np.array([labels], np.float64), parts=parts)

    @property
    def worth(self) -> float:
        """The worth of all starts together."""
        return float(self.capital.sum())

    @property
    def began(self) -> Floats:
        """The label and time (2,) of the start that has won most."""
        start: Floats = self.starts[:, self.capital.sum(axis=0).argmax()]
        return start

    def evidence(self, at: int) -> Floats:
        """Evidence of each part against its calibration since start ``at`` (P,), in nats.

        It is how far the belief that nothing is wrong fell, log(prior / now); minus infinity without labels.
        """
        size = int(self.capital[:, at].argmax())
        idle = np.maximum(self.belief[0, :, size, at], np.finfo(float).tiny)
        return np.where(self.seen[0, :, at] > 0, np.log(PRIOR[0] / idle), -math.inf)

    def after(
        self, cells: BlockCells, firsts: NDArray[np.intp], sizes: NDArray[np.intp], times: Floats
    ) -> tuple[PartBets, Floats]:
        """Bet on blocks of ``sizes`` (B,) that begin at ``firsts``; return the worth after each (B,), too."""
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
        """The capital after each block of ``growth`` (B, K, S'), by start, and the starts that remain.

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
        """Flatten the bets into one vector, for stores; ``from_flat`` reads it back."""
        arrays = (self.starts, self.capital, self.belief, self.seen)
        return np.concatenate([[self.paid], *(array.ravel() for array in arrays)])

    @classmethod
    def from_flat(cls, flat: Floats, *, parts: int) -> PartBets:
        """Read the bets behind ``flat()``; ShapeError if its length fits no number of starts."""
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


def _sums(cells: BlockCells, cuts: Sequence[int], *, parts: int) -> tuple[Floats, Floats]:
    """Sum over the blocks before each cut, by part: ``logs`` (cuts, 2, P, K) and ``seen`` (cuts, 3, P)."""
    before = cells.block < np.array(cuts)[:, None]
    inside = np.arange(parts)[:, None] == cells.part
    sums = (before[:, None] & inside).astype(np.float64) @ np.hstack([cells.logs, cells.seen])
    logs = sums[..., : 2 * _SIZES].reshape(len(cuts), parts, 2, _SIZES).swapaxes(1, 2)
    return logs, sums[..., 2 * _SIZES :].swapaxes(1, 2)


def _newborn(logs: Floats) -> Floats:
    """Make beliefs (3, parts, K, starts) that become the prior by ``logs`` (starts, 2, parts, K)."""
    likelihood = np.concatenate([np.ones_like(logs[:, :1]), np.exp(-logs)], axis=1)
    return np.moveaxis(PRIOR[:, None, None] * likelihood, 0, -1)


def _growth(belief: Floats, cells: BlockCells, blocks: int) -> Floats:
    """The growth of capital in each block (B, K, S): the mean pay, by earlier beliefs."""
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
    """Update beliefs by likelihoods with these logarithms (2, P, K); only the parts ``told`` (T,) learn."""
    new = belief[:, told]
    new[1:] *= np.exp(logs[:, told])[..., None]
    new /= new.sum(axis=0)
    belief[:, told] = new
    return belief


def signed_stakes(*, tolerance: float, arl: float, block: int = 1) -> Floats:
    """The stake of each signed bet at a label (2 S,).

    At tolerance 0 all stakes make 1, half for each direction. With a tolerance a stream is at one of its
    edges at most: at one edge the bets on the other direction lose, and what is staked on them hardly
    ever raises a false alarm. So the stake that they share is more than 1: w / (1 + rest) for each direction,
    where rest is the rate of false alarms of the losing direction over that of the other.

    For a shift D beyond the tolerance t, the payoff's power 1 + 4 t / D is what has expectation 1 at the
    far edge (normal approximation), so its worth exceeds arl in about arl^(-1 - 4 t / D) of the time,
    rest = arl^(-4 t / D); half that exponent is taken, for safety. Before that it must have died: it loses
    2 t D / p (1 - p) of itself a label, so it holds at most 1 / (8 t D) labels' worth in expectation, which
    is added as a share of arl. Blocks of labels that depend on one another pay and die otherwise, so for them
    no stake is shared: all stakes make 1.

    >>> float(signed_stakes(tolerance=0.0, arl=1000).sum().round(9))
    0.8
    """
    rest = np.ones(len(SHIFTS))
    if block == 1 and tolerance > 0:
        rest = np.minimum(arl ** (-2 * tolerance / SHIFTS) + 1 / (8 * tolerance * SHIFTS * arl), 1)
    stakes = SIGNED_STAKE * weights(block=block) / (1 + rest)
    return np.concatenate([stakes, stakes])


@dataclass(frozen=True, eq=False)
class Wealth:
    """The worth of all bets after ``labels`` labels."""

    labels: int
    signed: SignedBets
    by_bin: PartBets
    by_class: PartBets

    @classmethod
    def none(cls, labels: int, *, bins: int) -> Wealth:
        """A wealth of nothing won, ``labels`` labels into the stream."""
        by_bin, by_class = (PartBets.none(labels, parts=parts) for parts in (bins, CLASS_SLOTS))
        return cls(labels, SignedBets.none(), by_bin, by_class)

    def evidence(self, stakes: Floats) -> float:
        """The statistic: the worth of all bets together."""
        of_parts = BINS_STAKE * self.by_bin.worth + CLASSES_STAKE * self.by_class.worth
        return float(self.signed.worth @ stakes) + of_parts

    def began(self, stakes: Floats) -> Floats:
        """The label and time (2,) at which the change began, by the bets that won most on their stake."""
        won = [float(self.signed.worth @ stakes) / SIGNED_STAKE, self.by_bin.worth, self.by_class.worth]
        start: Floats = (self.signed, self.by_bin, self.by_class)[won.index(max(won))].began
        return start

    def after(self, rounds: Rounds, stakes: Floats) -> tuple[Wealth, Floats]:
        """The wealth after up to ``SPAN`` blocks; the statistic after each (B,)."""
        ends = self.labels + np.cumsum(rounds.sizes)
        firsts = ends - rounds.sizes + 1
        signed, signed_worth = self.signed.after(rounds, firsts)
        by_bin, of_bins = self.by_bin.after(rounds.bins, firsts, rounds.sizes, rounds.times)
        by_class, of_classes = self.by_class.after(rounds.classes, firsts, rounds.sizes, rounds.times)
        evidence = signed_worth @ stakes + BINS_STAKE * of_bins + CLASSES_STAKE * of_classes
        return Wealth(int(ends[-1]), signed, by_bin, by_class), evidence

    def flat(self) -> Floats:
        """Flatten everything but ``labels`` into one vector, for stores; ``from_flat`` reads it back."""
        by_bin = self.by_bin.flat()
        return np.concatenate([self.signed.flat(), [len(by_bin)], by_bin, self.by_class.flat()])

    @classmethod
    def from_flat(cls, flat: Floats, *, labels: int, bins: int) -> Wealth:
        """Read the wealth behind ``flat()``; ShapeError if its length fits no number of starts."""
        at = SignedBets.size()
        if len(flat) < at + 1 or not 0 < flat[at] < len(flat) - at - 1:
            raise ShapeError(f"the wealth of {bins} bins has no {len(flat)} numbers")
        by_bin, by_class = np.split(flat[at + 1 :], [int(flat[at])])
        return cls(
            labels,
            SignedBets.from_flat(flat[:at]),
            PartBets.from_flat(by_bin, parts=bins),
            PartBets.from_flat(by_class, parts=CLASS_SLOTS),
        )


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
        """Begin with nothing won."""
        return cls.from_flat(np.zeros(cls.size()))

    def after(self, rounds: Rounds, firsts: NDArray[np.intp]) -> tuple[SignedBets, Floats]:
        """Bet on blocks that begin at labels ``firsts`` (B,); return the worth after each (B, 2 K), too."""
        worth = _shiryaev_roberts(self.worth, rounds.pays, rounds.sizes)
        run, run_start = _cusum(self.run, self.run_start, np.log(rounds.pays), firsts, rounds.times)
        return SignedBets(worth[-1], run, run_start), worth

    @property
    def began(self) -> Floats:
        """The label and time (2,) at which the run of the strongest bet began."""
        start: Floats = self.run_start[:, self.worth.argmax()]
        return start

    @staticmethod
    def size() -> int:
        """The number of numbers in ``flat``."""
        return 4 * _BETS

    def flat(self) -> Floats:
        """Flatten the bets into one vector, for stores; ``from_flat`` reads it back."""
        return np.concatenate([self.worth, self.run, self.run_start.ravel()])

    @classmethod
    def from_flat(cls, flat: Floats) -> SignedBets:
        """Rebuild the bets from ``flat()``."""
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
    """Run each bet's CUSUM, which begins again once it is not positive; return it and its beginnings."""
    walk = np.concatenate([np.maximum(run, 0)[None], np.maximum(run, 0) + np.cumsum(gains, axis=0)])
    low = np.minimum.accumulate(np.concatenate([np.zeros((1, len(run))), walk[1:]]), axis=0)
    fresh = np.concatenate([[run <= 0], walk[1:-1] <= low[:-2]])
    back = len(fresh) - 1 - fresh[::-1].argmax(axis=0)
    began = np.stack([firsts[back], times[back]])
    return walk[-1] - low[-2], np.where(fresh.any(axis=0), began, start)

"""Labels as bets take them: in blocks, by bin and class, with what each label pays to each size of a bet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError, ShapeError

Ids = NDArray[np.uint64]

# Few sizes, as each one more takes stake from the others: between 2 and 10 points three are as good as
# twice as many. The last two are for a model that broke, and for blocks of labels.
SHIFTS: Floats = np.array([0.025, 0.05, 0.1, 0.25, 0.5])
SHIFTS.setflags(write=False)

OF_PARTS = slice(1, 4)
"""The sizes that are bet on bins and classes, which have few labels: no bet finds two points in them soon."""

CLASS_SLOTS = 16
"""The first classes seen have one each; all others, and labels without a class, the last."""

MOST_GROUPS = 4096
"""Groups remembered: of one that comes back later than so many others, labels count again."""

_SINGLE = np.array([1.0, 1.0, 1.0, 0.2, 0.1])


def weights(*, block: int) -> Floats:
    """The share of each size in the stake (S,) where ``block`` labels are one bet.

    A block's bet pays the mean over its labels, which varies less than one label does: so it wins little
    unless it is large.
    """
    parts = _SINGLE if block == 1 else np.ones(len(SHIFTS))
    shares: Floats = parts / parts.sum()
    return shares


def payoffs(confidence: Floats, correct: Floats, *, tolerance: float) -> NDArray[np.float64]:
    """Pay each bet for each label (n, 2 S): first S bets on overconfidence, then S on underconfidence.

    Each is a likelihood ratio of two coins: the alternative ``shift`` beyond the tolerance, and the
    chance nearest to it that the tolerance still allows. So its expectation is at most 1 whatever
    the true accuracy p is, as long as ``|p - confidence| <= tolerance`` (Arnold, Henzi, Ziegel 2023,
    section 3; the growth-optimal bet of Grünwald, de Heide, Koolen 2024 for a shift of that size).

    >>> payoffs(np.array([0.8]), np.array([0.0]), tolerance=0.0).round(3)[0, [4, 9]].tolist()  # half more
    [3.5, 0.1]
    """
    c, right = confidence[:, None], correct[:, None] > 0
    # Confidences count as 99.9 % at most: beyond, a single error would raise the alarm.
    high = np.minimum(c - tolerance, 1 - 1e-3)
    low = np.maximum(c + tolerance, 1e-3)
    # The alternative is at least a tenth of the claimed probability.
    over, under = np.maximum(high - SHIFTS, 0.1 * high), np.minimum(low + SHIFTS, 1 - 0.1 * (1 - low))
    with np.errstate(divide="ignore", invalid="ignore"):
        pays_over = np.where(right, over, 1 - over) / np.where(right, high, 1 - high)
        pays_under = np.where(right, under, 1 - under) / np.where(right, low, 1 - low)
    # Where the tolerance reaches 0 or 1 no coin lies beyond it: no bet.
    pays_over = np.where(high > 0, pays_over, 1.0)
    pays_under = np.where(low < 1, pays_under, 1.0)
    return np.concatenate([pays_over, pays_under], axis=1)


@dataclass(frozen=True, eq=False)
class BlockCells:
    """The labels of one part (a bin, or a class) within one block make a cell: C of them, K bet sizes.

    ``block`` (C,) in rising order, ``part`` (C,), ``pays`` (C, 2 K) the sum of what the cell's labels pay,
    over the block's size, ``logs`` (C, 2 K) the same of the logarithms, ``share`` (C,) of the block's labels,
    ``seen`` (C, 3) labels, their confidences, how many were right.
    """

    block: Codes
    part: Codes
    pays: Floats
    logs: Floats
    share: Floats
    seen: Floats

    @classmethod
    def of(cls, block: Codes, part: Codes, pays: Floats, seen: Floats, sizes: Codes) -> BlockCells:
        """Sum labels (n,) with their pays (n, 2 K) into cells, in blocks of ``sizes`` (B,) labels."""
        logs, share = np.log(pays), 1 / sizes[block]
        if len(sizes) == len(block):
            return cls(block, part, pays, logs, share, seen)
        bets = pays.shape[1]
        each = np.hstack([pays * share[:, None], logs * share[:, None], share[:, None], seen])
        cell = block * (part.max() + 1) + part
        order = np.argsort(cell, kind="stable")
        firsts = np.flatnonzero(np.diff(cell[order], prepend=-1))
        sums = np.add.reduceat(each[order], firsts)
        pays, logs, rest = np.split(sums, [bets, 2 * bets], axis=1)
        return cls(block[order][firsts], part[order][firsts], pays, logs, rest[:, 0], rest[:, 1:])

    def of_blocks(self, start: int, stop: int) -> BlockCells:
        """The cells of blocks ``start`` to ``stop``, exclusive, renumbered from 0."""
        low, high = np.searchsorted(self.block, [start, stop]).tolist()
        at = slice(low, high)
        return BlockCells(
            self.block[at] - start,
            self.part[at],
            self.pays[at],
            self.logs[at],
            self.share[at],
            self.seen[at],
        )


@dataclass(frozen=True, eq=False)
class Rounds:
    """B blocks of labels, each of them one bet.

    ``sizes`` (B,) labels, ``times`` (B,) when each began, ``pays`` (B, 2 S) what each signed bet makes of
    it: the mean over its labels, which is fair however its labels depend on one another.
    """

    sizes: Codes
    times: Floats
    pays: Floats
    bins: BlockCells
    classes: BlockCells

    @classmethod
    def of(cls, rows: Floats, sizes: Codes, *, tolerance: float, bins: int) -> Rounds:
        """Read ``rows`` (n, 4), confidence, correct, time, class slot, in blocks of ``sizes`` (B,)."""
        c, correct, times, slots = rows.T
        pays = payoffs(c, correct, tolerance=tolerance)
        block, firsts = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
        seen = np.column_stack([np.ones(len(rows)), rows[:, :2]])
        of_parts = pays.reshape(-1, 2, len(SHIFTS))[:, :, OF_PARTS].reshape(-1, 2 * len(SHIFTS[OF_PARTS]))
        mean = pays
        if len(sizes) < len(rows):
            mean = np.add.reduceat(pays, firsts) / sizes[:, None]
        return cls(
            sizes,
            times[firsts],
            mean,
            BlockCells.of(block, bin_index(c, bins=bins), of_parts, seen, sizes),
            BlockCells.of(block, slots.astype(np.intp), of_parts, seen, sizes),
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def of_blocks(self, start: int, stop: int) -> Rounds:
        """The blocks ``start`` to ``stop``, exclusive."""
        at = slice(start, stop)
        return Rounds(
            self.sizes[at],
            self.times[at],
            self.pays[at],
            self.bins.of_blocks(start, stop),
            self.classes.of_blocks(start, stop),
        )


class Incoming:
    """The labels that no whole block holds yet, the classes with a slot, and the latest groups.

    ``waiting`` (w, 4): confidence, correct, time, class slot. ``classes``: those seen first, each its own
    slot. ``groups``: the latest ids, the oldest first. ``left_out``: labels of groups that had made their
    bet before.
    """

    def __init__(
        self,
        *,
        block: int,
        waiting: Floats | None = None,
        classes: Iterable[int] = (),
        groups: Ids | None = None,
        left_out: int = 0,
    ) -> None:
        self.block, self.left_out = block, left_out
        self.waiting = np.empty((0, 4)) if waiting is None else waiting
        self.classes = list(classes)
        self.groups = np.empty(0, np.uint64) if groups is None else groups

    def blocks(
        self,
        confidence: ArrayLike,
        correct: ArrayLike,
        time: ArrayLike | None,
        predicted: ArrayLike | None,
        group: ArrayLike | None,
    ) -> tuple[Floats, Codes]:
        """The labels of all whole blocks, block after block (n, 4), and the blocks' sizes (B,)."""
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        t = np.full(c.shape, math.nan) if time is None else np.asarray(time, np.float64)
        if c.ndim != 1 or c.shape != y.shape or c.shape != t.shape:
            raise ShapeError(
                f"confidence, correct and time must be (n,), got {c.shape}, {y.shape}, {t.shape}"
            )
        ids = None if group is None else _ids(group, len(c))
        rows = np.stack([c, y, t, self._slots(predicted, len(c))], axis=1)
        if ids is None or not ids.any():
            return self._in_equal_blocks(rows)
        return self._with_groups(rows, ids)

    def _slots(self, predicted: ArrayLike | None, n: int) -> Codes:
        """The slot of each predicted class (n,); new classes take one while there are any."""
        if predicted is None:
            return np.full(n, CLASS_SLOTS - 1)
        given = np.asarray(predicted)
        if given.shape != (n,) or (n and given.dtype.kind not in "iu"):
            raise ShapeError(f"predicted must be ({n},) class ids, got {given.dtype} {given.shape}")
        distinct, first, back = np.unique(given, return_index=True, return_inverse=True)
        found = distinct.tolist()
        for at in np.argsort(first).tolist():
            if len(self.classes) < CLASS_SLOTS - 1 and found[at] not in self.classes:
                self.classes.append(found[at])
        slot = {one: i for i, one in enumerate(self.classes)}
        return np.array([slot.get(one, CLASS_SLOTS - 1) for one in found], np.intp)[back]

    def _in_equal_blocks(self, rows: Floats) -> tuple[Floats, Codes]:
        rows = np.concatenate([self.waiting, rows])
        whole = len(rows) - len(rows) % self.block
        self.waiting = rows[whole:]
        return rows[:whole], np.full(whole // self.block, self.block)

    def _with_groups(self, rows: Floats, ids: Ids) -> tuple[Floats, Codes]:
        """Blocks in the order of their first labels; the labels of one group are one block."""
        late = np.isin(ids, self.groups) & (ids > 0)
        self.left_out += int(late.sum())
        rows = np.concatenate([self.waiting, rows[~late]])
        ids = np.concatenate([np.zeros(len(self.waiting), np.uint64), ids[~late]])
        alone = np.flatnonzero(ids == 0)
        whole = len(alone) - len(alone) % self.block
        self.waiting = rows[alone[whole:]]
        begins = np.empty(len(rows), np.intp)  # the row with which each row's block begins
        begins[alone] = np.repeat(alone[:: self.block], self.block)[: len(alone)]
        groups, first, back = np.unique(ids[ids > 0], return_index=True, return_inverse=True)
        grouped = np.flatnonzero(ids)
        begins[grouped] = grouped[first][back]
        self.groups = np.concatenate([self.groups, groups[np.argsort(first)]])[-MOST_GROUPS:]
        taken = np.setdiff1d(np.arange(len(rows)), alone[whole:])
        order = taken[np.argsort(begins[taken], kind="stable")]
        return rows[order], np.unique(begins[order], return_counts=True)[1]


def _ids(group: ArrayLike, n: int) -> Ids:
    try:
        given = group if isinstance(group, np.ndarray) else np.array(group, np.uint64)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"groups are unsigned 64-bit numbers, 0 for none: {error}") from error
    if given.shape != (n,) or (n and given.dtype.kind not in "iu") or (given < 0).any():
        raise ShapeError(
            f"group must be ({n},) unsigned 64-bit numbers, 0 for none, got {given.dtype} {given.shape}"
        )
    return given.astype(np.uint64)

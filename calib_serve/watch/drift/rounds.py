"""Labels as the bets are paid: block by block, and within a block by bin and by predicted class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.bins import bin_index
from calib_serve.watch.drift.bets import SHIFTS, payoffs

__all__ = ["CLASS_SLOTS", "OF_PARTS", "Cells", "Rounds"]

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

CLASS_SLOTS = 16  # the first classes seen have one each; all others, and labels without a class, the last
# A bin or a class has few labels: no bet finds two points in them soon.
OF_PARTS = slice(1, 4)
_SIZES = len(SHIFTS[OF_PARTS])


@dataclass(frozen=True, eq=False)
class Cells:
    """The labels of one part (a bin, or a class) within one block make a cell: C of them, K bet sizes.

    ``block`` (C,) in rising order, ``part`` (C,), ``pays`` (C, 2 K) the sum of what the cell's labels pay,
    over the block's size, ``logs`` (C, 2 K) the same of the logarithms, ``share`` (C,) of the block's labels,
    ``seen`` (C, 3) labels, their confidences, how many were right.
    """

    block: Indices
    part: Indices
    pays: Floats
    logs: Floats
    share: Floats
    seen: Floats

    @classmethod
    def of(cls, block: Indices, part: Indices, pays: Floats, seen: Floats, sizes: Indices) -> Cells:
        """Of labels (n,) with what they pay (n, 2 K), in blocks of ``sizes`` (B,) labels."""
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

    def of_blocks(self, start: int, stop: int) -> Cells:
        """Those of the blocks from ``start`` to before ``stop``, which count from 0 then."""
        low, high = np.searchsorted(self.block, [start, stop]).tolist()
        at = slice(low, high)
        return Cells(
            self.block[at] - start,
            self.part[at],
            self.pays[at],
            self.logs[at],
            self.share[at],
            self.seen[at],
        )


@dataclass(frozen=True, eq=False)
class Rounds:
    """B blocks of labels, each of which is one bet.

    ``sizes`` (B,) labels, ``times`` (B,) when each began, ``pays`` (B, 2 S) what each signed bet makes of
    it: the mean over its labels, which is fair however its labels depend on one another.
    """

    sizes: Indices
    times: Floats
    pays: Floats
    bins: Cells
    classes: Cells

    @classmethod
    def of(cls, rows: Floats, sizes: Indices, *, tolerance: float, bins: int) -> Rounds:
        """Of ``rows`` (n, 4), confidence, correct, time, class slot, block after block of ``sizes`` (B,)."""
        c, correct, times, slots = rows.T
        pays = payoffs(c, correct, tolerance=tolerance)
        block, firsts = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
        seen = np.column_stack([np.ones(len(rows)), rows[:, :2]])
        of_parts = pays.reshape(-1, 2, len(SHIFTS))[:, :, OF_PARTS].reshape(-1, 2 * _SIZES)
        mean = pays
        if len(sizes) < len(rows):
            mean = np.add.reduceat(pays, firsts) / sizes[:, None]
        return cls(
            sizes,
            times[firsts],
            mean,
            Cells.of(block, bin_index(c, bins=bins), of_parts, seen, sizes),
            Cells.of(block, slots.astype(np.intp), of_parts, seen, sizes),
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def of_blocks(self, start: int, stop: int) -> Rounds:
        """The blocks from ``start`` to before ``stop``."""
        at = slice(start, stop)
        return Rounds(
            self.sizes[at],
            self.times[at],
            self.pays[at],
            self.bins.of_blocks(start, stop),
            self.classes.of_blocks(start, stop),
        )

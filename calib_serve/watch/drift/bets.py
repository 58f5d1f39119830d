"""Bets against calibration: the payoff of each label for a bet that confidences are off.

Every bet is a function of the confidence alone, so it is fixed when the prediction is made,
however late the label comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.bins import bin_index

__all__ = ["SHIFTS", "Rounds", "payoffs"]

Floats = NDArray[np.float64]

SHIFTS: Floats = np.array([0.015, 0.03, 0.06, 0.12, 0.25, 0.5])
SHIFTS.setflags(write=False)
_SURE = 1e-3  # confidences count as 99.9 % at most: beyond, a single error would raise the alarm
_KEEP = 0.1  # the alternative is at least a tenth of the claimed probability


def payoffs(
    confidence: Floats, correct: Floats, *, tolerance: float, shifts: Floats = SHIFTS
) -> NDArray[np.float64]:
    """What each bet pays for each label: (n, 2 S); first S bets on overconfidence, then S on underconfidence.

    Each is a likelihood ratio of two coins: the alternative ``shift`` beyond the tolerance, and the
    chance nearest to it that the tolerance still allows. So its expectation is at most 1 whatever
    the true accuracy p is, as long as ``|p - confidence| <= tolerance`` (Arnold, Henzi, Ziegel 2023,
    section 3; the growth-optimal bet of Grünwald, de Heide, Koolen 2024 for a shift of that size).

    >>> payoffs(np.array([0.8]), np.array([0.0]), tolerance=0.0, shifts=np.array([0.2])).round(3).tolist()
    [[2.0, 0.1]]
    """
    c, right = confidence[:, None], correct[:, None] > 0
    high = np.minimum(c - tolerance, 1 - _SURE)
    low = np.maximum(c + tolerance, _SURE)
    over, under = np.maximum(high - shifts, _KEEP * high), np.minimum(low + shifts, 1 - _KEEP * (1 - low))
    with np.errstate(divide="ignore", invalid="ignore"):
        pays_over = np.where(right, over, 1 - over) / np.where(right, high, 1 - high)
        pays_under = np.where(right, under, 1 - under) / np.where(right, low, 1 - low)
    # Where the tolerance reaches 0 or 1 no coin lies beyond it: no bet.
    pays_over = np.where(high > 0, pays_over, 1.0)
    pays_under = np.where(low < 1, pays_under, 1.0)
    return np.concatenate([pays_over, pays_under], axis=1)


@dataclass(frozen=True, eq=False)
class Rounds:
    """Labels as the bets are paid: in B blocks, and within a block by bin, which makes C cells.

    ``times`` (B,) when each block began; ``pays`` (B, 2 S) what each signed bet makes of it, the mean over
    its labels. By cell: ``block`` (C,) in rising order, ``bin`` (C,), ``by_bin`` (C, 2 S) the sum of what
    its labels pay, over the block's size, ``logs`` (C, 2 S) the same of their logarithms, ``seen`` (C, 3)
    its labels, their confidences, how many were right; ``size`` is a block's labels.
    """

    times: Floats
    pays: Floats
    block: NDArray[np.intp]
    bin: NDArray[np.intp]
    by_bin: Floats
    logs: Floats
    seen: Floats
    size: int

    @classmethod
    def of(cls, rows: Floats, *, tolerance: float, bins: int, size: int) -> Rounds:
        """Of ``rows`` (n, 3), confidence, correct and time, in whole blocks of ``size``."""
        pays = payoffs(rows[:, 0], rows[:, 1], tolerance=tolerance)
        block, index = np.arange(len(rows)) // size, bin_index(rows[:, 0], bins=bins)
        seen = np.column_stack([np.ones(len(rows)), rows[:, :2]])
        if size == 1:
            return cls(rows[:, 2], pays, block, index, pays, np.log(pays), seen, size)
        each = np.hstack([pays / size, np.log(pays) / size, seen])
        cell = block * bins + index
        order = np.argsort(cell, kind="stable")
        firsts = np.flatnonzero(np.diff(cell[order], prepend=-1))
        by_bin, logs, seen = np.split(
            np.add.reduceat(each[order], firsts) if len(rows) else each,
            [bets := pays.shape[1], 2 * bets],
            axis=1,
        )
        mean = pays.reshape(-1, size, bets).mean(axis=1)
        return cls(
            rows[::size, 2], mean, block[order][firsts], index[order][firsts], by_bin, logs, seen, size
        )

    def __len__(self) -> int:
        return len(self.times)

    def part(self, start: int, stop: int) -> Rounds:
        """The blocks from ``start`` to before ``stop``."""
        cells = slice(*np.searchsorted(self.block, [start, stop]).tolist())
        return Rounds(
            self.times[start:stop],
            self.pays[start:stop],
            self.block[cells] - start,
            self.bin[cells],
            self.by_bin[cells],
            self.logs[cells],
            self.seen[cells],
            self.size,
        )

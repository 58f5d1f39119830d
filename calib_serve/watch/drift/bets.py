"""Bets against calibration: the payoff of each label for a bet that confidences are off.

Every bet is a function of the confidence alone, so it is fixed when the prediction is made,
however late the label comes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHIFTS", "payoffs", "weights"]

Floats = NDArray[np.float64]

# Few sizes, as each one more takes stake from the others: between 2 and 10 points three are as good as
# twice as many. The last two are for a model that broke, and for blocks of labels.
SHIFTS: Floats = np.array([0.025, 0.05, 0.1, 0.25, 0.5])
SHIFTS.setflags(write=False)
_SINGLE = np.array([1.0, 1.0, 1.0, 0.2, 0.1])
_SURE = 1e-3  # confidences count as 99.9 % at most: beyond, a single error would raise the alarm
_KEEP = 0.1  # the alternative is at least a tenth of the claimed probability


def weights(*, block: int) -> Floats:
    """The share of each size in the stake (S,) where ``block`` labels are one bet.

    A block's bet pays the mean over its labels, which varies less than one label does: so it wins little
    unless it is large.
    """
    parts = _SINGLE if block == 1 else np.ones(len(SHIFTS))
    shares: Floats = parts / parts.sum()
    return shares


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

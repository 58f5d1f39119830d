"""Bins that hold equally many predictions, and the calibration errors taken over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError

__all__ = ["Ranked", "cumulative", "equal_mass_edges", "tie_ends"]

Floats = NDArray[np.float64]

_MOST_BINS = 200  # of the sweep


def equal_mass_edges(n: int, bins: int) -> Floats:
    """Where M equal-mass bins of n ranked samples begin and end, (M + 1,): np.array_split's rule.

    >>> equal_mass_edges(7, 3).tolist()
    [0.0, 3.0, 5.0, 7.0]
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    size, longer = divmod(n, bins)
    ranks = np.arange(bins + 1)
    return (ranks * size + np.minimum(ranks, longer)).astype(np.float64)


def tie_ends(ranked: Floats) -> NDArray[np.intp]:
    """How many of the ranked numbers (n,) lie at or below each distinct one (g,), after a 0.

    >>> tie_ends(np.array([0.1, 0.5, 0.5, 0.5])).tolist()
    [0, 1, 4]
    """
    rises = np.ones(len(ranked) + 1, bool)
    np.greater(ranked[1:], ranked[:-1], out=rises[1:-1])
    return np.flatnonzero(rises)


def cumulative(values: Floats) -> Floats:
    """Cumulative sums (..., n + 1) along the last axis, from 0."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


@dataclass(frozen=True, eq=False)
class Ranked:
    """Cumulative sums (g + 1,) over predictions ranked by rising confidence, each from 0.

    Equal confidences at a bin's edge share their correct answers evenly, which is the mean over all their
    orders: so no result depends on the order of the samples.
    """

    mass: Floats
    confidence: Floats
    correct: Floats

    @classmethod
    def of(cls, confidence: ArrayLike, correct: ArrayLike) -> Ranked:
        """Rank predictions (n,) in any order."""
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        order = np.argsort(c)
        c, y = c[order], y[order]
        ends = tie_ends(c)
        return cls(*(cumulative(column)[ends] for column in (np.ones_like(c), c, y)))

    def sums(self, bins: int) -> tuple[Floats, Floats, Floats]:
        """Count, sum of confidences and number correct of each equal-mass bin (bins,)."""
        edges = equal_mass_edges(round(float(self.mass[-1])), bins)
        confidence = np.interp(edges, self.mass, self.confidence)
        correct = np.interp(edges, self.mass, self.correct)
        return np.diff(edges), np.diff(confidence), np.diff(correct)

    def ece(self, bins: int) -> float:
        """Expected calibration error over equal-mass bins."""
        count, confidence, correct = self.sums(bins)
        return float(np.abs(confidence - correct).sum() / count.sum())

    def sweep_ece(self) -> float:
        """ECE over as many equal-mass bins as keep accuracy rising (Roelofs 2022, alg. 1), at most 200.

        The bound is ours: where confidence ranks nearly perfectly, accuracy rises up to n bins, and
        finding that out takes time quadratic in n for no change in the number.
        """
        bins, most = 1, min(_MOST_BINS, self.mass[-1])
        while bins < most and self._rises(bins + 1):
            bins += 1
        return self.ece(bins)

    def _rises(self, bins: int) -> bool:
        edges = equal_mass_edges(round(float(self.mass[-1])), bins)
        correct = np.interp(edges, self.mass, self.correct)
        accuracy = (correct[1:] - correct[:-1]) / (edges[1:] - edges[:-1])
        # Interpolation rounds; equal accuracies must not look like a fall.
        return bool((accuracy[1:] >= accuracy[:-1] - 1e-12).all())

"""Calibration errors of every class, over bins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import Bins, Edges, bin_index, check_binning
from calib_serve.core.errors import InputError
from calib_serve.metrics.calibration import Ranked
from calib_serve.metrics.samples import checked, row_blocks

Truth = Callable[[Floats], Floats]


def classwise_ece(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right", threshold: float = 0.0
) -> float:
    """Return the mean over classes of each class's ECE: the static error (Nixon 2019, eq. 4; Kull 2019).

    All n samples count in each class, and all K columns are classes, whether or not a label of theirs is
    present.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        threshold: Probabilities below it are left out of the sums, with their labels (thresholded SCE: Nixon
            2019, section 3.3), and not out of the denominator n.

    >>> round(classwise_ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=1), 12)  # |1.3 - 1| / 2, twice
    0.15
    """
    p, y = checked(probs, labels)
    return Residuals.of(p, bins=bins, edges=edges, threshold=threshold).ece(y)


def adaptive_classwise_ece(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, threshold: float = 0.0
) -> float:
    """Return the mean over classes of each class's ECE over equal-mass bins (Nixon 2019, eq. 5: ACE, TACE).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
        threshold: A class's bins hold the probabilities from it on (TACE); the denominator stays n.
    """
    p, y = checked(probs, labels)
    found = []
    for k, column in enumerate(p.T):
        kept = column >= threshold
        if kept.any():
            found.append(Ranked.of(column[kept], y[kept] == k).ece(bins) * float(kept.mean()))
    return float(math.fsum(found) / p.shape[1])


def classwise_rms_debiased(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Return root of the debiased squared gap, averaged over classes (Kumar 2019, eq. 8, marginal).

    A class whose gaps are within noise counts as 0.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
    """
    p, y = checked(probs, labels)
    squares = [
        max(Bins(*Ranked.of(column, y == k).sums(bins)).debiased_l2_squared(), 0.0)
        for k, column in enumerate(p.T)
    ]
    return math.sqrt(sum(squares) / len(squares))


@dataclass(frozen=True, eq=False)
class Residuals:
    """The entries of probabilities (n, K) above the first bin, from which classwise ECE follows.

    A row sums to 1, so fewer than ``bins`` of its entries lie above the first bin. The list is short, and a
    class's first bin is its column's ``total`` minus its listed entries. ``row``, ``column``, ``code``
    (column * bins + bin) and ``listed`` (m,) are one entry each.
    """

    probs: NDArray[np.floating[Any]]
    bins: int
    threshold: float
    total: Floats
    row: Codes
    column: Codes
    code: Codes
    listed: Floats

    @classmethod
    def of(
        cls, probs: NDArray[np.floating[Any]], *, bins: int, edges: Edges, threshold: float = 0.0
    ) -> Residuals:
        """List the entries above the first bin; those below the threshold are ignored."""
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must be a probability, got {threshold}")
        check_binning(bins, edges)
        # The same edges as ``bin_index``, to the last bit.
        first_edge = np.linspace(0, 1, bins + 1)[1]
        above = np.greater if edges == "right" else np.greater_equal
        total = np.zeros(probs.shape[1])
        found: list[tuple[Codes, Floats]] = []
        for rows, p in row_blocks(probs):
            if threshold > 0:
                p[p < threshold] = 0
            total += p.sum(axis=0)
            flat = np.flatnonzero(above(p, first_edge)) if bins > 1 else np.empty(0, np.intp)
            found.append((flat + rows.start * p.shape[1], p.ravel()[flat]))
        row, column = np.divmod(np.concatenate([flat for flat, _ in found]), probs.shape[1])
        listed = np.concatenate([p for _, p in found])
        code = column * bins + bin_index(np.minimum(listed, 1), bins=bins, edges=edges)
        return cls(probs, bins, threshold, total, row, column, code, listed)

    def ece(self, labels: Codes) -> float:
        """Classwise ECE for class ids (n,)."""
        return self._mean_gap(*self._gaps(labels))

    def cells(self, labels: Codes) -> tuple[Floats, Floats]:
        """Summed gaps for class ids (n,), and their variances were the model calibrated: (K, bins)."""
        variance = sum((p * (1 - p)).sum(axis=0) for _, p in row_blocks(self.probs))
        return self._cells(*self._gaps(labels)), self._cells(variance, self.listed * (1 - self.listed))

    def _gaps(self, labels: Codes) -> tuple[Floats, Floats]:
        counted = labels
        if self.threshold > 0:
            counted = labels[self.probs[np.arange(len(labels)), labels] >= self.threshold]
        total = self.total - np.bincount(counted, minlength=len(self.total))
        return total, self.listed - (labels[self.row] == self.column)

    def true_ece(self, truth: Truth) -> float:
        """The classwise ECE under ``truth``, which maps rows of probabilities to true ones."""
        return self._mean_gap(*self._true_gaps(truth))

    def true_cells(self, truth: Truth) -> Floats:
        """Summed gaps (K, bins) of given from true probabilities."""
        return self._cells(*self._true_gaps(truth))

    def turned(self, labels: Codes, signs: Floats, truth: Truth) -> Iterator[Floats]:
        """Yield residuals (K, bins) of true probabilities from labels (n,), summed under signs (r, n)."""
        total = np.zeros((len(signs), len(self.total)))
        listed = np.empty(len(self.listed))
        for rows, p in row_blocks(self.probs):
            q = truth(p)
            q[np.arange(len(q)), labels[rows]] -= 1
            total += signs[:, rows] @ q
            entries = self._entries(rows)
            listed[entries] = q[self.row[entries] - rows.start, self.column[entries]]
        for whole, sign in zip(total, signs, strict=True):
            yield self._cells(whole, sign[self.row] * listed)

    def _true_gaps(self, truth: Truth) -> tuple[Floats, Floats]:
        """Each class's summed gap (K,), and the listed entries' gaps (m,)."""
        total, listed = self.total.copy(), self.listed.copy()
        for rows, p in row_blocks(self.probs):
            q = truth(p)
            total -= q.sum(axis=0)
            entries = self._entries(rows)
            listed[entries] -= q[self.row[entries] - rows.start, self.column[entries]]
        return total, listed

    def _entries(self, rows: slice) -> slice:
        """The listed entries of a run of rows; entries are in the rows' order."""
        first, last = np.searchsorted(self.row, [rows.start, rows.stop])
        return slice(int(first), int(last))

    def _mean_gap(self, total: Floats, gaps: Floats) -> float:
        """Average the absolute gaps, from each class's summed residual (K,) and the listed entries' (m,)."""
        return float(np.abs(self._cells(total, gaps)).sum() / self.probs.size)

    def _cells(self, total: Floats, gaps: Floats) -> Floats:
        classes = self.probs.shape[1]
        sums = np.bincount(self.code, gaps, minlength=classes * self.bins)
        per_class = sums.astype(np.float64).reshape(classes, self.bins)  # integers if none is listed
        # The first bin is what the listed entries leave of the column's total.
        per_class[:, 0] += total - per_class.sum(axis=1)
        return per_class

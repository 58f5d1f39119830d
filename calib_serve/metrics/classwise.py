"""Calibration of every class's probability, not of the predicted class alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Edges, bin_index
from calib_serve.metrics.scores import checked, row_blocks

__all__ = ["classwise_ece"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residuals p - y of probabilities (n, K): what lies above the first bin is listed by entry.

    A row sums to 1, so fewer than ``bins`` of its entries lie above the first bin. The list is
    short, and a class's residual in the first bin is its column's total less what is listed.
    ``row``, ``code`` (class * bins + bin) and ``listed`` (m,) are one entry each.
    """

    probs: NDArray[np.floating[Any]]
    labels: Ints
    bins: int
    row: Ints
    code: Ints
    listed: Floats

    @classmethod
    def of(cls, probs: NDArray[np.floating[Any]], labels: Ints, *, bins: int, edges: Edges) -> Residuals:
        """List the entries above the first bin."""
        edge = np.linspace(0, 1, bins + 1)[1]
        above = np.greater if edges == "right" else np.greater_equal
        found: list[tuple[Ints, Floats]] = []
        for rows, p in row_blocks(probs):
            flat = np.flatnonzero(above(p, edge)) if bins > 1 else np.empty(0, np.intp)
            found.append((flat + rows.start * p.shape[1], p.ravel()[flat]))
        row, column = np.divmod(np.concatenate([flat for flat, _ in found]), probs.shape[1])
        p = np.concatenate([p for _, p in found])
        code = column * bins + bin_index(np.minimum(p, 1), bins=bins, edges=edges)
        return cls(probs, labels, bins, row, code, listed=p - (labels[row] == column))

    def ece(self, weights: Floats) -> Floats:
        """Classwise ECE (r,) when row i counts weights[:, i] times."""
        n, classes = self.probs.shape
        total = np.zeros((len(weights), classes))
        for rows, p in row_blocks(self.probs):
            p[np.arange(len(p)), self.labels[rows]] -= 1
            total += weights[:, rows] @ p
        found = np.empty(len(weights))
        for i, drawn in enumerate(weights):
            sums = np.bincount(self.code, drawn[self.row] * self.listed, minlength=classes * self.bins)
            per_class = sums.astype(np.float64).reshape(classes, self.bins)  # integers if none is listed
            per_class[:, 0] += total[i] - per_class.sum(axis=1)
            found[i] = np.abs(per_class).sum() / (n * classes)
        return found


def classwise_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Static calibration error: the mean over classes of each class's ECE (Nixon 2019, eq. 4; Kull 2019).

    All n samples count in each class, and all K columns of ``probs`` are classes, whether or not
    a label of theirs is present.

    >>> round(classwise_ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=1), 12)  # |1.3 - 1| / 2, twice
    0.15
    """
    p, y = checked(probs, labels)
    return float(Residuals.of(p, y, bins=bins, edges=edges).ece(np.ones((1, len(p))))[0])

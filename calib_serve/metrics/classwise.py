"""Calibration of every class's probability, not of the predicted class alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Edges, bin_index
from calib_serve.metrics.scores import checked

__all__ = ["classwise_ece"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Residuals:
    """p - y of each (row, class), split in two: what lies above the first bin is listed.

    A row sums to 1, so fewer than ``bins`` of its K entries lie above the first bin: the list is
    short, and the first bin's residual of a class is its column's total less what is listed.
    ``row``, ``code`` (class * bins + bin) and ``residual`` (m,) are in order of ``code``.
    """

    row: Ints
    code: Ints
    residual: Floats
    bins: int

    @classmethod
    def of(cls, probs: NDArray[np.floating[Any]], labels: Ints, *, bins: int, edges: Edges) -> Residuals:
        """List the entries of probs (n, K) above the first bin."""
        row, column = above_first_bin(probs, bins, edges)
        p = probs[row, column].astype(np.float64)
        code = column * bins + bin_index(np.minimum(p, 1), bins=bins, edges=edges)
        residual = p - (labels[row] == column)
        order = np.argsort(code, kind="stable")
        return cls(row[order], code[order], residual[order], bins)


def above_first_bin(probs: NDArray[np.floating[Any]], bins: int, edges: Edges) -> tuple[Ints, Ints]:
    """Row and column of each probability that lies above the first bin, compared exactly."""
    edge = np.linspace(0, 1, bins + 1)[1]
    if bins == 1:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    # The edge, moved to the nearest number of this dtype that keeps the comparison's outcome.
    near = probs.dtype.type(edge)
    if edges == "right":
        if float(near) > edge:
            near = np.nextafter(near, probs.dtype.type(0))
        flat = np.flatnonzero(probs > near)
    else:
        if float(near) < edge:
            near = np.nextafter(near, probs.dtype.type(1))
        flat = np.flatnonzero(probs >= near)
    return np.divmod(flat, probs.shape[1])


def classwise_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Static calibration error: the mean over classes of each class's ECE (Nixon 2019, eq. 4; Kull 2019).

    All n samples count in each class, and all K columns of ``probs`` are classes, whether or not
    a label of theirs is present.
    """
    p, y = checked(probs, labels)
    n, classes = p.shape
    listed = Residuals.of(p, y, bins=bins, edges=edges)
    sums = np.bincount(listed.code, weights=listed.residual, minlength=classes * bins).reshape(classes, bins)
    total = p.sum(axis=0, dtype=np.float64) - np.bincount(y, minlength=classes)
    sums[:, 0] += total - sums.sum(axis=1)
    return float(np.abs(sums).sum() / (n * classes))

"""Bin edges in the precision a model computes in, and which probabilities lie next to one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact.steps import Floats, ProbTable

__all__ = ["far_from_edges", "rounded_down"]


def rounded_down(edges: Floats) -> Floats:
    """The largest float32 not above each edge: c > edge then means the same for every float32 c.

    >>> float(rounded_down(np.array([0.1]))[0]) <= 0.1 < float(np.float32(0.1))
    True
    """
    with np.errstate(over="ignore"):  # beyond its range, the largest float is meant
        near = edges.astype(np.float32)
    return np.where(near > edges, np.nextafter(near, np.float32(-np.inf)), near)


def far_from_edges(probs: Floats, table: ProbTable, near: float) -> NDArray[np.bool_]:
    """Which rows (n,) of probabilities (n, K) ``near`` more or less puts into no other bin of the table."""
    if len(table.edges) == probs.shape[1]:
        return np.logical_not((np.abs(probs[:, :, None] - table.edges[None]) <= near).any(axis=(1, 2)))
    ordered = np.sort(probs, axis=1)
    tied = ordered[:, -1] - ordered[:, -2] <= near
    close = (np.abs(ordered[:, -1:] - table.edges) <= near).any(axis=1)
    return np.logical_not(tied | close)

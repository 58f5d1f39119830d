"""The probability of one event, such as class 1 of two or a label: its bins under any weights."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.bins import Bins, Edges, bin_index

__all__ = ["Event"]

Floats = NDArray[np.float64]


class Event:
    """Probabilities (n,) of an event, and the bins over [0, 1] that they lie in."""

    def __init__(self, probs: Floats, *, bins: int, edges: Edges) -> None:
        self.probs = np.clip(probs.astype(np.float64), 0, 1)
        self.code = bin_index(self.probs, bins=bins, edges=edges)
        self.bins = bins

    def tally(self, came_true: NDArray[Any], weight: Floats | None = None) -> Bins:
        """The sums per bin, given whether the event came true (n,) and how often each sample counts (n,)."""
        w = np.ones(len(self.probs)) if weight is None else weight
        rows = (w, w * self.probs, w * came_true)
        count, total, true = (np.bincount(self.code, weights=row, minlength=self.bins) for row in rows)
        return Bins(*(sums.astype(np.float64) for sums in (count, total, true)))

    def ece(self, came_true: Floats) -> Floats:
        """ECE (r,) had the event so often come true (r, n)."""
        sums = np.add.reduceat((self.probs - came_true)[:, self.order], self.starts, axis=1)
        return np.asarray(np.abs(sums).sum(axis=1) / len(self.probs))

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The samples (n,) by bin."""
        return np.argsort(self.code, kind="stable")

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where in this order each filled bin starts."""
        return np.flatnonzero(np.diff(self.code[self.order], prepend=-1))

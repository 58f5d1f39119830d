"""Labels on their way to the detector: checked, their class a slot, put together in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.drift.rounds import CLASS_SLOTS

__all__ = ["MOST_GROUPS", "Incoming"]

Floats = NDArray[np.float64]
Ids = NDArray[np.uint64]
Indices = NDArray[np.intp]

MOST_GROUPS = 4096  # remembered: of a group that comes back later than so many others, labels count again


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
    ) -> tuple[Floats, Indices]:
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

    def _slots(self, predicted: ArrayLike | None, n: int) -> Indices:
        """The slot of each predicted class (n,); classes that are seen first take one while there are any."""
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

    def _in_equal_blocks(self, rows: Floats) -> tuple[Floats, Indices]:
        rows = np.concatenate([self.waiting, rows])
        whole = len(rows) - len(rows) % self.block
        self.waiting = rows[whole:]
        return rows[:whole], np.full(whole // self.block, self.block)

    def _with_groups(self, rows: Floats, ids: Ids) -> tuple[Floats, Indices]:
        """Blocks in the order of their first labels; the labels of one group are one."""
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

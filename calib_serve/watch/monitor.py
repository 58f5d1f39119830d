"""The monitor: predictions and labels in, frozen sums out, in memory that does not grow with traffic.

Confidences are put into a small buffer and tallied when it is full or someone asks, so that a
prediction costs well under a microsecond and numpy is called once for a thousand of them.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import ShapeError
from calib_serve.watch.ledger.sums import Key, Sums

__all__ = ["OTHER", "Key", "Monitor", "Sums"]

OTHER = "other"
"""The segment that counts what comes after ``max_segments`` different ones."""

_SINGLES, _HELD = 1024, 4096  # what may wait, one by one and in arrays: 64 kB a key

Floats = NDArray[np.float64]


class _Cell:
    """One key's sums, and the confidences that are not in them yet."""

    __slots__ = ("arrays", "held", "invalid", "key", "sums", "waiting")

    def __init__(self, key: Key, bins: int) -> None:
        self.key, self.sums, self.invalid, self.held = key, Sums.zeros(bins), 0, 0
        self.waiting: list[float] = []
        self.arrays: list[Floats] = []  # ``held`` confidences in all

    def settle(self) -> None:
        if not (self.waiting or self.held):
            return
        c = np.concatenate([np.array(self.waiting, np.float64), *self.arrays])
        self.waiting.clear()
        self.arrays.clear()
        self.held = 0
        good = (c >= 0) & (c <= 1)  # also false for NaN
        self.invalid += int(len(c) - good.sum())
        self.sums += Sums.served(c[good], bins=len(self.sums))


class Monitor:
    """Sums of predictions and labels by ``Key``, safe to use from several threads.

    ``max_segments``: how many different segment values a model version may have before the rest
    are counted as ``other``. A confidence that is not in [0, 1] (a broken model) is counted by
    ``invalid`` and left out of every sum.

    >>> monitor = Monitor(bins=10)
    >>> monitor.predicted("digits", "1.0", 0.95)
    >>> monitor.labelled("digits", "1.0", [0.95], [True])
    >>> round(monitor.sums()[Key("digits", "1.0")].feedback.signed_gap(), 4)
    -0.05
    """

    def __init__(self, *, bins: int = 15, max_segments: int = 32) -> None:
        self.bins, self.max_segments = bins, max_segments
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, str, str, int | None], _Cell] = {}
        self._segments: dict[tuple[str, str], set[str]] = {}

    def open(self, model: str, version: str) -> None:
        """Start a model version's sums at zero, before its first prediction."""
        with self._lock:
            self._cell(model, version, "", None)

    def predicted(
        self, model: str, version: str, confidence: float, *, segment: str = "", predicted: int | None = None
    ) -> None:
        """Count one served prediction with this top-1 confidence."""
        with self._lock:
            # One look-up by what the caller holds already: making a Key costs more than counting.
            cell = self._cells.get((model, version, segment, predicted)) or self._cell(
                model, version, segment, predicted
            )
            cell.waiting.append(confidence)
            if len(cell.waiting) >= _SINGLES:
                cell.settle()

    def predicted_many(
        self,
        model: str,
        version: str,
        confidence: ArrayLike,
        *,
        segment: str = "",
        predicted: int | None = None,
    ) -> None:
        """Count served predictions with these top-1 confidences (n,)."""
        values = np.array(confidence, np.float64)
        if values.ndim != 1:
            raise ShapeError(f"confidence must be (n,), got {values.shape}")
        with self._lock:
            cell = self._cells.get((model, version, segment, predicted)) or self._cell(
                model, version, segment, predicted
            )
            cell.arrays.append(values)
            cell.held += len(values)
            if cell.held >= _HELD:
                cell.settle()

    def labelled(
        self,
        model: str,
        version: str,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        segment: str = "",
        predicted: int | None = None,
    ) -> None:
        """Count labels that came in: confidences (n,), and whether each prediction was right (n,)."""
        sums = Sums.labelled(confidence, correct, bins=self.bins)
        with self._lock:
            self._cell(model, version, segment, predicted).sums += sums

    def sums(self) -> dict[Key, Sums]:
        """The sums so far, frozen."""
        with self._lock:
            for cell in self._cells.values():
                cell.settle()
            return {cell.key: cell.sums for cell in self._cells.values()}

    @property
    def invalid(self) -> dict[Key, int]:
        """How many confidences were not in [0, 1]; up to date with the latest ``sums()``."""
        with self._lock:
            return {cell.key: cell.invalid for cell in self._cells.values()}

    def _cell(self, model: str, version: str, segment: str, predicted: int | None) -> _Cell:
        known = self._segments.setdefault((model, version), set())
        if segment and segment not in known:
            if len(known) < self.max_segments:
                known.add(segment)
            else:
                segment = OTHER  # its own name is kept nowhere: unbounded values must not grow a table
        raw = (model, version, segment, predicted)
        if raw not in self._cells:
            self._cells[raw] = _Cell(Key(*raw), self.bins)
        return self._cells[raw]

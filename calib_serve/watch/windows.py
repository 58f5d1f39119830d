"""What happened lately: sums over a sliding window, or with a half-life."""

from __future__ import annotations

import math
from collections import deque

from calib_serve.errors import InputError
from calib_serve.watch.ledger.sums import Sums

__all__ = ["Decayed", "Sliding"]


class Sliding:
    """Sums over the last ``seconds``, in ``slots`` steps: memory is slots x bins, whatever the traffic.

    Times are seconds and may jump back (clocks do): what is late joins the newest slot.

    >>> window = Sliding(60, slots=6)
    >>> window.add(Sums.labelled([0.9], [1]), now=0.0)
    >>> window.add(Sums.labelled([0.9], [0]), now=55.0)
    >>> window.sums(now=59.0).feedback.n, window.sums(now=65.0).feedback.n, window.sums(now=200.0).feedback.n
    (2.0, 1.0, 0.0)
    """

    def __init__(self, seconds: float, *, slots: int = 60, bins: int = 15) -> None:
        if not (seconds > 0 and slots >= 1):
            raise InputError(f"seconds and slots must be positive, got {seconds} and {slots}")
        self.seconds, self.bins = float(seconds), bins
        self._width = seconds / slots
        self._slots: deque[tuple[int, Sums]] = deque(maxlen=slots)
        self._total = Sums.zeros(bins)

    def add(self, sums: Sums, *, now: float) -> None:
        """Put sums into the slot of ``now``."""
        slot = int(now // self._width)
        self._forget(slot)
        if self._slots and slot <= self._slots[-1][0]:
            newest, before = self._slots.pop()
            self._slots.append((newest, before + sums))
        else:
            self._slots.append((slot, sums))
        self._total += sums

    def sums(self, *, now: float) -> Sums:
        """The sums over the window that ends ``now``, to a slot's width."""
        self._forget(int(now // self._width))
        return self._total

    def _forget(self, slot: int) -> None:
        assert self._slots.maxlen is not None
        while self._slots and self._slots[0][0] <= slot - self._slots.maxlen:
            # Reverting leaves float dust of 1e-16 a label; an empty window starts from zero again.
            self._total = self._total - self._slots.popleft()[1]
            if not self._slots:
                self._total = Sums.zeros(self.bins)


class Decayed:
    """Sums in which everything counts half after ``half_life`` seconds: one Sums of memory.

    >>> window = Decayed(10)
    >>> window.add(Sums.labelled([0.9], [1]), now=0.0)
    >>> window.sums(now=10.0).feedback.n
    0.5
    """

    def __init__(self, half_life: float, *, bins: int = 15) -> None:
        if not (half_life > 0 and math.isfinite(half_life)):
            raise InputError(f"half_life must be positive, got {half_life}")
        self.half_life = float(half_life)
        self._total, self._at = Sums.zeros(bins), -math.inf

    def add(self, sums: Sums, *, now: float) -> None:
        """Add sums at full weight."""
        self._total = self.sums(now=now) + sums
        self._at = max(self._at, now)

    def sums(self, *, now: float) -> Sums:
        """The sums as they weigh ``now``; a clock that jumped back does not make them heavier."""
        if now <= self._at or math.isinf(self._at):
            return self._total
        return self._total.scaled(0.5 ** ((now - self._at) / self.half_life))

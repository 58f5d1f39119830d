"""Snapshots of the sums at regular steps, for the page's curves."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from calib_serve.errors import ShapeError
from calib_serve.watch.ledger import Ledger, Version
from calib_serve.watch.ledger.sums import Sums

__all__ = ["History", "Point"]

_KEY = "watch/history"


@dataclass(frozen=True)
class Point:
    """The sums of the time up to ``time`` (seconds since 1970) since the point before."""

    time: float
    sums: Sums


class History:
    """The last ``points`` steps of ``step`` seconds, kept in the ledger over restarts.

    Memory and the stored size are bounded; ``tick`` is cheap until a step has passed.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        step: float = 300.0,
        points: int = 288,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.step, self.points = step, points
        self._clock, self._bins = clock, ledger.bins
        self._lock = threading.Lock()
        self._next = -float("inf")
        self._snapshots = self._load(ledger)

    def tick(self, ledger: Ledger) -> None:
        """Take a snapshot when a step has passed since the last one."""
        now = self._clock()
        with self._lock:
            if not self._next - 2 * self.step <= now < self._next:  # also when the clock jumped back
                self._next = now + self.step
                self._snapshots = [*self._snapshots, (now, ledger.sums())][-self.points - 1 :]
                ledger.store(_KEY, self._dump())

    def of(self, version: Version, *, now: Sums | None = None) -> list[Point]:
        """What each step added, oldest first; ``now`` adds the running one."""
        with self._lock:
            cumulative = [(at, sums.get(version, Sums.zeros(self._bins))) for at, sums in self._snapshots]
        if now is not None:
            cumulative.append((self._clock(), now))
        return [Point(at, after - before) for (_, before), (at, after) in itertools.pairwise(cumulative)]

    def _dump(self) -> bytes:
        return json.dumps(
            [
                [at, [[*version, s.vector.tolist()] for version, s in sums.items()]]
                for at, sums in self._snapshots
            ]
        ).encode()

    def _load(self, ledger: Ledger) -> list[tuple[float, dict[Version, Sums]]]:
        kept = ledger.load(_KEY)
        if kept is None:
            return []
        try:
            return [
                (float(at), {(m, v): Sums.stored(flat, bins=self._bins) for m, v, flat in rows})
                for at, rows in json.loads(kept)
            ]
        except (ValueError, TypeError, ShapeError):
            return []  # damaged: the curves start again, and nothing is counted from them

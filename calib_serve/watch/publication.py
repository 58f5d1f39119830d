"""What a process publishes of a ledger: the share of its own writer, as counters that never fall.

Prometheus takes a counter that falls for one that began at 0 again. So where sums are found below those that
were published, as a store went back to a snapshot, a new generation begins, whose counters are new series.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import WENT_BACK, Key, Ledger, Sums, Version, WriterLease, add_at

__all__ = ["Publication", "Published"]

log = logging.getLogger(__name__)


class Published(NamedTuple):
    """The sums of a writer in a generation, by segment; ``merged``: versions whose segments are not told."""

    writer: str
    generation: int
    sums: Mapping[Key, Sums]
    merged: frozenset[Version] = frozenset()

    @property
    def labels(self) -> dict[str, str]:
        """The labels that tell its series from those of other writers and generations; none by default."""
        found = {"writer": self.writer, "generation": str(self.generation or "")}
        return {name: value for name, value in found.items() if value}


class Publication:
    """The sums that this process may publish of ``ledger``; safe to use from threads.

    ``lease``: on its writer's name; None where nobody else publishes from this ledger. ``rollbacks``: how
    often the ledger was found to have gone back.
    """

    def __init__(self, ledger: Ledger, lease: WriterLease | None = None) -> None:
        self._ledger, self._lease = ledger, lease
        self.rollbacks = 0
        self._lock = threading.Lock()
        self._writer: str | None = None
        self._generation = 0
        self._last: dict[Key, Sums] = {}
        self._note: dict[str, Any] = {}

    @property
    def lost(self) -> int:
        """How often another process took the writer's name, as this one stood still."""
        return self._lease.lost if self._lease else 0

    def read(self, versions: Collection[Version] | None = None) -> Published:
        """What is to be published; LedgerError where that is not known.

        ``versions``: of these alone, whole, without their segments, where all are more than can be told.
        """
        with self._lock:
            writer = self._lease.hold() if self._lease else self._ledger.writer
            generation = self._ledger.generation()
            sums, merged = (
                (self._ledger.slices(own=True), set()) if versions is None else self._whole(versions)
            )
            if writer != self._writer:
                generation = self._begin(writer, generation, sums, some=versions is not None)
            if versions is not None:
                self._last = {key: last for key, last in self._last.items() if key in sums}
            if generation == self._generation and self._fell(sums):
                generation = self._ledger.generation()  # another process may have found out as well
                if generation == self._generation:
                    generation = self._went_back(writer)
            if generation != self._generation:
                self._generation, self._last = generation, {}
            for key, now in sums.items():
                # A sum that was added up in another order may differ in its last digit.
                self._last[key] = now.highest(self._last[key]) if key in self._last else now
            self._remember(writer, some=versions is not None)
            return Published(writer, generation, dict(self._last), frozenset(merged))

    def _whole(self, versions: Collection[Version]) -> tuple[dict[Key, Sums], set[Version]]:
        found: dict[Key, Sums] = {}
        merged = set()
        for version in versions:
            for key, sums in self._ledger.slices(own=True, version=version).items():
                add_at(found, Key(*version), sums)
                if key.name:
                    merged.add(version)
        return found, merged

    def _fell(self, sums: Mapping[Key, Sums]) -> bool:
        zeros = Sums.zeros(self._ledger.bins)
        return any(sums.get(key, zeros).below(last) for key, last in self._last.items())

    def _begin(self, writer: str, generation: int, sums: Mapping[Key, Sums], *, some: bool) -> int:
        """Go on where the last process of this name stood; in a new generation if the ledger went back."""
        note = _note(self._ledger.leases.recall(writer)) if self._lease else {}
        if note and generation <= note["generation"]:
            self._generation = note["generation"]
            fell = not some and any(n < note[name] for name, n in _totals(sums).items())
            if generation < self._generation or fell or note["store"] != self._ledger.identity():
                generation = self._went_back(writer)
        self._writer, self._generation, self._last, self._note = writer, generation, {}, {}
        return generation

    def _went_back(self, writer: str) -> int:
        self.rollbacks += 1
        generation = self._ledger.new_generation(WENT_BACK, above=self._generation)
        log.error("the ledger went back: writer %r publishes generation %d from here", writer, generation)
        return generation

    def _remember(self, writer: str, *, some: bool) -> None:
        """Leave a note for the next process of this name; of ``some`` versions their totals say nothing."""
        if self._lease is None:
            return
        with suppress(LedgerError):  # a store that takes no more can still be read
            totals = _totals({} if some else self._last)
            note = {"store": self._ledger.identity(), "generation": self._generation, **totals}
            if note != self._note:
                self._ledger.leases.remember(writer, json.dumps(note).encode())
                self._note = note

    def close(self) -> None:
        """Give the writer's name back."""
        if self._lease is not None:
            self._lease.close()


def _totals(sums: Mapping[Key, Sums]) -> dict[str, float]:
    return {
        "predictions": float(sum(each.predictions.sum() for each in sums.values())),
        "labels": float(sum(each.labels.sum() for each in sums.values())),
    }


def _note(kept: bytes | None) -> dict[str, Any]:
    """The note of the last process, if there is one that can be read."""
    try:
        said = json.loads(kept or b"{}")
        numbers = {name: float(said[name]) for name in ("predictions", "labels")}
        return {"store": str(said["store"]), "generation": int(said["generation"]), **numbers}
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return {}

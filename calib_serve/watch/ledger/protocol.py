"""The record of accepted labels: each is counted once, whoever sends it, however often.

What tells a receipt from others and the sums that its label changes are written in one transaction, so
after any crash the sums are exactly those of the labels that were acknowledged, or about to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from calib_serve.watch.checks import Check
from calib_serve.watch.ledger.entries import Dated, Entry, Fate, Mark, Noted, Once
from calib_serve.watch.ledger.leases import Leases
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version

__all__ = ["Ledger"]


class Ledger(Protocol):
    """Where accepted labels are kept; ``SqliteLedger`` on one host, ``RedisLedger`` over several.

    A ledger has a ``writer``: whose labels it counts. Processes that share a ledger have different writers,
    by ``leases`` on their names, and publish their own share, which Prometheus adds up again.
    ``retention``: seconds after its prediction for which a receipt is remembered; of ledgers that share a
    store, the longest one given.
    """

    bins: int
    writer: str
    retention: float
    leases: Leases

    def accept(
        self, entries: Sequence[Entry], *, detect: bool = True, mark: Mark | None = None
    ) -> list[Fate]:
        """Count each label whose receipt was not seen before; durable on return.

        With ``detect`` it also waits for the drift detector. ``mark``: where to keep what became of them, in
        the same step.
        """

    def take_back(self, rows: Sequence[Noted], *, mark: str, before: bytes, after: bytes) -> bool:
        """Take labels that were counted out of everything, and keep ``after`` under ``mark``, in one step.

        Nothing is done, and False returned, where it is not ``before`` that is kept there. Their receipts
        stay seen.
        """

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: Once | None = None) -> bool:
        """Add sums of predictions made at ``time``; False for a batch that was counted, which adds nothing.

        ConflictError where another batch was counted under the name of ``once``.
        """

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""

    def slices(
        self, kind: Kind = "segment", *, own: bool = False, version: Version | None = None
    ) -> dict[Key, Sums]:
        """The same, by slice of this kind; of all versions or one."""

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> Iterable[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector."""

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels of predictions made before ``until``, oldest first, as they wait."""

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take them out.

        To be called within a transaction, in which the detector's state is stored as well.
        """

    def published(self, consumer: str, versions: Iterable[Version] | None = None) -> dict[Version, Sums]:
        """What ``consumer`` has published of the writer's sums, as the ledger knows.

        ``versions``: of these; by default of those that the writer has counted.
        """

    def mark_published(self, consumer: str, marks: Mapping[Version, Sums]) -> None:
        """Note that ``consumer`` has published this much."""

    def emission(
        self, consumer: str, *, before: Mapping[Version, Sums] | None = None
    ) -> AbstractContextManager[Emission]:
        """The writer's sums, and which of them ``consumer`` has not published; leaving marks them so.

        ``before``: what it has published, where it knows better than the ledger.
        """

    def identity(self) -> str:
        """Of the store that runs: another one may have gone back. Empty where a store has none."""

    def generation(self) -> int:
        """0, then greater whenever sums went down: what is published of them is then another series."""

    def new_generation(self, why: str, *, above: int = 0) -> int:
        """Begin one, later than ``above``; for whoever takes labels out, or puts back an older ledger."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything inside is isolated from other processes, and atomic where the store supports it."""

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""

    def forget(self, until: float, *, drop: bool = False) -> int:
        """Refuse labels of predictions made until then; with ``drop``, how many receipts or epochs went."""

    def sweep(self, now: float) -> int:
        """Forget what has expired by ``now``, merge old spans; how many receipts or epochs were dropped."""

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""

    def verify(self) -> list[str]:
        """What of it is wrong; empty if nothing is. Changes nothing."""

    def set_aside(self) -> list[str]:
        """What was damaged and set aside, so that the rest counts on."""

    def forget_set_aside(self) -> int:
        """Delete what was set aside as damaged; how many rows."""

    def checks(self, *, volatile: bool = False) -> Sequence[Check]:
        """What to look at while this ledger is used; ``volatile``: it may lose labels when it restarts."""

    def close(self) -> None:
        """Close files and connections."""

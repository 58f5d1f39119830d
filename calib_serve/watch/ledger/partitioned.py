"""Several ledgers as one: each receipt belongs to one of them, by its epoch, so that they count side by side.

A label changes nothing but its own partition, in one step and under no common lock; sums are those of all
partitions together. The first one keeps what is of the whole: detectors, incidents, what was published.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain

from calib_serve.errors import LedgerError, UnknownFate
from calib_serve.nonces import split
from calib_serve.watch.checks import Check
from calib_serve.watch.ledger.entries import Dated, Entry, Fate, Mark, Noted, Once, Place
from calib_serve.watch.ledger.generations import begin_generation
from calib_serve.watch.ledger.protocol import Ledger
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, add_at, merge_slices

__all__ = ["PARTITION", "PartitionedLedger"]

PARTITION = "ledger-partition"
"""The key under which a partition says which one it is, and of how many."""

_TAKEN = "taken/"  # where it is kept which labels the detectors were fed last


class PartitionedLedger:
    """The ledger in ``parts``, of which there are always as many; it closes them.

    Raises LedgerError where they are not the partitions of one ledger, in their order. A batch of labels is
    counted one partition after the other: UnknownFate where it came to an end midway; sent again, each of its
    labels is counted once.
    """

    def __init__(self, parts: Sequence[Ledger]) -> None:
        self.parts = tuple(parts)
        self._first = self.parts[0]
        self.bins, self.leases = self._first.bins, self._first.leases
        self.retention = max(part.retention for part in self.parts)
        self._local = threading.local()
        with self._first.transaction():
            for i, part in enumerate(self.parts):
                _take_place(part, f"{i + 1} of {len(self.parts)}")

    @property
    def writer(self) -> str:
        """Whose labels this object counts."""
        return self._first.writer

    @writer.setter
    def writer(self, name: str) -> None:
        for part in self.parts:
            part.writer = name

    def place(self, nonce: bytes) -> int:
        """The partition of a receipt, by the epoch of its nonce."""
        return _spread(split(nonce)[0], len(self.parts))

    # --- counting ---

    def accept(
        self, entries: Sequence[Entry], *, detect: bool = True, mark: Mark | None = None
    ) -> list[Fate]:
        """Count each label whose receipt was not seen before; durable on return."""
        if mark is not None:
            raise LedgerError("a ledger in partitions keeps no marks: labels cannot be journalled here")
        groups: dict[int, list[int]] = {}
        for i, one in enumerate(entries):
            groups.setdefault(self.place(one.label.receipt.nonce), []).append(i)
        fates: list[Fate] = ["duplicate"] * len(entries)
        for done, (number, members) in enumerate(groups.items()):
            try:
                found = self.parts[number].accept([entries[i] for i in members], detect=detect)
            except LedgerError as error:
                if done:
                    raise UnknownFate(
                        f"partition {number + 1} did not count its labels, and others did: {error}; "
                        "send the batch again"
                    ) from error
                raise
            for i, fate in zip(members, found, strict=True):
                fates[i] = fate
        return fates

    def take_back(self, rows: Sequence[Noted], *, mark: str, before: bytes, after: bytes) -> bool:
        """LedgerError: labels are not taken back here."""
        raise LedgerError("labels of a ledger in partitions cannot be taken back")

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: Once | None = None) -> bool:
        """Add sums of predictions made at ``time``; False for a batch that was counted, which adds nothing.

        ConflictError where another batch was counted under the name of ``once``.
        """
        # Processes have partitions of their own: they do not wait for each other.
        return self._part(self.writer.encode() if once is None else once.name).add(sums, time=time, once=once)

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""
        return self._part(once.name).known(once)

    def _part(self, name: bytes) -> Ledger:
        return self.parts[_spread(name, len(self.parts))]

    # --- reading ---

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""
        return merge_slices(self.slices(own=own))

    def slices(
        self, kind: Kind = "segment", *, own: bool = False, version: Version | None = None
    ) -> dict[Key, Sums]:
        """The same, by slice of this kind; of all versions or one."""
        found: dict[Key, Sums] = {}
        for part in self.parts:
            for key, sums in part.slices(kind, own=own, version=version).items():
                add_at(found, key, sums)
        return found

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""
        found: dict[Place, Sums] = {}
        for part in self.parts:
            for key, start, width, sums in part.dated(since, until, version=version, kind=kind):
                add_at(found, Place(key, start, width), sums)
        return [Dated(*place, sums) for place, sums in sorted(found.items(), key=lambda one: one[0].start)]

    # --- the drift detector ---

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector."""
        found: dict[Version, int] = {}
        for part in self.parts:
            for version, n in part.waiting(until=until).items():
                found[version] = found.get(version, 0) + n
        return found

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels of predictions made before ``until``, oldest first, as they wait."""
        rows = chain.from_iterable(
            part.look_at_waiting(version, until=until, most=most) for part in self.parts
        )
        return sorted(rows, key=_by_time)[:most]

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take out the labels of predictions made before ``until``, oldest first.

        To be called within a transaction, in which the detector's state is stored as well. That is written
        before the partitions are, with what was taken of them: where a process dies in between, these labels
        still wait there, and are taken out without being fed again.
        """
        with self.transaction():
            key = f"{_TAKEN}{len(version[0])}/{'/'.join(version)}"
            fed = _nonces(self.load(key))
            wanted = self.look_at_waiting(version, until=until, most=most + len(fed))
            fresh = [row for row in wanted if row.nonce not in fed][:most]
            if not wanted:
                return []
            rows: list[Noted] = []
            last = _by_time((fresh or wanted)[-1])
            due = Counter(self.place(row.nonce) for row in wanted if _by_time(row) <= last)
            for number, labels in sorted(due.items()):
                rows += self._joined(number).take_waiting(version, until=until, most=labels)
            self.store(key, b"".join(bytes([len(row.nonce)]) + row.nonce for row in rows))
            return sorted((row for row in rows if row.nonce not in fed), key=_by_time)

    # --- publishing ---

    def published(self, consumer: str, versions: Iterable[Version] | None = None) -> dict[Version, Sums]:
        """What ``consumer`` has published of the writer's sums, as the ledger knows."""
        return self._first.published(consumer, self.sums(own=True) if versions is None else versions)

    def mark_published(self, consumer: str, marks: Mapping[Version, Sums]) -> None:
        """Note that ``consumer`` has published this much."""
        self._first.mark_published(consumer, marks)

    @contextlib.contextmanager
    def emission(self, consumer: str, *, before: Mapping[Version, Sums] | None = None) -> Iterator[Emission]:
        """The writer's sums, and which of them ``consumer`` has not published; leaving marks them so."""
        with self._first.transaction():
            counted = self.sums(own=True)
            known = self._first.published(consumer, counted) if before is None else before
            found = Emission.of(counted, known)
            yield found
            self._first.mark_published(consumer, found.marks(known))

    def identity(self) -> str:
        """Of the stores that run."""
        return " ".join(dict.fromkeys(part.identity() for part in self.parts)).strip()

    def generation(self) -> int:
        """The latest of all partitions: it grows where one of them went back."""
        return max(part.generation() for part in self.parts)

    def new_generation(self, why: str, *, above: int = 0) -> int:
        """Begin one, later than ``above`` and those of all partitions."""
        return begin_generation(
            self._first, why, now=time.time(), above=max(above, *(part.generation() for part in self.parts))
        )

    # --- state ---

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens while no other process is in a transaction; may be nested.

        Labels that were accepted inside may stay, whatever becomes of the rest.
        """
        if getattr(self._local, "joined", None) is not None:
            yield
            return
        # The inner one is written first: partitions follow what the first one says was taken of them.
        with ExitStack() as others, self._first.transaction():
            self._local.joined, self._local.others = {0}, others
            try:
                yield
            finally:
                self._local.joined = self._local.others = None

    def _joined(self, number: int) -> Ledger:
        """The partition, within the transaction that lasts."""
        part = self.parts[number]
        if number not in self._local.joined:
            self._local.others.enter_context(part.transaction())
            self._local.joined.add(number)
        return part

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        return self._first.load(key)

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""
        self._first.store(key, value)

    # --- all partitions alike ---

    def forget(self, until: float, *, drop: bool = False) -> int:
        """Refuse labels of predictions made until then; with ``drop``, how many receipts or epochs went."""
        return sum(part.forget(until, drop=drop) for part in self.parts)

    def sweep(self, now: float) -> int:
        """Forget what has expired by ``now``, merge old spans; how many receipts or epochs were dropped."""
        return sum(part.sweep(now) for part in self.parts)

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""
        for part in self.parts:
            part.drop(version)

    def verify(self) -> list[str]:
        """What of it is wrong; empty if nothing is. Changes nothing."""
        return [f"partition {i}: {one}" for i, part in enumerate(self.parts, 1) for one in part.verify()]

    def set_aside(self) -> list[str]:
        """What was damaged and set aside, so that the rest counts on."""
        return [f"partition {i}: {one}" for i, part in enumerate(self.parts, 1) for one in part.set_aside()]

    def forget_set_aside(self) -> int:
        """Delete what was set aside as damaged; how many rows."""
        return sum(part.forget_set_aside() for part in self.parts)

    def checks(self, *, volatile: bool = False) -> Sequence[Check]:
        """What to look at while this ledger is used: the same checks of all partitions are one."""
        same = zip(*(part.checks(volatile=volatile) for part in self.parts), strict=True)
        return [_together(checks) for checks in same]

    def close(self) -> None:
        """Close files and connections."""
        with ExitStack() as closing:
            for part in self.parts:
                closing.callback(part.close)


def _take_place(part: Ledger, place: str) -> None:
    """Note which partition this is; LedgerError where it is another, or a ledger of its own."""
    kept = (part.load(PARTITION) or b"").decode("utf-8", "replace")
    if kept and kept != place:
        raise LedgerError(
            f"this is partition {kept} of a ledger, not {place}; a ledger keeps its number of partitions, as "
            "receipts that were counted would be looked for in others"
        )
    if not kept:
        if part.sums() or part.generation():
            raise LedgerError(
                "this is a ledger without partitions, whose receipts would be looked for in others; begin "
                "another one"
            )
        part.store(PARTITION, place.encode())


def _spread(name: bytes, parts: int) -> int:
    return zlib.crc32(name) % parts


def _by_time(row: Noted) -> tuple[float, bytes]:
    return row.time, row.nonce


def _nonces(kept: bytes | None) -> set[bytes]:
    """The nonces that were stored one behind the other, each behind its length."""
    found, left = set(), kept or b""
    while left:
        found.add(left[1 : 1 + left[0]])
        left = left[1 + left[0] :]
    return found


def _together(checks: Sequence[Check]) -> Check:
    def run() -> str | None:
        for i, check in enumerate(checks, 1):
            if (reason := check.run()) is not None:
                return f"partition {i}: {reason}"
        return None

    return Check(checks[0].name, run, checks[0].level)

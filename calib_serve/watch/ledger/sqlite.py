"""The embedded ledger: one SQLite file that any number of processes of a host may share."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.checks import Check
from calib_serve.watch.ledger import book, seen
from calib_serve.watch.ledger.entries import Dated, Entry, Fate, Mark, Noted, Once, noted, served
from calib_serve.watch.ledger.generations import begin_generation, count_taken_out, read_generation
from calib_serve.watch.ledger.inspection import Inspection
from calib_serve.watch.ledger.leases import FileLeases, Leases
from calib_serve.watch.ledger.sqlite_store import LATEST, SqliteStore
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, merge_slices
from calib_serve.watch.ledger.tables import FORMAT, SCHEMA

__all__ = ["SqliteLedger", "sqlite_checks"]


_BINS, _RETENTION, _FORGOTTEN = "ledger/bins", "ledger/retention", "ledger/forgotten_before"
_PRUNE_EVERY = 60.0  # seconds between sweeps
_PRUNE_AT_MOST = 10_000  # names or spans a sweep, so that no label waits long for one
# How far a sweep trusts the clock beyond the latest prediction whose label was counted, and beyond the last
# sweep: one batch of a host whose clock runs ahead may be dated ahead itself.
_AHEAD = DAY
_SWEPT = "ledger/swept"
_LOOK = 0.02  # seconds of that at each sweep, and of merging spans
_MIB = 1 << 20
_ROOM = 256 * _MIB  # bytes to be free at least, and twice the ledger: compacting copies what it holds
_LONG = 512 * _MIB  # bytes of a journal that is not folded into the ledger, as somebody reads on and on


class SqliteLedger(SqliteStore):
    """A ledger in one SQLite file; ``path`` is created if it is missing.

    ``writer``: whose labels this object counts; processes of one replica share one. Raises
    LedgerError when the file is corrupt, locked for longer than ``timeout`` seconds, or on a full
    disk; nothing is then counted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        bins: int = 15,
        writer: str = "",
        retention: float = 30 * DAY,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, timeout=timeout, clock=clock)
        self.bins, self.retention = bins, retention
        self._next_prune = -float("inf")
        self._latest = -math.inf
        self._inspection = Inspection(self.path)
        self._seen = seen.Seen(self._tables, damaged=self._damaged)
        self._batches = seen.Batches(self._tables)
        self._book = book.Book(self._tables, writer=writer, bins=bins, damaged=self._damaged)
        self.leases: Leases = FileLeases(self.path)
        try:
            self._look_at_start()
            self._prepare()
            self._files.opened()
        except LedgerError:
            self.close()
            raise

    @property
    def writer(self) -> str:
        """Whose labels this object counts."""
        return self._book.writer

    @writer.setter
    def writer(self, name: str) -> None:
        with self._lock:
            self._book.writer = name

    def _prepare(self) -> None:
        with self.transaction():
            for statement in SCHEMA:
                self._db.execute(statement)
            self._check_bins()
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
            self._retain()

    def _check_bins(self) -> None:
        kept = self.load(_BINS)
        if kept is None:
            self.store(_BINS, str(self.bins).encode())
        elif (bins := self._number(kept)) != self.bins:
            raise LedgerError(f"{self.path} counts in {bins:.0f} bins, not {self.bins}; use one bin count")

    def _retain(self) -> None:
        """Remember receipts for as long as the longest retention given so far."""
        kept = self._known(_RETENTION, self.retention)
        if self.retention > kept:
            # What is this old may have been forgotten under the shorter one.
            self._forgot(self._trusted(self._clock()) - kept)
            self._seen.prolong(self.retention - kept)
        self.retention = max(self.retention, kept)
        self.store(_RETENTION, repr(float(self.retention)).encode())

    def forget(self, until: float, *, drop: bool = False) -> int:
        """Refuse labels of predictions made until then; with ``drop``, how many receipts or epochs went."""
        with self.transaction():
            self._forgot(until)
            return self._seen.forget(until + self.retention, at_most=-1)[0] if drop else 0

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""
        with self.transaction():
            self._book.drop(version)

    def _forgot(self, before: float) -> None:
        self.store(_FORGOTTEN, repr(float(max(before, self._known(_FORGOTTEN, -math.inf)))).encode())

    def accept(
        self, entries: Sequence[Entry], *, detect: bool = True, mark: Mark | None = None
    ) -> list[Fate]:
        """Count each label whose receipt was not seen before; durable on return.

        A receipt of a time that the ledger may have forgotten is refused, whatever the clock says. ``mark``:
        where to keep what became of them, in the same step.
        """
        with self.transaction():
            forgotten = self._known(_FORGOTTEN, -math.inf)
            # Another process may have prolonged it.
            retention = max(self.retention, self._known(_RETENTION, self.retention))
            receipts = [one.label.receipt for one in entries]
            known = [receipt for receipt in receipts if receipt.time > forgotten]
            fresh = iter(
                self._seen.add([one.nonce for one in known], [one.time for one in known], retention=retention)
            )
            fates: list[Fate] = ["forgotten" if one.time <= forgotten else next(fresh) for one in receipts]
            counted = [one for one, fate in zip(entries, fates, strict=True) if fate == "counted"]
            self._book.note([noted(one, writer=self._book.writer) for one in counted], detect=detect)
            if counted:
                self._seen_until(max(one.label.receipt.time for one in counted))
            if mark is not None:
                self.store(mark.key, mark.kept(fates))
            self._prune_sometimes()
        return fates

    def take_back(self, rows: Sequence[Noted], *, mark: str, before: bytes, after: bytes) -> bool:
        """Take labels that were counted out of everything, and keep ``after`` under ``mark``, in one step.

        Nothing is done, and False returned, where it is not ``before`` that is kept there. Their receipts
        stay seen.
        """
        with self.transaction():
            if (self.load(mark) or b"") != before:
                return False
            self._book.take_out(rows, now=self._clock())
            count_taken_out(self, len(rows))
            self.store(mark, after)
        return True

    def _seen_until(self, time: float) -> None:
        if time > self._latest:
            self._latest = max(time, self._known(LATEST, -math.inf))
            self.store(LATEST, repr(float(self._latest)).encode())

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: Once | None = None) -> bool:
        """Add sums of predictions made at ``time``; False for a batch that was counted, which adds nothing.

        ConflictError where another batch was counted under the name of ``once``.
        """
        with self.transaction():
            fresh = once is None or self._batches.add(once)
            if fresh:
                self._book.add(served(sums, time=time))
            self._prune_sometimes()
        return fresh

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""
        with self._reading():
            return self._batches.find(once)

    def _prune_sometimes(self) -> None:
        now = self._clock()
        if now >= self._next_prune:
            # More may have expired since than one sweep takes: then the next labels sweep on.
            done = self.prune(now, seconds=_LOOK) < _PRUNE_AT_MOST
            self._suspect = self._inspection.step(at_most=_LOOK) or self._suspect
            self._next_prune = now + _PRUNE_EVERY if done else now

    def _trusted(self, now: float) -> float:
        """What a clock says, but not far beyond the latest counted prediction, and the last sweep."""
        return min(now, self._known(LATEST, now) + _AHEAD, self._known(_SWEPT, now) + _AHEAD)

    def prune(self, now: float, *, at_most: int = _PRUNE_AT_MOST, seconds: float = math.inf) -> int:
        """Forget about ``at_most`` receipts or epochs that expired before ``now``; how many were forgotten.

        A clock that runs ahead forgets nothing: receipts are forgotten by the time of the latest one
        that was counted, and a day of them a sweep. Old spans are merged on the way, for so many ``seconds``.
        """
        with self.transaction():
            self._batches.forget(now, at_most=at_most)
            now = self._trusted(now)
            self.store(_SWEPT, repr(float(now)).encode())
            gone, last = self._seen.forget(now, at_most=at_most)
            if gone:
                self._forgot(last - self.retention)
            self._book.merge_spans(now, at_most=at_most, seconds=seconds)
        return gone

    def sweep(self, now: float) -> int:
        """Forget what has expired by ``now``, merge old spans; how many receipts or epochs were dropped."""
        gone, before = 0, math.nan
        while True:
            more = self.prune(now)
            gone, swept = gone + more, self._known(_SWEPT, now)
            if more < _PRUNE_AT_MOST and swept == before:
                return gone
            before = swept

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""
        with self._reading():
            return merge_slices(self._book.each_total("segment", own=own))

    def slices(
        self, kind: Kind = "segment", *, own: bool = False, version: Version | None = None
    ) -> dict[Key, Sums]:
        """The same, by slice of this kind; of all versions or one."""
        with self._reading():
            return self._book.totals(kind, own=own, version=version)

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""
        with self._reading():
            return self._book.dated(since, until, version, kind)

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector."""
        with self._reading():
            return self._book.waiting(until)

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels of predictions made before ``until``, oldest first, as they wait."""
        with self._reading():
            return self._book.look_at_waiting(version, until=until, most=most)

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take them out.

        To be called within a transaction, in which the detector's state is stored as well.
        """
        with self.transaction():
            return self._book.take_waiting(version, until=until, most=most)

    def published(self, consumer: str, versions: Iterable[Version] | None = None) -> dict[Version, Sums]:
        """What ``consumer`` has published of this writer's sums, as the ledger knows."""
        with self._reading():
            found = self._book.emitted(consumer)
        return found if versions is None else {of: found[of] for of in versions if of in found}

    def mark_published(self, consumer: str, marks: Mapping[Version, Sums]) -> None:
        """Note that ``consumer`` has published this much."""
        with self.transaction():
            self._book.mark(consumer, marks)

    @contextmanager
    def emission(self, consumer: str, *, before: Mapping[Version, Sums] | None = None) -> Iterator[Emission]:
        """The writer's sums that ``consumer`` has not published yet; leaving the block marks them so.

        ``before``: what it has published, where it knows better than the ledger. One consumer at a time is
        inside, over all processes. If the block raises or its process is killed, the same sums are offered
        again: publish within the block, and quickly.
        """
        with self.transaction():
            self._book.fold()
            known = self._book.emitted(consumer) if before is None else before
            found = Emission.of(self.sums(own=True), known)
            yield found
            self.mark_published(consumer, found.marks(known))

    def checks(self, *, volatile: bool = False) -> list[Check]:
        """What to look at while this ledger is used."""
        return sqlite_checks(self.path, there=self._files.check, set_aside=self.set_aside)

    def identity(self) -> str:
        """Of the store, where it tells one that has gone back: a file does not."""
        return ""

    def generation(self) -> int:
        """Which one it is: greater, whenever sums have gone down."""
        return read_generation(self).number

    def new_generation(self, why: str, *, above: int = 0) -> int:
        """Begin a generation, later than ``above``: sums are lower than those that were published."""
        return begin_generation(self, why, now=self._clock(), above=above)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._inspection.close()
            super().close()


def sqlite_checks(
    path: Path, *, there: Callable[[], None], set_aside: Callable[[], list[str]]
) -> list[Check]:
    """The checks of the ledger at ``path``; ``there`` raises where it is not the file that was opened.

    ``set_aside``: what was damaged.
    """
    return [
        Check("file", there, "refusing"),
        Check("disk", lambda: _disk(path)),
        Check("journal", lambda: _journal(path)),
        Check("damage", lambda: _damage(set_aside())),
    ]


def _disk(path: Path) -> str | None:
    size = sum(part.stat().st_size for part in (path, _wal(path)) if part.exists())
    free, wanted = shutil.disk_usage(path.parent).free, max(_ROOM, 2 * size)
    if free >= wanted:
        return None
    return (
        f"{free / _MIB:.0f} MiB are free beside the ledger, which takes {size / _MIB:.0f} MiB; "
        f"free some space, up to {wanted / _MIB:.0f} MiB"
    )


def _journal(path: Path) -> str | None:
    wal = _wal(path)
    size = wal.stat().st_size if wal.exists() else 0
    if size <= max(_LONG, path.stat().st_size):
        return None
    return f"the ledger's journal has grown to {size / _MIB:.0f} MiB; another program keeps it open to read"


def _damage(found: list[str]) -> str | None:
    if not found:
        return None
    return (
        f"{len(found)} rows of the ledger were damaged and set aside; calib-serve ledger verify says which. "
        "Restore a backup, or count on without them: calib-serve ledger prune --set-aside"
    )


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")

"""The embedded ledger: one SQLite file that any number of processes of a host may share."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import batches, book, seen
from calib_serve.watch.ledger.batches import Once
from calib_serve.watch.ledger.entries import Dated, Entry, Fate, Mark, Noted, noted, served
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, merge_slices

__all__ = ["SqliteLedger", "quarantine"]

_SCHEMA = (
    *seen.SCHEMA,
    *batches.SCHEMA,
    *book.SCHEMA,
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
_FORMAT = 2
_BINS, _RETENTION, _FORGOTTEN = "ledger/bins", "ledger/retention", "ledger/forgotten_before"
_PRUNED_1 = "ledger/pruned_through"  # of format 1: what expired before may have been forgotten
_PRUNE_EVERY = 60.0  # seconds between sweeps
_PRUNE_AT_MOST = 10_000  # names or spans a sweep, so that no label waits long for one
# How far a sweep trusts the clock beyond the latest prediction whose label was counted, and beyond the last
# sweep: one batch of a host whose clock runs ahead may be dated ahead itself.
_AHEAD = DAY
_LATEST, _SWEPT = "ledger/latest", "ledger/swept"
_MEND = "set it aside with calib_serve.watch.ledger.quarantine(path), or restore a copy"


class SqliteLedger:
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
        self.path, self.bins, self.writer, self.retention = Path(path), bins, writer, retention
        self._clock = clock
        self._next_prune = -float("inf")
        self._lock = threading.RLock()
        self._depth = 0
        self._latest = -math.inf
        self._file: tuple[int, int] | None = None
        with self._errors():
            self._db = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        self._seen = seen.Seen(self._db, damaged=self._damaged)
        self._batches = batches.Batches(self._db)
        self._book = book.Book(self._db, writer=writer, bins=bins, damaged=self._damaged)
        try:
            self._prepare()
            self._file = self._identity()
        except LedgerError:
            self._db.close()
            raise

    def _identity(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} is missing: {error}; restore it, or restart to begin another"
            ) from error
        return found.st_dev, found.st_ino

    def _prepare(self) -> None:
        with self._errors():
            self._db.execute("PRAGMA journal_mode = WAL")
            # FULL: a label that was acknowledged survives a power cut, not only a crash.
            self._db.execute("PRAGMA synchronous = FULL")
            (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise LedgerError(f"the ledger {self.path} is damaged ({verdict}); {_MEND}")
        with self.transaction():
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found not in (0, 1, _FORMAT):
                raise LedgerError(f"{self.path} is a ledger of format {found}; this program reads {_FORMAT}")
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._check_bins()
            if found == 1:
                self._book.convert()
                if (kept := self.load(_PRUNED_1)) is not None:
                    self._forgot(self._number(kept) - self.retention)
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
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
            self._forgot(self._clock() - kept)
            self._seen.prolong(self.retention - kept)
        self.retention = max(self.retention, kept)
        self.store(_RETENTION, repr(float(self.retention)).encode())

    def _known(self, key: str, default: float) -> float:
        kept = self.load(key)
        return default if kept is None else self._number(kept)

    def _forgot(self, before: float) -> None:
        self.store(_FORGOTTEN, repr(float(max(before, self._known(_FORGOTTEN, -math.inf)))).encode())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes damage
            hint = "free some space" if "full" in str(error) else "retry if it was locked; otherwise " + _MEND
            raise LedgerError(f"the ledger {self.path} cannot be used: {error}; {hint}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written together, or not at all; may be nested."""
        with self._lock, self._errors():
            if self._depth == 0:
                self._check_there()
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self._db.execute("COMMIT")
            except BaseException:
                if self._depth == 1 and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        with self._lock, self._errors():
            if self._depth:
                yield
                return
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")

    def _check_there(self) -> None:
        # SQLite would go on writing to a deleted file, and all that is lost when the process ends.
        if self._file is not None and self._identity() != self._file:
            raise LedgerError(f"the ledger {self.path} was replaced by another file; restart to use that one")

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
                self._seen.add([one.nonce for one in known], [one.time + retention for one in known])
            )
            fates: list[Fate] = [
                "forgotten" if one.time <= forgotten else "counted" if next(fresh) else "duplicate"
                for one in receipts
            ]
            counted = [one for one, fate in zip(entries, fates, strict=True) if fate == "counted"]
            self._book.note([noted(one, writer=self.writer) for one in counted], detect=detect)
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
            self.store(mark, after)
        return True

    def _seen_until(self, time: float) -> None:
        if time > self._latest:
            self._latest = max(time, self._known(_LATEST, -math.inf))
            self.store(_LATEST, repr(float(self._latest)).encode())

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
        with self._lock, self._errors():
            return self._batches.find(once)

    def _number(self, text: bytes) -> float:
        try:
            number = float(text)
        except ValueError as error:
            raise self._damaged(error) from error
        if math.isnan(number):
            raise self._damaged("a time is not a number")
        return number

    def _damaged(self, why: object) -> LedgerError:
        return LedgerError(f"the ledger {self.path} is damaged ({why}); {_MEND}")

    def _prune_sometimes(self) -> None:
        now = self._clock()
        if now >= self._next_prune:
            # More may have expired since than one sweep takes: then the next labels sweep on.
            done = self.prune(now) < _PRUNE_AT_MOST
            self._next_prune = now + _PRUNE_EVERY if done else now

    def prune(self, now: float, *, at_most: int = _PRUNE_AT_MOST) -> int:
        """Forget about ``at_most`` receipts or epochs that expired before ``now``; how many were forgotten.

        A clock that runs ahead forgets nothing: receipts are forgotten by the time of the latest one
        that was counted, and a day of them a sweep. Old spans are merged on the way.
        """
        with self.transaction():
            self._seen.forget_batches(now, at_most=at_most)
            self._batches.forget(now, at_most=at_most)
            now = min(now, self._known(_LATEST, now) + _AHEAD, self._known(_SWEPT, now) + _AHEAD)
            self.store(_SWEPT, repr(float(now)).encode())
            gone, last = self._seen.forget(now, at_most=at_most)
            if gone:
                self._forgot(last - self.retention)
            self._book.merge_spans(now, at_most=at_most)
        return gone

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""
        return merge_slices(self.slices(own=own))

    def slices(self, kind: Kind = "segment", *, own: bool = False) -> dict[Key, Sums]:
        """The same, by slice of this kind."""
        with self._reading():
            return self._book.totals(kind, own=own)

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""
        with self._reading():
            return self._book.dated(since, until, version, kind)

    def waiting(self) -> dict[Version, int]:
        """How many labels wait for the drift detector."""
        with self._reading():
            return self._book.waiting()

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take out the labels of predictions made before ``until``, oldest first.

        To be called within a transaction, in which the detector's state is stored as well.
        """
        with self.transaction():
            return self._book.take_waiting(version, until=until, most=most)

    @contextmanager
    def emission(self, consumer: str) -> Iterator[Emission]:
        """The writer's sums that ``consumer`` has not published yet; leaving the block marks them so.

        One consumer at a time is inside, over all processes. If the block raises or its process
        is killed, the same sums are offered again: publish within the block, and quickly.
        """
        with self.transaction():
            self._book.fold()
            counted = self.sums(own=True)
            emitted, zeros = self._book.emitted(consumer), Sums.zeros(self.bins)
            fresh = {key: total - emitted.get(key, zeros) for key, total in counted.items()}
            yield Emission({key: delta for key, delta in fresh.items() if delta != zeros}, counted)
            self._book.mark(consumer, counted)

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        # A value that was stored by hand may be text.
        return None if row is None else row[0].encode() if isinstance(row[0], str) else bytes(row[0])

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def quarantine(path: str | Path, *, clock: Callable[[], float] = time.time) -> Path:
    """Move a damaged ledger and its journal aside, so that a fresh one can start; where it went.

    Receipts and sums go together: the fresh ledger counts from zero, and each label at most once.
    """
    path = Path(path)
    aside = path.with_name(f"{path.name}.damaged-{int(clock())}")
    try:
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise LedgerError(f"cannot set the damaged ledger {path} aside: {error}") from error
    return aside

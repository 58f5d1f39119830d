"""The record of accepted labels: each is counted once, whoever sends it, however often.

The nonce of a receipt and the sums that its label changes are written in one transaction, so
after any crash the sums are exactly those of the labels that were acknowledged, or about to be.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from calib_serve.bins import Bins
from calib_serve.errors import InputError, LedgerError
from calib_serve.receipts import Label
from calib_serve.watch.sums import Sums

__all__ = ["Ledger", "SqliteLedger", "Version", "group"]

Version = tuple[str, str]
"""(model, version)."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nonces_expire ON nonces (expires);
CREATE TABLE IF NOT EXISTS bins (
    model TEXT, version TEXT, bin INTEGER, count REAL, confidence REAL, correct REAL,
    PRIMARY KEY (model, version, bin)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (
    model TEXT, version TEXT, confidence_squared REAL, confidence_correct REAL,
    PRIMARY KEY (model, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS emitted (
    consumer TEXT, model TEXT, version TEXT, bin INTEGER, count REAL, confidence REAL, correct REAL,
    PRIMARY KEY (consumer, model, version, bin)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS emitted_totals (
    consumer TEXT, model TEXT, version TEXT, confidence_squared REAL, confidence_correct REAL,
    PRIMARY KEY (consumer, model, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_ADD_BIN = """INSERT INTO bins VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    count = count + excluded.count, confidence = confidence + excluded.confidence,
    correct = correct + excluded.correct"""
_ADD_TOTAL = """INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    confidence_squared = confidence_squared + excluded.confidence_squared,
    confidence_correct = confidence_correct + excluded.confidence_correct"""
_SELECT_BINS = "SELECT model, version, bin, count, confidence, correct FROM {}{}"
_SELECT_TOTALS = "SELECT model, version, confidence_squared, confidence_correct FROM {}{}"
_PUBLISHED = (
    "INSERT OR REPLACE INTO emitted SELECT ?, model, version, bin, count, confidence, correct FROM bins",
    "INSERT OR REPLACE INTO emitted_totals "
    "SELECT ?, model, version, confidence_squared, confidence_correct FROM totals",
)
_FORMAT = 1
_PRUNED = "ledger/pruned_through"
_PRUNE_EVERY = 60.0  # seconds between sweeps
_PRUNE_AT_MOST = 10_000  # nonces a sweep, so that no label waits long for one


class Ledger(Protocol):
    """Where accepted labels are kept; ``SqliteLedger`` on one host, ``RedisLedger`` over several."""

    def accept(self, labels: Sequence[Label], *, expires: Sequence[float]) -> list[bool]:
        """Count each label whose receipt was not seen before; True = counted now, durable on return."""

    def sums(self) -> dict[Version, Sums]:
        """The sums over every label ever counted, by (model, version)."""

    def emission(self, consumer: str) -> AbstractContextManager[Mapping[Version, Sums]]:
        """The sums that ``consumer`` has not published yet; leaving the block marks them published."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything done inside happens alone: whole or not at all where the store can."""

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""

    def close(self) -> None:
        """Let go of files and connections."""


def group(labels: Sequence[Label], *, bins: int) -> dict[Version, Sums]:
    """The sums of labels, by (model, version)."""
    members: dict[Version, list[Label]] = {}
    for label in labels:
        members.setdefault((label.receipt.model, label.receipt.version), []).append(label)
    return {
        key: Sums.labelled([m.receipt.confidence for m in ms], [m.correct for m in ms], bins=bins)
        for key, ms in members.items()
    }


class SqliteLedger:
    """A ledger in one SQLite file that any number of processes of a host may share.

    ``path`` is created if it is missing. Raises LedgerError when the file is corrupt, locked for
    longer than ``timeout`` seconds, or on a full disk; nothing is then counted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        bins: int = 15,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.bins = bins
        self._clock = clock
        self._next_prune = -float("inf")
        self._lock = threading.RLock()
        self._depth = 0
        with self._errors():
            self._db = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except LedgerError:
            self._db.close()
            raise

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
            if found not in (0, _FORMAT):
                raise LedgerError(f"{self.path} is a ledger of format {found}; this program reads {_FORMAT}")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
            kept = self.load("ledger/bins")
            if kept is None:
                self.store("ledger/bins", str(self.bins).encode())
            elif int(kept) != self.bins:
                raise LedgerError(
                    f"{self.path} counts in {int(kept)} bins, not {self.bins}; use one bin count"
                )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            hint = "free some space" if "full" in str(error) else "retry if it was locked; otherwise " + _MEND
            raise LedgerError(f"the ledger {self.path} cannot be used: {error}; {hint}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written together, or not at all; may be nested."""
        with self._lock, self._errors():
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                if self._depth == 1 and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            else:
                if self._depth == 1:
                    self._commit()
            finally:
                self._depth -= 1

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def accept(self, labels: Sequence[Label], *, expires: Sequence[float]) -> list[bool]:
        """Count each label whose receipt was not seen before; True = counted now, durable on return.

        ``expires``: when each receipt stops being welcome, seconds since 1970; its nonce is kept
        until then. A receipt that expired before the last sweep is refused, whatever the clock says.
        """
        if len(labels) != len(expires):
            raise InputError(f"one expiry a label is needed, got {len(labels)} and {len(expires)}")
        with self.transaction():
            pruned_through = float(self.load(_PRUNED) or b"-inf")
            fresh = [
                until > pruned_through and self._remember(label.receipt.nonce, until)
                for label, until in zip(labels, expires, strict=True)
            ]
            counted = [label for label, new in zip(labels, fresh, strict=True) if new]
            for key, sums in group(counted, bins=self.bins).items():
                self._add(key, sums)
            self._prune_sometimes()
        return fresh

    def _remember(self, nonce: bytes, expires: float) -> bool:
        row = self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, expires))
        return row.rowcount == 1

    def _add(self, key: Version, sums: Sums) -> None:
        f = sums.feedback
        rows = zip(f.count.tolist(), f.confidence.tolist(), f.correct.tolist(), strict=True)
        self._db.executemany(_ADD_BIN, [(*key, b, *row) for b, row in enumerate(rows) if row[0]])
        self._db.execute(_ADD_TOTAL, (*key, sums.confidence_squared, sums.confidence_correct))

    def _prune_sometimes(self) -> None:
        now = self._clock()
        if now >= self._next_prune:
            self._next_prune = now + _PRUNE_EVERY
            self.prune(now)

    def prune(self, now: float, *, at_most: int = _PRUNE_AT_MOST) -> int:
        """Forget up to ``at_most`` nonces that expired before ``now``; how many were forgotten."""
        with self.transaction():
            rows = self._db.execute(
                "SELECT expires FROM nonces WHERE expires < ? ORDER BY expires LIMIT ?", (now, at_most)
            ).fetchall()
            if not rows:
                return 0
            # Clocks jump back: what this sweep forgets must stay refused, so its edge is kept.
            through = rows[-1][0]
            gone = self._db.execute("DELETE FROM nonces WHERE expires <= ?", (through,)).rowcount
            self.store(_PRUNED, repr(max(through, float(self.load(_PRUNED) or b"-inf"))).encode())
        return gone

    def sums(self) -> dict[Version, Sums]:
        """The sums over every label ever counted, by (model, version)."""
        with self.transaction():
            return self._read("bins", "totals", ())

    def _read(self, bins: str, totals: str, consumer: tuple[str, ...]) -> dict[Version, Sums]:
        where = " WHERE consumer = ?" if consumer else ""
        columns: dict[Version, Bins] = {}
        for model, version, b, *row in self._db.execute(_SELECT_BINS.format(bins, where), consumer):
            old = columns.get((model, version), Bins.zeros(self.bins))
            arrays = [old.count.copy(), old.confidence.copy(), old.correct.copy()]
            for array, value in zip(arrays, row, strict=True):
                array[b] = value
            columns[model, version] = Bins(*arrays)
        zeros = Sums.zeros(self.bins)
        return {
            (model, version): Sums(
                zeros.predictions, zeros.predictions, columns.get((model, version), zeros.feedback), *rest
            )
            for model, version, *rest in self._db.execute(_SELECT_TOTALS.format(totals, where), consumer)
        }

    @contextmanager
    def emission(self, consumer: str) -> Iterator[Mapping[Version, Sums]]:
        """The sums that ``consumer`` has not published yet; leaving the block marks them published.

        One consumer at a time is inside, over all processes. If the block raises or its process
        is killed, the same sums are offered again: publish within the block, and quickly.
        """
        with self.transaction():
            counted = self._read("bins", "totals", ())
            emitted = self._read("emitted", "emitted_totals", (consumer,))
            zeros = Sums.zeros(self.bins)
            fresh = {key: total - emitted.get(key, zeros) for key, total in counted.items()}
            yield {key: delta for key, delta in fresh.items() if delta != zeros}
            for statement in _PUBLISHED:
                self._db.execute(statement, (consumer,))

    def forget_emissions(self, consumer: str) -> None:
        """Offer ``consumer`` everything again: for one whose counters restarted from zero."""
        with self.transaction():
            self._db.execute("DELETE FROM emitted WHERE consumer = ?", (consumer,))
            self._db.execute("DELETE FROM emitted_totals WHERE consumer = ?", (consumer,))

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()


_MEND = "set it aside with calib_serve.watch.ledger.quarantine(path), or restore a copy"


def quarantine(path: str | Path, *, clock: Callable[[], float] = time.time) -> Path:
    """Move a damaged ledger and its journal aside, so that a fresh one can start; where it went.

    Nonces and sums go together: the fresh ledger counts from zero, and each label at most once.
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

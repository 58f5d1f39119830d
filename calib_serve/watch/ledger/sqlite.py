"""The embedded ledger: one SQLite file that any number of processes of a host may share."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from calib_serve.errors import InputError, LedgerError, ShapeError
from calib_serve.receipts import Label
from calib_serve.watch.ledger.sums import Key, Sums, Version, by_key, merge_segments

__all__ = ["SqliteLedger", "quarantine"]

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS nonces_expire ON nonces (expires)",
    "CREATE TABLE IF NOT EXISTS sums (writer TEXT, model TEXT, version TEXT, segment TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (writer, model, version, segment)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS emitted (consumer TEXT, model TEXT, version TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (consumer, model, version)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
_FORMAT = 1
_PRUNED = "ledger/pruned_through"
_PRUNE_EVERY = 60.0  # seconds between sweeps
_PRUNE_AT_MOST = 10_000  # nonces a sweep, so that no label waits long for one
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
        timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.bins, self.writer = Path(path), bins, writer
        self._clock = clock
        self._next_prune = -float("inf")
        self._lock = threading.RLock()
        self._depth = 0
        self._file: tuple[int, int] | None = None
        with self._errors():
            self._db = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
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
            if found not in (0, _FORMAT):
                raise LedgerError(f"{self.path} is a ledger of format {found}; this program reads {_FORMAT}")
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
            kept = self.load("ledger/bins")
            if kept is None:
                self.store("ledger/bins", str(self.bins).encode())
            elif (bins := self._number(kept)) != self.bins:
                raise LedgerError(
                    f"{self.path} counts in {bins:.0f} bins, not {self.bins}; use one bin count"
                )

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

    def _check_there(self) -> None:
        # SQLite would go on writing to a deleted file, and all that is lost when the process ends.
        if self._file is not None and self._identity() != self._file:
            raise LedgerError(f"the ledger {self.path} was replaced by another file; restart to use that one")

    def accept(
        self, labels: Sequence[Label], *, expires: Sequence[float], segments: Sequence[str] | None = None
    ) -> list[bool]:
        """Count each label whose receipt was not seen before; True = counted now, durable on return.

        ``expires``: until when each receipt is accepted, seconds since 1970; its nonce is kept
        until then. A receipt that expired before the last sweep is refused, whatever the clock says.
        """
        segments = [""] * len(labels) if segments is None else segments
        if not len(labels) == len(expires) == len(segments):
            raise InputError(
                f"one expiry and one segment a label, got {len(labels)}, {len(expires)} and {len(segments)}"
            )
        with self.transaction():
            # A nonce that a sweep may have deleted counts as seen, also if the clock jumped back.
            swept = self._swept()
            fresh = [
                until > swept and self._remember(one.receipt.nonce, until)
                for one, until in zip(labels, expires, strict=True)
            ]
            self._add(by_key(labels, segments, counted=fresh, bins=self.bins))
            self._prune_sometimes()
        return fresh

    def add(self, sums: Mapping[Key, Sums], *, once: bytes | None = None, expires: float = 0.0) -> bool:
        """Add sums of predictions; with ``once`` a second call does nothing until it expires."""
        with self.transaction():
            fresh = once is None or (expires > self._swept() and self._remember(once, expires))
            if fresh:
                self._add(sums)
            self._prune_sometimes()
        return fresh

    def _swept(self) -> float:
        return self._number(self.load(_PRUNED) or b"-inf")

    def _number(self, text: bytes) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise LedgerError(f"the ledger {self.path} is damaged ({error}); {_MEND}") from error

    def _unpack(self, packed: bytes) -> Sums:
        try:
            return Sums.stored(np.frombuffer(packed, "<f8"), bins=self.bins)
        except (ValueError, TypeError, ShapeError) as error:
            raise LedgerError(f"the ledger {self.path} is damaged ({error}); {_MEND}") from error

    def _remember(self, nonce: bytes, expires: float) -> bool:
        return self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, expires)).rowcount == 1

    def _add(self, sums: Mapping[Key, Sums]) -> None:
        for key, more in sums.items():
            place = (self.writer, key.model, key.version, key.segment)
            row = self._db.execute(
                "SELECT sums FROM sums WHERE (writer, model, version, segment) = (?, ?, ?, ?)", place
            ).fetchone()
            total = more if row is None else self._unpack(row[0]) + more
            self._db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?)", (*place, _pack(total)))

    def _prune_sometimes(self) -> None:
        now = self._clock()
        if now >= self._next_prune:
            # More may have expired since than one sweep takes: then the next labels sweep on.
            done = self.prune(now) < _PRUNE_AT_MOST
            self._next_prune = now + _PRUNE_EVERY if done else now

    def prune(self, now: float, *, at_most: int = _PRUNE_AT_MOST) -> int:
        """Delete about ``at_most`` nonces that expired before ``now``; how many were deleted."""
        with self.transaction():
            last = self._db.execute(
                "SELECT max(expires) FROM"
                " (SELECT expires FROM nonces WHERE expires < ? ORDER BY expires LIMIT ?)",
                (now, at_most),
            ).fetchone()[0]
            if last is None:
                return 0
            gone = self._db.execute("DELETE FROM nonces WHERE expires <= ?", (last,)).rowcount
            self.store(_PRUNED, repr(max(last, self._swept())).encode())
        return gone

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over everything counted (``own``: by this writer), by (model, version)."""
        return merge_segments(self.by_segment(own=own))

    def by_segment(self, *, own: bool = False) -> dict[Key, Sums]:
        """The same, by (model, version, segment)."""
        found: dict[Key, Sums] = {}
        with self._lock, self._errors():
            rows = self._db.execute("SELECT writer, model, version, segment, sums FROM sums").fetchall()
        for writer, model, version, segment, packed in rows:
            if not own or writer == self.writer:
                key = Key(model, version, segment)
                found[key] = found.get(key, Sums.zeros(self.bins)) + self._unpack(packed)
        return found

    @contextmanager
    def emission(self, consumer: str) -> Iterator[Mapping[Version, Sums]]:
        """The writer's sums that ``consumer`` has not published yet; leaving the block marks them so.

        One consumer at a time is inside, over all processes. If the block raises or its process
        is killed, the same sums are offered again: publish within the block, and quickly.
        """
        with self.transaction():
            counted = self.sums(own=True)
            emitted = {
                (model, version): self._unpack(packed)
                for model, version, packed in self._db.execute(
                    "SELECT model, version, sums FROM emitted WHERE consumer = ?", (consumer,)
                )
            }
            zeros = Sums.zeros(self.bins)
            fresh = {key: total - emitted.get(key, zeros) for key, total in counted.items()}
            yield {key: delta for key, delta in fresh.items() if delta != zeros}
            self._db.executemany(
                "INSERT OR REPLACE INTO emitted VALUES (?, ?, ?, ?)",
                [(consumer, *key, _pack(total)) for key, total in counted.items()],
            )

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


def _pack(sums: Sums) -> bytes:
    return sums.vector.astype("<f8").tobytes()


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

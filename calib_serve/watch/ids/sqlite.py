"""Receipts by id in a SQLite file that the processes of one host share."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from calib_serve.errors import LedgerError, of_a_newer
from calib_serve.files import make_private
from calib_serve.watch.ids.bindings import Binding, hashed, packed, unpacked

__all__ = ["SqliteIds"]

_FORMAT = 1
# Rows stand in the order in which they came, and leave at the front: the numbers in use have no gaps.
_TABLE = """
CREATE TABLE ids (seq INTEGER PRIMARY KEY, id BLOB, model TEXT, receipt BLOB, bound INTEGER) STRICT;
CREATE UNIQUE INDEX by_id ON ids (id, model);
"""


class SqliteIds:
    """A ``ReceiptIds`` in the file at ``path``, made with the first binding; its owner's alone.

    ``most``: how many bindings are held. ``ttl``: seconds after which one leaves. ``timeout``: seconds to
    wait for another process. LedgerError where the file is there and is no such store.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        most: int,
        ttl: float,
        clock: Callable[[], float] = time.time,
        timeout: float = 10.0,
    ) -> None:
        self.path, self.evicted = Path(path), 0
        self._most, self._ttl, self._clock, self._timeout = most, ttl, clock, timeout
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None
        self._closed = False
        with self._using():
            self._there()

    def bind(self, bindings: Sequence[Binding]) -> list[str]:
        """Keep those whose id is free, durable on return; the receipt that each stands for from now on."""
        if not bindings:
            return []
        now, kept, evicted = self._clock(), [], 0
        with self._using():
            db = self._db or self._open()
            with _written(db):
                self._expire(db, now, 2 * len(bindings) + 100)
                for model, name, receipt in bindings:
                    key = hashed(name)
                    db.execute(
                        "INSERT OR IGNORE INTO ids (id, model, receipt, bound) VALUES (?, ?, ?, ?)",
                        (key, model, packed(receipt), int(now)),
                    )
                    (found,) = db.execute("SELECT receipt FROM ids WHERE (id, model) = (?, ?)", (key, model))
                    kept.append(unpacked(found[0]))
                low, high = _ends(db)
                if high - low + 1 > self._most:
                    evicted = db.execute("DELETE FROM ids WHERE seq <= ?", (high - self._most,)).rowcount
        self.evicted += evicted
        return kept

    def _expire(self, db: sqlite3.Connection, now: float, most: int) -> None:
        oldest = db.execute("SELECT seq, bound FROM ids ORDER BY seq LIMIT ?", (most,))
        gone = [seq for seq, bound in oldest if bound < now - self._ttl]
        if gone:
            db.execute("DELETE FROM ids WHERE seq <= ?", (gone[-1],))

    def find(self, ids: Sequence[str]) -> list[dict[str, str]]:
        """Of each id, its receipts by model."""
        since = self._clock() - self._ttl
        with self._using():
            if (db := self._there()) is None:
                return [{} for _ in ids]
            asked = "SELECT model, receipt FROM ids WHERE id = ? AND bound >= ?"
            return [
                {model: unpacked(kept) for model, kept in db.execute(asked, (hashed(name), since))}
                for name in ids
            ]

    def size(self) -> int:
        """How many bindings are held."""
        with self._using():
            if (db := self._there()) is None:
                return 0
            low, high = _ends(db)
            return high - low + 1

    def trouble(self) -> str | None:
        """Nothing, or LedgerError where the file cannot be read."""
        self.size()
        return None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            if self._db is not None:
                self._db.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            try:
                if self._closed:
                    raise LedgerError(f"the ids in {self.path} were closed")
                self._check()
                yield
            except (sqlite3.Error, OSError) as error:
                raise LedgerError(
                    f"the ids in {self.path} cannot be used: {error}; if it is damaged, move it aside and "
                    "start again: labels of predictions before then need their receipts"
                ) from error

    def _there(self) -> sqlite3.Connection | None:
        """The open file; None where there is none yet."""
        return self._db or (self._open() if self.path.exists() else None)

    def _open(self) -> sqlite3.Connection:
        make_private(self.path)  # SQLite gives its journals the same mode
        db = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            with _written(db):
                (form,) = db.execute("PRAGMA user_version").fetchone()
                if form == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                    for statement in filter(str.strip, _TABLE.split(";")):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {_FORMAT}")
                elif form > _FORMAT:
                    raise LedgerError(f"{self.path} holds ids {of_a_newer(form, reads=_FORMAT)}")
                elif form != _FORMAT:
                    raise LedgerError(f"{self.path} holds no ids of format {_FORMAT}; move it aside")
            self._opened = self.path.stat()
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _check(self) -> None:
        """LedgerError where the file is not what was opened: SQLite would write to a removed one."""
        if self._opened is None:
            return
        if not (self.path.exists() and os.path.samestat(self._opened, self.path.stat())):
            raise LedgerError(f"the ids in {self.path} were removed or replaced while in use; restart")


@contextmanager
def _written(db: sqlite3.Connection) -> Iterator[None]:
    """What is done inside is written together, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _ends(db: sqlite3.Connection) -> tuple[int, int]:
    """The first and the last number in use; (1, 0) where there is none."""
    with closing(db.execute("SELECT min(seq), max(seq) FROM ids")) as rows:
        low, high = rows.fetchone()
    return (1, 0) if low is None else (low, high)

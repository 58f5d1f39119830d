"""Which receipts were counted, in a SQLite ledger: one bit each, in the bitmap of its epoch.

A bitmap is a sorted list of its bits while few are set. Receipts of version 1 have no epoch: their nonces are
kept whole.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import LedgerError
from calib_serve.nonces import NONCE_BYTES, PER_EPOCH, split

__all__ = ["SCHEMA", "Seen"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS nonces_expire ON nonces (expires)",
    "CREATE TABLE IF NOT EXISTS epochs (epoch BLOB PRIMARY KEY, expires REAL NOT NULL, bits BLOB NOT NULL)"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS epochs_expire ON epochs (expires)",
    # Names of batches of before they stood for a content: read, no longer written.
    "CREATE TABLE IF NOT EXISTS batches (name BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID",
)
_BITMAP = PER_EPOCH // 8
_SPARSE = _BITMAP // 2  # bits beyond which a bitmap is smaller than their list


class Seen:
    """The receipts that the ledger behind ``db`` remembers; used within its transactions.

    ``damaged``: says what cannot be.
    """

    def __init__(self, db: sqlite3.Connection, *, damaged: Callable[[object], LedgerError]) -> None:
        self._db, self._damaged = db, damaged

    def add(self, nonces: Sequence[bytes], expires: Sequence[float]) -> list[bool]:
        """Remember each until it expires, at least; True for those that were not remembered yet."""
        fresh = [False] * len(nonces)
        epochs: dict[bytes, list[int]] = {}
        for i, nonce in enumerate(nonces):
            if len(nonce) == NONCE_BYTES:
                epochs.setdefault(split(nonce)[0], []).append(i)
            else:
                found = self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, expires[i]))
                fresh[i] = found.rowcount == 1
        for epoch, members in epochs.items():
            bits = [split(nonces[i])[1] for i in members]
            for i, new in zip(members, self._set(epoch, bits, max(expires[i] for i in members)), strict=True):
                fresh[i] = new
        return fresh

    def _set(self, epoch: bytes, bits: Sequence[int], expires: float) -> list[bool]:
        row = self._db.execute("SELECT expires, bits FROM epochs WHERE epoch = ?", (epoch,)).fetchone()
        try:
            until, found = (expires, _unpacked(b"")) if row is None else (float(row[0]), _unpacked(row[1]))
        except (ValueError, TypeError) as error:
            raise self._damaged(f"the bits of an epoch: {error}") from error
        fresh = []
        for bit in bits:
            fresh.append(not found[bit])
            found[bit] = True
        if any(fresh):
            kept = (epoch, max(expires, until), _packed(found))
            self._db.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", kept)
        return fresh

    def forget(self, before: float, *, at_most: int) -> tuple[int, float]:
        """Forget ``at_most`` receipts and epochs, or a few more; how many, and when the last one expired."""
        gone = [self._forget(table, before, at_most) for table in ("nonces", "epochs")]
        return sum(count for count, _ in gone), max(last for _, last in gone)

    def forget_batches(self, before: float, *, at_most: int) -> None:
        """The same, of batches of before."""
        self._forget("batches", before, at_most)

    def _forget(self, table: str, before: float, at_most: int) -> tuple[int, float]:
        (last,) = self._db.execute(
            f"SELECT max(expires) FROM (SELECT expires FROM {table} WHERE expires < ?"  # noqa: S608
            " ORDER BY expires LIMIT ?)",
            (before, at_most),
        ).fetchone()
        if last is None:
            return 0, -math.inf
        return self._db.execute(f"DELETE FROM {table} WHERE expires <= ?", (last,)).rowcount, last  # noqa: S608

    def prolong(self, seconds: float) -> None:
        """Remember everything for longer."""
        for table in ("nonces", "epochs"):
            self._db.execute(f"UPDATE {table} SET expires = expires + ?", (seconds,))  # noqa: S608


def _unpacked(kept: bytes) -> NDArray[np.bool_]:
    if len(kept) == _BITMAP:
        return np.unpackbits(np.frombuffer(kept, np.uint8)).view(np.bool_)
    found = np.zeros(PER_EPOCH, np.bool_)
    if len(kept) % 2 or len(kept) > 2 * _SPARSE:
        raise ValueError(f"none has {len(kept)} bytes")
    found[np.frombuffer(kept, "<u2")] = True
    return found


def _packed(found: NDArray[np.bool_]) -> bytes:
    bits = np.flatnonzero(found)
    # Strictly below: a list of that many would be as long as a bitmap.
    return bits.astype("<u2").tobytes() if len(bits) < _SPARSE else np.packbits(found).tobytes()

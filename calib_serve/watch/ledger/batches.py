"""Batches of predictions that may be sent again: each counts once, under a name that stands for its content.

A name is bound to what was sent under it first: the same content again is the same batch, another content is
refused, as it would be acknowledged and never counted.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from calib_serve.errors import ConflictError
from calib_serve.receipts import DAY

__all__ = ["SCHEMA", "Batches", "Once", "check_content"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS named (name BLOB PRIMARY KEY, content BLOB NOT NULL, time REAL NOT NULL,"
    " expires REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS named_expire ON named (expires)",
)


class Once(NamedTuple):
    """A batch by its ``name``: a digest of its ``content``, when it was sent first and how long it is known.

    ``earlier``: the name under which it may have been counted before names stood for a content. Of such a
    one nothing but the name is known: its content is empty and its ``time`` 0.
    """

    name: bytes
    content: bytes = b""
    time: float = 0.0
    expires: float = 0.0
    earlier: bytes = b""

    @classmethod
    def of(cls, name: bytes, content: bytes = b"", *, time: float, earlier: bytes = b"") -> Once:
        """One that is sent at ``time`` and known for a day."""
        return cls(name, content, time, time + DAY, earlier)


class Batches:
    """The batches that the ledger behind ``db`` remembers; used within its transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, once: Once) -> bool:
        """Remember it; False if it was remembered already, ConflictError if with another content."""
        if (known := self.find(once)) is not None:
            check_content(once, known)
            return False
        self._db.execute("INSERT INTO named VALUES (?, ?, ?, ?)", once[:-1])
        return True

    def find(self, once: Once) -> Once | None:
        """The batch as it was remembered under this name, or its earlier one."""
        row = self._db.execute("SELECT * FROM named WHERE name = ?", (once.name,)).fetchone()
        if row is not None:
            return Once(bytes(row[0]), bytes(row[1]), float(row[2]), float(row[3]))
        row = self._db.execute("SELECT expires FROM batches WHERE name = ?", (once.earlier,)).fetchone()
        return None if row is None else Once(once.earlier, expires=float(row[0]))

    def forget(self, before: float, *, at_most: int) -> None:
        """Forget so many that expired before."""
        self._db.execute(
            "DELETE FROM named WHERE name IN"
            " (SELECT name FROM named WHERE expires < ? ORDER BY expires LIMIT ?)",
            (before, at_most),
        )


def check_content(once: Once, known: Once) -> None:
    """ConflictError unless what is known may be the same batch."""
    if known.content and known.content != once.content:
        raise ConflictError(
            "this Idempotency-Key was used for another batch; nothing of this one was counted: "
            "send it under a key of its own"
        )

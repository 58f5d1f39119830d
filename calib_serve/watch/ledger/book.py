"""The sums of a SQLite ledger, and the labels that wait for the drift detector, as rows of its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from calib_serve.errors import LedgerError, ShapeError
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Entry,
    Place,
    Waiting,
    coarser,
    waiting,
)
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version

__all__ = ["SCHEMA", "Book"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS totals (writer TEXT, model TEXT, version TEXT, kind TEXT, name TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (writer, model, version, kind, name)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS spans (model TEXT, version TEXT, kind TEXT, start REAL, width REAL,"
    " name TEXT, sums BLOB NOT NULL, PRIMARY KEY (model, version, kind, start, width, name)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS waiting (model TEXT, version TEXT, time REAL, nonce BLOB, confidence REAL,"
    " correct INTEGER, predicted INTEGER, grouped INTEGER, PRIMARY KEY (model, version, time, nonce))"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS emitted (consumer TEXT, model TEXT, version TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (consumer, model, version)) WITHOUT ROWID",
)
T = TypeVar("T")

_TOTAL = "SELECT sums FROM totals WHERE (writer, model, version, kind, name) = (?, ?, ?, ?, ?)"
_SPAN = "SELECT sums FROM spans WHERE (model, version, kind, start, width, name) = (?, ?, ?, ?, ?, ?)"
_SET_TOTAL = "INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?, ?, ?)"
_SET_SPAN = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?)"
_SET_EMITTED = "INSERT OR REPLACE INTO emitted VALUES (?, ?, ?, ?)"


class Book:
    """The rows behind ``db``, changed within the ledger's transactions; ``damaged``: says what cannot be."""

    def __init__(
        self, db: sqlite3.Connection, *, writer: str, bins: int, damaged: Callable[[object], LedgerError]
    ) -> None:
        self._db, self._writer, self._bins, self._damaged = db, writer, bins, damaged

    def add(self, sums: Mapping[Place, Sums]) -> None:
        """Add sums to those that are kept."""
        for (key, start, width), more in sums.items():
            at: tuple[str | float, ...]
            if width:
                get, put, at = _SPAN, _SET_SPAN, (key.model, key.version, key.kind, start, width, key.name)
            else:
                get, put, at = _TOTAL, _SET_TOTAL, (self._writer, *key.of, key.kind, key.name)
            row = self._db.execute(get, at).fetchone()
            total = more if row is None else self._unpacked(row[0]) + more
            self._db.execute(put, (*at, total.packed()))

    def totals(self, kind: Kind, *, own: bool) -> dict[Key, Sums]:
        """The sums over all time."""
        asked = "SELECT model, version, name, sums FROM totals WHERE kind = ?"
        asked, told = (asked + " AND writer = ?", (kind, self._writer)) if own else (asked, (kind,))
        found: dict[Key, Sums] = {}
        for model, version, name, packed in self._db.execute(asked, told):
            key, more = Key(model, version, name, kind), self._unpacked(packed)
            found[key] = found[key] + more if key in found else more
        return found

    def dated(self, since: float, until: float, version: Version | None, kind: Kind | None) -> list[Dated]:
        """The sums of the spans in [since, until)."""
        rows = self._db.execute(
            "SELECT * FROM spans WHERE start >= ?1 AND start + width <= ?2 AND (?3 IS NULL OR model = ?3)"
            " AND (?4 IS NULL OR version = ?4) AND (?5 IS NULL OR kind = ?5) ORDER BY start",
            (since, until, *(version or (None, None)), kind),
        )
        return [self._read(partial(_dated, row, bins=self._bins)) for row in rows]

    def merge_spans(self, now: float, *, at_most: int) -> None:
        """Move what has grown old into wider spans, and drop what is older than any."""
        old = [
            row
            for width, most in SPANS
            for row in self._db.execute(
                "SELECT * FROM spans WHERE width = ? AND start < ? LIMIT ?",
                (width, now - most - width, at_most),
            )
        ]
        moved: dict[Place, Sums] = {}
        for model, version, kind, start, width, name, packed in old:
            if to := coarser(start, width, now=now):
                place, more = Place(Key(model, version, name, kind), *to), self._unpacked(packed)
                moved[place] = moved[place] + more if place in moved else more
        self._db.executemany(
            "DELETE FROM spans WHERE (model, version, kind, start, width, name) = (?, ?, ?, ?, ?, ?)",
            [row[:-1] for row in old],
        )
        self.add(moved)

    def emitted(self, consumer: str) -> dict[Version, Sums]:
        """What ``consumer`` has published."""
        rows = self._db.execute("SELECT model, version, sums FROM emitted WHERE consumer = ?", (consumer,))
        return {(model, version): self._unpacked(packed) for model, version, packed in rows}

    def mark(self, consumer: str, sums: Mapping[Version, Sums]) -> None:
        """Set what ``consumer`` has published."""
        self._db.executemany(_SET_EMITTED, [(consumer, *of, total.packed()) for of, total in sums.items()])

    def wait(self, entries: Sequence[Entry]) -> None:
        """Let labels wait for the drift detector."""
        rows = [(one.label.receipt.model, one.label.receipt.version, *waiting(one)) for one in entries]
        self._db.executemany("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def waiting(self) -> dict[Version, int]:
        """How many labels of each version wait."""
        rows = self._db.execute("SELECT model, version, count(*) FROM waiting GROUP BY model, version")
        return {(model, version): count for model, version, count in rows}

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Waiting]:
        """Take the labels out that were predicted before ``until``."""
        rows = self._db.execute(
            "SELECT time, nonce, confidence, correct, predicted, grouped FROM waiting"
            " WHERE (model, version) = (?, ?) AND time < ? ORDER BY time, nonce LIMIT ?",
            (*version, until, most),
        ).fetchall()
        if rows:
            self._db.execute(
                "DELETE FROM waiting WHERE (model, version) = (?, ?) AND (time, nonce) <= (?, ?)",
                (*version, *rows[-1][:2]),
            )
        return [self._read(partial(_waiting, row)) for row in rows]

    def convert(self) -> None:
        """Bring the sums of format 1 over: they have no time, and count in those over all time."""
        rows = self._db.execute("SELECT writer, model, version, segment, sums FROM sums").fetchall()
        for *names, segment, packed in rows:
            self._db.execute(_SET_TOTAL, (*names, "segment", segment, self._unpacked_1(packed).packed()))
        rows = self._db.execute("SELECT consumer, model, version, sums FROM emitted").fetchall()
        for *names, packed in rows:
            self._db.execute(_SET_EMITTED, (*names, self._unpacked_1(packed).packed()))
        self._db.execute("DROP TABLE sums")

    def _unpacked(self, packed: bytes) -> Sums:
        return self._read(lambda: Sums.unpacked(packed, bins=self._bins))

    def _unpacked_1(self, packed: bytes) -> Sums:
        return self._read(lambda: Sums.of_version_1(np.frombuffer(packed, "<f8"), bins=self._bins))

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (ValueError, TypeError, ShapeError) as error:
            raise self._damaged(error) from error


def _dated(row: Sequence[Any], *, bins: int) -> Dated:
    model, version, kind, start, width, name, packed = row
    return Dated(
        Key(model, version, name, kind), float(start), float(width), Sums.unpacked(packed, bins=bins)
    )


def _waiting(row: Sequence[Any]) -> Waiting:
    time, nonce, confidence, correct, predicted, group = row
    if not (0 <= confidence <= 1 and predicted >= 0 and group >= 0):
        raise ValueError(f"a label waits with confidence {confidence}, class {predicted}, group {group}")
    return Waiting(float(time), nonce, float(confidence), bool(correct), int(predicted), int(group))

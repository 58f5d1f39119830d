"""The journal and the sums of a SQLite ledger, as rows of its tables."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from calib_serve.errors import InputError, LedgerError, ShapeError
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Noted,
    Place,
    coarser,
    holding,
    journal_sums,
    label_sums,
)
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version, add_at

__all__ = ["SCHEMA", "Book"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS totals (writer TEXT, model TEXT, version TEXT, kind TEXT, name TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (writer, model, version, kind, name)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS spans (model TEXT, version TEXT, kind TEXT, start REAL, width REAL,"
    " name TEXT, sums BLOB NOT NULL, PRIMARY KEY (model, version, kind, start, width, name)) WITHOUT ROWID",
    # AUTOINCREMENT: a number that was folded never comes again.
    "CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY AUTOINCREMENT, writer TEXT, model TEXT,"
    " version TEXT, time REAL, nonce BLOB, arrived REAL, confidence REAL, correct INTEGER, predicted INTEGER,"
    " inclusion REAL, grouped INTEGER, slices TEXT, detect INTEGER)",
    "CREATE INDEX IF NOT EXISTS journal_time ON journal (model, version, time)",
    "CREATE TABLE IF NOT EXISTS folded (id INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS emitted (consumer TEXT, model TEXT, version TEXT,"
    " sums BLOB NOT NULL, PRIMARY KEY (consumer, model, version)) WITHOUT ROWID",
)
_ROWS = (
    "SELECT id, writer, model, version, time, nonce, arrived, confidence, correct, predicted, inclusion,"
    " grouped, slices FROM journal"
)
_NOTE = "INSERT INTO journal VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FOLD_AT = 10_000  # labels in the journal that nobody has made sums of
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

    def add(self, sums: Mapping[Place, Sums], *, writer: str | None = None, less: bool = False) -> None:
        """Add sums to those that are kept, of this ledger's writer or another; or take labels out of them."""
        for (key, start, width), more in sums.items():
            at: tuple[str | float, ...]
            if width:
                get, put, at = _SPAN, _SET_SPAN, (key.model, key.version, key.kind, start, width, key.name)
            else:
                get, put, at = (
                    _TOTAL,
                    _SET_TOTAL,
                    (self._writer if writer is None else writer, *key.of, key.kind, key.name),
                )
            row = self._db.execute(get, at).fetchone()
            kept = None if row is None else self._unpacked(row[0])
            total = _less(kept, more) if less else more if kept is None else kept + more
            self._db.execute(put, (*at, total.packed()))

    def take_out(self, rows: Sequence[Noted], *, now: float) -> None:
        """Take labels that were counted out of all sums, and of those that wait for the drift detector."""
        self.fold()
        self._db.executemany(
            "DELETE FROM journal WHERE (model, version, time, nonce) = (?, ?, ?, ?)",
            [(row.model, row.version, row.time, row.nonce) for row in rows],
        )
        for (writer, place), sums in label_sums(rows, bins=self._bins).items():
            at = self._holding(place, sums, now=now)
            if at is not None:
                self.add({at: sums}, writer=writer, less=True)

    def _holding(self, place: Place, sums: Sums, *, now: float) -> Place | None:
        """The span that holds these labels today; None where it is older than any."""
        if not place.width:
            return place
        for at in holding(place):
            key = at.key
            asked = (key.model, key.version, key.kind, at.start, at.width, key.name)
            row = self._db.execute(_SPAN, asked).fetchone()
            if row is not None and (self._unpacked(row[0]).labels >= sums.labels).all():
                return at
        if now - (place.start + place.width) > SPANS[-1][1]:
            return None
        raise _never_counted()

    def totals(self, kind: Kind, *, own: bool) -> dict[Key, Sums]:
        """The sums over all time."""
        asked = "SELECT model, version, name, sums FROM totals WHERE kind = ?"
        asked, told = (asked + " AND writer = ?", (kind, self._writer)) if own else (asked, (kind,))
        found: dict[Key, Sums] = {}
        for model, version, name, packed in self._db.execute(asked, told):
            add_at(found, Key(model, version, name, kind), self._unpacked(packed))
        for writer, sums in self.unfolded().items():
            for place, more in sums.items():
                if place.key.kind == kind and not place.width and (not own or writer == self._writer):
                    add_at(found, place.key, more)
        return found

    def dated(self, since: float, until: float, version: Version | None, kind: Kind | None) -> list[Dated]:
        """The sums of the spans in [since, until)."""
        rows = self._db.execute(
            "SELECT * FROM spans WHERE start >= ?1 AND start + width <= ?2 AND (?3 IS NULL OR model = ?3)"
            " AND (?4 IS NULL OR version = ?4) AND (?5 IS NULL OR kind = ?5)",
            (since, until, *(version or (None, None)), kind),
        )
        found: dict[Place, Sums] = {}
        for row in rows:
            one = self._read(functools.partial(_dated, row, bins=self._bins))
            found[Place(one.key, one.start, one.width)] = one.sums
        for sums in self.unfolded().values():
            for place, more in sums.items():
                key, start, width = place
                inside = width and since <= start and start + width <= until
                if inside and version in (None, key.of) and kind in (None, key.kind):
                    add_at(found, place, more)
        return [Dated(*place, sums) for place, sums in sorted(found.items(), key=lambda one: one[0].start)]

    def merge_spans(self, now: float, *, at_most: int) -> None:
        """Move what has grown old into wider spans, and drop what is older than any."""
        self.fold()
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
                add_at(moved, place, more)
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

    def note(self, rows: Sequence[Noted], *, detect: bool) -> None:
        """Write labels into the journal; with ``detect`` they wait there for the drift detector."""
        self._db.executemany(
            _NOTE,
            [(*row[:-1], _slices(row.slices), detect) for row in rows],
        )
        if self._unfolded_count() > _FOLD_AT:
            self.fold()

    def _unfolded_count(self) -> int:
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()
        return int(last) - self._folded()

    def _folded(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM folded").fetchone()[0])

    def unfolded(self) -> dict[str, dict[Place, Sums]]:
        """The sums of the labels in the journal that are in no sum yet, by writer."""
        rows = self._db.execute(f"{_ROWS} WHERE id > ?", (self._folded(),)).fetchall()
        return journal_sums([self._read(functools.partial(_noted, row[1:])) for row in rows], bins=self._bins)

    def fold(self) -> None:
        """Add the labels in the journal to the sums, and drop those that nobody waits for."""
        for writer, sums in self.unfolded().items():
            self.add(sums, writer=writer)
        self._db.execute("INSERT OR REPLACE INTO folded SELECT coalesce(max(id), 0) FROM journal")
        self._db.execute("DELETE FROM folded WHERE id < (SELECT max(id) FROM folded)")
        self._db.execute("DELETE FROM journal WHERE NOT detect")

    def waiting(self) -> dict[Version, int]:
        """How many labels of each version wait for the drift detector."""
        rows = self._db.execute(
            "SELECT model, version, count(*) FROM journal WHERE detect GROUP BY model, version"
        )
        return {(model, version): count for model, version, count in rows}

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take the labels out that were predicted before ``until``."""
        # By nonce within a moment: in the order of arrival, wrong ones might come first.
        self.fold()
        rows = self._db.execute(
            f"{_ROWS} WHERE (model, version) = (?, ?) AND time < ? AND detect ORDER BY time, nonce LIMIT ?",
            (*version, until, most),
        ).fetchall()
        self._db.executemany("DELETE FROM journal WHERE id = ?", [row[:1] for row in rows])
        return [self._read(functools.partial(_noted, row[1:])) for row in rows]

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


def _less(kept: Sums | None, part: Sums) -> Sums:
    try:
        if kept is not None:
            return kept.less(part)
    except InputError as error:
        raise _never_counted() from error
    raise _never_counted()


def _never_counted() -> LedgerError:
    return LedgerError(
        "labels to be taken back were never counted in this ledger; is the journal of another?"
    )


def _dated(row: Sequence[Any], *, bins: int) -> Dated:
    model, version, kind, start, width, name, packed = row
    return Dated(
        Key(model, version, name, kind), float(start), float(width), Sums.unpacked(packed, bins=bins)
    )


@functools.lru_cache(maxsize=4096)
def _slices(slices: tuple[Key, ...]) -> str:
    return json.dumps([[key.kind, key.name] for key in slices])


@functools.lru_cache(maxsize=4096)
def _keys(model: str, version: str, slices: str) -> tuple[Key, ...]:
    return tuple(Key(model, version, name, kind) for kind, name in json.loads(slices))


def _noted(row: Sequence[Any]) -> Noted:
    *values, slices = row
    values[7] = bool(values[7])
    noted = Noted._make([*values, _keys(values[1], values[2], slices)])
    if not (
        0 <= noted.confidence <= 1
        and 0 < noted.inclusion <= 1
        and noted.predicted >= 0
        and noted.group >= 0
        and noted.time + noted.arrived >= 0
    ):
        raise ValueError(f"a label of the journal reads {noted}")
    return noted

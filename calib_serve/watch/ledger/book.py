"""The journal and the sums of a SQLite ledger, as rows of its tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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
from calib_serve.watch.ledger.rows import Tables
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version, add_at
from calib_serve.watch.ledger.tables import Row

__all__ = ["Book"]

_FOLD_AT = 10_000  # labels in the journal that nobody has made sums of
T = TypeVar("T")
_FOLDED = "ledger/folded"  # the number of the last label in the journal that is in the sums


class Book:
    """The rows of ``tables``, changed within the ledger's transactions; ``damaged``: says what cannot be."""

    def __init__(
        self, tables: Tables, *, writer: str, bins: int, damaged: Callable[[object], LedgerError]
    ) -> None:
        self.writer, self._bins, self._damaged = writer, bins, damaged
        self._db = tables.db
        self._totals, self._spans, self._emitted = (tables[name] for name in ("totals", "spans", "emitted"))
        self._journal, self._state = tables["journal"], tables["state"]

    def add(self, sums: Mapping[Place, Sums], *, writer: str | None = None, less: bool = False) -> None:
        """Add sums to those that are kept, of this ledger's writer or another; or take labels out of them."""
        for (key, start, width), more in sums.items():
            at: tuple[str | float, ...]
            if width:
                rows, at = self._spans, (key.model, key.version, key.kind, start, width, key.name)
            else:
                rows = self._totals
                at = (self.writer if writer is None else writer, *key.of, key.kind, key.name)
            row = rows.get(*at)
            kept = None if row is None else self._unpacked(row[-1])
            total = _less(kept, more) if less else more if kept is None else kept + more
            rows.put(*at, total.packed())

    def take_out(self, rows: Sequence[Noted], *, now: float) -> None:
        """Take labels that were counted out of all sums, and of those that wait for the drift detector."""
        self.fold()
        for row in rows:
            self._journal.delete(
                "WHERE (model, version, time, nonce) = (?, ?, ?, ?)",
                (row.model, row.version, row.time, row.nonce),
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
            row = self._spans.get(key.model, key.version, key.kind, at.start, at.width, key.name)
            if row is not None and (self._unpacked(row[-1]).labels >= sums.labels).all():
                return at
        if now - (place.start + place.width) > SPANS[-1][1]:
            return None
        raise _never_counted()

    def totals(self, kind: Kind, *, own: bool) -> dict[Key, Sums]:
        """The sums over all time."""
        where, told = ("AND writer = ?", (kind, self.writer)) if own else ("", (kind,))
        found: dict[Key, Sums] = {}
        for _, model, version, _, name, packed in self._totals.select(f"WHERE kind = ? {where}", told):
            add_at(found, Key(model, version, name, kind), self._unpacked(packed))
        for writer, sums in self.unfolded().items():
            for place, more in sums.items():
                if place.key.kind == kind and not place.width and (not own or writer == self.writer):
                    add_at(found, place.key, more)
        return found

    def dated(self, since: float, until: float, version: Version | None, kind: Kind | None) -> list[Dated]:
        """The sums of the spans in [since, until)."""
        rows = self._spans.select(
            "WHERE start >= ?1 AND start + width <= ?2 AND (?3 IS NULL OR model = ?3)"
            " AND (?4 IS NULL OR version = ?4) AND (?5 IS NULL OR kind = ?5)",
            (since, until, *(version or (None, None)), kind),
        )
        found = {_place(row): self._unpacked(row[-1]) for row in rows}
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
            for row in self._spans.select(
                "WHERE width = ? AND start < ? LIMIT ?", (width, now - most - width, at_most)
            )
        ]
        moved: dict[Place, Sums] = {}
        for row in old:
            key, start, width = _place(row)
            if to := coarser(start, width, now=now):
                add_at(moved, Place(key, *to), self._unpacked(row[-1]))
        self._spans.delete_all(old)
        self.add(moved)

    def emitted(self, consumer: str) -> dict[Version, Sums]:
        """What ``consumer`` has published."""
        rows = self._emitted.select("WHERE consumer = ?", (consumer,))
        return {(model, version): self._unpacked(packed) for _, model, version, packed in rows}

    def mark(self, consumer: str, sums: Mapping[Version, Sums]) -> None:
        """Set what ``consumer`` has published."""
        for of, total in sums.items():
            self._emitted.put(consumer, *of, total.packed())

    def note(self, rows: Sequence[Noted], *, detect: bool) -> None:
        """Write labels into the journal; with ``detect`` they wait there for the drift detector."""
        folded = self._folded()
        # A number that was folded never comes again.
        first = max(self._last(), folded) + 1
        self._journal.add(
            (i, *row[:-1], _slices(row.slices), int(detect)) for i, row in enumerate(rows, start=first)
        )
        if first + len(rows) - 1 - folded > _FOLD_AT:
            self.fold()

    def _last(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0])

    def _folded(self) -> int:
        row = self._state.get(_FOLDED)
        return 0 if row is None else int(row[1])

    def unfolded(self) -> dict[str, dict[Place, Sums]]:
        """The sums of the labels in the journal that are in no sum yet, by writer."""
        rows = self._journal.select("WHERE id > ?", (self._folded(),))
        return journal_sums([self._noted(row) for row in rows], bins=self._bins)

    def fold(self) -> None:
        """Add the labels in the journal to the sums, and drop those that nobody waits for."""
        if (last := self._last()) > (folded := self._folded()):
            for writer, sums in self.unfolded().items():
                self.add(sums, writer=writer)
            self._state.put(_FOLDED, str(last).encode())
            self._journal.delete("WHERE id > ? AND NOT detect", (folded,))

    def waiting(self) -> dict[Version, int]:
        """How many labels of each version wait for the drift detector."""
        rows = self._db.execute(
            "SELECT model, version, count(*) FROM journal WHERE detect GROUP BY model, version"
        )
        return {(model, version): count for model, version, count in rows}

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels that were predicted before ``until``."""
        return [self._noted(row) for row in self._waiting(version, until, most)]

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take them out."""
        self.fold()
        rows = self._waiting(version, until, most)
        self._journal.delete_all(rows)
        return [self._noted(row) for row in rows]

    def _waiting(self, version: Version, until: float, most: int) -> list[Row]:
        # By nonce within a moment: in the order of arrival, wrong ones might come first.
        return self._journal.select(
            "WHERE (model, version) = (?, ?) AND time < ? AND detect ORDER BY time, nonce LIMIT ?",
            (*version, until, most),
        )

    def drop(self, version: Version) -> None:
        """Delete all rows of a version."""
        for rows in (self._journal, self._totals, self._spans, self._emitted):
            rows.delete("WHERE (model, version) = (?, ?)", version)

    def _noted(self, row: Sequence[Any]) -> Noted:
        return self._read(functools.partial(_noted, row[1:-1]))

    def _unpacked(self, packed: bytes) -> Sums:
        return self._read(lambda: Sums.unpacked(packed, bins=self._bins))

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (ValueError, TypeError, ShapeError) as error:
            raise self._damaged(error) from error


def _place(row: Sequence[Any]) -> Place:
    model, version, kind, start, width, name, _ = row
    return Place(Key(model, version, name, kind), start, width)


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

"""The journal and the sums of a SQLite ledger, as rows of its tables."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from calib_serve.errors import InputError, LedgerError, ShapeError
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Noted,
    Place,
    Shadowed,
    coarser,
    holding,
    journal_sums,
    label_sums,
)
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version, add_at
from calib_serve.watch.ledger.tables import Row, Tables

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
        self._merging: Version | None = None

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

    def totals(self, kind: Kind, *, own: bool, version: Version | None = None) -> dict[Key, Sums]:
        """The sums over all time, of all versions or one."""
        found: dict[Key, Sums] = {}
        for key, more in self.each_total(kind, own=own, version=version):
            add_at(found, key, more)
        return found

    def each_total(
        self, kind: Kind, *, own: bool, version: Version | None = None
    ) -> Iterator[tuple[Key, Sums]]:
        """The same one by one, as there may be more than memory should hold; keys may come again."""
        where, told = "WHERE kind = ?", [str(kind)]
        if own or version is not None:  # by the writers' names as well, with which the table's key begins
            writers = [self.writer] if own else self._writers()
            where, told = f"{where} AND writer IN ({', '.join('?' * len(writers))})", [*told, *writers]
        if version is not None:
            where, told = f"{where} AND model = ? AND version = ?", [*told, *version]
        for row in self._totals.each(where, told):
            yield Key(row[1], row[2], row[4], kind), self._unpacked(row[-1])
        for writer, sums in self.unfolded(version).items():
            for place, more in sums.items():
                if place.key.kind == kind and not place.width and (not own or writer == self.writer):
                    yield place.key, more

    def _writers(self) -> list[str]:
        """All that sums are kept of; found by the table's key, without reading the table."""
        found, last = [], self._db.execute("SELECT min(writer) FROM totals").fetchone()[0]
        while last is not None:
            found.append(last)
            last = self._db.execute("SELECT min(writer) FROM totals WHERE writer > ?", (last,)).fetchone()[0]
        return found

    def dated(self, since: float, until: float, version: Version | None, kind: Kind | None) -> list[Dated]:
        """The sums of the spans in [since, until)."""
        kinds = get_args(Kind) if kind is None else (kind,)
        where = f"WHERE start >= ? AND start + width <= ? AND kind IN ({', '.join('?' * len(kinds))})"
        told: tuple[str | float, ...] = (since, until, *kinds)
        if version is not None:  # with the kinds, in which the table's key goes on: no other row is read
            where, told = f"{where} AND model = ? AND version = ?", (*told, *version)
        found = {_place(row): self._unpacked(row[-1]) for row in self._spans.each(where, told)}
        for sums in self.unfolded(version).values():
            for place, more in sums.items():
                key, start, width = place
                inside = width and since <= start and start + width <= until
                if inside and version in (None, key.of) and kind in (None, key.kind):
                    add_at(found, place, more)
        return [Dated(*place, sums) for place, sums in sorted(found.items(), key=lambda one: one[0].start)]

    def merge_spans(self, now: float, *, at_most: int, seconds: float = math.inf) -> None:
        """Move what has grown old into wider spans, and drop what is older than any; from version to version.

        After so many ``seconds``, if they are given, the next such call goes on where this one ends.
        """
        self.fold()
        began = time.monotonic()
        if math.isinf(seconds):
            self._merging = None
        while (version := self._version_after(self._merging)) is not None:
            at_most -= self._merge_spans_of(version, now, at_most=at_most)
            if at_most <= 0:  # there may be more of this version
                break
            self._merging = version
            if time.monotonic() - began >= seconds:
                break
        else:
            self._merging = None

    def _version_after(self, version: Version | None) -> Version | None:
        """The next version that has spans, by the table's key."""
        where, told = ("", ()) if version is None else ("WHERE (model, version) > (?, ?)", version)
        found = self._db.execute(
            f"SELECT model, version FROM spans {where} ORDER BY model, version LIMIT 1",  # noqa: S608
            told,
        ).fetchone()
        return None if found is None else (found[0], found[1])

    def _merge_spans_of(self, version: Version, now: float, *, at_most: int) -> int:
        kinds = get_args(Kind)
        marks = ", ".join("?" * len(kinds))
        old = [
            row
            for width, most in SPANS
            for row in self._spans.select(
                f"WHERE model = ? AND version = ? AND kind IN ({marks}) AND start < ? AND width = ? LIMIT ?",
                (*version, *kinds, now - most - width, width, at_most),
            )
        ]
        moved: dict[Place, Sums] = {}
        for row in old:
            key, start, width = _place(row)
            if to := coarser(start, width, now=now):
                add_at(moved, Place(key, *to), self._unpacked(row[-1]))
        self._spans.delete_all(old)
        self.add(moved)
        return len(old)

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
            (
                i,
                *row[:-2],
                _slices(row.slices),
                int(detect),
                b"" if row.shadow is None else row.shadow.packed(),
            )
            for i, row in enumerate(rows, start=first)
        )
        if first + len(rows) - 1 - folded > _FOLD_AT:
            self.fold()

    def _last(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0])

    def _folded(self) -> int:
        row = self._state.get(_FOLDED)
        return 0 if row is None else int(row[1])

    def unfolded(self, version: Version | None = None) -> dict[str, dict[Place, Sums]]:
        """The sums of the labels in the journal that are in no sum yet, by writer; of all versions or one."""
        # The plus keeps SQLite from reading all that waits of a version: what is new is less.
        where, told = ("", ()) if version is None else ("AND +model = ? AND +version = ?", version)
        rows = self._journal.select(f"WHERE id > ? {where}", (self._folded(), *told))
        return journal_sums([self._noted(row) for row in rows], bins=self._bins)

    def fold(self) -> None:
        """Add the labels in the journal to the sums, and drop those that nobody waits for."""
        if (last := self._last()) > (folded := self._folded()):
            for writer, sums in self.unfolded().items():
                self.add(sums, writer=writer)
            self._state.put(_FOLDED, str(last).encode())
            self._journal.delete("WHERE id > ? AND NOT detect", (folded,))

    def waiting(self, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector, by version."""
        # All are counted, for which the index is enough, less those of the journal's end that do not wait.
        rows = self._db.execute(
            "SELECT model, version, count(*) FROM journal WHERE time < ? GROUP BY model, version", (until,)
        )
        found = {(model, version): count for model, version, count in rows}
        rows = self._db.execute(
            "SELECT model, version, count(*) FROM journal WHERE id > ? AND time < ? AND NOT detect"
            " GROUP BY model, version",
            (self._folded(), until),
        )
        for model, version, count in rows:
            found[model, version] -= count
        return {version: count for version, count in found.items() if count}

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
        return self._read(functools.partial(_noted, row[1:]))

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
    *values, slices, _, shadow = row
    values[7] = bool(values[7])
    beside = Shadowed.unpacked(shadow) if shadow else None
    noted = Noted._make([*values, _keys(values[1], values[2], slices), beside])
    if not (
        0 <= noted.confidence <= 1
        and 0 < noted.inclusion <= 1
        and noted.predicted >= 0
        and noted.group >= 0
        and noted.time + noted.arrived >= 0
    ):
        raise ValueError(f"a label of the journal reads {noted}")
    return noted

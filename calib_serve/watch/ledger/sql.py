"""The ledger in SQL: SQLite in a file for one host, PostgreSQL for many, through SQLAlchemy Core.

A label is one row of ``label``, inserted where its receipt is not there yet, committed before it is
acknowledged. Any process rolls rows up into ``tally``; a read is the tallies and the rows that are not in
them, of one snapshot. So nothing has to be marked, replayed or written twice.
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Connection,
    Table,
    and_,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from calib_serve.bins import bin_index
from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Entry,
    Fate,
    Noted,
    Once,
    Place,
    Shadowed,
    check_content,
    coarser,
    places,
    span_of,
)
from calib_serve.watch.ledger.sql_schema import (
    BATCH,
    COLUMNS,
    DELAY,
    LABEL,
    LEDGER,
    METADATA,
    SCHEMA,
    SETTING,
    TALLY,
    VERSION,
)
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version, merge_slices
from calib_serve.watch.series import DELAYS, SUMS

__all__ = ["SqlLedger"]

Floats = NDArray[np.float64]

_AT_ONCE = 20_000  # rows that are rolled up in one transaction
_CHUNK = 5_000  # rows that are deleted in one transaction, so that no label waits long
_AHEAD = DAY  # how far a sweep trusts the clock beyond the latest prediction whose label was counted
_AGAIN = ("40001", "40P01")  # serialization failure, deadlock: PostgreSQL asks to try again
_TRIES = 5
_OF_LABELS = [one for one in SUMS if one.of == "labels" and one.per != "delay"]
_NAMES = list(COLUMNS.values())


class _Row(NamedTuple):
    """A row of ``label`` as it is read."""

    day: int
    receipt: str
    noted: Noted
    tallied: bool


@dataclass(frozen=True)
class _Tally:
    """What the sums of a place go up by: (bins, columns), and labels by the step of their delay."""

    by_bin: Floats
    delays: Floats

    @classmethod
    def zeros(cls, bins: int) -> _Tally:
        return cls(np.zeros((bins, len(_NAMES))), np.zeros(len(DELAYS) + 1))

    @classmethod
    def of(cls, sums: Sums) -> _Tally:
        """Sums of predictions, which have nothing of a version's labels."""
        found = cls.zeros(sums.bins)
        for j, name in enumerate(COLUMNS):
            if len(sums[name]) == sums.bins:
                found.by_bin[:, j] = sums[name]
        return found

    def sums(self, bins: int) -> Sums:
        """As one vector, in the declared order."""
        parts = []
        for one in SUMS:
            if one.per == "delay":
                parts.append(self.delays)
            else:
                column = self.by_bin[:, _NAMES.index(COLUMNS[one.name])]
                parts.append(column if one.per == "bin" else column.sum(keepdims=True))
        return Sums(bins, np.concatenate(parts))


class SqlLedger:
    """A ledger at ``url``: a path of SQLite, ``sqlite:///...`` or ``postgresql://...``.

    ``retention``: seconds after its prediction for which a receipt is remembered; the longest that was ever
    given. Raises LedgerError where the database cannot be reached or refuses; nothing is then counted.
    """

    def __init__(
        self,
        url: str,
        *,
        bins: int = 15,
        retention: float = 30 * DAY,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.bins, self._clock, self._mine = bins, clock, threading.local()
        self._versions: dict[Version, int] = {}
        address = make_url(url if "://" in url else f"sqlite:///{url}")
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        self._lite = address.get_backend_name() == "sqlite"
        more: dict[str, Any] = (
            {"poolclass": NullPool, "connect_args": {"timeout": timeout}}
            if self._lite
            else {
                "pool_timeout": timeout,
                "pool_pre_ping": True,
                "connect_args": {"connect_timeout": math.ceil(timeout)},
            }
        )
        self._engine = create_engine(address, isolation_level="AUTOCOMMIT", **more)
        if self._lite:
            event.listen(self._engine, "connect", _durable)
        try:
            self._make(retention)
        except BaseException:
            self.close()
            raise

    # --- transactions ---

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is one transaction, seen by others when it ends and undone where it fails."""
        with self._writing():
            yield

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._begun("begin immediate" if self._lite else "begin") as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One snapshot."""
        with self._begun("begin" if self._lite else "begin isolation level repeatable read read only") as one:
            yield one

    @contextmanager
    def _begun(self, how: str) -> Iterator[Connection]:
        open_one: Connection | None = getattr(self._mine, "connection", None)
        if open_one is not None:  # within a transaction of this thread
            yield open_one
            return
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(how)
                self._mine.connection = connection
                try:
                    yield connection
                except BaseException:
                    self._versions.clear()  # some may be undone
                    connection.exec_driver_sql("rollback")
                    raise
                else:
                    connection.exec_driver_sql("commit")
                finally:
                    self._mine.connection = None
        except SQLAlchemyError as error:
            raise _told(error) from error

    def _again(self, work: Callable[[], Any]) -> Any:
        """Do it, and once more where another transaction came between."""
        for left in range(_TRIES - 1, -1, -1):
            try:
                return work()
            except LedgerError as error:
                code = getattr(getattr(error.__cause__, "orig", None), "sqlstate", "")
                if code not in _AGAIN or not left or getattr(self._mine, "connection", None):
                    raise
        raise AssertionError("the last try returns or raises")

    # --- what is counted ---

    def accept(self, entries: Sequence[Entry], *, detect: bool = True) -> list[Fate]:
        """Count each label whose receipt was not seen before; durable on return.

        With ``detect`` it also waits for the drift detector.
        """
        if not entries:
            return []
        fates: list[Fate] = self._again(lambda: self._accepted(entries, detect))
        return fates

    def _accepted(self, entries: Sequence[Entry], detect: bool) -> list[Fate]:
        with self._writing() as connection:
            # Locked, so that no receipt is forgotten between this look and the insert.
            asked = select(LEDGER.c.forgotten_until).with_for_update(read=True)
            forgotten = connection.execute(asked).scalar_one()
            rows: dict[tuple[int, str], dict[str, Any]] = {}
            for entry in entries:
                if entry.label.receipt.time > forgotten:
                    key = _key(entry)
                    rows.setdefault(key, self._row(connection, entry, key, detect))
            counted = self._inserted(connection, [rows[key] for key in sorted(rows)])
        fates: list[Fate] = []
        for entry in entries:
            if entry.label.receipt.time <= forgotten:
                fates.append("forgotten")
            elif (key := _key(entry)) in counted:
                counted.discard(key)
                fates.append("counted")
            else:
                fates.append("duplicate")
        return fates

    def _inserted(self, connection: Connection, rows: list[dict[str, Any]]) -> set[tuple[int, str]]:
        """The keys of those that were not there. Sorted rows: two batches never wait for each other."""
        if not rows:
            return set()
        names = [column.name for column in LABEL.columns]
        if self._lite:  # nobody else writes until this transaction ends
            seen = self._seen(connection, rows)
            fresh = [row for row in rows if (row["day"], row["receipt"]) not in seen]
            if fresh:
                into = f"insert into label ({', '.join(names)}) values ({', '.join('?' * len(names))})"  # noqa: S608
                connection.exec_driver_sql(into, [tuple(row[name] for name in names) for row in fresh])
            return {(row["day"], row["receipt"]) for row in fresh}
        source = f"select {', '.join(names)} from json_populate_recordset(null::label, cast(:rows as json))"  # noqa: S608
        asked = f"insert into label {source} on conflict do nothing returning day, receipt"
        return {
            (day, receipt) for day, receipt in connection.execute(text(asked), {"rows": json.dumps(rows)})
        }

    def _seen(self, connection: Connection, rows: list[dict[str, Any]]) -> set[tuple[int, str]]:
        """Which keys are there."""
        keys = json.dumps([[row["day"], row["receipt"]] for row in rows])
        asked = f"select day, receipt from label where {self._among}"  # noqa: S608 - our own names
        return {(day, receipt) for day, receipt in connection.execute(text(asked), {"keys": keys})}

    @property
    def _among(self) -> str:
        """That a row's key is among ``:keys``, in JSON."""
        if self._lite:
            return "(day, receipt) in (select value ->> 0, value ->> 1 from json_each(:keys))"
        among = "json_array_elements(cast(:keys as json)) as one"
        return f"(day, receipt) in (select (one ->> 0)::int, one ->> 1 from {among})"  # noqa: S608 - our own names

    def _row(
        self, connection: Connection, entry: Entry, key: tuple[int, str], detect: bool
    ) -> dict[str, Any]:
        one, beside = entry.label.receipt, entry.label.receipt.shadow
        segments = [each.name for each in entry.slices if each.kind == "segment"]
        return {
            "day": key[0],
            "receipt": key[1],
            "version_id": self._version(connection, (one.model, one.version)),
            "predicted_at": one.time,
            "arrived_at": entry.arrived,
            "confidence": one.confidence,
            "correct": bool(entry.label.correct),
            "predicted": one.predicted,
            "inclusion": one.inclusion,
            "segment": segments[0] if segments else "",
            "source": entry.source,
            "group_id": one.group,
            "slices": json.dumps([[each.kind, each.name] for each in entry.slices]),
            "shadow_confidence": beside.confidence if beside else None,
            "shadow_correct": beside.predicted == entry.label.label if beside else None,
            "shadow_same": beside.predicted == one.predicted if beside else None,
            "shadow_tag": beside.tag.hex() if beside else None,
            "tallied": False,
            "fed": not detect,
            "revoked": False,
        }

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: Once | None = None) -> bool:
        """Add sums of predictions made at ``time``; False for a batch that was counted, which adds nothing.

        ConflictError where another batch was counted under the name of ``once``.
        """
        fresh: bool = self._again(lambda: self._added(sums, time, once))
        return fresh

    def _added(self, sums: Mapping[Key, Sums], when: float, once: Once | None) -> bool:
        with self._writing() as connection:
            if once is not None and not self._named(connection, once):
                return False
            found: dict[Place, _Tally] = {}
            for key, more in sums.items():
                for place in places(key, time=when, now=when):
                    found[place] = _Tally.of(more)
            self._upsert(connection, found)
            return True

    def _named(self, connection: Connection, once: Once) -> bool:
        """Whether no batch of this name was counted."""
        row: dict[str, Any] = {"name": once.name.hex(), "content": once.content, "note": once.note}
        row |= {"sent_at": once.time, "expires_at": once.expires}
        fresh = self._insert(BATCH).values(row).on_conflict_do_nothing().returning(BATCH.c.name)
        if connection.execute(fresh).first():
            return True
        known = self.known(once)
        assert known is not None, "a name is taken by a batch"
        check_content(once, known)
        return False

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""
        with self._reading() as connection:
            row = connection.execute(select(BATCH).where(BATCH.c.name == once.name.hex())).first()
        return None if row is None else Once(once.name, row.content, row.sent_at, row.expires_at, row.note)

    # --- sums ---

    def sums(self) -> dict[Version, Sums]:
        """The sums over all time, by (model, version)."""
        return merge_slices(self.slices("segment"))

    def slices(self, kind: Kind = "segment", *, version: Version | None = None) -> dict[Key, Sums]:
        """The same, by slice of this kind; of all versions or one."""
        with self._reading() as connection:
            found = self._tallied(connection, kind, version, lambda c: [c.width == 0])
            rows = self._rows(connection, and_(~LABEL.c.tallied, *self._of(connection, version)))
        for place, more in self._increments(rows).items():
            if not place.width and place.key.kind == kind:
                _add(found, place, more)
        return {place.key: one.sums(self.bins) for place, one in found.items()}

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> Iterable[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""

        def inside(c: Any) -> list[Any]:
            return [c.width > 0, c.start >= _finite(since), c.start + c.width <= _finite(until)]

        with self._reading() as connection:
            found = self._tallied(connection, kind, version, inside)
            rows = self._rows(connection, and_(~LABEL.c.tallied, *self._of(connection, version)))
        for place, more in self._increments(rows).items():
            if (
                place.width
                and place.start >= since
                and place.start + place.width <= until
                and (kind is None or place.key.kind == kind)
            ):
                _add(found, place, more)
        return [Dated(*place, one.sums(self.bins)) for place, one in found.items()]

    def _tallied(
        self, connection: Connection, kind: Kind | None, version: Version | None, where: Any
    ) -> dict[Place, _Tally]:
        found: dict[Place, _Tally] = {}
        names = self._names(connection)
        for table in (TALLY, DELAY):
            asked = select(table).where(*where(table.c))
            asked = asked if kind is None else asked.where(table.c.kind == kind)
            if version is not None:
                asked = asked.where(table.c.version_id == self._known_version(connection, version))
            for row in connection.execute(asked):
                model, name = names[row.version_id]
                place = Place(Key(model, name, row.name, row.kind), row.start, row.width)
                at = found.setdefault(place, _Tally.zeros(self.bins))
                if table is DELAY:
                    at.delays[row.step] = row.labels
                else:
                    at.by_bin[row.bin] = [getattr(row, column) for column in _NAMES]
        return found

    def roll_up(self) -> int:
        """Add rows that are not in the tallies yet; how many. Any process may, at any time."""
        done = 0
        while some := self._again(self._rolled):
            done += some
            if some < _AT_ONCE:
                break
        return done

    def _rolled(self) -> int:
        with self._writing() as connection:
            rows = self._rows(connection, ~LABEL.c.tallied, most=_AT_ONCE, lock=True)
            self._upsert(connection, self._increments(rows))
            self._set(connection, rows, tallied=True)
            return len(rows)

    def _increments(self, rows: Sequence[_Row]) -> dict[Place, _Tally]:
        found: dict[Place, _Tally] = {}
        members: dict[tuple[tuple[Key, ...], tuple[float, float]], list[int]] = {}
        for i, row in enumerate(rows):
            one = row.noted
            members.setdefault((one.slices, span_of(one.time, one.arrived)), []).append(i)
        if not rows:
            return found
        columns = (
            (r.noted.confidence, r.noted.correct, 1 / r.noted.inclusion, r.noted.arrived - r.noted.time)
            for r in rows
        )
        c, y, w, late = np.array(list(columns), np.float64).T
        cell, step = bin_index(c, bins=self.bins), np.searchsorted(DELAYS, late)
        values = np.zeros((len(rows), len(_NAMES)))
        for declared in _OF_LABELS:
            values[:, _NAMES.index(COLUMNS[declared.name])] = declared.adds(c, y, w)
        for (keys, (start, width)), at in members.items():
            more = _Tally.zeros(self.bins)
            np.add.at(more.by_bin, cell[at], values[at])
            np.add.at(more.delays, step[at], 1.0)
            for key in keys:
                for place in (Place(key), Place(key, start, width))[: 2 if width else 1]:
                    _add(found, place, more)
        return found

    def _upsert(self, connection: Connection, found: Mapping[Place, _Tally]) -> None:
        """Add to the tallies, always in the order of their keys."""
        tallies, delays = [], []
        for place, more in found.items():
            at = {
                "version_id": self._version(connection, place.key.of), "kind": place.key.kind,
                "name": place.key.name, "start": place.start, "width": place.width,
            }  # fmt: skip
            for b in np.flatnonzero(more.by_bin.any(axis=1)).tolist():
                tallies.append({**at, "bin": b, **dict(zip(_NAMES, more.by_bin[b].tolist(), strict=True))})
            for step in np.flatnonzero(more.delays).tolist():
                delays.append({**at, "step": step, "labels": float(more.delays[step])})
        for table, rows in ((TALLY, tallies), (DELAY, delays)):
            if not rows:
                continue
            keys = [column.name for column in table.primary_key]
            rows.sort(key=lambda row: tuple(row[name] for name in keys))
            made = self._insert(table)
            raised = {name: table.c[name] + made.excluded[name] for name in rows[0] if name not in keys}
            connection.execute(made.on_conflict_do_update(index_elements=keys, set_=raised), rows)

    # --- the detector ---

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector."""
        due = (~LABEL.c.fed, LABEL.c.predicted_at < _finite(until))
        asked = select(LABEL.c.version_id, func.count()).where(*due).group_by(LABEL.c.version_id)
        with self._reading() as connection:
            names = self._names(connection)
            return {names[number]: labels for number, labels in connection.execute(asked)}

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels of predictions made before ``until``, oldest first, as they wait."""
        with self._reading() as connection:
            return [row.noted for row in self._waiting(connection, version, until, most)]

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take them out; within a transaction, in which the detector's state is stored as well."""
        with self._writing() as connection:
            rows = self._waiting(connection, version, until, most, lock=True)
            self._set(connection, rows, fed=True)
            return [row.noted for row in rows]

    def _waiting(
        self, connection: Connection, version: Version, until: float, most: int, *, lock: bool = False
    ) -> list[_Row]:
        where = and_(
            ~LABEL.c.fed,
            LABEL.c.predicted_at < _finite(until),
            *self._of(connection, version),
        )
        order = (LABEL.c.predicted_at, LABEL.c.day, LABEL.c.receipt)
        return self._rows(connection, where, most=most, lock=lock, order=order)

    # --- what is forgotten and taken out ---

    def sweep(self, now: float) -> int:
        """Roll up, merge old spans, forget receipts that have expired by ``now``; how many of these."""
        self.roll_up()
        with self._writing() as connection:
            trusted = self._trusted(connection, now)
            connection.execute(delete(BATCH).where(BATCH.c.expires_at <= now))
            self._merge_spans(connection, now)
        return self.forget(trusted - self.retention, drop=True)

    def _trusted(self, connection: Connection, now: float) -> float:
        """What the clock says, but not far beyond the latest prediction whose label was counted."""
        latest = connection.execute(select(func.max(LABEL.c.predicted_at))).scalar()
        return now if latest is None else min(now, latest + _AHEAD)

    def _merge_spans(self, connection: Connection, now: float) -> None:
        _, most = SPANS[0]
        moved: dict[Place, _Tally] = {}
        old = self._tallied(connection, None, None, lambda c: [c.width > 0, c.start + c.width < now - most])
        for place, more in old.items():
            wider = coarser(place.start, place.width, now=now)
            if wider == (place.start, place.width):
                continue
            self._erase(connection, place)
            if wider is not None:
                _add(moved, Place(place.key, *wider), more)
        self._upsert(connection, moved)

    def forget(self, until: float, *, drop: bool = False) -> int:
        """Refuse labels of predictions made until then; with ``drop``, how many receipts went."""
        with self._writing() as connection:
            connection.execute(
                update(LEDGER).where(LEDGER.c.forgotten_until < until).values(forgotten_until=until)
            )
        gone = 0
        while drop:
            with self._writing() as connection:
                old = and_(LABEL.c.predicted_at <= until, LABEL.c.tallied, LABEL.c.fed)
                key = (LABEL.c.day, LABEL.c.receipt)
                some = select(*key).where(old).limit(_CHUNK)
                went = connection.execute(delete(LABEL).where(tuple_(*key).in_(some))).rowcount
            gone += went
            drop = went == _CHUNK
        return gone

    def revoke(self, source: str, *, since: float = -math.inf, until: float = math.inf) -> int:
        """Take out the labels of a source that arrived in [since, until); how many. Receipts stay seen."""
        self.roll_up()
        with self._writing() as connection:
            where = and_(
                LABEL.c.source == source, ~LABEL.c.revoked, LABEL.c.arrived_at >= _finite(since),
                LABEL.c.arrived_at < _finite(until),
            )  # fmt: skip
            rows = self._rows(connection, where, lock=True)
            tallied = [row for row in rows if row.tallied]
            taken = self._increments(tallied)
            self._upsert(
                connection, {place: _Tally(-more.by_bin, -more.delays) for place, more in taken.items()}
            )
            empty = {name: 0.0 for name in _NAMES if name.startswith("feedback")}
            connection.execute(update(TALLY).where(TALLY.c.feedback <= 0).values(empty))
            self._set(connection, rows, revoked=True, tallied=True, fed=True)
            self._next_edition(connection)
        return len(rows)

    def restored(self) -> None:
        """Say that this is an older state of the ledger: what may have been counted since is refused."""
        self.forget(self._clock())
        with self._writing() as connection:
            self._next_edition(connection)

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""
        with self._writing() as connection:
            number = self._known_version(connection, version)
            for table in (TALLY, DELAY):
                connection.execute(delete(table).where(table.c.version_id == number))
            connection.execute(
                update(LABEL).where(LABEL.c.version_id == number).values(tallied=True, fed=True, revoked=True)
            )
            self._next_edition(connection)

    # --- what else is kept ---

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        with self._reading() as connection:
            return connection.execute(select(SETTING.c.value).where(SETTING.c.key == key)).scalar()

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""
        with self._writing() as connection:
            kept = self._insert(SETTING).values(key=key, value=value)
            connection.execute(kept.on_conflict_do_update(index_elements=["key"], set_={"value": value}))

    def identity(self) -> str:
        """Of this ledger, wherever a copy of it runs."""
        with self._reading() as connection:
            return str(connection.execute(select(LEDGER.c.uuid)).scalar_one())

    def edition(self) -> int:
        """1, then greater whenever sums went down: what is published of them is then another series."""
        with self._reading() as connection:
            return int(connection.execute(select(LEDGER.c.edition)).scalar_one())

    def verify(self) -> list[str]:
        """What of it is wrong; empty if nothing is. Changes nothing."""
        with self._reading() as connection:
            if self._lite:
                found = [row[0] for row in connection.exec_driver_sql("pragma integrity_check")]
                return [] if found == ["ok"] else found
        return []

    def close(self) -> None:
        """Close files and connections."""
        self._engine.dispose()

    # --- below ---

    def _make(self, retention: float) -> None:
        """The tables, where there are none, and the longest retention that was ever asked for."""
        with self._writing() as connection:
            if not self._lite:  # two processes that begin at once
                connection.execute(text("select pg_advisory_xact_lock(hashtext('calib-serve'))"))
            METADATA.create_all(connection)
            known = connection.execute(select(LEDGER)).first()
            if known is None:
                row = {"id": 1, "uuid": str(uuid.uuid4()), "schema": SCHEMA, "bins": self.bins}
                row |= {"retention": retention, "edition": 1, "forgotten_until": -_FAR}
                connection.execute(insert(LEDGER).values(row))
                self.retention = retention
                return
            if known.schema != SCHEMA or known.bins != self.bins:
                raise LedgerError(
                    f"this ledger is of schema {known.schema} and {known.bins} bins, "
                    f"not of {SCHEMA} and {self.bins}"
                )
            self.retention = max(retention, known.retention)
            if retention > known.retention:  # what the shorter one may have forgotten is refused
                trusted = self._trusted(connection, self._clock())
                until = max(known.forgotten_until, trusted - known.retention)
                connection.execute(update(LEDGER).values(retention=retention, forgotten_until=until))

    def _insert(self, table: Table) -> Any:
        return (sqlite if self._lite else postgresql).insert(table)

    def _version(self, connection: Connection, version: Version) -> int:
        """Its number, a new one where it has none."""
        if version not in self._versions:
            if (known := self._known_version(connection, version)) < 0:
                model, name = version
                made = self._insert(VERSION).values(model=model, version=name).on_conflict_do_nothing()
                connection.execute(made)
                return self._known_version(connection, version)
            self._versions[version] = known  # another transaction's, so that no rollback takes it away
        return self._versions[version]

    def _known_version(self, connection: Connection, version: Version) -> int:
        """Its number; -1 where it has none."""
        model, name = version
        asked = select(VERSION.c.id).where(VERSION.c.model == model, VERSION.c.version == name)
        return int(connection.execute(asked).scalar() or -1)

    def _names(self, connection: Connection) -> dict[int, Version]:
        return {row.id: (row.model, row.version) for row in connection.execute(select(VERSION))}

    def _of(self, connection: Connection, version: Version | None) -> list[Any]:
        return [] if version is None else [LABEL.c.version_id == self._known_version(connection, version)]

    def _rows(
        self,
        connection: Connection,
        where: Any,
        *,
        most: int | None = None,
        lock: bool = False,
        order: Any = None,
    ) -> list[_Row]:
        """Rows of ``label`` in the order of their keys; ``lock``: those that nobody else is at work on."""
        names = self._names(connection)
        asked = select(LABEL).where(where).order_by(*(order or (LABEL.c.day, LABEL.c.receipt)))
        asked = asked if most is None else asked.limit(most)
        if lock and not self._lite:
            asked = asked.with_for_update(skip_locked=True)
        return [_read(row, names[row.version_id]) for row in connection.execute(asked)]

    def _set(self, connection: Connection, rows: Sequence[_Row], **values: bool) -> None:
        if not rows:
            return
        keys = json.dumps([[row.day, row.receipt] for row in rows])
        told = ", ".join(f"{name} = {str(value).lower()}" for name, value in values.items())
        asked = f"update label set {told} where {self._among}"  # noqa: S608 - our own names
        connection.execute(text(asked), {"keys": keys})

    def _erase(self, connection: Connection, place: Place) -> None:
        number = self._known_version(connection, place.key.of)
        for table in (TALLY, DELAY):
            connection.execute(
                delete(table).where(
                    table.c.version_id == number,
                    table.c.kind == place.key.kind,
                    table.c.name == place.key.name,
                    table.c.start == place.start,
                    table.c.width == place.width,
                )
            )

    def _next_edition(self, connection: Connection) -> None:
        connection.execute(update(LEDGER).values(edition=LEDGER.c.edition + 1))


def _add(found: dict[Place, _Tally], place: Place, more: _Tally) -> None:
    before = found.get(place)
    found[place] = (
        more if before is None else _Tally(before.by_bin + more.by_bin, before.delays + more.delays)
    )


def _durable(connection: Any, _record: object) -> None:
    """What is committed to a file outlives the host's power."""
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")


_FAR = 1e15  # seconds: no prediction is that far from 1970


def _finite(seconds: float) -> float:
    return min(max(seconds, -_FAR), _FAR)


def _key(entry: Entry) -> tuple[int, str]:
    """What tells a receipt from others: the day of its prediction, and its nonce."""
    one = entry.label.receipt
    return math.floor(one.time / DAY), one.nonce.hex()


def _read(row: Any, version: Version) -> _Row:
    shadow = None
    if row.shadow_tag is not None:
        shadow = Shadowed(row.shadow_confidence, row.shadow_correct, row.shadow_same, row.shadow_tag)
    noted = Noted(
        "",
        *version,
        row.predicted_at,
        bytes.fromhex(row.receipt),
        row.arrived_at,
        row.confidence,
        row.correct,
        row.predicted,
        row.inclusion,
        row.group_id,
        tuple(Key(*version, name, kind) for kind, name in json.loads(row.slices)),
        shadow,
    )
    return _Row(row.day, row.receipt, noted, row.tallied)


def _told(error: SQLAlchemyError) -> LedgerError:
    """Our error for one of the database's."""
    why = str(getattr(error, "orig", None) or error).strip().splitlines()
    what = "cannot be used" if isinstance(error, OperationalError) else "refused"
    known = isinstance(error, DBAPIError) and not error.connection_invalidated
    again = "" if known else "; whether this was counted is not known: send it again, each label counts once"
    return LedgerError(f"the ledger's database {what}: {why[0] if why else error}{again}")

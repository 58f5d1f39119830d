"""The ledger: each label is counted once, whoever sends it, however often, from any host.

A label is one row of ``label``, inserted where its receipt is not there yet, committed before it is
acknowledged. Any process rolls rows up into ``tally``; a read is the tallies and the rows that are not in
them, of one moment. So nothing has to be marked, replayed or written twice.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from sqlalchemy import (
    ColumnClause,
    Connection,
    Dialect,
    and_,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    literal_column,
    select,
    text,
    tuple_,
    update,
)

from calib_serve.core.arrays import Floats, finite
from calib_serve.core.errors import ConflictError, InputError, LedgerError
from calib_serve.ledger.clock import LedgerClock, steady_seconds
from calib_serve.ledger.database import Database
from calib_serve.ledger.entries import (
    SPANS,
    Bucket,
    Entry,
    Fate,
    Held,
    LabelRecord,
    Progress,
    Published,
    Shadowed,
    State,
    WindowSums,
    buckets,
    coarser,
    span_of,
    with_number,
)
from calib_serve.ledger.failover import accept_timeline
from calib_serve.ledger.schema import (
    BATCH,
    COLUMNS,
    DELAY,
    EDITION,
    HELD,
    INCIDENT,
    LABEL,
    LEDGER,
    METADATA,
    OF_A_SOURCE,
    PREDICTION_ID,
    PROGRAM,
    SCHEMA,
    SENDER,
    SPAN,
    STATE,
    TALLY,
    VERSION,
)
from calib_serve.ledger.spans import FAR, KeptSpans, Moment, next_mark, note_changes
from calib_serve.ledger.upgrade import check_format
from calib_serve.ledger.views import create_views
from calib_serve.receipts import (
    BATCH_LIFE,
    DAY,
    SUMS,
    BatchKey,
    Key,
    Kind,
    Sums,
    Version,
    add_at,
    changes,
    merge_slices,
)

P = ParamSpec("P")
T = TypeVar("T")

_RETENTION = 30 * DAY  # of a new ledger
_AT_ONCE = 20_000  # rows that are rolled up or taken out at once
_CHUNK = 5_000  # rows that are deleted in one transaction, so that no label waits long
_CONFLICT = (
    "this Idempotency-Key was used for another batch; nothing of this one was counted: send it under a key "
    "of its own"
)
_NAMES = list(COLUMNS.values())
_KEY, _COLUMNS = tuple(LABEL.primary_key), LABEL.columns.keys()
_EMPTY = {COLUMNS[one.name]: 0.0 for one in SUMS if one.of == "labels" and one.name in COLUMNS}


_RowKey = tuple[float, bytes]  # when a prediction was made, and its receipt's nonce


class _Row(NamedTuple):
    """A row of ``label`` as it is read."""

    record: LabelRecord
    source: str
    tallied: bool
    fed: bool
    revoked: bool
    label: int
    history: str

    @property
    def key(self) -> _RowKey:
        """Its primary key."""
        return self.record.time, self.record.nonce


@dataclass(frozen=True)
class Revoked:
    """Revoked labels.

    Args:
        nonces: Nonces of their receipts, by version.
    """

    nonces: Mapping[Version, Sequence[bytes]]

    @property
    def labels(self) -> dict[Version, int]:
        """The number of revoked labels, by version."""
        return {version: len(of) for version, of in self.nonces.items()}


def _retried(method: Callable[Concatenate[Ledger, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """Wrap a method that writes: run it again where another came between, and note a failure."""

    @functools.wraps(method)
    def tried(ledger: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return ledger.database.again(lambda: method(ledger, *args, **kwargs))
        except LedgerError as error:
            ledger.refused = time.monotonic(), str(error)
            raise

    return tried


class Ledger:
    """A ledger; safe to use from threads, and by any number of processes.

    Methods raise LedgerError where the database cannot be reached or refuses, and nothing was counted;
    UnknownFate where that is not known. ``refused``: when either happened last to what is written, by
    ``time.monotonic``, and why.

    Args:
        where: A file of SQLite, for one host, or ``postgresql://...``, for many.
        bins: Number of bins of confidence, of equal width.
        retention: Seconds after its prediction for which a receipt is remembered; the longest that was ever
            given counts. None: as the ledger has it, and 30 days where it is made.
        timeout: Seconds to wait for the database, or for a lock; work that nobody waits for may take longer.
        must_exist: Whether it is an error if there is no ledger; else it is made.
        clock: This host's seconds since 1970; ``time`` is what the ledger goes by.
        steady: Seconds that never go back.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        bins: int = 15,
        retention: float | None = None,
        timeout: float = 4.0,
        must_exist: bool = False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        self.bins, self._versions = bins, dict[Version, int]()
        self.refused = (-math.inf, "")
        self.database = Database(str(where), timeout=timeout, must_exist=must_exist)
        self.time = LedgerClock(self.database, clock, steady)
        self._kept = KeptSpans(self.database, bins, self._fresh)
        try:
            self._make(retention, must_exist)
        except BaseException:
            self.close()
            raise

    def _make(self, retention: float | None, must_exist: bool) -> None:
        """Make the tables, where there are none, and keep the longest retention ever asked for."""
        with self.database.writing() as connection:
            if not self.database.lite:  # two processes that begin at once
                connection.execute(text("select pg_advisory_xact_lock(hashtext('calib-serve'))"))
            if not inspect(connection).has_table("ledger"):
                if must_exist:
                    raise LedgerError(f"there is no ledger in {self.database.name}")
                METADATA.create_all(connection)
                for view in create_views(lite=self.database.lite):
                    connection.exec_driver_sql(view)
                retention = _RETENTION if retention is None else retention
                row = {"id": 1, "uuid": str(uuid.uuid4()), "schema": SCHEMA, "bins": self.bins}
                row |= {"retention": retention, "forgotten_until": -FAR, "time": self.time.now()}
                connection.execute(insert(LEDGER).values(row))
                self.retention, self.uuid = retention, str(row["uuid"])
                self._next_edition(connection, "it began")
                return
            check_format(connection, self.database.name)
            known = connection.execute(select(LEDGER)).one()
            if known.bins != self.bins:
                raise LedgerError(
                    f"the ledger {self.database.name} is of {known.bins} bins, not of {self.bins}"
                )
            now = self.time.advance(connection)
            self.retention, self.uuid = max(retention or 0.0, known.retention), known.uuid
            if self.retention > known.retention:  # what the shorter one may have forgotten is refused
                until = max(known.forgotten_until, now - known.retention)
                connection.execute(update(LEDGER).values(retention=self.retention, forgotten_until=until))

    @contextmanager
    def transaction(self, *, patient: bool = False) -> Iterator[Connection]:
        """Do everything inside in one transaction, seen by others when it ends and undone where it fails.

        ``patient``: a statement may take long, as nobody waits for what is done.
        """
        try:
            begins = not self.database.within
            with self.database.writing(patient=patient) as connection:
                if begins:  # it may have been upgraded since it was opened
                    check_format(connection, self.database.name)
                yield connection
        except BaseException:
            self._versions.clear()  # some may be undone
            raise

    # --- what is counted ---

    @_retried
    def accept(self, entries: Sequence[Entry], *, detect: bool = True) -> list[Fate]:
        """Count each label whose receipt was not seen before, or that replaces another; durable on return.

        Args:
            entries: Verified labels with their slices.
            detect: Whether they also wait for the drift detector.
        """
        if not entries:
            return []
        keys = [(receipt.time, receipt.nonce) for (receipt, _), *_ in entries]
        with self.transaction() as connection:
            forgotten = self.hold_forgetting(connection)
            chosen: dict[_RowKey, Entry] = {}
            for key, entry in zip(keys, entries, strict=True):
                # Of one receipt the first of a batch, or the last that replaces another.
                if key[0] > forgotten and (entry.replaces or key not in chosen):
                    chosen[key] = entry
            # Sorted: two batches never wait for each other.
            rows = {key: self._row(connection, chosen[key], detect=detect) for key in sorted(chosen)}
            counted = self._inserted(connection, rows)
            found: dict[_RowKey, Fate] = dict.fromkeys(counted, "counted")
            again = [key for key, one in chosen.items() if one.replaces and key not in counted]
            if named := {key: dict(zip(_COLUMNS, rows[key], strict=True)) for key in again}:
                found |= self._corrected(connection, named)
        fates: list[Fate] = []
        for key, entry in zip(keys, entries, strict=True):
            if key[0] <= forgotten:
                fates.append("forgotten")
            else:
                fates.append(found.pop(key, "duplicate") if chosen[key] is entry else "duplicate")
        return fates

    def _corrected(
        self, connection: Connection, fresh: Mapping[_RowKey, dict[str, Any]]
    ) -> dict[_RowKey, Fate]:
        """Put labels in the place of other ones, which are taken out of every sum."""
        # Before rows are locked, in the order of revoke.
        self._merge_spans(connection, self.time.advance(connection))
        fates: dict[_RowKey, Fate] = {}
        gone: list[_Row] = []
        made: list[dict[str, Any]] = []
        for old in self._locked(connection, fresh):
            key, same = old.key, old.label == fresh[old.key]["label"]
            fates[key] = "revoked" if old.revoked else "duplicate" if same else "corrected"
            if fates[key] == "corrected":
                gone.append(old)
                # What was fed stays: no detector sees one prediction twice.
                before = {"label": old.label, "source": old.source, "arrived_at": old.record.arrived}
                history = json.dumps([*json.loads(old.history or "[]"), before])
                made.append({**fresh[key], "fed": old.fed, "history": history})
        if gone:
            self._take_out(connection, gone)
            own = (LABEL.c.predicted_at == bindparam("of_time"), LABEL.c.receipt == bindparam("of_receipt"))
            keyed = [row | {"of_time": row["predicted_at"], "of_receipt": row["receipt"]} for row in made]
            connection.execute(update(LABEL).where(*own), keyed)
            for version, of in sorted(_by_version(gone).items()):
                self._next_edition(connection, "labels were corrected", version, labels=len(of))
        return fates

    def _locked(self, connection: Connection, keys: Iterable[_RowKey]) -> Iterator[_Row]:
        """Rows of ``label`` by their keys, locked until the transaction ends."""
        of = sorted(keys)
        for at in range(0, len(of), _CHUNK):
            yield from self._rows(connection, tuple_(*_KEY).in_(of[at : at + _CHUNK]), lock="all")

    def hold_forgetting(self, connection: Connection) -> float:
        """Lock the time until which labels are refused, and return it: nothing is forgotten meanwhile.

        It also has the commit wait for a synchronous standby where nothing is added: what an earlier
        transaction added, and nobody acknowledged, may be missing there.
        """
        asked = select(LEDGER.c.forgotten_until).with_for_update(read=True)
        return float(connection.execute(asked).scalar_one())

    def _inserted(self, connection: Connection, rows: Mapping[_RowKey, tuple[object, ...]]) -> set[_RowKey]:
        """Insert rows of ``label``, by their keys; return the keys of the new ones."""
        if not rows:
            return set()
        into = _into_label(connection.dialect)
        if not self.database.lite:
            made = connection.exec_driver_sql(into, _lists(rows.values()))
            return {(time, receipt) for time, receipt in made}
        keys, seen = list(rows), set[_RowKey]()
        for at in range(0, len(keys), _CHUNK):  # SQLite takes 32,766 values at once
            some = keys[at : at + _CHUNK]
            one = f"with one (time, nonce) as (values {', '.join(['(?, ?)'] * len(some))})"
            asked = "select time, nonce from one join label on predicted_at = time and receipt = nonce"
            found = connection.exec_driver_sql(f"{one} {asked}", tuple(itertools.chain.from_iterable(some)))
            seen.update((time, receipt) for time, receipt in found)
        # Nobody else writes until this transaction ends.
        if fresh := [row for key, row in rows.items() if key not in seen]:
            connection.exec_driver_sql(into, fresh)
        return rows.keys() - seen

    def _row(self, connection: Connection, entry: Entry, *, detect: bool) -> tuple[object, ...]:
        """A row of ``label``, its columns in their order."""
        (one, label), arrived, slices, source, _ = entry
        segment, listed = _listed(slices)
        shadow: tuple[object, ...] = (None,) * 4
        if one.shadow is not None:
            predicted, confidence, tag = one.shadow
            shadow = confidence, predicted == label, predicted == one.predicted, tag.hex()
        return (
            one.time, one.nonce, self.version_id(connection, (one.model, one.version)), arrived,
            one.confidence, one.predicted, label, one.inclusion, one.group, False, not detect, False, source,
            segment, listed, "", *shadow,
        )  # fmt: skip

    @_retried
    def add(self, sums: Mapping[Key, Sums], *, time: float, once: BatchKey | None = None) -> bool:
        """Add sums of predictions; False for a batch that was counted, which adds nothing.

        Args:
            sums: Sums by slice.
            time: When the predictions were made, in seconds since 1970.
            once: Name of the batch, under which it counts once; None: it has none.

        Raises:
            ConflictError: Where another batch was counted under this name.
        """
        with self.transaction() as connection:
            if once is not None and not self._named(connection, once):
                return False
            self.add_dated([(sums, time)])
            return True

    def add_dated(self, several: Iterable[tuple[Mapping[Key, Sums], float]]) -> None:
        """Add sums of predictions, with the time at which each were made, in seconds since 1970."""
        found: dict[Bucket, Sums] = {}
        for sums, made in several:
            span = span_of(made, made)
            for key, more in sums.items():
                for at in buckets(key, *span):
                    add_at(found, at, more)
        with self.transaction() as connection:
            self._upsert(connection, found)

    def _named(self, connection: Connection, once: BatchKey) -> bool:
        """Note the batch's name; False where a batch of this name and content was counted."""
        if once.sender:
            return self._numbered(connection, once)
        row: dict[str, Any] = {"name": once.name.hex(), "content": once.content, "note": once.note}
        row |= {"sent_at": once.time, "expires_at": once.expires}
        fresh = self.database.insert(BATCH).values(row).on_conflict_do_nothing().returning(BATCH.c.name)
        if connection.execute(fresh).first():
            return True
        self.hold_forgetting(connection)
        known = self.known(once)
        assert known is not None, "a name is taken by a batch"
        if known.content != once.content:
            raise ConflictError(_CONFLICT)
        return False

    def _numbered(self, connection: Connection, once: BatchKey) -> bool:
        """Note the batch's number beside its sender's others; False where that was counted."""
        row = {"name": once.sender.hex(), "counted": "", "latest": 0, "content": b"", "sent_at": once.time}
        connection.execute(self.database.insert(SENDER).values(row).on_conflict_do_nothing())
        mine = SENDER.c.name == row["name"]
        known = connection.execute(select(SENDER).where(mine).with_for_update()).one()
        if (counted := with_number(known.counted, once.number)) is None:
            if known.latest == once.number and known.content != once.content:
                raise ConflictError(_CONFLICT)
            return False
        more = {"counted": counted, "latest": once.number, "content": once.content, "sent_at": once.time}
        connection.execute(update(SENDER).where(mine).values(more))
        return True

    def known(self, once: BatchKey) -> BatchKey | None:
        """The batch that was counted under this name, if any."""
        with self.database.reading() as connection:
            row = connection.execute(select(BATCH).where(BATCH.c.name == once.name.hex())).first()
        if row is None:
            return None
        return BatchKey(once.name, row.content, row.sent_at, row.expires_at, row.note)

    # --- versions, and what waits until they are known ---

    def versions(self) -> dict[Version, str]:
        """The facts of versions that were registered while programs ran."""
        with self.database.reading() as connection:
            rows = connection.execute(select(VERSION).where(VERSION.c.facts.is_not(None)))
            return {(row.model, row.version): row.facts for row in rows}

    def register_version(self, version: Version, facts: str) -> None:
        """Register the facts of a version, for all programs on this ledger.

        Args:
            version: Model and version.
            facts: The facts, in JSON.
        """
        with self.transaction() as connection:
            number = self.version_id(connection, version)
            connection.execute(update(VERSION).where(VERSION.c.id == number).values(facts=facts))

    def hold(self, rows: Sequence[Held]) -> None:
        """Store predictions and labels until their version is known, each once."""
        if not rows:
            return
        with self.transaction() as connection:
            made = self.database.insert(HELD).on_conflict_do_nothing()
            told = [{**row._asdict(), "model": row.version[0], "version": row.version[1]} for row in rows]
            connection.execute(made, sorted(told, key=lambda row: (row["kind"], row["name"])))
            self.hold_forgetting(connection)

    def held(self) -> dict[Version, int]:
        """The number of predictions and labels that wait for each version."""
        asked = select(HELD.c.model, HELD.c.version, func.count()).group_by(HELD.c.model, HELD.c.version)
        with self.database.reading() as connection:
            return {(model, version): n for model, version, n in connection.execute(asked)}

    def take_held(self, version: Version, *, most: int) -> list[Held]:
        """Take waiting predictions and labels out, oldest first, in the transaction that counts them.

        Args:
            version: Model and version.
            most: Number of rows, at most.
        """
        return self._taken(and_(HELD.c.model == version[0], HELD.c.version == version[1]), most)

    @_retried
    def drop_held(self) -> list[Held]:
        """Take out predictions and labels that still wait for their version after a day."""
        with self.transaction() as connection:
            return self._taken(HELD.c.came_at < self.time.advance(connection) - DAY)

    def _taken(self, where: Any, most: int | None = None) -> list[Held]:
        """Take out rows of ``held`` but those that another process is taking, oldest first."""
        row: ColumnClause[int] = literal_column("rowid" if self.database.lite else "ctid")
        order = (HELD.c.came_at, HELD.c.kind.desc(), HELD.c.name)  # predictions before their labels
        free = select(row).select_from(HELD).where(where).order_by(*order).limit(most)
        taken = delete(HELD).where(row.in_(free.with_for_update(skip_locked=True))).returning(HELD)
        with self.transaction() as connection:
            rows = [_held(one) for one in connection.execute(taken)]
        return sorted(rows, key=lambda one: (one.came_at, one.kind == "label", one.name))

    # --- sums ---

    def sums(self) -> dict[Version, Sums]:
        """The sums over all time, by (model, version)."""
        return merge_slices(self.slices("segment"))

    def slices(self, kind: Kind | None = "segment", *, version: Version | None = None) -> dict[Key, Sums]:
        """The sums over all time by slice.

        Args:
            kind: Kind of the slices; None: every kind.
            version: Model and version; None: all.
        """
        with self.moment(keep=False) as moment:  # what counts does not wait for what looks
            of = moment.numbers if version is None else [version]
            return {key: sums for one in of for key, sums in moment.spans(one).all_time(kind).items()}

    def moment(self, *, keep: bool = True) -> AbstractContextManager[Moment]:
        """Read sums of one moment, of which what did not change since the last look is kept.

        ``keep``: use what is kept, and wait for who reads it; never in a transaction.
        """
        return self._kept.moment(keep=keep)

    def published(self) -> Published:
        """The sums that the ledger publishes, of one moment."""
        with self.moment(), self.database.reading() as connection:
            # In one transaction: sums of the next edition under this name would look like counters that jump.
            asked = select(EDITION.c.version_id, func.max(EDITION.c.number)).group_by(EDITION.c.version_id)
            numbers = dict(map(tuple, connection.execute(asked)))
            names: dict[int, Version] = self._names(connection) if len(numbers) > 1 else {}
            segments = self.slices("segment")
            timeline = self.database.timeline(connection)
        timeline = f".{timeline}" if timeline else ""
        whole = numbers.pop(None)
        editions: dict[Version | None, str] = {None: f"{whole}{timeline}"}
        editions |= {names[id_]: f"{max(last, whole)}{timeline}" for id_, last in numbers.items()}
        last = f"{max(whole, *numbers.values())}{timeline}" if numbers else editions[None]
        return Published(self.uuid[:8], last, editions, segments)

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> Iterable[WindowSums]:
        """Sums of predictions made in [since, until), by slice and span that lies whole inside.

        Args:
            since: Seconds since 1970.
            until: Seconds since 1970.
            version: Model and version; None: all.
            kind: Kind of the slices; None: every kind.
        """
        with self.moment() as moment:
            of = moment.numbers if version is None else [version]
            found = [moment.spans(one, since, kind) for one in of]
        return [one for spans in found for one in spans.dated(since, until, kind)]

    def _fresh(self, connection: Connection) -> dict[Bucket, Sums]:
        """The sums of labels that are in no tally yet."""
        return self._increments(self._rows(connection, ~LABEL.c.tallied))

    def _put(self, found: dict[Bucket, Floats], place: Bucket, row: Any) -> None:
        """Add a row of ``tally`` or ``delay`` to the vector of a place."""
        if place not in found:
            found[place] = np.array(Sums.zeros(self.bins).vector)
        by_bin, delays = _columns(found[place], self.bins)
        if hasattr(row, "step"):
            delays[row.step] += row.labels
        else:
            by_bin[row.bin] += [getattr(row, column) for column in _NAMES]

    def roll_up(self) -> int:
        """Add new rows to the tallies; return their number. Any process may, at any time."""
        done = 0
        while some := self._rolled():
            done += some
            if some < _AT_ONCE:
                break
        return done

    @_retried
    def _rolled(self) -> int:
        with self.database.reading() as connection:  # looking takes no lock
            if connection.execute(select(LABEL.c.fed).where(~LABEL.c.tallied).limit(1)).first() is None:
                return 0
        with self.transaction(patient=True) as connection:
            rows = self._rows(connection, ~LABEL.c.tallied, most=_AT_ONCE, lock="free ones")
            self._upsert(connection, self._increments(rows))
            self._set(connection, rows, tallied=True)
            return len(rows)

    def _increments(self, rows: Sequence[_Row]) -> dict[Bucket, Sums]:
        """Sum labels by the slices and spans that they count in."""
        found: dict[Bucket, Sums] = {}
        members: dict[tuple[tuple[Key, ...], tuple[float, float]], list[int]] = {}
        for i, row in enumerate(rows):
            one = row.record
            members.setdefault((one.slices, span_of(one.time, one.arrived)), []).append(i)
        if not rows:
            return found
        columns = (
            (r.record.confidence, r.record.correct, 1 / r.record.inclusion, r.record.arrived - r.record.time)
            for r in rows
        )
        try:
            where, values = changes("labels", *np.array(list(columns), np.float64).T, bins=self.bins)
        except InputError as error:
            raise LedgerError(f"a label in {self.database.name} is damaged: {error}") from error
        for (keys, span), at in members.items():
            more = Sums.at(where[at], values[at], bins=self.bins)
            for key in keys:
                for place in buckets(key, *span):
                    add_at(found, place, more)
        return found

    def _upsert(self, connection: Connection, found: Mapping[Bucket, Sums]) -> None:
        """Add sums to the tallies, in the order of their keys: no two transactions wait for each other."""
        tallies, delays = [], []
        for place, more in found.items():
            at = {
                "version_id": self.version_id(connection, place.key.of), "kind": place.key.kind,
                "name": place.key.name, "start": place.start, "width": place.width,
            }  # fmt: skip
            by_bin, by_step = _columns(more.vector, self.bins)
            for b in np.flatnonzero(by_bin.any(axis=1)).tolist():
                tallies.append({**at, "bin": b, **dict(zip(_NAMES, by_bin[b].tolist(), strict=True))})
            for step in np.flatnonzero(by_step).tolist():
                delays.append({**at, "step": step, "labels": float(by_step[step])})
        for table, rows in ((TALLY, tallies), (DELAY, delays)):
            if not rows:
                continue
            keys = [column.name for column in table.primary_key]
            rows.sort(key=lambda row: tuple(row[name] for name in keys))
            made = self.database.insert(table)
            raised = {name: table.c[name] + made.excluded[name] for name in rows[0] if name not in keys}
            connection.execute(made.on_conflict_do_update(index_elements=keys, set_=raised), rows)
        places = ((self.version_id(connection, p.key.of), p.start, p.width) for p in found)
        note_changes(self.database, connection, places)

    # --- the detector and other followers of labels ---

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """The number of labels, of predictions before ``until``, that wait for the detector, by version."""
        due = (~LABEL.c.fed, LABEL.c.predicted_at < _finite(until))
        asked = select(LABEL.c.version_id, func.count()).where(*due).group_by(LABEL.c.version_id)
        with self.database.reading() as connection:
            names = self._names(connection)
            return {names[number]: labels for number, labels in connection.execute(asked)}

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[LabelRecord]:
        """Take labels of predictions made before a time out, oldest first.

        To be called in a transaction in which followers keep their states. Empty where another process has
        begun one for the same version: it takes them.

        Args:
            version: Model and version.
            until: The time, in seconds since 1970.
            most: Number of rows, at most.
        """
        with self.transaction() as connection:
            if not self._alone(connection, version):
                return []
            where = and_(~LABEL.c.fed, LABEL.c.predicted_at < _finite(until), *self._of(connection, version))
            rows = self._rows(connection, where, most=most, lock="all")
            self._set(connection, rows, fed=True)
            return [row.record for row in rows]

    def _alone(self, connection: Connection, version: Version) -> bool:
        """Lock the version for feeding; False where another transaction feeds it."""
        asked = select(VERSION.c.id).where(VERSION.c.id == self._known_version(connection, version))
        return connection.execute(asked.with_for_update(skip_locked=True)).first() is not None

    def progress(self) -> dict[Version, Progress]:
        """The progress of each version's detector."""
        with self.database.reading() as connection:
            return {(row.model, row.version): _progress(row) for row in connection.execute(select(VERSION))}

    def advance(
        self,
        version: Version,
        *,
        fed_until: float | None = None,
        evidence: tuple[float, float] | None = None,
        late: int = 0,
        alarms: int = 0,
        incidents: int = 0,
    ) -> None:
        """Note a detector's progress.

        Args:
            version: Model and version.
            fed_until: Prediction time up to which it was fed, in seconds since 1970; None: as it was.
            evidence: Natural logs of its statistic and threshold; None: as they were.
            late: Number of further labels that came too late.
            alarms: Number of further alarms.
            incidents: Number of further incidents.
        """
        more: dict[str, Any] = {
            "late": VERSION.c.late + late,
            "alarms": VERSION.c.alarms + alarms,
            "incidents": VERSION.c.incidents + incidents,
        }
        if fed_until is not None:
            more["fed_until"] = fed_until
        if evidence is not None:
            more["log_evidence"], more["log_threshold"] = map(finite, evidence)
        with self.transaction() as connection:
            number = self.version_id(connection, version)
            connection.execute(update(VERSION).where(VERSION.c.id == number).values(more))

    def states(self, kind: str, version: Version | None = None) -> list[State]:
        """The stored states of a kind; the latest changed comes last.

        Args:
            kind: Name of the follower.
            version: Model and version; None: all.
        """
        with self.database.reading() as connection:
            asked = select(STATE).where(STATE.c.kind == kind).order_by(STATE.c.changed_at, STATE.c.name)
            if version is not None:
                asked = asked.where(STATE.c.version_id == self._known_version(connection, version))
            names = self._names(connection)
            return [
                State(names[row.version_id], row.name, row.value, row.changed_at)
                for row in connection.execute(asked)
            ]

    def keep(self, kind: str, version: Version, name: str, value: bytes, *, now: float) -> None:
        """Store the state of a follower, in place of an earlier one of this name.

        Args:
            kind: Name of the follower.
            version: Model and version.
            name: Name of the state.
            value: Bytes, which are given back as they are.
            now: Seconds since 1970.
        """
        with self.transaction() as connection:
            row = {"version_id": self.version_id(connection, version), "kind": kind, "name": name}
            more = {"value": value, "changed_at": now}
            kept = self.database.insert(STATE).values(row | more)
            connection.execute(kept.on_conflict_do_update(index_elements=list(row), set_=more))

    def discard(self, kind: str, version: Version, name: str) -> None:
        """Delete the state of a follower.

        Args:
            kind: Name of the follower.
            version: Model and version.
            name: Name of the state.
        """
        with self.transaction() as connection:
            number = self._known_version(connection, version)
            connection.execute(
                delete(STATE).where(STATE.c.version_id == number, STATE.c.kind == kind, STATE.c.name == name)
            )

    # --- what is forgotten and taken out ---

    def sweep(self) -> int:
        """Roll up, merge old spans, forget receipts that expired; return the number forgotten."""
        self.roll_up()
        expired = self._swept()
        # Refused first, deleted then: a receipt that is gone must not count as new.
        self.forget(expired)
        return self._deleted(expired)

    @_retried
    def _swept(self) -> float:
        """Merge old spans, delete expired batches and ids; return the time before which receipts expire."""
        with self.transaction(patient=True) as connection:
            now = self.time.advance(connection)
            connection.execute(delete(BATCH).where(BATCH.c.expires_at <= now))
            connection.execute(delete(SENDER).where(SENDER.c.sent_at <= now - BATCH_LIFE))
            connection.execute(delete(PREDICTION_ID).where(PREDICTION_ID.c.bound_at < now - self.retention))
            self._merge_spans(connection, now)
            return now - self.retention

    def _merge_spans(self, connection: Connection, now: float) -> None:
        """Merge old spans into wider ones; other merges, and revocations, wait until this is committed."""
        if not self.database.lite:
            connection.execute(text("select pg_advisory_xact_lock(hashtext('calib-serve spans'))"))
        names = self._names(connection)
        moved: dict[Bucket, Floats] = {}
        merged, mark = set[tuple[float, float]](), next_mark(self.database, connection)
        # All that have sums are in ``span``, whose rows are fewer by slices and bins.
        spans = select(SPAN.c.start, SPAN.c.width).where(SPAN.c.width > 0).distinct()
        for start, width in connection.execute(spans).all():
            wider = coarser(start, width, now=now)
            if wider == (start, width):
                continue
            merged.add((start, width))
            for table in (TALLY, DELAY):
                # What goes is what is moved, also where another process adds to the span meanwhile.
                span = (table.c.start == start, table.c.width == width)
                went = connection.execute(delete(table).where(*span).returning(*table.c)).all()
                if wider is None:
                    continue
                for row in went:
                    self._put(moved, Bucket(Key(*names[row.version_id], row.name, row.kind), *wider), row)
        self._upsert(connection, {place: Sums(self.bins, vector) for place, vector in moved.items()})
        # After the wider ones were noted, whose numbers are higher; not what others add meanwhile.
        for start, width in merged:
            known = (SPAN.c.start == start, SPAN.c.width == width, SPAN.c.changed < mark)
            connection.execute(delete(SPAN).where(*known))

    def forget(self, until: float) -> None:
        """Refuse labels of predictions made until then."""
        with self.transaction() as connection:
            connection.execute(
                update(LEDGER).where(LEDGER.c.forgotten_until < until).values(forgotten_until=until)
            )

    def _deleted(self, until: float) -> int:
        """Delete receipts of predictions made until then; return their number."""
        made, gone = LABEL.c.predicted_at, 0
        old = (LABEL.c.tallied, LABEL.c.fed, made <= _finite(until))
        edge = select(made).where(*old).order_by(made).offset(_CHUNK - 1).limit(1)
        while True:
            with self.transaction(patient=True) as connection:
                last = connection.scalar(edge)
                some = old if last is None else (*old, made <= last)
                gone += connection.execute(delete(LABEL).where(*some)).rowcount
            if last is None:
                return gone

    @_retried
    def revoke(
        self,
        source: str,
        *,
        since: float = -math.inf,
        until: float = math.inf,
        by: str = "",
        dry_run: bool = False,
    ) -> Revoked:
        """Take the labels of a source that arrived in [since, until) out of every sum, in one step.

        Their receipts stay seen, and what the drift detector was fed with stays.

        Args:
            source: Name of the sender.
            since: Seconds since 1970.
            until: Seconds since 1970.
            by: Name of the person who does so, for the list of editions.
            dry_run: Whether to return the labels and change nothing.
        """
        where = and_(
            text(OF_A_SOURCE), LABEL.c.source == source, ~LABEL.c.revoked,
            LABEL.c.arrived_at >= _finite(since), LABEL.c.arrived_at < _finite(until),
        )  # fmt: skip
        if dry_run:
            with self.database.reading() as connection:
                return Revoked(_by_version(self._rows(connection, where)))
        nonces: dict[Version, list[bytes]] = {}
        with self.transaction(patient=True) as connection:
            # What was reported late, or held, lies in narrow spans where other sums were merged since the
            # last sweep: which span has a label is only known where all are merged.
            self._merge_spans(connection, self.time.advance(connection))
            while rows := self._rows(connection, where, most=_AT_ONCE, lock="all"):
                self._take_out(connection, rows)
                self._set(connection, rows, revoked=True, tallied=True, fed=True)
                for version, of in _by_version(rows).items():
                    nonces.setdefault(version, []).extend(of)
            for version, of in sorted(nonces.items()):
                why = f"labels of {source} were revoked"
                self._next_edition(connection, why, version, by=by, labels=len(of))
        return Revoked(nonces)

    def _take_out(self, connection: Connection, rows: Sequence[_Row]) -> None:
        """Subtract labels from the sums of their places; spans must have been merged."""
        taken = self._increments([row for row in rows if row.tallied])
        less = {place: Sums.zeros(self.bins) - more for place, more in taken.items()}
        self._upsert(connection, self._where_it_lies(connection, less))
        # A place without labels is set to 0: subtracted floats would leave a rest.
        connection.execute(update(TALLY).where(TALLY.c.feedback < 0.5).values(_EMPTY))

    def _where_it_lies(self, connection: Connection, less: Mapping[Bucket, Sums]) -> dict[Bucket, Sums]:
        """Find today's places of these sums: spans are merged into wider ones, and old ones are deleted."""
        spans = select(TALLY.c.start, TALLY.c.width).distinct()
        there = {(row.start, row.width) for row in connection.execute(spans)}
        found: dict[Bucket, Sums] = {}
        for place, more in less.items():
            wider = [(math.floor(place.start / w) * w, w) for w, _ in SPANS if w >= place.width]
            of = wider if place.width else [(0.0, 0.0)]
            if at := next((one for one in of if one in there), None):
                add_at(found, Bucket(place.key, *at), more)
        return found

    def restored(self, *, by: str = "") -> None:
        """Note that this is an older state of the ledger: labels that it may have lost are refused."""
        with self.transaction() as connection:
            self.forget(self.time.now())
            self._next_edition(connection, "a backup was restored", by=by)
            accept_timeline(connection)

    def promoted(self) -> None:
        """Note that a failover to a standby is known: what it may have lost counts if it comes again."""
        with self.transaction() as connection:
            accept_timeline(connection)

    def repair_clock(self) -> dict[str, int]:
        """Make this host's time, or the server's, the ledger's, and take back marks that are ahead of it.

        Returns:
            The number of marks set back by table, and under "label" that of the labels whose predictions are
            dated ahead, which stay.
        """
        with self.transaction() as connection:
            now = self.time.believe(connection)
            marks = (
                (LEDGER.c.forgotten_until, now),
                (VERSION.c.fed_until, now),
                (BATCH.c.expires_at, now + BATCH_LIFE),
                (SENDER.c.sent_at, now),
                (HELD.c.came_at, now),
                (PREDICTION_ID.c.bound_at, now),
                (PROGRAM.c.wrote_at, now),
            )
            told = {}
            for mark, most in marks:
                back = update(mark.table).where(mark > most).values({mark.name: most})
                told[mark.table.name] = connection.execute(back).rowcount
            ahead = select(func.count()).select_from(LABEL).where(LABEL.c.predicted_at > now)
            return {**told, "label": connection.execute(ahead).scalar_one()}

    def forgotten_until(self) -> float:
        """The time of predictions until which labels are refused as forgotten, in seconds since 1970."""
        with self.database.reading() as connection:
            return float(connection.execute(select(LEDGER.c.forgotten_until)).scalar_one())

    def drop(self, version: Version, *, by: str = "") -> int:
        """Delete all sums and states of a version; return the number of labels. Its receipts are kept.

        Args:
            version: Model and version.
            by: Name of the person who does so, for the list of editions.

        Raises:
            InputError: For a version of which nothing is counted.
        """
        with self.transaction(patient=True) as connection:
            if (number := self._known_version(connection, version)) < 0:
                raise InputError(f"the ledger holds nothing of {version[0]} {version[1]}; look for its name")
            # Labels first: rows that other processes roll up meanwhile are then in the tallies.
            gone = (LABEL.c.version_id == number, ~LABEL.c.revoked)
            out = update(LABEL).where(*gone).values(tallied=True, fed=True, revoked=True)
            labels = connection.execute(out).rowcount
            for table in (TALLY, DELAY, STATE, INCIDENT):
                connection.execute(delete(table).where(table.c.version_id == number))
            why = f"{version[0]} {version[1]} was dropped"
            self._next_edition(connection, why, version, by=by, labels=labels)
        return labels

    def check(self) -> list[str]:
        """Check that counts and sums agree; name every fault. It changes nothing, and may take minutes."""
        if found := self.database.damage():
            return found
        with self.database.reading() as connection:
            whole = and_(TALLY.c.kind == "segment", TALLY.c.width == 0)
            asked = select(func.coalesce(func.sum(TALLY.c.feedback), 0.0)).where(whole)
            tallied = connection.execute(asked).scalar_one()
            counted = and_(LABEL.c.tallied, ~LABEL.c.revoked)
            rows = connection.execute(select(func.count()).select_from(LABEL).where(counted)).scalar_one()
        # Rows are forgotten after the retention, and what they added stays.
        return [f"{rows} labels are counted, and the sums hold {tallied:.0f}"] if rows > tallied + 0.5 else []

    def close(self) -> None:
        """Close files and connections."""
        self.database.close()

    # --- below ---

    def _next_edition(
        self,
        connection: Connection,
        why: str,
        version: Version | None = None,
        *,
        by: str = "",
        labels: int = 0,
    ) -> None:
        number = (connection.execute(select(func.max(EDITION.c.number))).scalar() or 0) + 1
        row = {"number": number, "began_at": self.time.now(), "why": why, "by": by, "labels": labels}
        row["version_id"] = None if version is None else self._known_version(connection, version)
        connection.execute(insert(EDITION).values(row))

    def version_id(self, connection: Connection, version: Version) -> int:
        """The number of a version, a new one where it has none.

        Args:
            connection: Connection of a transaction.
            version: Model and version.
        """
        if version not in self._versions:
            if (known := self._known_version(connection, version)) < 0:
                model, name = version
                made = self.database.insert(VERSION).values(model=model, version=name)
                connection.execute(made.on_conflict_do_nothing())
                return self._known_version(connection, version)
            self._versions[version] = known  # another transaction's, so that no rollback takes it away
        return self._versions[version]

    def _known_version(self, connection: Connection, version: Version) -> int:
        """The number of a version; -1 where it has none."""
        model, name = version
        asked = select(VERSION.c.id).where(VERSION.c.model == model, VERSION.c.version == name)
        # No row has the number -1: queries for an unknown version find nothing, and do not fail.
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
        lock: str = "",
    ) -> list[_Row]:
        """Rows of ``label`` in the order of their keys.

        ``lock`` "all": wait for who else is at work on them; "free ones": leave these out.
        """
        names = self._names(connection)
        asked = select(LABEL).where(where).order_by(*_KEY)
        asked = asked if most is None else asked.limit(most)
        if lock:  # which SQLite leaves out: a file has one writer
            asked = asked.with_for_update(skip_locked=lock == "free ones")
        slices: dict[tuple[object, ...], tuple[Key, ...]] = {}  # few are different
        try:
            return [_read(row, names, slices) for row in connection.execute(asked)]
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"a label in {self.database.name} is damaged: {error!r}") from error

    def _set(self, connection: Connection, rows: Sequence[_Row], **values: bool) -> None:
        if not rows:
            return
        told = ", ".join(f"{name} = {str(value).lower()}" for name, value in values.items())
        asked, keys = f"update label set {told}", [row.key for row in rows]  # noqa: S608 - our own names
        if self.database.lite:
            connection.exec_driver_sql(f"{asked} where predicted_at = ? and receipt = ?", keys)
        else:
            one = f"{_from_lists(2)} as one (time, nonce) where predicted_at = time::float8"
            connection.exec_driver_sql(f"{asked} from {one} and receipt = nonce::bytea", _lists(keys))


def _columns(vector: Floats, bins: int) -> tuple[Floats, Floats]:
    """View a vector of ``Sums`` as the columns of ``tally`` (bins, columns) and the labels of ``delay``."""
    end = bins * len(_NAMES)
    return vector[:end].reshape(len(_NAMES), bins).T, vector[end:]


def _finite(seconds: float) -> float:
    return min(max(seconds, -FAR), FAR)


@functools.lru_cache(maxsize=4096)  # few are different
def _listed(slices: tuple[Key, ...]) -> tuple[str | None, str]:
    """The segment of slices, if there is one, and the others as JSON."""
    segment = next((each.name for each in slices if each.kind == "segment"), None)
    others = [[each.kind, each.name] for each in slices if (each.kind, each.name) != ("segment", segment)]
    return segment, json.dumps(others, separators=(",", ":"))


@functools.lru_cache(maxsize=2)
def _into_label(dialect: Dialect) -> str:
    """The insert of rows of ``label``: one by one in SQLite, from a list of each column in PostgreSQL."""
    names = ", ".join(_COLUMNS)
    if dialect.name == "sqlite":
        return f"insert into label ({names}) values ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
    values = ", ".join(f"{column.name}::{column.type.compile(dialect)}" for column in LABEL.columns)
    source = f"{_from_lists(len(_COLUMNS))} as one ({names})"
    made = f"insert into label ({names}) select {values} from {source}"  # noqa: S608 - our own names
    return f"{made} on conflict do nothing returning predicted_at, receipt"


def _from_lists(columns: int) -> str:
    """The rows of ``_lists`` as a table of texts, in PostgreSQL."""
    return f"rows from ({', '.join(['json_array_elements_text(%s::json)'] * columns)})"


def _lists(rows: Iterable[Sequence[object]]) -> tuple[str, ...]:
    """Columns of rows as JSON, which psycopg passes on as it is: it writes lists a value at a time."""
    columns = zip(*rows, strict=True)
    return tuple(json.dumps(one, default=lambda value: f"\\x{value.hex()}") for one in columns)


def _by_version(rows: Sequence[_Row]) -> dict[Version, list[bytes]]:
    found: dict[Version, list[bytes]] = {}
    for row in rows:
        found.setdefault((row.record.model, row.record.version), []).append(row.record.nonce)
    return found


def _held(row: Any) -> Held:
    return Held(row.kind, row.name, (row.model, row.version), row.content, row.source, row.came_at)


def _progress(row: Any) -> Progress:
    numbers = (row.fed_until, row.log_evidence, row.log_threshold)
    until, evidence, threshold = (math.nan if one is None else one for one in numbers)
    return Progress(
        -math.inf if math.isnan(until) else until, row.late, row.alarms, row.incidents, evidence, threshold
    )


def _read(row: Any, names: Mapping[int, Version], known: dict[tuple[object, ...], tuple[Key, ...]]) -> _Row:
    """Read a row of ``label``, its columns in their order; ``known``: slices that were read before."""
    (
        predicted_at, receipt, number, arrived_at, confidence, predicted, label, inclusion, group, tallied,
        fed, revoked, source, segment, listed, history, *beside,
    ) = row  # fmt: skip
    version = names[number]
    slices = known.get((number, segment, listed))
    if slices is None:
        own = [] if segment is None else [Key(*version, segment)]
        slices = (*own, *(Key(*version, name, kind) for kind, name in json.loads(listed)))
        known[number, segment, listed] = slices
    shadow = None if beside[-1] is None else Shadowed(*beside)
    record = LabelRecord(
        *version, predicted_at, receipt, arrived_at, confidence, predicted == label, predicted, inclusion,
        group, slices, shadow,
    )  # fmt: skip
    return _Row(record, source, tallied, fed, revoked, label, history)

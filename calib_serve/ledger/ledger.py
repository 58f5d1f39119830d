"""The ledger: each label is counted once, whoever sends it, however often, from any host.

A label is one row of ``label``, inserted where its receipt is not there yet, committed before it is
acknowledged. Any process rolls rows up into ``tally``; a read is the tallies and the rows that are not in
them, of one moment. So nothing has to be marked, replayed or written twice.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, select, text, update

from calib_serve.core.errors import InputError
from calib_serve.ledger.batches import known_batch, note_batch
from calib_serve.ledger.entries import Bucket, Entry, Fate, Published, WindowSums, buckets, span_of
from calib_serve.ledger.failover import accept_timeline
from calib_serve.ledger.followers import Followers
from calib_serve.ledger.rows import (
    CHUNK,
    COLUMNS,
    RowKey,
    StoredLabel,
    by_version,
    insert_rows,
    locked_rows,
    mark_rows,
    row_of,
    stored_labels,
)
from calib_serve.ledger.schema import (
    BATCH,
    DELAY,
    EDITION,
    HELD,
    INCIDENT,
    LABEL,
    LEDGER,
    OF_A_SOURCE,
    PREDICTION_ID,
    PROGRAM,
    SENDER,
    STATE,
    TALLY,
    VERSION,
)
from calib_serve.ledger.spans import KeptSpans, Moment, far
from calib_serve.ledger.store import Store, known_version, next_edition, version_names
from calib_serve.ledger.tallies import add_sums, fresh_sums, increments, merge_spans, take_out
from calib_serve.ledger.waiting_room import WaitingRoom
from calib_serve.receipts import BATCH_LIFE, BatchKey, Key, Kind, Sums, Version, add_at, merge_slices

AT_ONCE = 20_000
"""Rows that are rolled up or taken out at once."""


class Ledger(Store):
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

    @functools.cached_property
    def followers(self) -> Followers:
        """The labels that wait for the drift detector, and the states of all that follow labels."""
        return Followers(self)

    @functools.cached_property
    def held(self) -> WaitingRoom:
        """The predictions and labels of versions that are not known yet."""
        return WaitingRoom(self)

    @functools.cached_property
    def _kept(self) -> KeptSpans:
        return KeptSpans(self.database, self.bins, functools.partial(fresh_sums, self))

    # --- what is counted ---

    def accept(self, entries: Sequence[Entry], *, detect: bool = True) -> list[Fate]:
        """Count each label whose receipt was not seen before, or that replaces another; durable on return.

        Args:
            entries: Verified labels with their slices.
            detect: Whether they also wait for the drift detector.
        """
        return self.again(lambda: self._accepted(entries, detect)) if entries else []

    def _accepted(self, entries: Sequence[Entry], detect: bool) -> list[Fate]:
        keys = [(receipt.time, receipt.nonce) for (receipt, _), *_ in entries]
        with self.transaction() as connection:
            forgotten = self.hold_forgetting(connection)
            chosen: dict[RowKey, Entry] = {}
            for key, entry in zip(keys, entries, strict=True):
                # Of one receipt the first of a batch, or the last that replaces another.
                if key[0] > forgotten and (entry.replaces or key not in chosen):
                    chosen[key] = entry
            # Sorted: two batches never wait for each other.
            rows = {key: row_of(self, connection, chosen[key], detect=detect) for key in sorted(chosen)}
            counted = insert_rows(self, connection, rows)
            found: dict[RowKey, Fate] = dict.fromkeys(counted, "counted")
            again = [key for key, one in chosen.items() if one.replaces and key not in counted]
            if named := {key: dict(zip(COLUMNS, rows[key], strict=True)) for key in again}:
                found |= self._corrected(connection, named)
        fates: list[Fate] = []
        for key, entry in zip(keys, entries, strict=True):
            if key[0] <= forgotten:
                fates.append("forgotten")
            else:
                fates.append(found.pop(key, "duplicate") if chosen[key] is entry else "duplicate")
        return fates

    def _corrected(
        self, connection: Connection, fresh: Mapping[RowKey, dict[str, Any]]
    ) -> dict[RowKey, Fate]:
        """Put labels in the place of other ones, which are taken out of every sum."""
        # Before rows are locked, in the order of revoke.
        merge_spans(self, connection, self.time.advance(connection))
        fates: dict[RowKey, Fate] = {}
        gone: list[StoredLabel] = []
        made: list[dict[str, Any]] = []
        for old in locked_rows(self, connection, fresh):
            key, same = old.key, old.label == fresh[old.key]["label"]
            fates[key] = "revoked" if old.revoked else "duplicate" if same else "corrected"
            if fates[key] == "corrected":
                gone.append(old)
                # What was fed stays: no detector sees one prediction twice.
                before = {"label": old.label, "source": old.source, "arrived_at": old.record.arrived}
                history = json.dumps([*json.loads(old.history or "[]"), before])
                made.append({**fresh[key], "fed": old.fed, "history": history})
        if gone:
            take_out(self, connection, gone)
            own = (LABEL.c.predicted_at == bindparam("of_time"), LABEL.c.receipt == bindparam("of_receipt"))
            keyed = [row | {"of_time": row["predicted_at"], "of_receipt": row["receipt"]} for row in made]
            connection.execute(update(LABEL).where(*own), keyed)
            for version, of in sorted(by_version(gone).items()):
                next_edition(self, connection, "labels were corrected", version, labels=len(of))
        return fates

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: BatchKey | None = None) -> bool:
        """Add sums of predictions; False for a batch that was counted, which adds nothing.

        Args:
            sums: Sums by slice.
            time: When the predictions were made, in seconds since 1970.
            once: Name of the batch, under which it counts once; None: it has none.

        Raises:
            ConflictError: Where another batch was counted under this name.
        """

        def added() -> bool:
            with self.transaction() as connection:
                if once is not None and not note_batch(self, connection, once):
                    return False
                self.add_dated([(sums, time)])
                return True

        return self.again(added)

    def known(self, once: BatchKey) -> BatchKey | None:
        """The batch that was counted under this name, if any."""
        return known_batch(self, once)

    def add_dated(self, several: Iterable[tuple[Mapping[Key, Sums], float]]) -> None:
        """Add sums of predictions, with the time at which each were made, in seconds since 1970."""
        found: dict[Bucket, Sums] = {}
        for sums, made in several:
            span = span_of(made, made)
            for key, more in sums.items():
                for at in buckets(key, *span):
                    add_at(found, at, more)
        with self.transaction() as connection:
            add_sums(self, connection, found)

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
            names: dict[int, Version] = version_names(connection) if len(numbers) > 1 else {}
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

    def roll_up(self) -> int:
        """Add new rows to the tallies; return their number. Any process may, at any time."""
        done = 0
        while some := self.again(self._rolled):
            done += some
            if some < AT_ONCE:
                break
        return done

    def _rolled(self) -> int:
        with self.database.reading() as connection:  # looking takes no lock
            if connection.execute(select(LABEL.c.fed).where(~LABEL.c.tallied).limit(1)).first() is None:
                return 0
        with self.transaction(patient=True) as connection:
            rows = stored_labels(self, connection, ~LABEL.c.tallied, most=AT_ONCE, wait=False)
            add_sums(self, connection, increments(self, rows))
            mark_rows(self, connection, rows, "tallied")
            return len(rows)

    # --- what is forgotten and taken out ---

    def sweep(self) -> int:
        """Roll up, merge old spans, forget receipts that expired; return the number forgotten."""
        self.roll_up()
        expired = self.again(self._swept)
        # Refused first, deleted then: a receipt that is gone must not count as new.
        self.forget(expired)
        return self._deleted(expired)

    def _swept(self) -> float:
        """Merge old spans, delete expired batches and ids; return the time before which receipts expire."""
        with self.transaction(patient=True) as connection:
            now = self.time.advance(connection)
            connection.execute(delete(BATCH).where(BATCH.c.expires_at <= now))
            connection.execute(delete(SENDER).where(SENDER.c.sent_at <= now - BATCH_LIFE))
            connection.execute(delete(PREDICTION_ID).where(PREDICTION_ID.c.bound_at < now - self.retention))
            merge_spans(self, connection, now)
            return now - self.retention

    def _deleted(self, until: float) -> int:
        """Delete receipts of predictions made until then; return their number."""
        made, gone = LABEL.c.predicted_at, 0
        old = (LABEL.c.tallied, LABEL.c.fed, made <= far(until))
        edge = select(made).where(*old).order_by(made).offset(CHUNK - 1).limit(1)
        while True:
            with self.transaction(patient=True) as connection:
                last = connection.scalar(edge)
                some = old if last is None else (*old, made <= last)
                gone += connection.execute(delete(LABEL).where(*some)).rowcount
            if last is None:
                return gone

    def revoke(
        self,
        source: str,
        *,
        since: float = -math.inf,
        until: float = math.inf,
        by: str = "",
        dry_run: bool = False,
    ) -> dict[Version, list[bytes]]:
        """Take the labels of a source that arrived in [since, until) out of every sum, in one step.

        The nonces of their receipts, by version.

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
            LABEL.c.arrived_at >= far(since), LABEL.c.arrived_at < far(until),
        )  # fmt: skip
        if dry_run:
            with self.database.reading() as connection:
                return by_version(stored_labels(self, connection, where))
        return self.again(lambda: self._revoked(where, f"labels of {source} were revoked", by))

    def _revoked(self, where: ColumnElement[bool], why: str, by: str) -> dict[Version, list[bytes]]:
        nonces: dict[Version, list[bytes]] = {}
        with self.transaction(patient=True) as connection:
            # What was reported late, or held, lies in narrow spans where other sums were merged since the
            # last sweep: which span has a label is only known where all are merged.
            merge_spans(self, connection, self.time.advance(connection))
            while rows := stored_labels(self, connection, where, most=AT_ONCE, wait=True):
                take_out(self, connection, rows)
                mark_rows(self, connection, rows, "revoked", "tallied", "fed")
                for version, of in by_version(rows).items():
                    nonces.setdefault(version, []).extend(of)
            for version, of in sorted(nonces.items()):
                next_edition(self, connection, why, version, by=by, labels=len(of))
        return nonces

    def restored(self, *, by: str = "") -> None:
        """Note that this is an older state of the ledger: labels that it may have lost are refused."""
        with self.transaction() as connection:
            self.forget(self.time.now())
            next_edition(self, connection, "a backup was restored", by=by)
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

    def drop(self, version: Version, *, by: str = "") -> int:
        """Delete all sums and states of a version; return the number of labels. Its receipts are kept.

        Args:
            version: Model and version.
            by: Name of the person who does so, for the list of editions.

        Raises:
            InputError: For a version of which nothing is counted.
        """
        with self.transaction(patient=True) as connection:
            if (number := known_version(connection, version)) < 0:
                raise InputError(f"the ledger holds nothing of {version[0]} {version[1]}; look for its name")
            # Labels first: rows that other processes roll up meanwhile are then in the tallies.
            gone = (LABEL.c.version_id == number, ~LABEL.c.revoked)
            out = update(LABEL).where(*gone).values(tallied=True, fed=True, revoked=True)
            labels = connection.execute(out).rowcount
            for table in (TALLY, DELAY, STATE, INCIDENT):
                connection.execute(delete(table).where(table.c.version_id == number))
            why = f"{version[0]} {version[1]} was dropped"
            next_edition(self, connection, why, version, by=by, labels=labels)
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

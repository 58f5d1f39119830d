"""Sums in ``tally`` and ``delay``: added to, merged into wider spans, and subtracted from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, select, text, update

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, LedgerError
from calib_serve.ledger.entries import SPANS, Bucket, buckets, coarser, span_of
from calib_serve.ledger.rows import StoredLabel, stored_labels
from calib_serve.ledger.schema import COLUMNS, DELAY, LABEL, SPAN, TALLY
from calib_serve.ledger.spans import next_mark, note_changes
from calib_serve.ledger.store import Store, version_names
from calib_serve.receipts import SUMS, Key, Sums, add_at, changes

_NAMES = list(COLUMNS.values())
_EMPTY = {COLUMNS[one.name]: 0.0 for one in SUMS if one.of == "labels" and one.name in COLUMNS}


def fresh_sums(store: Store, connection: Connection) -> dict[Bucket, Sums]:
    """The sums of labels that are in no tally yet."""
    return increments(store, stored_labels(store, connection, ~LABEL.c.tallied))


def increments(store: Store, rows: Sequence[StoredLabel]) -> dict[Bucket, Sums]:
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
        where, values = changes("labels", *np.array(list(columns), np.float64).T, bins=store.bins)
    except InputError as error:
        raise LedgerError(f"a label in {store.database.name} is damaged: {error}") from error
    for (keys, span), at in members.items():
        more = Sums.at(where[at], values[at], bins=store.bins)
        for key in keys:
            for place in buckets(key, *span):
                add_at(found, place, more)
    return found


def add_sums(store: Store, connection: Connection, found: Mapping[Bucket, Sums]) -> None:
    """Add sums to the tallies, in the order of their keys: no two transactions wait for each other."""
    tallies, delays = [], []
    for place, more in found.items():
        at = {
            "version_id": store.version_id(connection, place.key.of), "kind": place.key.kind,
            "name": place.key.name, "start": place.start, "width": place.width,
        }  # fmt: skip
        by_bin, by_step = _columns(more.vector, store.bins)
        for b in np.flatnonzero(by_bin.any(axis=1)).tolist():
            tallies.append({**at, "bin": b, **dict(zip(_NAMES, by_bin[b].tolist(), strict=True))})
        for step in np.flatnonzero(by_step).tolist():
            delays.append({**at, "step": step, "labels": float(by_step[step])})
    for table, rows in ((TALLY, tallies), (DELAY, delays)):
        if not rows:
            continue
        keys = [column.name for column in table.primary_key]
        rows.sort(key=lambda row: tuple(row[name] for name in keys))
        made = store.database.insert(table)
        raised = {name: table.c[name] + made.excluded[name] for name in rows[0] if name not in keys}
        connection.execute(made.on_conflict_do_update(index_elements=keys, set_=raised), rows)
    places = ((store.version_id(connection, p.key.of), p.start, p.width) for p in found)
    note_changes(store.database, connection, places)


def merge_spans(store: Store, connection: Connection, now: float) -> None:
    """Merge old spans into wider ones; other merges, and revocations, wait until this is committed."""
    if not store.database.lite:
        connection.execute(text("select pg_advisory_xact_lock(hashtext('calib-serve spans'))"))
    names = version_names(connection)
    moved: dict[Bucket, Floats] = {}
    merged, mark = set[tuple[float, float]](), next_mark(store.database, connection)
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
                _put(store, moved, Bucket(Key(*names[row.version_id], row.name, row.kind), *wider), row)
    add_sums(store, connection, {place: Sums(store.bins, vector) for place, vector in moved.items()})
    # After the wider ones were noted, whose numbers are higher; not what others add meanwhile.
    for start, width in merged:
        known = (SPAN.c.start == start, SPAN.c.width == width, SPAN.c.changed < mark)
        connection.execute(delete(SPAN).where(*known))


def _put(store: Store, found: dict[Bucket, Floats], place: Bucket, row: Any) -> None:
    """Add a row of ``tally`` or ``delay`` to the vector of a place."""
    if place not in found:
        found[place] = np.array(Sums.zeros(store.bins).vector)
    by_bin, delays = _columns(found[place], store.bins)
    if hasattr(row, "step"):
        delays[row.step] += row.labels
    else:
        by_bin[row.bin] += [getattr(row, column) for column in _NAMES]


def take_out(store: Store, connection: Connection, rows: Sequence[StoredLabel]) -> None:
    """Subtract labels from the sums of their places; spans must have been merged."""
    taken = increments(store, [row for row in rows if row.tallied])
    less = {place: Sums.zeros(store.bins) - more for place, more in taken.items()}
    add_sums(store, connection, _where_it_lies(connection, less))
    # A place without labels is set to 0: subtracted floats would leave a rest.
    connection.execute(update(TALLY).where(TALLY.c.feedback < 0.5).values(_EMPTY))


def _where_it_lies(connection: Connection, less: Mapping[Bucket, Sums]) -> dict[Bucket, Sums]:
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


def _columns(vector: Floats, bins: int) -> tuple[Floats, Floats]:
    """View a vector of ``Sums`` as the columns of ``tally`` (bins, columns) and the labels of ``delay``."""
    end = bins * len(_NAMES)
    return vector[:end].reshape(len(_NAMES), bins).T, vector[end:]

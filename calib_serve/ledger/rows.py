"""Rows of ``label``: read, inserted where their receipts are new, and marked."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, select, tuple_

from calib_serve.core.errors import LedgerError
from calib_serve.ledger.entries import Entry, LabelRecord, Shadowed
from calib_serve.ledger.schema import LABEL
from calib_serve.ledger.store import Store, version_names
from calib_serve.receipts import Key, Version

CHUNK = 5_000
"""Rows of one statement, so that no label waits long for one that deletes."""

KEY, COLUMNS = tuple(LABEL.primary_key), LABEL.columns.keys()

RowKey = tuple[float, bytes]
"""When a prediction was made, and its receipt's nonce."""


class StoredLabel(NamedTuple):
    """A row of ``label`` as it is read."""

    record: LabelRecord
    source: str
    tallied: bool
    fed: bool
    revoked: bool
    label: int
    history: str

    @property
    def key(self) -> RowKey:
        """Its primary key."""
        return self.record.time, self.record.nonce


def stored_labels(
    store: Store,
    connection: Connection,
    where: Any,
    *,
    most: int | None = None,
    wait: bool | None = None,
) -> list[StoredLabel]:
    """Rows of ``label`` in the order of their keys.

    ``wait``: lock them, and wait for those that others are at work on, or leave these out; None: no lock.
    """
    names = version_names(connection)
    asked = select(LABEL).where(where).order_by(*KEY)
    asked = asked if most is None else asked.limit(most)
    if wait is not None:  # which SQLite leaves out: a file has one writer
        asked = asked.with_for_update(skip_locked=not wait)
    slices: dict[tuple[object, ...], tuple[Key, ...]] = {}  # few are different
    try:
        return [_read(row, names, slices) for row in connection.execute(asked)]
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"a label in {store.database.name} is damaged: {error!r}") from error


def locked_rows(store: Store, connection: Connection, keys: Iterable[RowKey]) -> Iterator[StoredLabel]:
    """Rows of ``label`` by their keys, locked until the transaction ends."""
    of = sorted(keys)
    for at in range(0, len(of), CHUNK):
        yield from stored_labels(store, connection, tuple_(*KEY).in_(of[at : at + CHUNK]), wait=True)


def row_of(store: Store, connection: Connection, entry: Entry, *, detect: bool) -> tuple[object, ...]:
    """A row of ``label``, its columns in their order."""
    (one, label), arrived, slices, source, _ = entry
    segment, listed = _listed(slices)
    shadow: tuple[object, ...] = (None,) * 4
    if one.shadow is not None:
        predicted, confidence, tag = one.shadow
        shadow = confidence, predicted == label, predicted == one.predicted, tag.hex()
    return (
        one.time, one.nonce, store.version_id(connection, (one.model, one.version)), arrived,
        one.confidence, one.predicted, label, one.inclusion, one.group, False, not detect, False, source,
        segment, listed, "", *shadow,
    )  # fmt: skip


def insert_rows(
    store: Store, connection: Connection, rows: Mapping[RowKey, tuple[object, ...]]
) -> set[RowKey]:
    """Insert rows of ``label``, by their keys; return the keys of the new ones."""
    if not rows:
        return set()
    into = _into_label(connection.dialect)
    if not store.database.lite:
        made = connection.exec_driver_sql(into, _lists(rows.values()))
        return {(time, receipt) for time, receipt in made}
    keys, seen = list(rows), set[RowKey]()
    for at in range(0, len(keys), CHUNK):  # SQLite takes 32,766 values at once
        some = keys[at : at + CHUNK]
        one = f"with one (time, nonce) as (values {', '.join(['(?, ?)'] * len(some))})"
        asked = "select time, nonce from one join label on predicted_at = time and receipt = nonce"
        found = connection.exec_driver_sql(f"{one} {asked}", tuple(itertools.chain.from_iterable(some)))
        seen.update((time, receipt) for time, receipt in found)
    # Nobody else writes until this transaction ends.
    if fresh := [row for key, row in rows.items() if key not in seen]:
        connection.exec_driver_sql(into, fresh)
    return rows.keys() - seen


def mark_rows(store: Store, connection: Connection, rows: Sequence[StoredLabel], *flags: str) -> None:
    """Set flags of rows, such as ``tallied``."""
    if not rows:
        return
    told = ", ".join(f"{flag} = true" for flag in flags)
    asked, keys = f"update label set {told}", [row.key for row in rows]  # noqa: S608 - our own names
    if store.database.lite:
        connection.exec_driver_sql(f"{asked} where predicted_at = ? and receipt = ?", keys)
    else:
        one = f"{_from_lists(2)} as one (time, nonce) where predicted_at = time::float8"
        connection.exec_driver_sql(f"{asked} from {one} and receipt = nonce::bytea", _lists(keys))


@functools.lru_cache(maxsize=4096)  # few are different
def _listed(slices: tuple[Key, ...]) -> tuple[str | None, str]:
    """The segment of slices, if there is one, and the others as JSON."""
    segment = next((each.name for each in slices if each.kind == "segment"), None)
    others = [[each.kind, each.name] for each in slices if (each.kind, each.name) != ("segment", segment)]
    return segment, json.dumps(others, separators=(",", ":"))


@functools.lru_cache(maxsize=2)
def _into_label(dialect: Dialect) -> str:
    """The insert of rows of ``label``: one by one in SQLite, from a list of each column in PostgreSQL."""
    names = ", ".join(COLUMNS)
    if dialect.name == "sqlite":
        return f"insert into label ({names}) values ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
    values = ", ".join(f"{column.name}::{column.type.compile(dialect)}" for column in LABEL.columns)
    source = f"{_from_lists(len(COLUMNS))} as one ({names})"
    made = f"insert into label ({names}) select {values} from {source}"  # noqa: S608 - our own names
    return f"{made} on conflict do nothing returning predicted_at, receipt"


def _from_lists(columns: int) -> str:
    """The rows of ``_lists`` as a table of texts, in PostgreSQL."""
    return f"rows from ({', '.join(['json_array_elements_text(%s::json)'] * columns)})"


def _lists(rows: Iterable[Sequence[object]]) -> tuple[str, ...]:
    """Columns of rows as JSON, which psycopg passes on as it is: it writes lists a value at a time."""
    columns = zip(*rows, strict=True)
    return tuple(json.dumps(one, default=lambda value: f"\\x{value.hex()}") for one in columns)


def by_version(rows: Sequence[StoredLabel]) -> dict[Version, list[bytes]]:
    """The nonces of rows by version."""
    found: dict[Version, list[bytes]] = {}
    for row in rows:
        found.setdefault((row.record.model, row.record.version), []).append(row.record.nonce)
    return found


def _read(
    row: Any, names: Mapping[int, Version], known: dict[tuple[object, ...], tuple[Key, ...]]
) -> StoredLabel:
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
    return StoredLabel(record, source, tallied, fed, revoked, label, history)

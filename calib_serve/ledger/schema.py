"""The tables of a ledger, the same in SQLite and PostgreSQL, also for other tools that read them.

``label`` has a row for each receipt whose label was counted: the primary key is what counts it once.
``tally`` and ``delay`` hold the sums of the rows that are ``tallied``, by slice, over all time (``width`` 0)
and by spans of prediction time; the sums of the rest are made when they are read. Times are seconds since
1970. The views ``labels``, ``sums`` and ``incidents`` are for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import sqlite

from calib_serve.receipts import SUMS

Step = tuple[Sequence[str], Sequence[str]]
"""The SQL that makes a ledger one of the next format, in SQLite and in PostgreSQL."""

_TO_2 = """
create table label_2 (
  predicted_at {real} not null, receipt {bytes} not null, version_id {whole} not null,
  arrived_at {real} not null, confidence {real} not null, predicted {whole} not null,
  label {whole} not null, inclusion {real} not null, group_id {whole} not null, tallied {flag} not null,
  fed {flag} not null, revoked {flag} not null, source text not null, segment text, slices text not null,
  history text not null, shadow_confidence {real}, shadow_correct {flag}, shadow_same {flag},
  shadow_tag text, primary key (predicted_at, receipt)) {options};
insert into label_2 select predicted_at, {nonce}, version_id, arrived_at, confidence, predicted, label,
  inclusion, group_id, tallied, fed, revoked, source, case {json} -> 0 ->> 0 when 'segment' then segment end,
  case {json} -> 0 ->> 0 when 'segment' then {rest} else slices end, history, shadow_confidence,
  shadow_correct, shadow_same, shadow_tag from label;
drop table label;
alter table label_2 rename to label;
create index label_to_tally on label (predicted_at, receipt) where {untallied};
create index label_to_feed on label (version_id, predicted_at, receipt) where {unfed};
create index label_by_source on label (source, arrived_at) where source <> ''
"""

STEPS: tuple[Step, ...] = ((
    _TO_2.format(
        real="real", bytes="blob", whole="integer", flag="integer", options="strict, without rowid",
        json="slices", nonce="unhex(receipt)", rest="json_remove(slices, '$[0]')", untallied="tallied = 0",
        unfed="fed = 0",
    ).split(";"),
    _TO_2.format(
        real="float8", bytes="bytea", whole="bigint", flag="boolean", options="", json="slices::json",
        nonce="decode(receipt, 'hex')", rest="(slices::jsonb - 0)::text", untallied="not tallied",
        unfed="not fed",
    ).split(";"),
),)  # fmt: skip
"""From format 1 to 2, from 2 to 3 and so on; views are made anew."""

SCHEMA = 1 + len(STEPS)
METADATA = MetaData()

OF_A_SOURCE = "source <> ''"
"""Which labels have a source, in SQL."""

COLUMNS = {one.name: one.short for one in SUMS if one.per != "delay"}
"""The column of ``tally`` for each declared sum but the delay's."""

# SQLite's tables are strict: a column holds what it says, whoever writes to it.
_WHOLE = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
_REAL: Double[float] = Double().with_variant(sqlite.REAL(), "sqlite")
_FLAG = Boolean().with_variant(sqlite.INTEGER(), "sqlite")
_TEXT, _BYTES = Text(), LargeBinary()


def _must(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **more)


def _key(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _table(name: str, *columns: Any, **more: Any) -> Table:
    return Table(name, METADATA, *columns, sqlite_strict=True, **more)


def _number() -> Column[Any]:
    """A column of row numbers that the database gives."""
    return Column("id", _WHOLE, primary_key=True, autoincrement=True)


def _partial(name: str, where: str, *columns: Column[Any], lite: str = "") -> None:
    """Index the rows that satisfy ``where``; ``lite``: the words of SQLite's queries, which must match."""
    Index(name, *columns, sqlite_where=text(lite or where), postgresql_where=text(where))


def _place() -> list[Column[Any]]:
    """The columns of a sum's place: a slice and a span of prediction time."""
    return [
        _key("version_id", _WHOLE),
        _key("start", _REAL),  # before the slice: what is read is one span, or those since some time
        _key("width", _REAL),
        _key("kind", _TEXT),
        _key("name", _TEXT),
    ]


LEDGER = _table(
    "ledger",
    _key("id", _WHOLE),  # 1: there is one
    _must("uuid", _TEXT),
    _must("schema", _WHOLE),
    _must("bins", _WHOLE),
    _must("retention", _REAL),
    _must("forgotten_until", _REAL),
    Column("time", _REAL),  # the ledger's own: see ``LedgerClock``
)

EDITION = _table(
    "edition",
    _key("number", _WHOLE),
    Column("version_id", _WHOLE),  # NULL: every version
    _must("began_at", _REAL),
    _must("why", _TEXT),
    _must("by", _TEXT),
    _must("labels", _WHOLE),
)
"""Each time that sums of a version went down, from which on they are published as other series."""

VERSION = _table(
    "version",
    _number(),
    _must("model", _TEXT),
    _must("version", _TEXT),
    Column("facts", _TEXT),
    Column("fed_until", _REAL),
    _must("late", _WHOLE, server_default="0"),
    _must("alarms", _WHOLE, server_default="0"),
    _must("incidents", _WHOLE, server_default="0"),
    Column("log_evidence", _REAL),
    Column("log_threshold", _REAL),
    UniqueConstraint("model", "version"),
)
"""A model version, what was told of it (``Watched``) if anything, and how far its drift detector is."""

LABEL = _table(
    "label",
    _key("predicted_at", _REAL),  # first: what comes together lies together, and is forgotten together
    _key("receipt", _BYTES),
    _must("version_id", _WHOLE),
    _must("arrived_at", _REAL),
    _must("confidence", _REAL),
    _must("predicted", _WHOLE),
    _must("label", _WHOLE),
    _must("inclusion", _REAL),
    _must("group_id", _WHOLE),
    *(_must(name, _FLAG) for name in ("tallied", "fed", "revoked")),
    _must("source", _TEXT),
    Column("segment", _TEXT),  # NULL: it counts in none
    _must("slices", _TEXT),  # JSON: the kinds and names of the others
    _must("history", _TEXT),  # JSON: the labels that this one took the place of, the first one first
    Column("shadow_confidence", _REAL),
    *(Column(name, _FLAG) for name in ("shadow_correct", "shadow_same")),
    Column("shadow_tag", _TEXT),
    sqlite_with_rowid=False,
)


_partial("label_to_tally", "not tallied", LABEL.c.predicted_at, LABEL.c.receipt, lite="tallied = 0")
_partial("label_to_feed", "not fed", LABEL.c.version_id, *LABEL.primary_key, lite="fed = 0")
_partial("label_by_source", OF_A_SOURCE, LABEL.c.source, LABEL.c.arrived_at)


TALLY = _table(
    "tally",
    *_place(),
    _key("bin", _WHOLE),
    *(_must(name, _REAL) for name in COLUMNS.values()),
)

DELAY = _table("delay", *_place(), _key("step", _WHOLE), _must("labels", _REAL))

SPAN = _table(
    "span",
    _key("version_id", _WHOLE),
    _key("start", _REAL),
    _key("width", _REAL),
    _must("changed", _WHOLE, index=True),
)
"""When sums of a span changed last: numbers that grow, in PostgreSQL those of transactions."""

BATCH = _table(
    "batch",
    _key("name", _TEXT),
    _must("content", _BYTES),
    _must("note", _BYTES),
    _must("sent_at", _REAL),
    _must("expires_at", _REAL),
)
"""Batches of predictions that were counted, by their Idempotency-Key, as long as they may come again."""

SENDER = _table(
    "sender",
    _key("name", _TEXT),
    _must("counted", _TEXT),
    _must("latest", _WHOLE),
    _must("content", _BYTES),
    _must("sent_at", _REAL),
)
"""Senders that number their batches: ranges of the counted numbers, and the content of the latest one."""

HELD = _table(
    "held",
    _key("kind", _TEXT),
    _key("name", _TEXT),
    _must("model", _TEXT),
    _must("version", _TEXT),
    _must("content", _TEXT),
    _must("source", _TEXT),
    _must("came_at", _REAL),
)
"""Predictions and labels of versions that are not known yet, for a day."""

PREDICTION_ID = _table(
    "prediction_id",
    _key("id_hash", _TEXT),
    _key("model", _TEXT),
    _key("source", _TEXT),
    _must("receipt", _TEXT),
    _must("bound_at", _REAL, index=True),
)
"""The receipt behind an id that ``source`` gave its prediction; a hash of the id is kept."""

STATE = _table(
    "state",
    _key("version_id", _WHOLE),
    _key("kind", _TEXT),
    _key("name", _TEXT),
    _must("value", _BYTES),
    _must("changed_at", _REAL),
)
"""What followers of labels keep: a version's drift detector, clauses, shadows; and what of it began anew."""

INCIDENT = _table(
    "incident",
    _number(),
    _must("version_id", _WHOLE),
    _must("opened", _REAL),
    Column("onset", _REAL),
    _must("direction", _TEXT),
    _must("bins", _TEXT),
    _must("classes", _TEXT),
    _must("alarms", _WHOLE),
    _must("latest", _REAL),
    _must("took", _WHOLE),
    _must("labels", _WHOLE),
    _must("excess", _REAL),
    _must("labels_since", _WHOLE),
    _must("excess_since", _REAL),
    Column("closed", _REAL),
    _must("closed_by", _TEXT),
    _must("note", _TEXT),
)

PROGRAM = _table("program", _key("name", _TEXT), _must("wrote_at", _REAL), _must("ttl", _REAL))
"""When each program that counts here wrote last, and for how many seconds it takes labels."""

GIVEN = _table("given", _key("program", _TEXT), _key("what", _TEXT), _must("value", _TEXT))
"""What each of them was given that all should have alike, such as its ``--maturity``."""

VIEWS = {
    "labels": (
        *("model", "version", "receipt", "predicted_at", "arrived_at", "predicted", "confidence", "correct"),
        *("inclusion", "segment", "source", "group_id", "revoked", "label", "history"),
    ),
    "sums": ("model", "version", "kind", "name", "start", "width", "bin", *COLUMNS.values()),
    "incidents": (
        *("id", "model", "version", "opened", "onset", "direction", "alarms", "labels", "excess"),
        *("closed", "closed_by", "note"),
    ),
}
"""The columns of each view.

Times are seconds since 1970. ``receipt`` is the nonce in hex, ``label`` the true class (of a multi-label
model 2 l + 1 if label l is true, else 2 l), ``history`` the labels that it corrected, as JSON; a span of
``width`` 0 is all time, and bin b of 15 holds (b / 15, (b + 1) / 15].
"""


def create_views(*, lite: bool) -> list[str]:
    """The SQL that makes the views, in SQLite or PostgreSQL."""
    made = {
        "receipt": "lower(hex(label.receipt))" if lite else "encode(label.receipt, 'hex')",
        "model": "version.model",
        "version": "version.version",
        "correct": "label.predicted = label.label",
        "segment": "coalesce(label.segment, '')",
    }
    return [
        f"create view {view} as select "  # noqa: S608 - our own names
        + ", ".join(f"{made.get(name, f'{table}.{name}')} as {name}" for name in columns)
        + f" from {table} join version on version.id = {table}.version_id"
        for (view, columns), table in zip(VIEWS.items(), ("label", "tally", "incident"), strict=True)
    ]

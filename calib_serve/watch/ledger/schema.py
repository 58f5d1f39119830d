"""The tables of a ledger, the same in SQLite and PostgreSQL, for whoever looks with their own tool.

``label`` has a row for each receipt whose label was counted: the primary key is what counts it once.
``tally`` and ``delay`` hold the sums of the rows that are ``tallied``, by slice, over all time (``width`` 0)
and by spans of prediction time; the sums of the rest are made when they are read. Times are seconds since
1970. The views ``labels``, ``sums`` and ``incidents`` are for people; ``MEANINGS`` says what is in them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    text,
)

from calib_serve.watch.series import SUMS

__all__ = [
    "BATCH", "COLUMNS", "DELAY", "EDITION", "INCIDENT", "LABEL", "LEDGER", "MEANINGS", "METADATA",
    "POSTGRESQL_VIEW", "PREDICTION_ID", "PROGRAM", "SCHEMA", "STATE", "TALLY", "VERSION", "VIEWS",
]  # fmt: skip

SCHEMA = 1
METADATA = MetaData()


def _must(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **more)


def _key(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _number() -> Column[Any]:
    """A number that the database gives each row."""
    return Column("id", Integer, primary_key=True, autoincrement=True)


LEDGER = Table(
    "ledger",
    METADATA,
    _key("id", SmallInteger),  # 1: there is one
    _must("uuid", String),
    _must("schema", Integer),
    _must("bins", Integer),
    _must("retention", Double),
    _must("forgotten_until", Double),
)

EDITION = Table(
    "edition",
    METADATA,
    _key("number", Integer),
    _must("began_at", Double),
    _must("why", String),
    _must("by", String),
    _must("labels", Integer),
)
"""Each time that sums went down, from which on they are published as another series: what took labels out."""

VERSION = Table(
    "version",
    METADATA,
    _number(),
    _must("model", String),
    _must("version", String),
    Column("fed_until", Double),
    _must("late", Integer, server_default="0"),
    _must("alarms", Integer, server_default="0"),
    _must("incidents", Integer, server_default="0"),
    Column("log_evidence", Double),
    Column("log_threshold", Double),
    UniqueConstraint("model", "version"),
)
"""A model version, and how far its drift detector is."""

LABEL = Table(
    "label",
    METADATA,
    _key("day", Integer),
    _key("receipt", String),
    _must("version_id", Integer),
    _must("predicted_at", Double),
    _must("arrived_at", Double),
    _must("confidence", Double),
    _must("correct", Boolean),
    _must("predicted", BigInteger),
    _must("inclusion", Double),
    _must("segment", String),
    _must("source", String),
    _must("group_id", BigInteger),
    _must("slices", String),
    Column("shadow_confidence", Double),
    Column("shadow_correct", Boolean),
    Column("shadow_same", Boolean),
    Column("shadow_tag", String),
    _must("tallied", Boolean),
    _must("fed", Boolean),
    _must("revoked", Boolean),
)


def _partial(name: str, where: str, *columns: Column[Any]) -> None:
    """An index of the rows for which this holds, in either dialect."""
    Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


_partial("label_to_tally", "not tallied", LABEL.c.day, LABEL.c.receipt)
_partial("label_to_feed", "not fed", LABEL.c.version_id, LABEL.c.predicted_at)
_partial("label_by_source", "source <> ''", LABEL.c.source, LABEL.c.arrived_at)

COLUMNS = {
    one.name: one.name.removeprefix("calib_").removesuffix("_total") for one in SUMS if one.per != "delay"
}
"""The column of ``tally`` for each declared sum but the delay's."""


def _place() -> list[Column[Any]]:
    """The slice and the span of prediction time that a sum is of."""
    return [
        _key("version_id", Integer),
        _key("kind", String),
        _key("name", String),
        _key("start", Double),
        _key("width", Double),
    ]


TALLY = Table(
    "tally",
    METADATA,
    *_place(),
    _key("bin", SmallInteger),
    *(_must(name, Double) for name in COLUMNS.values()),
)

DELAY = Table("delay", METADATA, *_place(), _key("step", SmallInteger), _must("labels", Double))

BATCH = Table(
    "batch",
    METADATA,
    _key("name", String),
    _must("content", LargeBinary),
    _must("note", LargeBinary),
    _must("sent_at", Double),
    _must("expires_at", Double),
)
"""Batches of predictions that were counted, by their Idempotency-Key, for a day."""

PREDICTION_ID = Table(
    "prediction_id",
    METADATA,
    _key("model", String),
    _key("id_hash", String),
    _must("receipt", String),
    _must("bound_at", Double),
)
"""The receipt behind a user's own id of a prediction, of which a hash is kept."""

STATE = Table(
    "state",
    METADATA,
    _key("version_id", Integer),
    _key("kind", String),
    _key("name", String),
    _must("value", LargeBinary),
    _must("changed_at", Double),
)
"""What followers of labels keep: a version's drift detector, clauses, shadows; and what of it began anew."""

INCIDENT = Table(
    "incident",
    METADATA,
    _number(),
    _must("version_id", Integer),
    _must("opened", Double),
    Column("onset", Double),
    _must("direction", String),
    _must("bins", String),
    _must("classes", String),
    _must("alarms", Integer),
    _must("latest", Double),
    _must("took", Integer),
    _must("labels", Integer),
    _must("excess", Double),
    _must("labels_since", Integer),
    _must("excess_since", Double),
    Column("closed", Double),
    _must("closed_by", String),
    _must("note", String),
)

PROGRAM = Table("program", METADATA, _key("name", String), _must("wrote_at", Double), _must("ttl", Double))
"""When each program that counts here wrote last, and for how many seconds it takes labels."""

MEANINGS = {
    "labels": {
        "model": ("text", "The model of the prediction."),
        "version": ("text", "Its version."),
        "receipt": ("text", "The nonce of the prediction's receipt, in hex: no other prediction has it."),
        "predicted_at": ("number", "When the prediction was made, seconds since 1970."),
        "arrived_at": ("number", "When its label came, seconds since 1970."),
        "predicted": (
            "count",
            "The predicted class; of a multi-label model 2 l + 1 if label l is, else 2 l.",
        ),
        "confidence": ("number", "Its probability, as it was served."),
        "correct": ("yes or no", "Whether the label says that the prediction was right."),
        "inclusion": (
            "number",
            "The chance with which the label was asked for: its weight is one over this.",
        ),
        "segment": ("text", "The segment that it counts in."),
        "source": ("text", "Who sent the label; empty where that is not known."),
        "group_id": ("count", "A hash of the group whose outcomes hang together; 0: of none."),
        "revoked": ("yes or no", "Whether it was taken out of the sums again."),
    },
    "sums": {
        "model": ("text", "The model."),
        "version": ("text", "Its version."),
        "kind": ("text", "How predictions are sliced: segment, class, group, source or clause."),
        "name": ("text", "The slice; the segments of a version, the empty one too, make up all of it."),
        "start": ("number", "Where the span of prediction time begins, seconds since 1970."),
        "width": ("number", "Its seconds; 0: over all time."),
        "bin": ("count", "The bin of confidence: number b of 15 holds (b / 15, (b + 1) / 15]."),
        **{COLUMNS[one.name]: ("number", one.help) for one in SUMS if one.name in COLUMNS},
    },
    "incidents": {
        "id": ("count", "Its number."),
        "model": ("text", "The model."),
        "version": ("text", "Its version."),
        "opened": ("number", "When its first alarm was raised, seconds since 1970."),
        "onset": ("number", "When the change began, by its estimate."),
        "direction": ("text", "Which way calibration went."),
        "alarms": ("count", "How many alarms it has."),
        "labels": ("count", "Labels since the onset."),
        "excess": ("number", "Their sum of confidence less correct."),
        "closed": ("number", "When it was closed; empty: it is open."),
        "closed_by": ("text", "Who closed it: recovery, or a person."),
        "note": ("text", "What they said."),
    },
}
"""The columns of each view: their kinds, and what they mean."""

_OF_VERSION = ("model", "version")
VIEWS = [
    f"create view if not exists {view} as select "  # noqa: S608 - our own names
    + ", ".join(f"{'version' if name in _OF_VERSION else table}.{name}" for name in columns)
    + f" from {table} join version on version.id = {table}.version_id"
    for (view, columns), table in zip(MEANINGS.items(), ("label", "tally", "incident"), strict=True)
]
POSTGRESQL_VIEW = ("create view if not exists", "create or replace view")

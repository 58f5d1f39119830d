"""The tables of a ledger in SQL, the same in SQLite and PostgreSQL, for whoever looks with their own tool.

``label`` has a row for each receipt whose label was counted: the primary key is what counts it once.
``tally`` and ``delay`` hold the sums of the rows that are ``tallied``, by slice, over all time (``width`` 0)
and by spans of prediction time; the sums of the rest are made when they are read.
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
    "BATCH",
    "COLUMNS",
    "DELAY",
    "LABEL",
    "LEDGER",
    "METADATA",
    "SCHEMA",
    "SETTING",
    "TALLY",
    "VERSION",
]

SCHEMA = 1
METADATA = MetaData()

LEDGER = Table(
    "ledger",
    METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("uuid", String, nullable=False),
    Column("schema", Integer, nullable=False),
    Column("bins", Integer, nullable=False),
    Column("retention", Double, nullable=False),
    Column("edition", Integer, nullable=False),
    Column("forgotten_until", Double, nullable=False),
)

VERSION = Table(
    "version",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("model", String, nullable=False),
    Column("version", String, nullable=False),
    UniqueConstraint("model", "version"),
)

LABEL = Table(
    "label",
    METADATA,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("receipt", String, primary_key=True),
    Column("version_id", Integer, nullable=False),
    Column("predicted_at", Double, nullable=False),
    Column("arrived_at", Double, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("correct", Boolean, nullable=False),
    Column("predicted", Integer, nullable=False),
    Column("inclusion", Double, nullable=False),
    Column("segment", String, nullable=False),
    Column("source", String, nullable=False),
    Column("group_id", BigInteger, nullable=False),
    Column("slices", String, nullable=False),
    Column("shadow_confidence", Double),
    Column("shadow_correct", Boolean),
    Column("shadow_same", Boolean),
    Column("shadow_tag", String),
    Column("tallied", Boolean, nullable=False),
    Column("fed", Boolean, nullable=False),
    Column("revoked", Boolean, nullable=False),
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


def _place() -> list[Column[object]]:
    """The slice and the span of prediction time that a sum is of."""
    return [
        Column("version_id", Integer, primary_key=True, autoincrement=False),
        Column("kind", String, primary_key=True),
        Column("name", String, primary_key=True),
        Column("start", Double, primary_key=True),
        Column("width", Double, primary_key=True),
    ]


TALLY = Table(
    "tally",
    METADATA,
    *_place(),
    Column("bin", SmallInteger, primary_key=True, autoincrement=False),
    *(Column(name, Double, nullable=False) for name in COLUMNS.values()),
)

DELAY = Table(
    "delay",
    METADATA,
    *_place(),
    Column("step", SmallInteger, primary_key=True, autoincrement=False),
    Column("labels", Double, nullable=False),
)

BATCH = Table(
    "batch",
    METADATA,
    Column("name", String, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("note", LargeBinary, nullable=False),
    Column("sent_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
)

SETTING = Table(
    "setting", METADATA, Column("key", String, primary_key=True), Column("value", LargeBinary, nullable=False)
)

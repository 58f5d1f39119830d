"""Files of earlier formats, brought to that of today when they are opened.

Format 1 kept nonces whole and sums without time; format 2 had no checksums; format 3 no shadows.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np

from calib_serve.errors import ShapeError
from calib_serve.watch.ledger.rows import Tables
from calib_serve.watch.ledger.sums import Sums
from calib_serve.watch.ledger.tables import SCHEMA, TABLES

__all__ = ["FORMAT", "convert"]

FORMAT = 4
_OLD = ("nonces", "epochs", "batches", "totals", "spans", "journal", "emitted", "state", "sums", "folded")
_AT_ONCE = 5_000  # rows
_NONCE_1 = 12  # bytes of a nonce in receipts of version 1


def convert(tables: Tables, found: int, *, bins: int) -> None:
    """Bring a ledger of format ``found`` over, within a transaction.

    ValueError, TypeError, ShapeError or sqlite3.Error where a row of it cannot be.
    """
    db = tables.db
    if found == 3:
        _with_shadows(db)
        return
    kept = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for (name,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall():
        db.execute(f'DROP INDEX "{name}"')
    old = [name for name in _OLD if name in kept]
    for name in old:
        db.execute(f"ALTER TABLE {name} RENAME TO old_{name}")
    for statement in SCHEMA:
        db.execute(statement)
    for name in old:
        if name in TABLES:
            rows = _rows(db, name, found, bins=bins)
            while some := list(itertools.islice(rows, _AT_ONCE)):
                tables[name].add(some)
    if "sums" in old:  # they have no time, and count in those over all time
        tables["totals"].add(
            (*names, "segment", segment, _unpacked_1(packed, bins=bins))
            for *names, segment, packed in db.execute("SELECT * FROM old_sums")
        )
    if found == 1:  # names of batches lay among the nonces
        named = tables["nonces"].select("WHERE length(nonce) <> ?", (_NONCE_1,))
        tables["batches"].add(named)
        tables["nonces"].delete_all(named)
    if "folded" in old:
        (last,) = db.execute("SELECT coalesce(max(id), 0) FROM old_folded").fetchone()
        tables["state"].put("ledger/folded", str(int(last)).encode())
    for name in old:
        db.execute(f"DROP TABLE old_{name}")


def _with_shadows(db: sqlite3.Connection) -> None:
    """Add the journal's last column, empty; checksums stay, as nothing adds nothing to them."""
    db.execute("DROP INDEX IF EXISTS journal_time")
    db.execute("ALTER TABLE journal RENAME TO old_journal")
    for statement in TABLES["journal"].schema:
        db.execute(statement)
    db.execute("INSERT INTO journal SELECT *, x'' FROM old_journal")
    db.execute("DROP TABLE old_journal")


def _rows(db: sqlite3.Connection, name: str, found: int, *, bins: int) -> Iterator[tuple[Any, ...]]:
    for row in db.execute(f"SELECT * FROM old_{name}"):  # noqa: S608
        if name == "emitted" and found == 1:
            yield (*row[:-1], _unpacked_1(row[-1], bins=bins))
        elif name == "epochs":
            epoch, expires, bits = row
            yield epoch, expires, -math.inf, bits
        elif name == "journal":
            yield *row, b""
        elif name == "state":
            key, value = row
            yield key, value.encode() if isinstance(value, str) else value  # stored by hand
        else:
            yield row


def _unpacked_1(packed: bytes, *, bins: int) -> bytes:
    try:
        return Sums.of_version_1(np.frombuffer(packed, "<f8"), bins=bins).packed()
    except (ValueError, TypeError) as error:
        raise ShapeError(f"sums of format 1: {error}") from error

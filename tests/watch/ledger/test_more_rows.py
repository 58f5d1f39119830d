"""A SQLite ledger's rows: what damage is called, where it goes, and what is read of what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import entries, make_label

from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.ledger.inspection import Damage, index_alone
from calib_serve.watch.ledger.tables import SCHEMA, TABLES, Table

pytestmark = pytest.mark.store


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=lambda: 5000.0)) as found:
        yield found


# --- damage ---


def test_damage_is_called_by_its_table() -> None:
    assert str(Damage("totals", None, "rows are missing")) == "totals: rows are missing"


@pytest.mark.parametrize(
    ("wrong", "alone"),
    [
        (["wrong # of entries in index epochs_expires"], True),
        (["row 1 missing from index a", "row 2 missing from index b"], True),
        (["row 1 missing from index a", "Freelist: size is 0 but should be 7"], False),
        (["*** in database main ***\nTree 5: index page 7 is of another"], False),
    ],
)
def test_indexes_hold_nothing_of_their_own(wrong: list[str], alone: bool) -> None:
    assert index_alone(wrong) == alone


def test_digests_are_counted_anew_where_there_are_none(ledger: SqliteLedger) -> None:
    ledger.accept(entries([make_label(i << 16) for i in range(5)]))
    with ledger.transaction():
        ledger._tables["state"].drop(("ledger/digests",))
        ledger._tables.forget()
        assert not ledger._tables.whole("epochs")
        for name in ("state", "epochs"):
            ledger._tables.recount(name)
        assert ledger._tables.whole("epochs")
    assert "epochs: rows are missing, or there are others" not in ledger.verify()
    assert ledger._tables.whole("state")


# --- labels of the journal ---


# --- sums ---


@pytest.mark.parametrize("name", ["ledger/bins", "ledger/digests"])
def test_a_writer_of_the_name_of_a_key_is_a_writer(tmp_path: Path, name: str) -> None:
    with closing(SqliteLedger(tmp_path / "kept.db", writer=name)) as ledger:
        for i in range(3):
            assert ledger.accept(entries([make_label(i)])) == ["counted"]
            with ledger.emission("scrape") as found:
                assert found.counted["m", "1"].labels.sum() == i + 1
        assert ledger.verify() == []


# --- what it keeps ---


def test_its_tables_are_made_as_they_say() -> None:
    assert [statement for one in TABLES.values() for statement in one.schema] == list(SCHEMA)
    table = Table("t", ("a TEXT", "b REAL"), ("c BLOB",), ("b", "a"))
    made, index = table.schema
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(made)
        db.execute(index)
        told = db.execute("SELECT name, type, pk, [notnull] FROM pragma_table_info('t')").fetchall()
        assert told == [
            ("a", "TEXT", 1, 1),
            ("b", "REAL", 2, 1),
            ("crc", "INTEGER", 0, 1),
            ("c", "BLOB", 0, 1),
        ]
        assert db.execute("SELECT name FROM pragma_index_info('t_a')").fetchall() == [("b",), ("a",)]
    (alone,) = Table("u", ("id INTEGER",), ()).schema
    assert alone == "CREATE TABLE IF NOT EXISTS u (id INTEGER, crc INTEGER NOT NULL, PRIMARY KEY (id))"


def test_rows_that_are_looked_at_raw_leave_the_others_as_they_were(ledger: SqliteLedger) -> None:
    ledger.store("mine", b"1")
    rows = ledger._tables["state"]
    assert rows.chunk(None, most=9)
    assert rows._db.text_factory is str

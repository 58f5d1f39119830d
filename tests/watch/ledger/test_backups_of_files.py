"""Backups of SQLite ledgers: whose they are, when they were taken, and what is said where they cannot be."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    SqliteLedger,
    backup_ledger,
    existing_ledger,
)
from calib_serve.watch.ledger.generations import read_taken_out

pytestmark = pytest.mark.store


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path, bins=10, retention=1000.0, clock=lambda: 5000.0)) as ledger:
        ledger.accept(entries([make_label(i << 16, when=4500.0) for i in range(20)]))
    return path


def test_what_is_damaged_is_not_backed_up(kept: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(kept)) as db, db:
        db.execute("UPDATE totals SET sums = x'00'")
    with pytest.raises(LedgerError, match=r"the ledger [^ ]*/kept\.db is not sound: totals: a row"):
        backup_ledger(str(kept), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    (tmp_path / "text").write_text("no backup")
    with pytest.raises(LedgerError, match="text is no backup of a ledger"):
        backup_ledger(str(kept), tmp_path / "text")
    assert (tmp_path / "text").read_text() == "no backup"
    with pytest.raises(LedgerError, match=r"there is no ledger .*nowhere"):
        backup_ledger(str(tmp_path / "nowhere"), tmp_path / "backup")


def test_labels_that_were_never_counted_are_not_taken_out(kept: Path) -> None:
    with closing(existing_ledger(str(kept))) as ledger:
        with ledger.transaction():
            rows = ledger.look_at_waiting(("m", "1"), until=math.inf, most=5)
            other = [row._replace(confidence=0.1) for row in rows]
        assert not ledger.take_back(rows, mark="m", before=b"another", after=b"x")
        with pytest.raises(LedgerError, match="were never counted in this ledger"):
            ledger.take_back(other, mark="m", before=b"", after=b"x")
        assert ledger.load("m") is None
        assert ledger.take_back(rows, mark="m", before=b"", after=b"x")
        assert ledger.sums()["m", "1"].labels.sum() == 15
        assert sum(one.sums.labels.sum() for one in ledger.dated(0, 1e10, kind="segment")) == 15
        assert ledger.waiting() == {("m", "1"): 15}
        assert read_taken_out(ledger) == 5
        assert ledger.load("m") == b"x"
        assert ledger.accept(entries([make_label(0, when=4500.0)])) == ["duplicate"]


def test_labels_are_their_writers_whoever_makes_sums_of_them(kept: Path) -> None:
    options = {"bins": 10, "retention": 1000.0, "clock": lambda: 5000.0}
    with (
        closing(SqliteLedger(kept, writer="a", **options)) as a,
        closing(SqliteLedger(kept, writer="b", **options)) as b,
    ):
        a.accept(entries([make_label(100 + i, when=4500.0) for i in range(3)]))
        b.accept(entries([make_label(200 + i, when=4500.0) for i in range(4)]))
        a.accept(entries([make_label(300, when=4500.0)]))
        rows = [row for row in b.look_at_waiting(("m", "1"), until=math.inf, most=99) if row.writer == "a"]
        with b.emission("scrape") as found:
            assert found.counted["m", "1"].labels.sum() == 4
        assert [one.sums(own=True)["m", "1"].labels.sum() for one in (a, b)] == [4, 4]
        assert b.take_back(rows[:1], mark="m", before=b"", after=b"x")
        assert [one.sums(own=True)["m", "1"].labels.sum() for one in (a, b)] == [3, 4]
        assert a.sums()["m", "1"].labels.sum() == 20 + 7

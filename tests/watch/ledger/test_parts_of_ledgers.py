"""A SQLite ledger's own files and rows, each part by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    SqliteLedger,
)
from calib_serve.watch.ledger.entries import Noted, Place, coarser, label_sums
from calib_serve.watch.ledger.sums import Key, Sums

pytestmark = pytest.mark.store


def test_labels_over_all_time_are_a_writers_and_in_spans_nobodys() -> None:
    key, day = Key("m", "1"), 86400.0
    rows = [
        Noted("a", "m", "1", 1000.0, b"", 1100.0, 0.9, True, 0, 1.0, 0, (key,)),
        Noted("b", "m", "1", 1000.0, b"", 1200.0, 0.9, False, 0, 1.0, 0, (key,)),
        Noted("b", "m", "1", 1000.0, b"", 1000.0 + 500 * day, 0.9, True, 0, 1.0, 0, (key,)),  # of no span
    ]
    found = label_sums(rows, bins=10)
    counted = {where: sums["calib_feedback_total"].sum() for where, sums in found.items()}
    assert counted == {("a", Place(key)): 1, ("b", Place(key)): 2, ("", Place(key, 900.0, 300.0)): 2}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=lambda: 5000.0)) as found:
        yield found


def test_sums_are_below_others_by_more_than_the_last_digits() -> None:
    one, two = (Sums.labelled(np.full(n, 0.7), np.ones(n)) for n in (1, 2))
    assert one.below(two)
    assert not two.below(one)
    assert not two.below(two)
    assert not Sums(two.bins, two.vector * (1 - 1e-12)).below(two)


@pytest.mark.parametrize("folded", [False, True])
def test_spans_are_told_that_lie_inside_whole(ledger: SqliteLedger, folded: bool) -> None:
    ledger.accept(entries([make_label(1, when=3010.0), make_label(2, when=3310.0)]))
    if folded:
        with ledger.transaction():
            ledger._book.fold()

    def told(since: float, until: float) -> list[float]:
        return sorted({one.start for one in ledger.dated(since, until)})

    assert told(3000, 3600) == [3000, 3300]
    assert told(3000, 3599) == told(2000, 3300) == [3000]
    assert told(3001, 3600) == [3300]
    assert told(3000, 3299) == told(3301, 9999) == []


def test_a_span_becomes_wider_as_its_end_grows_old() -> None:
    day, start = 86_400.0, 7 * 86_400.0 + 600.0
    for ages, wanted in (
        ((0.0, 2 * day), (start, 300.0)),
        ((2 * day + 1, 35 * day), (7 * day, 3600.0)),
        ((35 * day + 1, 400 * day), (7 * day, day)),
        ((400 * day + 1, 4000 * day), None),
    ):
        for age in ages:
            assert coarser(start, 300.0, now=start + 300.0 + age) == wanted
    assert coarser(7 * day, 3600.0, now=7 * day + 3600.0) == (7 * day, 3600.0)  # never narrower


def test_a_file_with_tables_of_others_is_no_ledger(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "others.db")) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    with pytest.raises(LedgerError, match="it has tables, and no number of its format"):
        SqliteLedger(tmp_path / "others.db")

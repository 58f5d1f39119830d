"""A SQLite ledger's rows: what damage is called, where it goes, and what is read of what was written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import Key, SqliteLedger, Sums, book
from calib_serve.watch.ledger.entries import Place, holding, journal_sums, places
from calib_serve.watch.ledger.seen import Seen, doubt

pytestmark = pytest.mark.store

DAY = 86_400.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=lambda: 5000.0)) as found:
        yield found


# --- labels of the journal ---


def test_labels_are_folded_when_there_are_many(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "_FOLD_AT", 3)
    ledger.accept(entries([make_label(0)]))  # a sweep folds it

    def waiting() -> float:
        return sum(sums[Place(Key("m", "1"))].labels.sum() for sums in ledger._book.unfolded().values())

    left = []
    for i in range(1, 6):
        ledger.accept(entries([make_label(i)]))
        left.append(waiting())
    assert left == [1, 2, 3, 0, 1]
    ledger.accept(entries([make_label(i) for i in range(6, 8)]))
    assert waiting() == 3
    ledger.accept(entries([make_label(i) for i in range(8, 10)]))
    assert waiting() == 0
    assert ledger.sums()["m", "1"].labels.sum() == 10


def test_a_label_lies_in_a_span_only_where_its_bin_has_one(ledger: SqliteLedger) -> None:
    ledger.accept(entries([make_label(1, when=4500.0), make_label(2, when=4500.0, confidence=0.5)]))
    with ledger.transaction():
        ledger._book.fold()
    place = Place(Key("m", "1"), 4500.0, 300.0)
    for there, confidences in ((True, [0.9]), (True, [0.9, 0.5]), (False, [0.9, 0.1]), (False, [0.9, 0.9])):
        sums = Sums.labelled(confidences, np.ones(len(confidences)))
        if there:
            assert ledger._book._holding(place, sums, now=5000.0) == place
            continue
        with pytest.raises(LedgerError, match="were never counted"):
            ledger._book._holding(place, sums, now=5000.0)


def test_a_label_that_was_merged_into_a_wider_span_is_taken_out_of_it(ledger: SqliteLedger) -> None:
    ledger.accept(entries([make_label(i, when=4500.0) for i in range(3)]))
    rows = ledger.look_at_waiting(("m", "1"), until=1e10, most=1)
    with ledger.transaction():
        ledger._book.merge_spans(4500.0 + 3 * DAY, at_most=100)
    assert {one.width for one in ledger.dated(0, 1e10)} == {3600.0}
    assert ledger.take_back(rows, mark="m", before=b"", after=b"x")
    assert sum(one.sums.labels.sum() for one in ledger.dated(0, 1e10, kind="segment")) == 2


def test_where_sums_may_lie() -> None:
    key = Key("m", "1")
    assert holding(Place(key)) == [Place(key)]
    at = 10 * DAY + 4500.0
    assert holding(Place(key, at, 300.0)) == [
        Place(key, at, 300.0), Place(key, 10 * DAY + 3600.0, 3600.0), Place(key, 10 * DAY, DAY)
    ]  # fmt: skip
    assert holding(Place(key, 10 * DAY, DAY)) == [Place(key, 10 * DAY, DAY)]
    assert places(key, time=at + 10, now=at + 20) == [Place(key), Place(key, at, 300.0)]
    assert places(key, time=at, now=at + 401 * DAY) == [Place(key)]
    assert journal_sums([], bins=15) == {}


# --- what it keeps ---


def test_labels_of_spans_that_are_gone_are_taken_out_of_none(ledger: SqliteLedger) -> None:
    place, sums = Place(Key("m", "1"), 300.0, 300.0), Sums.labelled([0.9], [1])
    for age in (0.0, 100 * DAY, 400 * DAY):
        with pytest.raises(LedgerError, match="were never counted in this ledger"):
            ledger._book._holding(place, sums, now=600.0 + age)
    assert ledger._book._holding(place, sums, now=601.0 + 400 * DAY) is None


def test_a_name_of_a_doubted_moment_is_refused(ledger: SqliteLedger) -> None:
    seen = Seen(ledger._tables, damaged=LedgerError)
    with ledger.transaction():
        doubt(ledger._tables["state"], receipts=1000.0, batches=-math.inf)
        names = [b"of another form", b"the next one"]
        assert seen.add(names, [1000.0, 1000.5], retention=100.0) == ["forgotten", "counted"]
        epochs = [number.to_bytes(10, "big") for number in (1 << 16, 2 << 16)]
        assert seen.add(epochs, [1000.0, 1000.5], retention=100.0) == ["forgotten", "counted"]


def test_labels_older_than_every_span_are_in_the_total_alone(tmp_path: Path) -> None:
    now = 500 * DAY
    with closing(SqliteLedger(tmp_path / "l.db", retention=now, clock=lambda: now)) as ledger:
        for i in (1, 2):  # what comes first is summed at once, and the other one later
            assert ledger.accept(entries([make_label(i, when=10 * DAY)], delay=450 * DAY)) == ["counted"]
            assert ledger.sums()["m", "1"].labels.sum() == i
            assert ledger.slices()[Key("m", "1")].labels.sum() == i
        assert ledger.dated(0, 2 * now) == []


def test_an_epoch_is_remembered_as_long_as_its_latest_receipt(ledger: SqliteLedger) -> None:
    seen = Seen(ledger._tables, damaged=LedgerError)
    with ledger.transaction():
        for bit, when in ((1, 1000.0), (2, 500.0)):
            assert seen.add([b"an epoch" + bit.to_bytes(2, "big")], [when], retention=100.0) == ["counted"]
        assert seen.forget(1100.0, at_most=10) == (0, -math.inf)
        assert seen.forget(1100.5, at_most=10) == (1, 1100.0)

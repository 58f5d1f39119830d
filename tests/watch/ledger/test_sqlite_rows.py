"""A SQLite ledger's rows: what damage is called, where it goes, and what is read of what was written."""

from __future__ import annotations

import math
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import Key, SqliteLedger, Sums, book, set_aside_rows, verify_file
from calib_serve.watch.ledger.entries import Once, Place, Shadowed, holding, journal_sums, places
from calib_serve.watch.ledger.inspection import Damage, contain, index_alone, structure
from calib_serve.watch.ledger.seen import Seen, doubt
from calib_serve.watch.ledger.sums import label_places
from calib_serve.watch.ledger.tables import SCHEMA, TABLES, Table

pytestmark = pytest.mark.store

DAY = 86_400.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=lambda: 5000.0)) as found:
        yield found


# --- damage ---


def test_a_table_or_an_index_that_was_changed_is_named(ledger: SqliteLedger) -> None:
    with closing(sqlite3.connect(ledger.path)) as db:
        assert structure(db, made=True) == structure(db, made=False) == []
        db.execute("DROP INDEX batches_expires")
        db.execute("ALTER TABLE batches RENAME TO others")
        wanted = ["batches: not as it was made", "batches_expires: not as it was made"]
        assert sorted(structure(db, made=True)) == wanted
        assert structure(db, made=False) == []
    assert sorted(verify_file(ledger.path)) == wanted


def test_rows_that_are_set_aside_are_numbered(ledger: SqliteLedger) -> None:
    for name in "ab":
        ledger.store(f"detector/{name}", b"15")
    with ledger.transaction():
        odd = [Damage("state", ledger._tables["state"].get(f"detector/{name}"), "odd") for name in "ab"]
        assert contain(ledger._tables, odd, latest=0.0, now=0.0) == []
    rows = ledger._tables["damaged"].select("ORDER BY id")
    assert [row[:4] for row in rows] == [(1, 0.0, "state", "odd"), (2, 0.0, "state", "odd")]
    assert ledger.set_aside() == ["state: odd (set aside 1970-01-01 00:00 UTC)"] * 2
    assert ledger.verify() == []
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("UPDATE damaged SET what = 'other' WHERE id = 2")
    (told,) = set_aside_rows(str(ledger.path))
    assert told.startswith("damaged: a row of damaged is not as it was written: its key reads (2,)")


# --- labels of the journal ---


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
def test_a_shadow_is_read_as_it_was_written(confidence: float) -> None:
    for correct in (False, True):
        for same in (False, True):
            one = Shadowed.of(confidence, correct, same, "00ff10ab")
            assert one == Shadowed(confidence, correct, same, "00ff10ab")
            assert Shadowed.unpacked(one.packed()) == one
            assert len(one.packed()) == 9
    assert Shadowed.unpacked(b"") is None


@pytest.mark.parametrize("confidence", [-0.5, 1.5, float("nan")])
def test_a_shadow_without_a_probability_is_none(confidence: float) -> None:
    with pytest.raises(ValueError, match="a shadow of the journal reads"):
        Shadowed.of(confidence, True, True, "00ff10ab")
    with pytest.raises(ValueError, match="a shadow of the journal reads"):
        Shadowed.unpacked(struct.pack(">fB4s", confidence, 0, bytes(4)))


@pytest.mark.parametrize("tag", ["", "00ff10a", "00ff10abc", "00FF10AB", "x0ff10ab"])
def test_a_shadow_with_another_tag_is_none(tag: str) -> None:
    with pytest.raises(ValueError, match="a shadow of the journal reads"):
        Shadowed.of(0.5, True, True, tag)
    with pytest.raises(ValueError, match="a shadow is kept in 9 bytes, got 8"):
        Shadowed.unpacked(bytes(8))


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


# --- sums ---


def test_sums_of_labels_lie_where_they_are_said_to() -> None:
    counts, by_bin, whole = label_places(10)
    sums = Sums.labelled([0.95, 0.95, 0.15], [1, 0, 1], weight=2.0, delay=5.0, bins=10)
    vector = sums.vector
    assert vector[counts].tolist() == sums["calib_feedback_total"].tolist() == [0, 1, *[0] * 7, 2]
    assert [one[0] for one in by_bin] == counts
    for empty in (0, *range(2, 9)):
        assert not vector[by_bin[empty]].any()
    every = {*(place for one in by_bin for place in one), *whole}
    assert set(np.flatnonzero(vector)) <= every
    assert len(every) == 10 * len(set(by_bin[0])) + len(whole)
    of_all = ("delay", "confidence_squared_total", "confidence_correct_total")
    assert vector[whole].sum() == pytest.approx(sum(sums[f"calib_feedback_{name}"].sum() for name in of_all))
    predictions = [i for i in range(len(vector)) if i not in every]
    assert Sums.served([0.5], bins=10).vector[predictions].sum() == 1.5


@pytest.mark.parametrize("kept", [b"odd", bytes(8194), bytes(16_384)])
def test_bits_that_no_epoch_has_are_damage(ledger: SqliteLedger, kept: bytes) -> None:
    seen = Seen(ledger._tables, damaged=LedgerError)
    assert seen._bits(b"").sum() == 0
    assert seen._bits(b"\xff" * 8192).sum() == 65_536
    assert np.flatnonzero(seen._bits(b"\x00\x01\x01\x00")).tolist() == [1, 256]
    with pytest.raises(LedgerError, match=f"the bits of an epoch: none has {len(kept)} bytes"):
        seen._bits(kept)


# --- what it keeps ---


@pytest.mark.parametrize("table", ["batches", "epochs", "spans", "journal"])
def test_a_damaged_row_of_each_of_these_is_set_aside(ledger: SqliteLedger, table: str) -> None:
    row = {
        "batches": (b"name", b"content", 1.0, 2.0, b""),
        "epochs": (b"epoch", 2.0, -math.inf, b""),
        "spans": ("m", "1", "segment", 300.0, 300.0, "", b""),
        "journal": (1, "", "m", "1", 1.0, b"", 1.0, 0.5, 1, 1, 1.0, 0, "[]", 0, b""),
    }[table]  # fmt: skip
    with ledger.transaction():
        ledger._tables[table].add([row])
        odd = Damage(table, row, "odd")
        assert contain(ledger._tables, [odd], latest=10.0, now=20.0) == []
        assert not ledger._tables[table].select()
        assert ledger._tables.whole(table)
        assert contain(ledger._tables, [odd], latest=10.0, now=20.0) == [odd], "there is none any more"
    doubted = (b"10.0", b"20.0") if table in ("batches", "epochs") else (None, None)
    assert (ledger.load("ledger/doubted"), ledger.load("ledger/doubted_batches")) == doubted
    if doubted[0]:
        for time, counts in ((20.0, False), (20.5, True)):
            with ledger.transaction():
                assert ledger._batches.add(Once.of(repr(time).encode(), b"content", time=time)) == counts


@pytest.mark.parametrize("table", ["totals", "emitted", "damaged"])
def test_of_others_nothing_is_set_aside(ledger: SqliteLedger, table: str) -> None:
    with ledger.transaction():
        odd = Damage(table, None, "rows are missing, or there are others")
        assert contain(ledger._tables, [odd], latest=0.0, now=0.0) == [odd]
        assert contain(ledger._tables, [Damage("state", None, "")], latest=0.0, now=0.0) != []


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


@pytest.mark.parametrize("name", ["ledger/bins", "ledger/digests"])
def test_a_writer_of_the_name_of_a_key_is_a_writer(tmp_path: Path, name: str) -> None:
    with closing(SqliteLedger(tmp_path / "kept.db", writer=name)) as ledger:
        for i in range(3):
            assert ledger.accept(entries([make_label(i)])) == ["counted"]
            with ledger.emission("scrape") as found:
                assert found.counted["m", "1"].labels.sum() == i + 1
        assert ledger.verify() == []


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

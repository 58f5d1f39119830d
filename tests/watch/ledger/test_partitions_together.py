"""A ledger in partitions says of all of them what one ledger says of itself."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import Key, PartitionedLedger, SqliteLedger, Sums
from calib_serve.watch.ledger.entries import Once
from calib_serve.watch.ledger.partitioned import PARTITION

pytestmark = pytest.mark.store

VERSION = ("m", "1")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[PartitionedLedger]:
    parts = [SqliteLedger(tmp_path / str(i), clock=lambda: 20_000.0) for i in range(4)]
    with closing(PartitionedLedger(parts)) as found:
        yield found


def counted(ledger: PartitionedLedger, numbers: range, **more: object) -> None:
    """Labels of as many signing processes; the higher its number, the older."""
    some = [make_label((i << 16) + i, when=10_000.0 - i, **more) for i in numbers]  # type: ignore[arg-type]
    assert ledger.accept(entries(some)) == ["counted"] * len(some)


def test_sums_are_of_all_writers_or_of_its_own(ledger: PartitionedLedger) -> None:
    ledger.writer = "a"
    counted(ledger, range(30))
    ledger.writer = "b"
    counted(ledger, range(30, 50))
    assert {part.writer for part in ledger.parts} == {ledger.writer} == {"b"}
    for own, wanted in ((False, 50), (True, 20)):
        assert ledger.sums(own=own)[VERSION].labels.sum() == wanted
        assert ledger.slices(own=own)[Key("m", "1")].labels.sum() == wanted
    assert ledger.sums()[VERSION].labels.sum() == ledger.slices()[Key("m", "1")].labels.sum() == 50


def test_spans_are_told_in_their_order_whatever_the_model(ledger: PartitionedLedger) -> None:
    counted(ledger, range(0, 1000, 50), model="a")
    counted(ledger, range(2000, 3000, 50), model="b")
    for kind in ("segment", "class"):
        found = ledger.dated(0, 1e9, kind=kind)  # type: ignore[arg-type]
        assert [one.start for one in found] == sorted(one.start for one in found)
        assert {one.key.kind for one in found} == {kind}
        assert sum(one.sums.labels.sum() for one in found) == 40


def test_what_waits_is_taken_piece_by_piece(ledger: PartitionedLedger) -> None:
    ledger.writer = "b"
    counted(ledger, range(20, 40))
    ledger.writer = "a"
    counted(ledger, range(20))
    taken = []
    for _ in range(4):
        with ledger.transaction():
            taken.append([row.time for row in ledger.take_waiting(VERSION, until=math.inf, most=10)])
    assert [time for piece in taken for time in piece] == [10_000.0 - i for i in range(39, -1, -1)]
    assert [len(piece) for piece in taken] == [10] * 4
    with ledger.transaction():
        assert ledger.take_waiting(VERSION, until=math.inf, most=10) == []
    assert ledger.waiting() == {}
    # What was fed last is kept in the first one: ten receipts, each behind its length.
    assert len(ledger.parts[0].load("taken/1/m/1") or b"") == 10 * 11


def test_what_a_dead_process_took_is_taken_out_and_not_fed_again(ledger: PartitionedLedger) -> None:
    counted(ledger, range(40))
    before = {part: part.look_at_waiting(VERSION, until=math.inf, most=99) for part in ledger.parts}
    with ledger.transaction():
        first = ledger.take_waiting(VERSION, until=math.inf, most=10)
    for part, rows in before.items():  # as if they had not been written after the first
        lost = [row for row in rows if row in first]
        with part.transaction():
            part._book.note(lost, detect=True)  # type: ignore[attr-defined]
    with ledger.transaction():
        second = ledger.take_waiting(VERSION, until=math.inf, most=10)
    assert [row.time for row in second] == [10_000.0 - i for i in range(29, 19, -1)]
    assert ledger.waiting() == {VERSION: 20}


def test_damage_is_said_with_its_partition(ledger: PartitionedLedger, tmp_path: Path) -> None:
    ledger.parts[2].store("detector/m/1", b"15")
    assert ledger.verify() == ledger.set_aside() == []
    with closing(sqlite3.connect(tmp_path / "2")) as db, db:
        db.execute("UPDATE state SET value = x'00' WHERE key = 'detector/m/1'")
    assert [one.split(":")[0] for one in ledger.verify()] == ["partition 3"]
    with pytest.raises(LedgerError, match="is not as it was written"):
        ledger.parts[2].load("detector/m/1")
    ledger.parts[2].store("other", b"")  # sets it aside before
    assert [one.split(":")[0] for one in ledger.set_aside()] == ["partition 3"]
    (told,) = (one.run() for one in ledger.checks() if one.name == "damage")
    assert str(told).startswith("partition 3: 1 rows of the ledger were damaged")
    assert ledger.forget_set_aside() == 1
    assert [(one.name, one.level, one.run()) for one in ledger.checks()] == [
        (one.name, one.level, None) for one in ledger.parts[0].checks()
    ]


def test_its_generation_is_the_latest_of_all(ledger: PartitionedLedger) -> None:
    assert ledger.generation() == 0
    ledger.parts[3].store("generation", json.dumps({"number": 1 << 40}).encode())
    assert ledger.generation() == 1 << 40
    assert ledger.new_generation("restore") == ledger.generation() == (1 << 40) + 1
    assert ledger.new_generation("restore", above=1 << 41) == (1 << 41) + 1


def test_a_version_is_dropped_from_all_and_old_receipts_are_swept(ledger: PartitionedLedger) -> None:
    counted(ledger, range(40))
    counted(ledger, range(40, 60), version="2")
    ledger.drop(VERSION)
    assert set(ledger.sums()) == {("m", "2")}
    assert ledger.waiting() == {("m", "2"): 20}
    assert ledger.sweep(20_000.0) == 0
    assert ledger.forget(9_000.0) == 0
    assert ledger.forget(9_980.5, drop=True) == 40  # the epochs of those that were made before
    assert ledger.accept(entries([make_label(59 << 16, when=9_900.0)])) == ["forgotten"]


def test_a_batch_counts_once_whichever_writer_sends_it(ledger: PartitionedLedger) -> None:
    sums = {Key("m", "1"): Sums.served([0.9])}
    once = Once.of(b"batch 7", b"content", time=19_000.0, note=b"kept")
    assert ledger.known(once) is None
    assert ledger.add(sums, time=19_000.0, once=once)
    ledger.writer = "b"
    assert not ledger.add(sums, time=19_000.0, once=once)
    known = ledger.known(once)
    assert known is not None
    assert known.note == b"kept"
    assert ledger.add(sums, time=19_000.0)
    assert ledger.sums()[VERSION].predictions.sum() == 2


def test_what_is_published_is_of_the_writer(ledger: PartitionedLedger) -> None:
    ledger.writer = "a"
    counted(ledger, range(30))
    with ledger.emission("scrape") as found:
        assert found.fresh[VERSION].labels.sum() == 30
    ledger.writer = "b"
    counted(ledger, range(30, 40))
    assert ledger.published("scrape", [("m", "2")]) == {}
    with ledger.emission("other", before={}) as found:
        assert found.fresh[VERSION].labels.sum() == 10
    assert ledger.published("other")[VERSION].labels.sum() == 10


def test_partitions_are_those_of_one_ledger_in_their_order(ledger: PartitionedLedger, tmp_path: Path) -> None:
    ledger.close()
    parts = [SqliteLedger(tmp_path / str(i)) for i in range(4)]
    with pytest.raises(LedgerError, match="this is partition 2 of 4 of a ledger, not 1 of 4"):
        PartitionedLedger([parts[1], parts[0], *parts[2:]])
    with pytest.raises(LedgerError, match="this is partition 1 of 4 of a ledger, not 1 of 3"):
        PartitionedLedger(parts[:3])
    with closing(SqliteLedger(tmp_path / "alone")) as alone:
        alone.accept(entries([make_label(1)]))
        with pytest.raises(LedgerError, match="this is a ledger without partitions"):
            PartitionedLedger([alone, parts[1]])
    parts[0].store(PARTITION, b"\xff")
    with pytest.raises(LedgerError, match="this is partition \ufffd of a ledger, not 1 of 4"):
        PartitionedLedger(parts)
    for part in parts:
        part.close()
    with closing(SqliteLedger(tmp_path / "restored")) as restored:
        restored.new_generation("restore")
        with pytest.raises(LedgerError, match="this is a ledger without partitions"):
            PartitionedLedger([restored])


def test_what_it_says_of_itself_is_of_the_stores(ledger: PartitionedLedger) -> None:
    assert ledger.identity() == ""
    for part, name in zip(ledger.parts, ("a", "b", "a", "c"), strict=True):
        part.identity = lambda name=name: name  # type: ignore[method-assign, misc]
    assert ledger.identity() == "a b c"
    marks = {VERSION: Sums.labelled([0.9], [1])}
    ledger.mark_published("scrape", marks)
    assert ledger.published("scrape", [VERSION]) == marks
    assert ledger.parts[0].published("scrape", [VERSION]) == marks
    assert ledger.parts[1].published("scrape", [VERSION]) == {}


def test_versions_whose_names_run_alike_are_kept_apart(ledger: PartitionedLedger) -> None:
    """What was fed last is kept by version, and a slash may be part of either name."""
    counted(ledger, range(20), model="a/b", version="c")
    counted(ledger, range(20, 40), model="a", version="b/c")
    before = {part: part.look_at_waiting(("a/b", "c"), until=math.inf, most=99) for part in ledger.parts}
    with ledger.transaction():
        first = ledger.take_waiting(("a/b", "c"), until=math.inf, most=10)
    with ledger.transaction():
        ledger.take_waiting(("a", "b/c"), until=math.inf, most=10)
    for part, rows in before.items():  # as if they had not been written after the first
        with part.transaction():
            part._book.note([row for row in rows if row in first], detect=True)  # type: ignore[attr-defined]
    with ledger.transaction():
        second = ledger.take_waiting(("a/b", "c"), until=math.inf, most=10)
    assert [row.time for row in second] == [10_000.0 - i for i in range(9, -1, -1)]

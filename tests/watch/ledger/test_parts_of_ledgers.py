"""A SQLite ledger's own files and rows, each part by itself."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError, ShapeError
from calib_serve.watch.ledger import (
    SqliteLedger,
    backup_ledger,
    sqlite,
)
from calib_serve.watch.ledger.backup import restore_ledger
from calib_serve.watch.ledger.book import _noted
from calib_serve.watch.ledger.entries import Noted, Place, Shadowed, coarser, label_sums
from calib_serve.watch.ledger.generations import read_generation
from calib_serve.watch.ledger.inspection import Damage, contain
from calib_serve.watch.ledger.sums import Key, Sums, changes, label_places

pytestmark = pytest.mark.store


@pytest.mark.parametrize(("bits", "sound"), [(0, True), (3, True), (4, False)])
def test_a_shadow_has_two_bits(bits: int, sound: bool) -> None:
    kept = struct.pack(">fB4s", 0.5, bits, bytes(4))
    if not sound:
        with pytest.raises(ValueError, match="a shadow of the journal reads"):
            Shadowed.unpacked(kept)
        return
    read = Shadowed.unpacked(kept)
    assert read is not None
    assert (read.correct, read.same) == (bool(bits & 1), bool(bits & 2))
    assert read.packed() == kept


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


def test_nobody_else_reads_a_ledger(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(SqliteLedger(tmp_path / "kept.db")) as ledger:
            ledger.accept(entries([make_label(1)]))
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("column", "wrong"), [(6, -0.1), (6, 1.1), (8, -1), (9, 0.0), (9, 1.1), (10, -1), (5, -1000.5)]
)
def test_a_label_of_the_journal_that_cannot_be_is_damage(column: int, wrong: float) -> None:
    row = ["", "m", "1", 1000.0, b"", -1000.0, 0.9, 1, 0, 1.0, 0, "[]", None, b""]
    assert _noted(row).confidence == 0.9
    row[column] = wrong
    with pytest.raises(ValueError, match="a label of the journal reads"):
        _noted(row)


def test_state_is_begun_anew_where_no_label_is_counted_by_it(ledger: SqliteLedger) -> None:
    found = []
    for key in ("bins", "detector/m/1"):
        with ledger.transaction():
            ledger.store(key, b"15")
            one = Damage("state", ledger._tables["state"].get(key), "odd")
            found.append(contain(ledger._tables, [one], latest=0.0, now=0.0) == [one])
    assert found == [True, False]


def test_a_long_journal_and_a_full_disk_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    path, wal = tmp_path / "kept.db", tmp_path / "kept.db-wal"

    def sizes(ledger: int, journal: int) -> None:
        for file, size in ((path, ledger), (wal, journal)):
            file.touch()
            os.truncate(file, size)  # no block of them is on the disk

    sizes(mib, 512 * mib)
    assert sqlite._journal(path) is None
    sizes(mib, 512 * mib + 1)
    assert "journal has grown to 512 MiB" in str(sqlite._journal(path))
    sizes(600 * mib, 600 * mib)
    assert sqlite._journal(path) is None
    usage = namedtuple("usage", "total used free")
    for free, said in ((2400, None), (2399, "up to 2400 MiB")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free * mib))
        assert (sqlite._disk(path) is None) == (said is None)
        assert said is None or said in str(sqlite._disk(path))
    assert "2399 MiB are free beside the ledger, which takes 1200 MiB" in str(sqlite._disk(path))


def test_a_ledger_that_is_put_in_the_place_of_another_has_its_rights(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    backup_ledger(str(ledger.path), tmp_path / "backup")
    ledger.close()
    ledger.path.chmod(0o640)
    restore_ledger(tmp_path / "backup", str(ledger.path), replace=True)
    assert ledger.path.stat().st_mode & 0o777 == 0o640


def test_sums_are_below_others_by_more_than_the_last_digits() -> None:
    one, two = (Sums.labelled(np.full(n, 0.7), np.ones(n)) for n in (1, 2))
    assert one.below(two)
    assert not two.below(one)
    assert not two.below(two)
    assert not Sums(two.bins, two.vector * (1 - 1e-12)).below(two)


def test_sums_at_a_place_that_there_is_not_are_no_sums() -> None:
    length = len(Sums.labelled([0.5], [1]).vector)
    for place in (length, length + 1):
        with pytest.raises(ShapeError, match="are no sums over 15 bins"):
            Sums.unpacked(struct.pack("<Hd", place, 1.0), bins=15)
    last = Sums.unpacked(struct.pack("<Hd", length - 1, 2.0), bins=15)
    assert (last.vector[-1], last.vector[:-1].sum()) == (2.0, 0.0)


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


def test_values_go_to_their_names_and_places() -> None:
    sums = Sums.labelled([0.95], [1], bins=10)
    made = sums.with_values({
        ("calib_feedback_total", 9): 5.0, ("calib_feedback_total", 10): 7.0, ("of_others", 0): 7.0
    })  # fmt: skip
    assert made["calib_feedback_total"].tolist() == [0.0] * 9 + [5.0]
    assert np.flatnonzero(made.vector != sums.vector).tolist() == [label_places(10)[0][9]]
    assert sums["calib_feedback_total"].sum() == 1


def test_a_file_with_tables_of_others_is_no_ledger(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "others.db")) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER)")
    with pytest.raises(LedgerError, match="it has tables, and no number of its format"):
        SqliteLedger(tmp_path / "others.db")


def test_a_ledger_that_was_restored_says_so(ledger: SqliteLedger, tmp_path: Path) -> None:
    backup_ledger(str(ledger.path), tmp_path / "backup")
    restore_ledger(tmp_path / "backup", str(tmp_path / "again.db"))
    with closing(SqliteLedger(tmp_path / "again.db")) as again:
        assert read_generation(again).why == "restore"


def test_sums_cannot_be_changed_in_place() -> None:
    sums = Sums.served(np.array([0.5]))
    for vector in vars(sums).values():
        if isinstance(vector, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                vector[0] = 1


def test_a_label_weighs_1_and_came_at_once_unless_it_is_told() -> None:
    for found, told in zip(
        changes("labels", [0.7], bins=10), changes("labels", [0.7], [0], [1.0], [0.0], bins=10), strict=True
    ):
        assert found.tolist() == told.tolist()

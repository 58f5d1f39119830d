"""A SQLite ledger's own files and rows, each part by itself."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import struct
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ledgers import entries, make_label

from calib_serve.errors import InputError, LedgerError, ShapeError
from calib_serve.watch.ledger import (
    PartitionedLedger,
    SqliteLedger,
    WriterLease,
    backup_ledger,
    open_ledger,
    sqlite_checks,
)
from calib_serve.watch.ledger.address import REDIS_PASSWORD_FILE, is_cluster, is_redis, places_of
from calib_serve.watch.ledger.backup import Pruned, restore_ledger
from calib_serve.watch.ledger.backup_file import read_header
from calib_serve.watch.ledger.book import _noted
from calib_serve.watch.ledger.damage import Damage, contain
from calib_serve.watch.ledger.entries import Noted, Place, Shadowed, coarser, label_sums
from calib_serve.watch.ledger.generations import read_generation
from calib_serve.watch.ledger.inspection import Inspection, set_aside_in
from calib_serve.watch.ledger.leases import Holder, RowLeases
from calib_serve.watch.ledger.seen import Seen
from calib_serve.watch.ledger.sqlite_copy import used_bytes
from calib_serve.watch.ledger.sums import Key, Sums, changes, label_places


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


def test_a_backup_is_not_restored_to_an_address_that_shows_a_password(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a password, which others could read"):
        restore_ledger(tmp_path / "backup", "redis://:s3cret@127.0.0.1:1/0")


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


def test_the_pages_that_are_used_are_those_that_are_not_free(tmp_path: Path) -> None:
    path = tmp_path / "a ledger?.sqlite"  # a name that means something else in an address
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA page_size = 4096")
        db.execute("CREATE TABLE rows (content BLOB)")
        db.executemany("INSERT INTO rows VALUES (?)", [(bytes(4000),)] * 100)
    whole = used_bytes(path)
    assert whole == path.stat().st_size > 400_000
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM rows")
    assert used_bytes(path) <= 3 * 4096
    assert path.stat().st_size == whole


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


def test_a_new_ledger_has_pages_of_8_kib(ledger: SqliteLedger) -> None:
    assert ledger._db.execute("PRAGMA page_size").fetchone() == (8192,)


def test_what_is_damaged_is_said_with_its_file(ledger: SqliteLedger) -> None:
    with pytest.raises(LedgerError, match=r"kept.db is damaged \(could not convert"):
        ledger._number(b"x")


@pytest.mark.parametrize(
    ("column", "wrong"), [(6, -0.1), (6, 1.1), (8, -1), (9, 0.0), (9, 1.1), (10, -1), (5, -1000.5)]
)
def test_a_label_of_the_journal_that_cannot_be_is_damage(column: int, wrong: float) -> None:
    row = ["", "m", "1", 1000.0, b"", -1000.0, 0.9, 1, 0, 1.0, 0, "[]", None, b""]
    assert _noted(row).confidence == 0.9
    row[column] = wrong
    with pytest.raises(ValueError, match="a label of the journal reads"):
        _noted(row)


def test_a_receipt_of_another_form_is_known_for_the_retention(ledger: SqliteLedger) -> None:
    seen = Seen(ledger._tables, damaged=LedgerError)
    with ledger.transaction():
        assert seen.add([b"of another form"], [1000.0], retention=100.0) == ["counted"]
        assert seen.add([b"of another, too"], [1010.0], retention=100.0) == ["counted"]
        assert seen.forget(1050.0, at_most=10) == (0, -math.inf)
        assert seen.add([b"of another form"], [1000.0], retention=100.0) == ["duplicate"]
        assert seen.forget(1200.0, at_most=10) == (2, 1110.0)


def test_state_is_begun_anew_where_no_label_is_counted_by_it(ledger: SqliteLedger) -> None:
    found = []
    for key in ("bins", "detector/m/1"):
        with ledger.transaction():
            ledger.store(key, b"15")
            one = Damage("state", ledger._tables["state"].get(key), "odd")
            found.append(contain(ledger._tables, [one], latest=0.0, now=0.0) == [one])
    assert found == [True, False]


def test_a_look_at_a_ledger_ends_with_it(ledger: SqliteLedger) -> None:
    inspection = Inspection(ledger.path)
    inspection.step(at_most=0.01)
    inspection.close()
    assert inspection._db is not None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        inspection._db.execute("SELECT 1")


def test_a_long_journal_and_a_full_disk_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    path, wal = tmp_path / "kept.db", tmp_path / "kept.db-wal"

    def sizes(ledger: int, journal: int) -> None:
        for file, size in ((path, ledger), (wal, journal)):
            file.touch()
            os.truncate(file, size)  # no block of them is on the disk

    sizes(mib, 512 * mib)
    assert sqlite_checks._journal(path) is None
    sizes(mib, 512 * mib + 1)
    assert "journal has grown to 512 MiB" in str(sqlite_checks._journal(path))
    sizes(600 * mib, 600 * mib)
    assert sqlite_checks._journal(path) is None
    usage = namedtuple("usage", "total used free")
    for free, said in ((2400, None), (2399, "up to 2400 MiB")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free * mib))
        assert (sqlite_checks._disk(path) is None) == (said is None)
        assert said is None or said in str(sqlite_checks._disk(path))
    assert "2399 MiB are free beside the ledger, which takes 1200 MiB" in str(sqlite_checks._disk(path))


def test_partitions_tell_of_one_version(tmp_path: Path) -> None:
    both = [make_label(1), make_label(1 << 17, version="2")]
    with closing(PartitionedLedger([SqliteLedger(tmp_path / str(i)) for i in range(2)])) as ledger:
        assert ledger.accept(entries(both)) == ["counted"] * 2
        assert {key.version for key in ledger.slices()} == {"1", "2"}
        assert {key.version for key in ledger.slices(version=("m", "2"))} == {"2"}
        assert {one.key.version for one in ledger.dated(0, 1e11, version=("m", "2"))} == {"2"}


def test_partitions_give_what_waits_oldest_first_and_count_it_all(tmp_path: Path) -> None:
    some = [make_label((i << 16) + i, when=10_000.0 - i) for i in range(40)]
    version = ("m", "1")
    with closing(PartitionedLedger([SqliteLedger(tmp_path / str(i)) for i in range(4)])) as ledger:
        assert ledger.accept(entries(some)) == ["counted"] * 40
        assert ledger.waiting() == {version: 40}
        assert sum(one.labels.sum() for one in ledger.slices().values()) == 40
        with ledger.transaction():
            times = [row.time for row in ledger.take_waiting(version, until=math.inf, most=30)]
        assert times == [10_000.0 - i for i in range(39, 9, -1)]
        assert ledger.waiting() == {version: 10}
        before = ledger.generation()
        assert ledger.new_generation("restore") > before
        assert ledger.forget(11_000.0, drop=True) == 40


def test_a_ledger_that_is_put_in_the_place_of_another_has_its_rights(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    backup_ledger(str(ledger.path), tmp_path / "backup")
    ledger.close()
    ledger.path.chmod(0o640)
    restore_ledger(tmp_path / "backup", str(ledger.path), replace=True)
    assert ledger.path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_ledger_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no ledger, but a text of some length" * 100)
    with pytest.raises(LedgerError, match="text is no ledger, or a damaged one"):
        used_bytes(tmp_path / "text")


@pytest.mark.parametrize(("kept_as", "told"), [(2, 0), (3, 1), (4, 1)])
def test_what_was_set_aside_is_told_since_format_3(ledger: SqliteLedger, kept_as: int, told: int) -> None:
    ledger.store("detector/m/1", b"15")
    with ledger.transaction():
        odd = Damage("state", ledger._tables["state"].get("detector/m/1"), "odd")
        assert contain(ledger._tables, [odd], latest=0.0, now=0.0) == []
    ledger._db.execute(f"PRAGMA user_version = {kept_as}")
    assert len(set_aside_in(ledger.path)) == told


def test_names_and_numbers_that_others_rely_on() -> None:
    assert REDIS_PASSWORD_FILE == "CALIB_SERVE_REDIS_PASSWORD_FILE"
    assert Pruned() == Pruned(forgotten=0, labels=0.0, freed=0, set_aside=0, compacted=None)


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


def test_sums_of_format_1_that_no_label_made_wrong_or_that_are_none() -> None:
    for odd in (np.zeros((2, 3)), np.zeros(5 * 2 + 3)):
        with pytest.raises(ShapeError, match="stored sums over 2 bins"):
            Sums.of_version_1(odd, bins=2)
    # One says 0 and four say 1: no error is to be expected of either, so labels share what there was.
    sure = Sums.of_version_1([0, 0, 0, 0, 1, 4, 0, 4, 0, 3, 4, 3], bins=2)
    assert sure["calib_feedback_squared_error_total"].tolist() == pytest.approx([0.2, 0.8])
    assert Sums.of_version_1(np.zeros(12), bins=2).vector.sum() == 0


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


def test_a_ledger_is_opened_for_its_writer(tmp_path: Path) -> None:
    with closing(open_ledger(str(tmp_path / "kept.db"), writer="7")) as ledger:
        assert ledger.writer == "7"


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


def test_a_backup_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot use the backup .*nowhere"):
        read_header(tmp_path / "nowhere")


def test_sums_cannot_be_changed_in_place() -> None:
    sums = Sums.served(np.array([0.5]))
    for vector in vars(sums).values():
        if isinstance(vector, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                vector[0] = 1


def test_a_name_is_sure_for_a_lease_after_the_last_sign_of_life(ledger: SqliteLedger) -> None:
    class Lost(RowLeases):
        lost = False

        def take(self, name: str, holder: Holder) -> object:
            if self.lost:
                raise LedgerError("nobody knows")
            return super().take(name, holder)

    leases = Lost(ledger, seconds=2.0, clock=time.time)
    lease = WriterLease(SimpleNamespace(writer="", leases=leases), name="a")  # type: ignore[arg-type]
    time.sleep(2.6)  # longer than a lease: it was renewed meanwhile
    leases.lost = True
    assert lease.hold() == "a"
    time.sleep(2.1)
    with pytest.raises(LedgerError, match="nobody knows"):
        lease.hold()
    lease.close()


def test_a_label_weighs_1_and_came_at_once_unless_it_is_told() -> None:
    for found, told in zip(
        changes("labels", [0.7], bins=10), changes("labels", [0.7], [0], [1.0], [0.0], bins=10), strict=True
    ):
        assert found.tolist() == told.tolist()


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "redis+cluster", "rediss+cluster"])
def test_a_redis_is_known_by_its_address(scheme: str) -> None:
    for where in (f"{scheme}://host:1/0", f"{scheme.upper()}://host:1/0"):
        assert is_redis(where)
        assert is_cluster(where) == ("cluster" in scheme)
        assert len(places_of(where)) == (16 if "cluster" in scheme else 1)
        assert {place.prefix for place in places_of(f"{where}?parts=2")} == {"calib-serve:1", "calib-serve:2"}
    assert not is_redis(f"{scheme}.db")

"""A SQLite ledger and its files: damage, other processes, journals that are taken away, copies."""

from __future__ import annotations

import math
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from ledgers import entries, labels_of, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    SqliteLedger,
    backup_ledger,
    open_ledger,
    restore_ledger,
    sqlite_store,
)
from calib_serve.watch.ledger.backup import read_header
from calib_serve.watch.ledger.inspection import stopped_after
from calib_serve.watch.ledger.sqlite_copy import compact, copied, put_in_place, unused

pytestmark = pytest.mark.store

DAY = 86_400.0


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=clock, timeout=0.1)) as found:
        yield found


def spoil(ledger: SqliteLedger) -> None:
    """One row that may be begun anew."""
    ledger.store("detector/m/1", b"15")
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("UPDATE state SET value = x'00' WHERE key = 'detector/m/1'")


def test_damage_that_cannot_be_set_aside_yet_is_as_soon_as_it_can(ledger: SqliteLedger) -> None:
    spoil(ledger)
    with pytest.raises(LedgerError, match="is not as it was written"):
        ledger.load("detector/m/1")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(LedgerError, match="retry if it was locked"):
                ledger.store("more", b"")
        assert ledger.set_aside() == []
    ledger.store("more", b"")
    assert len(ledger.set_aside()) == 1
    assert ledger.load("detector/m/1") is None
    assert ledger.forget_set_aside() == 1
    assert ledger.set_aside() == []


def test_a_file_that_is_damaged_beyond_its_indexes_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path)) as ledger:
        ledger.accept(entries([make_label(1)]))
    content = bytearray(path.read_bytes())
    content[36:40] = bytes([0, 0, 0, 7])  # free pages, in the file's head
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"(?is)kept\.db is damaged \(.*freelist: size is 0"):
        SqliteLedger(path)
    assert path.read_bytes() == content


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path)) as ledger:
        ledger.accept(entries([make_label(i << 16) for i in range(50)]))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        (at,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'epochs_expires'").fetchone()
    content = bytearray(path.read_bytes())
    page = slice((at - 1) * 8192, at * 8192)
    content[page] = bytes([10, 0, 0, 0, 0, 0x20, 0, 0]) + bytes(8184)  # an index of no row
    path.write_bytes(content)
    with closing(SqliteLedger(path)) as ledger:
        assert ledger.verify() == []
        assert ledger.forget(1e12, drop=True) == 50


def test_a_journal_that_is_removed_is_saved_and_the_next_label_refused(ledger: SqliteLedger) -> None:
    assert ledger.accept(entries([make_label(i) for i in range(20)])) == ["counted"] * 20
    ledger.path.with_name("kept.db-wal").unlink()
    with pytest.raises(LedgerError, match=r"the -wal file of the ledger .* was saved into the ledger"):
        ledger.accept(entries([make_label(20)]))
    ledger.close()
    assert labels_of("sqlite", ledger.path) == 20


def test_it_is_swept_once_a_minute(ledger: SqliteLedger, clock: Clock) -> None:
    swept = []
    for i, now in enumerate((5000, 5030, 5059, 5060, 5100, 5120)):
        clock.now = now
        ledger.accept(entries([make_label(i, when=4000.0)]))
        swept.append(float(ledger.load("ledger/swept") or b"nan"))
    assert swept == [5000, 5000, 5000, 5060, 5060, 5120]


def test_a_sweep_tells_what_went(ledger: SqliteLedger, clock: Clock) -> None:
    clock.now = 9 * DAY
    ledger.accept(entries([make_label(i << 16, when=DAY * i) for i in range(1, 10)]))
    assert ledger.sweep(clock.now) == 0
    clock.now = 36 * DAY
    ledger.accept(entries([make_label(36 << 16, when=36 * DAY)]))
    assert ledger.sweep(clock.now) == 5  # those of days 1 to 5: thirty days are over
    assert ledger.sweep(clock.now) == 0
    assert ledger.accept(entries([make_label(5 << 16, when=5 * DAY)])) == ["forgotten"]
    assert ledger.accept(entries([make_label(6 << 16, when=6 * DAY)])) == ["duplicate"]


def test_what_is_published_was_made_sums_of(ledger: SqliteLedger) -> None:
    for i in range(2):  # the first one comes with a sweep
        ledger.accept(entries([make_label(i)]))
    assert ledger._book.unfolded()
    with ledger.emission("scrape") as found:
        assert found.fresh["m", "1"].labels.sum() == 2
    assert not ledger._book.unfolded()


def test_reading_ends_in_time_and_not_before() -> None:
    endless = "WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up {}) SELECT count(*) FROM up"
    with closing(sqlite3.connect(":memory:")) as db:
        with stopped_after(db, 60.0):
            assert db.execute(endless.format("LIMIT 300000")).fetchone() == (300_000,)
        began = time.monotonic()
        with stopped_after(db, 0.1):
            db.execute(endless.format("")).fetchone()
            pytest.fail("it did not end")
        assert 0.1 <= time.monotonic() - began < 30
        assert db.execute(endless.format("LIMIT 300000")).fetchone() == (300_000,), "nothing stops it now"
        with pytest.raises(sqlite3.OperationalError, match="no such table"), stopped_after(db, 60.0):
            db.execute("SELECT 1 FROM nowhere")


def test_a_ledger_goes_aside_with_its_journal_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    names = []
    for i in range(3):
        for part in ("", "-wal", "-shm"):
            (tmp_path / f"kept.db{part}").write_text(f"{i}{part}")
        (tmp_path / "ready").write_text(f"{i + 1}")
        aside = put_in_place(tmp_path / "ready", path, clock=lambda: 5.5)
        assert aside is not None
        names.append(aside.name)
        assert path.read_text() == f"{i + 1}"
        assert not list(tmp_path.glob("kept.db-*"))
        for part in ("", "-wal", "-shm"):
            assert aside.with_name(aside.name + part).read_text() == f"{i}{part}"
    assert names == ["kept.db.replaced-5", "kept.db.replaced-5-2", "kept.db.replaced-5-3"]
    path.unlink()
    (tmp_path / "ready").write_text("first")
    assert put_in_place(tmp_path / "ready", path) is None
    assert path.read_text() == "first"


def test_free_pages_are_given_back_while_nobody_has_it_open(ledger: SqliteLedger) -> None:
    for i in range(100):
        ledger.store(f"some/{i}", bytes(20_000))
    with ledger.transaction():
        ledger._tables["state"].delete("WHERE key LIKE 'some/%'")
    assert not compact(ledger.path)
    ledger.close()
    before = ledger.path.stat().st_size
    assert before > 2_000_000
    assert compact(ledger.path)
    assert ledger.path.stat().st_size < before / 4
    assert compact(ledger.path.with_name("none"))
    assert not ledger.path.with_name("none").exists()


def test_a_ledger_that_cannot_be_opened_is_not_kept_open(ledger: SqliteLedger) -> None:
    ledger.close()
    assert compact(ledger.path), "closed, nothing of it is open"
    with pytest.raises(LedgerError, match=r"counts in 15 bins, not 10; use one bin count") as refused:
        SqliteLedger(ledger.path, bins=10)
    assert refused.tb
    assert compact(ledger.path), "nor where it was refused"


def test_what_another_ledger_left_goes_aside_first(tmp_path: Path) -> None:
    (tmp_path / "kept.db-wal").write_text("of another one")
    SqliteLedger(tmp_path / "kept.db", clock=lambda: 5.0).close()
    assert (tmp_path / "kept.db.damaged-5-wal").read_text() == "of another one"


def test_many_receipts_are_swept_in_steps(ledger: SqliteLedger, clock: Clock) -> None:
    rows = [(i.to_bytes(8, "big"), 40 * DAY + i, float("-inf"), b"") for i in range(20_500)]
    with ledger.transaction():
        ledger._tables["epochs"].add(rows)
    clock.now = 41 * DAY
    assert ledger.prune(clock.now, at_most=200) == 200
    assert ledger.sweep(clock.now) == 20_300
    assert not ledger._tables["epochs"].select()
    # What came before the last that went may have been forgotten.
    last = 10 * DAY + 20_499
    some = [make_label(1, when=last), make_label(2, when=last + 0.5)]
    assert ledger.accept(entries(some)) == ["forgotten", "counted"]


def test_a_journal_that_is_removed_within_a_transaction_is_saved_by_it(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    ledger.store("before", b"1")
    with ledger.transaction():
        ledger.store("within", b"2")
        ledger.path.with_name("kept.db-wal").unlink()
    shutil.copy(ledger.path, tmp_path / "copy.db")  # as it is if the process dies now
    with closing(SqliteLedger(tmp_path / "copy.db")) as copy:
        assert (copy.load("before"), copy.load("within")) == (b"1", b"2")


def test_a_copy_is_of_the_moment_that_it_says(ledger: SqliteLedger, tmp_path: Path) -> None:
    ledger.store("before", b"1")

    def moment() -> float:
        ledger.store("after", b"2")
        return 7000.0

    assert copied(ledger.path, tmp_path / "copy.db", clock=moment) == 7000.0
    with closing(SqliteLedger(tmp_path / "copy.db")) as copy:
        assert (copy.load("before"), copy.load("after")) == (b"1", None)


def test_a_ledger_that_lost_what_nobody_can_begin_anew_is_refused_from_then_on(ledger: SqliteLedger) -> None:
    ledger.store("mine", b"1")
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("UPDATE state SET value = x'00' WHERE key = 'mine'")
    with pytest.raises(LedgerError, match="is not as it was written"):
        ledger.load("mine")
    for _ in range(3):
        with pytest.raises(LedgerError, match=r"is damaged \(state: .*'mine'"):
            ledger.store("more", b"")
        with pytest.raises(LedgerError, match=r"is damaged \(state: .*'mine'"):
            ledger.sums()
    assert ledger.load("more") is None
    assert ledger.set_aside() == []


def test_state_of_its_own_is_read_once_until_another_process_writes(ledger: SqliteLedger) -> None:
    statements: list[str] = []

    def read(key: str) -> int:
        statements.clear()
        ledger.load(key)
        return sum("FROM state" in one for one in statements)

    ledger._db.set_trace_callback(statements.append)
    ledger.store("ledger/of-its-own", b"1")
    assert [read("ledger/of-its-own") for _ in range(3)] == [0, 0, 0]
    assert [read("others") for _ in range(2)] == [1, 1]
    with closing(SqliteLedger(ledger.path)) as other:
        other.store("ledger/of-its-own", b"2")
    assert ledger.load("ledger/of-its-own") == b"2"
    assert [read("ledger/of-its-own") for _ in range(2)] == [0, 0]
    with suppress(KeyboardInterrupt), ledger.transaction():
        ledger.store("ledger/of-its-own", b"3")
        raise KeyboardInterrupt
    assert ledger.load("ledger/of-its-own") == b"2"


def test_a_ledger_of_today_does_not_forget_what_its_first_format_had(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path, retention=DAY, clock=lambda: 5 * DAY)) as ledger:
        ledger.store("ledger/pruned_through", repr(5 * DAY).encode())
    with closing(SqliteLedger(path, retention=0.0, clock=lambda: 5 * DAY)) as ledger:
        assert ledger.accept(entries([make_label(1, when=4.5 * DAY)])) == ["counted"]


def test_its_checks_have_names_and_levels(ledger: SqliteLedger) -> None:
    assert [(one.name, one.level, one.run()) for one in ledger.checks()] == [
        ("file", "refusing", None), ("disk", "degraded", None), ("journal", "degraded", None),
        ("damage", "degraded", None),
    ]  # fmt: skip


def test_partitions_have_a_backup_each(tmp_path: Path) -> None:
    where = f"{tmp_path / 'kept.db'}?parts=2"
    some = [make_label((i << 16) + i) for i in range(20)]
    with closing(open_ledger(where)) as ledger:
        ledger.accept(entries(some))
    header = backup_ledger(where, tmp_path / "backup")
    files = sorted(tmp_path.glob("backup*"))
    assert [file.name for file in files] == ["backup.1", "backup.2"]
    assert header.bytes == sum(read_header(file).bytes for file in files)
    with pytest.raises(LedgerError, match=r"there is a ledger .*kept\.db\.1, or what is left of one"):
        restore_ledger(tmp_path / "backup", where)
    restored = restore_ledger(tmp_path / "backup", where, replace=True, recount=True)
    assert str(restored.aside).count("replaced-") == 2
    assert restored.forgotten_until == -math.inf
    with closing(open_ledger(where)) as ledger:
        assert ledger.accept(entries(some)) == ["duplicate"] * 20
        assert ledger.sums()["m", "1"].labels.sum() == 20


def test_where_no_ledger_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"the ledger .*file/kept\.db cannot be made: .*Not a directory"):
        SqliteLedger(tmp_path / "file" / "kept.db")


def test_one_partition_is_a_ledger_like_any_other(tmp_path: Path) -> None:
    with closing(open_ledger(f"{tmp_path / 'one.db'}?parts=1")) as ledger:
        assert isinstance(ledger, SqliteLedger)
    open_ledger(f"{tmp_path / 'two.db'}?parts=2").close()
    with pytest.raises(LedgerError, match=r"two\.db\.1 is partition 1 of 2 of a ledger; name the whole one"):
        open_ledger(str(tmp_path / "two.db.1"))
    assert compact(tmp_path / "two.db.1"), "it is not kept open"


def test_what_is_not_looked_at_in_time_is_looked_at_later(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.accept(entries([make_label(1)]))
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("UPDATE epochs SET expires = 0")
    ledger.close()
    for seconds, damaged in ((-1.0, 0), (10.0, 1)):
        monkeypatch.setattr(sqlite_store, "_LOOK_AT_START", seconds)
        with closing(SqliteLedger(ledger.path)) as again:
            assert len(again.set_aside()) == damaged


def test_nobody_can_know_who_uses_a_ledger_whose_first_page_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    SqliteLedger(path).close()
    content = bytearray(path.read_bytes())
    content[100:8192] = bytes(8092)  # all but the file's head
    path.write_bytes(content)
    with unused(path) as alone:
        assert alone is None

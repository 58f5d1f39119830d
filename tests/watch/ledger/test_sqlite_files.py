"""A SQLite ledger and its files: damage, other processes, journals that are taken away, copies."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import entries, labels_of, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    SqliteLedger,
)
from calib_serve.watch.ledger.sqlite_copy import copied

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

"""A clock that goes back, or far ahead: nothing is counted twice, lost, or divided by nothing."""

from __future__ import annotations

import pytest
from ledgers import accept, entries, make_label
from real_watch import make_watch
from sizes import sized

from calib_serve.receipts import DAY
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.ledger import SqliteLedger

pytestmark = pytest.mark.store

NOW = 1_700_000_000.0


class Clock:
    """Says what it is told to."""

    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def label_of_epoch(epoch, *, when, i=0):
    return make_label((epoch << 16) + i, when=when)


def test_expired_receipts_are_forgotten_and_stay_refused_when_the_clock_jumps_back(tmp_path, clock):
    clock.now = 1000.0
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock, retention=1000.0)
    assert accept(ledger, [label_of_epoch(1, when=1000.0)]) == [True]
    clock.now = 3000.0
    assert accept(ledger, [label_of_epoch(2, when=3000.0)]) == [True]
    assert kept(ledger, "epochs") == 1
    clock.now = 1500.0  # the receipt of label 1 is young again, but it was counted
    assert ledger.accept(entries([label_of_epoch(1, when=1000.0)])) == ["forgotten"]
    assert ledger.sums()["m", "1"].feedback.n == 2
    ledger.close()


def kept(ledger, table):
    return ledger._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.parametrize("dated_ahead", [False, True], ids=["labels of now", "predictions dated ahead"])
def test_a_clock_31_days_ahead_for_one_batch_makes_the_ledger_forget_nothing(tmp_path, clock, dated_ahead):
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock)
    counted = [label_of_epoch(age, when=NOW - age * DAY) for age in (0, 1, 10, 25)]
    fresh = [label_of_epoch(age, when=NOW - age * DAY, i=1) for age in (0, 1, 10, 25)]
    assert accept(ledger, counted) == [True] * 4
    clock.now = NOW + 31 * DAY
    assert accept(ledger, [label_of_epoch(100, when=clock.now if dated_ahead else NOW)]) == [True]
    clock.now = NOW + 60
    assert ledger.accept(entries(counted + fresh)) == ["duplicate"] * 4 + ["counted"] * 4
    ledger.close()


def test_whoever_opened_it_for_less_remembers_for_the_longest_retention(tmp_path, clock):
    clock.now = 100 * DAY
    short, long = (SqliteLedger(tmp_path / "l.db", clock=clock, retention=days * DAY) for days in (10, 60))
    label = label_of_epoch(1, when=clock.now)
    assert accept(short, [label]) == [True]
    clock.now += 30 * DAY
    assert accept(long, [label_of_epoch(2, when=clock.now)]) == [True]
    long.sweep(clock.now)
    assert long.accept(entries([label])) == ["duplicate"]
    short.close(), long.close()


@pytest.mark.parametrize("jump", sized([-400 * DAY, DAY], [-400 * DAY, -DAY, -1.0, 1.0, DAY, 400 * DAY]))
def test_a_served_watch_counts_each_label_once_over_a_jump(tmp_path, clock, jump: float):
    watch = make_watch(tmp_path, clock=clock)
    one = ServedPrediction("m", "1", 1, 0.9)
    receipts = watch.predictions([one] * 4)
    labels = [{"receipt": r, "label": 1} for r in receipts]
    assert [o.accepted for o in watch.labels(labels[:2])] == [True, True]
    clock.now += jump
    outcomes = watch.labels(labels)
    # The first two were counted; the others are welcome while their time is near enough.
    assert not any(o.accepted for o in outcomes[:2])
    welcome = -300 <= jump <= 30 * DAY
    assert [o.accepted for o in outcomes[2:]] == [welcome] * 2
    fresh = watch.predictions([one])
    assert watch.labels([{"receipt": fresh[0], "label": 1}])[0].accepted
    clock.now = NOW
    again = watch.labels(labels)
    assert not any(o.accepted for o in again[:2])
    counted = sum(o.accepted for o in outcomes + again)
    assert counted == 2  # far ahead, the ledger forgot nothing
    assert watch.ledger.sums()["m", "1"].feedback.n == 3 + counted
    assert watch.counts.errors == {}
    watch.ledger.close()

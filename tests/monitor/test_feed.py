"""The detector is fed in the order of predictions, with mature labels, each once, beside the label path."""

import itertools
import math
import threading
import time
from functools import partial

import numpy as np
import pytest
from ledgers import NOW, accept, entries, make_label

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Ledger
from calib_serve.monitor import Detector
from calib_serve.monitor import feed as module
from calib_serve.monitor.feed import DriftFeed
from calib_serve.monitor.windows import Maturity
from calib_serve.receipts import DAY
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

V = ("m", "1")
START = 1_700_000_000.0


class Clock:
    """Says what it is told to."""

    now = START

    def __call__(self):
        return self.now


def restored(ledger):
    return Detector.restore(ledger.followers.states("detector", V)[0].value)


def told_sooner_when_wrong(rng, count):
    """Labels of a calibrated model, 2 s apart; wrong ones come within a minute, right ones within 30."""
    c = rng.uniform(0.5, 1, count)
    right = rng.random(count) < c
    made = START + 2.0 * np.arange(count)
    come = made + rng.uniform(0, np.where(right, 1800, 60))
    labels = [
        make_label(i, confidence=float(p), label=int(y), when=float(t))
        for i, (p, y, t) in enumerate(zip(c, right, made, strict=True))
    ]
    return labels, come


def false_alarms(path, maturity, *, count=6000):
    """What the feed raises as the labels arrive, looked at every third minute."""
    labels, come = told_sooner_when_wrong(np.random.default_rng(0), count)
    order, clock = np.argsort(come), Clock()
    ledger = Ledger(path, clock=clock)
    feed = DriftFeed(ledger, maturity=maturity, clock=clock)
    at = 0
    while at < count:
        clock.now += 180
        arrived = []
        while at < count and come[order[at]] <= clock.now:
            arrived += entries([labels[order[at]]], delay=come[order[at]] - labels[order[at]].receipt.time)
            at += 1
        ledger.accept(arrived)
        feed.tick()
    clock.now += DAY
    feed.tick()
    told = ledger.followers.progress()[V]
    found = told.alarms, restored(ledger).labels, told.late, feed.maturity(V)
    ledger.close()
    return found


def test_labels_fed_behind_a_learned_maturity_raise_none(tmp_path):
    alarms, fed, late, maturity = false_alarms(tmp_path / "l.db", None)
    assert alarms == 0
    assert fed + late == 6000
    assert fed > 0.99 * 6000
    assert 1024 < maturity.seconds <= 2048
    assert not maturity.given


@pytest.mark.parametrize("maturity", [None, 6 * 3600.0])
def test_predictions_that_all_have_their_labels_are_fed_within_a_minute_and_the_others_wait(url, maturity):
    clock, ledger = Clock(), Ledger(url)
    clock.now = NOW
    feed = DriftFeed(ledger, maturity=maturity, clock=clock)
    ledger.add({Key(*V): Sums.served([0.9] * 20)}, time=NOW)
    accept(ledger, [make_label(i, when=NOW) for i in range(20)])
    feed.tick()
    clock.now += 60
    feed.tick()
    assert restored(ledger).labels == 20
    ledger.add({Key(*V): Sums.served([0.9] * 2)}, time=NOW + 61)
    accept(ledger, [make_label(20, when=NOW + 61)])
    for _ in range(5):
        clock.now += 60
        feed.tick()
        assert ledger.followers.waiting() == {V: 1}
    accept(ledger, [make_label(21, when=NOW + 62)])
    clock.now += 60
    feed.tick()
    assert (restored(ledger).labels, ledger.followers.progress()[V].late) == (22, 0)
    ledger.close()


def test_late_labels_are_counted_as_late_and_never_fed(url):
    ledger = Ledger(url)
    feed = DriftFeed(ledger, maturity=100.0, clock=lambda: NOW)
    accept(ledger, [make_label(i, when=NOW - 1000 + i) for i in range(10)])
    feed.tick()
    accept(ledger, [make_label(100 + i, when=NOW - 2000 + i) for i in range(3)])
    accept(ledger, [make_label(200, when=NOW - 500), make_label(201, when=NOW - 50)])
    feed.tick()
    assert ledger.followers.progress()[V].late == 3
    assert restored(ledger).labels == 11
    assert ledger.followers.waiting() == {V: 1}  # not mature yet
    accept(ledger, [make_label(300, when=NOW - 1500)])
    again = DriftFeed(ledger, maturity=100.0, clock=lambda: NOW)  # another process
    again.tick()
    assert ledger.followers.progress()[V].late == 4
    assert ledger.sums()[V].labels.sum() == 16  # late labels count as others do
    ledger.close()


def test_two_feeds_on_one_ledger_feed_one_detector_each_label_once(url):
    rng = np.random.default_rng(1)
    c = rng.uniform(0.5, 1, 600)
    right = rng.random(600) < c - 0.2
    times = NOW - 10_000 + np.arange(600.0)
    alone = Detector(arl=1000)
    alarms = alone.update(c, right, time=times, predicted=np.ones(600, int))
    assert len(alarms) > 1
    ledgers = [Ledger(url) for _ in range(2)]
    feeds = [
        DriftFeed(one, detector=lambda: Detector(arl=1000), maturity=60.0, clock=lambda: NOW)
        for one in ledgers
    ]
    for at in range(0, 600, 100):
        some = range(at, at + 100)
        accept(
            ledgers[at // 100 % 2],
            [make_label(i, confidence=c[i], label=int(right[i]), when=times[i]) for i in some],
        )
        threads = [threading.Thread(target=feed.tick) for feed in feeds]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert restored(ledgers[0]).labels == 600
    assert restored(ledgers[0]).evidence == pytest.approx(alone.evidence, rel=1e-9)
    told = ledgers[0].followers.progress()
    assert told == ledgers[1].followers.progress()
    assert (told[V].alarms, told[V].late) == (len(alarms), 0)
    [one.close() for one in ledgers]


@pytest.mark.parametrize(
    "state", [b"rubbish", b"", Detector(arl=77).state()], ids=["rubbish", "none", "other"]
)
def test_a_spoilt_state_or_other_options_start_the_detector_anew(url, state):
    ledger = Ledger(url)
    ledger.followers.keep("detector", V, "", state, now=NOW)
    feed = DriftFeed(ledger, detector=lambda: Detector(arl=1000), maturity=0.0)
    accept(ledger, [make_label(1)])
    feed.tick()
    assert (restored(ledger).arl, restored(ledger).labels) == (1000, 1)
    ledger.close()


def test_of_two_programs_with_other_options_the_later_one_decides_and_the_detector_goes_on(url):
    ledger = Ledger(url)
    first, later = (
        DriftFeed(ledger, detector=partial(Detector, arl=arl), maturity=0.0) for arl in (1000, 2000)
    )
    for at, feed in enumerate((first, later, first, later)):
        accept(ledger, [make_label(10 * at + i) for i in range(10)])
        feed.tick()
    assert (restored(ledger).arl, restored(ledger).labels) == (2000, 30)
    made = Detector(arl=2000)
    told = f"of m 1 by --arl 2000 --tolerance {made.tolerance:g} --block {made.block:g}: "
    assert told in (first.wrong() or "")
    assert later.wrong() is None
    ledger.close()


def test_groups_are_fed_whole_although_the_clock_ticks_between_their_predictions(tmp_path):
    clock = Clock()
    ledger = Ledger(tmp_path / "l.db", clock=clock)
    feed = DriftFeed(ledger, maturity=600.0, clock=clock)
    for i in range(400):  # sessions of 10 predictions, 6 s apart
        clock.now = START + 6.0 * i
        accept(ledger, [make_label(i, when=clock.now, group=1 + i // 10)])
        feed.tick()
    clock.now += DAY
    feed.tick()
    detector = restored(ledger)
    # At the ends of steps of five minutes at most one session is torn, and before the first group was seen.
    assert detector.labels + detector.left_out == 400
    assert detector.left_out <= 9 + 9 * (400 * 6 // 300 + 1)
    assert detector.left_out < 100
    ledger.close()


@pytest.mark.parametrize(
    ("maturity", "took", "rest"),
    [
        (0.0, 0.0, 1.0),
        (0.0, 0.03, 3.0),
        (0.0, 1.0, 5.0),
        (600.0, 1.0, 60.0),
        (600.0, 0.2, 20.0),
        (None, 1.0, 5.0),
    ],
)
def test_the_thread_takes_a_hundredth_of_a_core_where_labels_may_wait_so_long(tmp_path, maturity, took, rest):
    ledger = Ledger(tmp_path / "l.db")
    assert DriftFeed(ledger, maturity=maturity)._rest(took) == pytest.approx(rest)
    ledger.close()


def test_a_clock_that_was_ahead_makes_no_label_late(tmp_path):
    clock, ledger = Clock(), Ledger(tmp_path / "l.db")
    feed = DriftFeed(ledger, maturity=100.0, clock=clock)
    for clock.now, made in ((START + 9000, START + 5000), (START, START - 500)):
        accept(ledger, [make_label(int(made - START + 1000), when=made)])
        feed.tick()
    assert (restored(ledger).labels, ledger.followers.progress()[V].late) == (2, 0)
    ledger.close()


@pytest.mark.parametrize(("took", "every"), [(0.0, 60), (3.0, 600)])
def test_a_maturity_that_takes_long_to_learn_is_learned_more_rarely(tmp_path, monkeypatch, took, every):
    monkeypatch.setattr(time, "thread_time", partial(next, itertools.count(0.0, took)))
    clock, ledger = Clock(), Ledger(tmp_path / "l.db")
    feed = DriftFeed(ledger, clock=clock)
    for after, learned in ((0, 0), (every - 1, 0), (every, every), (2 * every - 1, every), (2 * every,) * 2):
        clock.now = START + after
        feed.maturity(V)
        assert feed._learned[V][1] == START + learned
    ledger.close()


def test_groups_are_fed_in_steps_of_a_quarter_of_the_maturity_and_five_minutes_at_least(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    feed = DriftFeed(ledger)
    assert feed._whole_groups(V, 10_650.0, Maturity(4000.0, given=True)) == 10_650.0
    feed._grouped.add(V)
    for seconds, until in ((4000.0, 10_000.0), (600.0, 10_500.0), (math.inf, 10_500.0)):
        assert feed._whole_groups(V, 10_650.0, Maturity(seconds, given=True)) == until
    assert feed._whole_groups(V, -math.inf, Maturity(600.0, given=True)) == -math.inf
    ledger.close()


class Failing:
    """Follows labels once it is mended."""

    broken = True

    def feed(self, _version, _rows, *, now):
        if self.broken:
            raise LedgerError(f"nobody follows at {now:g}")


def test_a_tick_that_fails_is_said_until_one_passes_and_feeds_each_label_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ITEMS_A_TRANSACTION", 10)
    ledger, follower = Ledger(tmp_path / "l.db"), Failing()
    feed = DriftFeed(ledger, maturity=0.0, clock=lambda: 7.0, followers=[follower])
    accept(ledger, [make_label(i) for i in range(25)])
    with pytest.raises(LedgerError):
        feed.tick()
    assert feed.wrong() == "drift detection waits: nobody follows at 7"
    follower.broken = False
    feed.tick()
    assert feed.wrong() is None
    assert restored(ledger).labels == 25
    ledger.close()


def test_a_thread_feeds_and_does_what_else_is_given_to_it_until_it_is_stopped(tmp_path, monkeypatch):
    ledger, done, took = Ledger(tmp_path / "l.db"), threading.Event(), []
    feed = DriftFeed(ledger, maturity=0.0)
    monkeypatch.setattr(time, "thread_time", partial(next, itertools.count(9.0, 3.0)))
    monkeypatch.setattr(feed, "_rest", lambda seconds: took.append(seconds) or 60.0)
    feed.also(done.set, every=0.0)
    accept(ledger, [make_label(1)])
    feed.start()
    assert done.wait(60)
    feed.stop()
    assert not feed._thread.is_alive()
    assert (restored(ledger).labels, took) == (1, [3.0])
    ledger.close()

"""A clock that goes back, or far ahead: nothing is counted twice, lost, or divided by nothing."""

from __future__ import annotations

import numpy as np
import pytest
from ledgers import accept, ask, entries, make_label
from real_watch import RING, make_watch
from sizes import sized

from calib_serve.core.errors import Refused
from calib_serve.ledger import Ledger
from calib_serve.monitor import Detector
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.samples import SampleLog, read_samples

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


def feed(ledger):
    """Nothing waits for the detector: what waits is not forgotten."""
    with ledger.transaction():
        ledger.take_waiting(("m", "1"), until=np.inf, most=10_000)


def receipts(path):
    return ask(str(path), "select count(*) from label")[0][0]


def test_expired_receipts_are_forgotten_and_stay_refused_when_the_clock_jumps_back(tmp_path, clock):
    ledger = Ledger(tmp_path / "l.db", clock=clock, retention=1000.0)
    assert accept(ledger, [label_of_epoch(1, when=1000.0)]) == [True]
    assert accept(ledger, [label_of_epoch(2, when=3000.0)]) == [True]
    feed(ledger)
    assert ledger.sweep(3000.0) == 1
    assert receipts(tmp_path / "l.db") == 1
    clock.now = 1500.0  # the receipt of label 1 is young again, but it was counted
    assert ledger.accept(entries([label_of_epoch(1, when=1000.0)])) == ["forgotten"]
    assert ledger.sums()["m", "1"].feedback.n == 2
    ledger.close()


def test_many_receipts_are_forgotten_in_bounded_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("calib_serve.ledger.ledger._CHUNK", 30)
    ledger = Ledger(tmp_path / "l.db", retention=1.0)
    accept(ledger, [label_of_epoch(i, when=float(i)) for i in range(100)])
    feed(ledger)
    assert ledger.sweep(1000.0) == 100
    again = [label_of_epoch(i, when=float(i)) for i in (0, 29, 30)]
    assert ledger.accept(entries(again)) == ["forgotten"] * 3
    assert ledger.sweep(1000.0) == 0
    ledger.close()


@pytest.mark.parametrize("dated_ahead", [False, True], ids=["labels of now", "predictions dated ahead"])
def test_a_clock_31_days_ahead_for_one_batch_makes_the_ledger_forget_nothing(tmp_path, clock, dated_ahead):
    ledger = Ledger(tmp_path / "l.db", clock=clock)
    counted = [label_of_epoch(age, when=NOW - age * DAY) for age in (0, 1, 10, 25)]
    fresh = [label_of_epoch(age, when=NOW - age * DAY, i=1) for age in (0, 1, 10, 25)]
    assert accept(ledger, counted) == [True] * 4
    clock.now = NOW + 31 * DAY
    assert accept(ledger, [label_of_epoch(100, when=clock.now if dated_ahead else NOW)]) == [True]
    feed(ledger)
    if not dated_ahead:
        assert ledger.sweep(clock.now) == 0
    clock.now = NOW + 60
    assert ledger.accept(entries(counted + fresh)) == ["duplicate"] * 4 + ["counted"] * 4
    ledger.close()


def test_a_longer_retention_counts_nothing_twice_now_or_later(tmp_path, clock):
    old, young = label_of_epoch(1, when=NOW), label_of_epoch(2, when=NOW + 8 * DAY)
    ledger = Ledger(tmp_path / "l.db", clock=clock, retention=10 * DAY)
    accept(ledger, [old, young])
    feed(ledger)
    clock.now = NOW + 12 * DAY
    accept(ledger, [label_of_epoch(3, when=clock.now)])
    assert ledger.sweep(clock.now) == 1
    ledger.close()
    ledger = Ledger(tmp_path / "l.db", clock=clock, retention=60 * DAY)
    assert ledger.accept(entries([old, young])) == ["forgotten", "duplicate"]
    clock.now = NOW + 60 * DAY
    ledger.sweep(clock.now)
    assert ledger.accept(entries([old, young])) == ["forgotten", "duplicate"]
    assert ledger.sums()["m", "1"].labels.sum() == 3
    ledger.close()


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


def test_a_receipt_from_ahead_is_refused_until_its_time_comes(clock):
    token = RING.sign(model="m", version="1", predicted=1, confidence=0.5, time=NOW + 3600)
    with pytest.raises(Refused, match="ahead; check the hosts' clocks") as refused:
        RING.verify(token, now=NOW)
    assert refused.value.reason == "dated_ahead"
    assert RING.verify(token, now=NOW + 3500).predicted == 1


@pytest.mark.parametrize("maturity", [0.0, 60.0, None])
def test_windows_and_the_detector_go_on_after_the_clock_went_back_a_year(tmp_path, clock, maturity):
    watch = make_watch(tmp_path, clock=clock, maturity=maturity)
    for step in (0.0, 61.0, -365 * DAY, 61.0, 61.0):
        clock.now += step
        receipts = watch.predictions([ServedPrediction("m", "1", 1, 0.9)])
        assert watch.labels([{"receipt": receipts[0], "label": 1}])[0].accepted
        watch.feed.tick()
        for name in ("1h", "24h", "7d", "all"):
            watch.window(("m", "1"), name)
    clock.now += 3600.0
    everything = watch.window(("m", "1"), "all")
    assert everything.sums.labels.sum() + everything.immature.labels.sum() == 5  # each step added one
    hour = watch.window(("m", "1"), "24h")
    assert hour.sums.labels.sum() + hour.immature.labels.sum() >= 3
    watch.ledger.close()


def test_a_detector_takes_labels_whose_predictions_are_out_of_order():
    one, other = Detector(arl=1000.0), Detector(arl=1000.0)
    rng = np.random.default_rng(0)
    c, y = rng.random(500), rng.integers(0, 2, 500).astype(bool)
    for detector, time in ((one, np.full(500, NOW)), (other, NOW - np.arange(500) * DAY)):
        detector.update(c, y, time=time)
        assert np.isfinite(detector.log_evidence)
        assert detector.labels == 500


def test_sample_logs_are_bounded_and_read_whole_after_a_jump_back(tmp_path, clock):
    log = SampleLog(tmp_path, rate=1.0, days=1, clock=clock)
    for i, jump in enumerate((0.0, 60.0, -10 * DAY, 60.0, 20 * DAY)):
        clock.now += jump
        log.predicted("m", "1", [i.to_bytes(10, "big")], np.zeros((1, 3)), times=[clock.now])
        log.flush()
    assert read_samples(tmp_path, model="m", version="1").predictions == 1  # the rest is older than a day
    assert len(list(tmp_path.iterdir())) == 1

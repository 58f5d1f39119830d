"""A clock that goes back, or far ahead: nothing is counted twice, lost, or divided by nothing."""

from __future__ import annotations

import numpy as np
import pytest
from ledgers import accept, make_label
from real_watch import RING, make_watch

from calib_serve.errors import Refused
from calib_serve.receipts import DAY
from calib_serve.watch.drift import Detector
from calib_serve.watch.history import History
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.samples import SampleLog, read_samples
from calib_serve.watch.service import ServedPrediction

NOW = 1_700_000_000.0


class Clock:
    """Says what it is told to."""

    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_expired_nonces_are_forgotten_and_stay_refused_when_the_clock_jumps_back(tmp_path, clock):
    clock.now = 1000.0
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock)
    assert accept(ledger, [make_label(1)], expires=2000.0) == [True]
    clock.now = 3000.0
    assert accept(ledger, [make_label(2)], expires=4000.0) == [True]
    assert ledger._db.execute("SELECT count(*) FROM nonces").fetchone() == (1,)
    clock.now = 1500.0  # the receipt of label 1 is young again, but it was counted
    assert accept(ledger, [make_label(1)], expires=2000.0) == [False]
    assert ledger.sums()["m", "1"].feedback.n == 2
    ledger.close()


def kept(ledger):
    return ledger._db.execute("SELECT count(*) FROM nonces").fetchone()[0]


def test_sweeps_keep_pace_with_labels_that_come_faster_than_one_sweep_forgets(tmp_path, clock):
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock)
    for second in range(180):  # 500 a second, each welcome for ten seconds
        clock.now = 1000.0 + second
        batch = [make_label(i) for i in range(500 * second, 500 * second + 500)]
        accept(ledger, batch, expires=clock.now + 10)
    # 90,000 came; there are those of ten seconds, and what expired since the last sweep.
    assert kept(ledger) <= 500 * (10 + 60)
    ledger.close()


def test_batches_of_predictions_are_forgotten_without_any_label(tmp_path, clock):
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock)
    for minute in range(10):
        clock.now = 1000.0 + 61 * minute
        ledger.add({}, once=minute.to_bytes(12, "big"), expires=clock.now + 1)
    assert kept(ledger) == 1
    ledger.close()


def test_pruning_goes_in_bounded_sweeps(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db", clock=lambda: 0.0)
    ledger.accept([make_label(i) for i in range(100)], expires=[float(i) for i in range(1, 101)])
    assert ledger.prune(1000.0, at_most=30) == 30
    assert ledger.accept([make_label(0), make_label(29)], expires=[1.0, 30.0]) == [False, False]
    assert ledger.prune(1000.0) == 70
    assert ledger.prune(1000.0) == 0
    ledger.close()


@pytest.mark.parametrize("jump", [-400 * DAY, -DAY, -1.0, 1.0, DAY, 400 * DAY])
def test_a_served_watch_counts_each_label_once_over_a_jump(tmp_path, clock, jump: float):
    watch = make_watch(tmp_path, clock=clock, history_step=60.0)
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
    # Far ahead, the ledger forgot nonces of that time: what it may have forgotten is refused, not risked.
    assert counted == (0 if jump > 30 * DAY else 2)
    assert watch.ledger.sums()["m", "1"].feedback.n == 3 + counted
    assert watch.counts.errors == {}
    watch.ledger.close()


def test_a_receipt_from_ahead_is_refused_until_its_time_comes(clock):
    token = RING.sign(model="m", version="1", predicted=1, confidence=0.5, time=NOW + 3600)
    with pytest.raises(Refused, match="ahead; check the hosts' clocks"):
        RING.verify(token, now=NOW)
    assert RING.verify(token, now=NOW + 3500).predicted == 1


def test_history_goes_on_after_the_clock_went_back_a_year(tmp_path, clock):
    ledger = SqliteLedger(tmp_path / "l.db", clock=clock)
    history = History(ledger, step=60.0, points=5, clock=clock)
    for step in (0.0, 61.0, -365 * DAY, 61.0, 61.0):
        clock.now += step
        accept(ledger, [make_label(int(clock.now) % 10**6)])
        history.tick(ledger)
    points = history.of(("m", "1"))
    assert len(points) == 4
    assert sum(p.sums.feedback.n for p in points) == 4  # each step added one
    ledger.close()


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
        log.predicted("m", "1", [i.to_bytes(12, "big")], np.zeros((1, 3)), times=[clock.now])
        log.flush()
    assert read_samples(tmp_path, model="m", version="1").predictions == 1  # the rest is older than a day
    assert len(list(tmp_path.iterdir())) == 1

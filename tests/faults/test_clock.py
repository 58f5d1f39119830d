"""A clock that goes back, or far ahead: nothing is counted twice, lost, or divided by nothing."""

from __future__ import annotations

import numpy as np
import pytest
from ledgers import accept, ask, entries, make_label, sweep
from real_watch import RING, make_watch
from sizes import sized

from calib_serve.core.errors import Refused
from calib_serve.ledger import Held, Ledger
from calib_serve.monitor.checks import counting_checks
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import BatchKey, ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.receipts.samples import SampleLog, read_samples
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

NOW = 1_700_000_000.0


class Clock:
    """A host's clock, which may be set, and the time that passes whatever it says."""

    def __init__(self, now: float = NOW) -> None:
        self.now, self.passed = now, 0.0

    def __call__(self) -> float:
        return self.now

    def steady(self) -> float:
        return self.passed

    def passes(self, seconds: float) -> None:
        self.now, self.passed = self.now + seconds, self.passed + seconds


def opened(path, clock, **options):
    """A ledger that goes by this clock as its programs do."""
    return Ledger(path, clock=clock, steady=clock.steady, **options)


def rounds(watch, clock, seconds, *, every=3600.0):
    """Let time pass in which the watch makes its checks."""
    for _ in range(round(seconds / every)):
        clock.passes(every)
        watch.checks.run()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def label_of_epoch(epoch, *, when, i=0):
    return make_label((epoch << 16) + i, when=when)


def feed(ledger):
    """Nothing waits for the detector: what waits is not forgotten."""
    with ledger.transaction():
        ledger.followers.take(("m", "1"), until=np.inf, most=10_000)


def test_many_receipts_are_forgotten_in_bounded_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("calib_serve.ledger.ledger.CHUNK", 30)
    ledger = Ledger(tmp_path / "l.db", retention=1.0)
    accept(ledger, [label_of_epoch(i, when=float(i)) for i in range(100)])
    feed(ledger)
    assert sweep(ledger, 1000.0) == 100
    again = [label_of_epoch(i, when=float(i)) for i in (0, 29, 30)]
    assert ledger.accept(entries(again)) == ["forgotten"] * 3
    assert sweep(ledger, 1000.0) == 0
    ledger.close()


@pytest.mark.parametrize("days", [2, 400])
@pytest.mark.parametrize("dated_ahead", [False, True], ids=["labels of now", "predictions dated ahead"])
def test_a_clock_far_ahead_makes_no_sweep_forget_anything(tmp_path, clock, dated_ahead, days):
    ledger, ahead = opened(tmp_path / "l.db", clock), Clock()
    counted = [label_of_epoch(age, when=NOW - age * DAY) for age in (0, 1, 10, 25)]
    fresh = [label_of_epoch(age, when=NOW - age * DAY, i=1) for age in (0, 1, 10, 25)]
    assert accept(ledger, counted) == [True] * 4
    once = BatchKey.of(b"batch 1", b"content", time=NOW)
    assert ledger.add({Key("m", "1"): Sums.served([0.9])}, time=NOW, once=once)
    ledger.held.add([Held("label", "a", ("m", "2"), "{}", "", NOW)])
    dated = sorted((one.start, one.width) for one in ledger.dated(0.0, 1e11))
    ahead.now += days * DAY
    other = opened(tmp_path / "l.db", ahead)
    assert accept(other, [label_of_epoch(100, when=ahead.now if dated_ahead else NOW)]) == [True]
    feed(other)
    for _ in range(10):  # ten minutes
        ahead.passes(60.0)
        assert other.sweep() == 0
        assert other.held.drop_old() == []
    assert forgotten(tmp_path / "l.db") <= NOW + 600 - 30 * DAY
    other.close()
    clock.now = NOW + 60
    ledger.sweep()
    assert ledger.accept(entries(counted + fresh)) == ["duplicate"] * 4 + ["counted"] * 4
    assert not ledger.add({}, time=NOW, once=once)
    assert ledger.held.counts() == {("m", "2"): 1}
    later = sorted((one.start, one.width) for one in ledger.dated(0.0, NOW + DAY))
    assert set(dated) <= set(later)
    ledger.close()


def test_a_clock_that_jumps_once_more_is_looked_at_for_a_day_again(tmp_path, clock):
    ledger, weekend, jump = opened(tmp_path / "l.db", clock), 3 * DAY, 400 * DAY
    accept(ledger, [label_of_epoch(1, when=NOW - 25 * DAY)])
    clock.now += weekend
    ledger.sweep()
    clock.passes(0.9 * DAY)
    clock.now += jump
    for _ in range(20):  # hours, in which the weekend would have been believed
        clock.passes(3600.0)
        ledger.sweep()
        assert ledger.time.lag == pytest.approx(weekend + jump)
    assert forgotten(tmp_path / "l.db") <= NOW + 2 * DAY - 30 * DAY
    clock.now -= jump
    ledger.sweep()
    assert ledger.time.lag == pytest.approx(weekend)
    ledger.close()


def forgotten(path):
    return ask(str(path), "select forgotten_until from ledger")[0][0]


def test_the_ledger_s_time_goes_on_while_a_program_runs_and_follows_its_clock_after_a_day(tmp_path, clock):
    watch = Watch(RING, opened(tmp_path / "l.db", clock), models={("m", "1"): Watched(Classes(3))})
    rounds(watch, clock, 40 * DAY, every=DAY / 8)
    assert watch.checks.status == "ready"
    clock.now += 3 * DAY  # over a weekend nothing ran, or the clock jumped: that is not known
    watch.checks.run()
    assert "259200 s ahead of the ledger's time" in watch.checks.reasons()["clock"]
    assert watch.ledger.time.lag == pytest.approx(3 * DAY)
    rounds(watch, clock, 0.9 * DAY)
    assert watch.ledger.time.lag == pytest.approx(3 * DAY)
    rounds(watch, clock, 0.3 * DAY)
    assert watch.ledger.time.lag == 0
    assert watch.checks.reasons()["clock"] is None
    watch.ledger.close()


def test_a_clock_that_another_program_s_contradicts_is_never_followed(tmp_path, clock):
    ahead = Clock()
    models = {("m", "1"): Watched(Classes(3))}
    watch, other = (Watch(RING, opened(tmp_path / "l.db", one), models=models) for one in (clock, ahead))
    other.checks.add(*counting_checks(other.ledger, other.intake, program="other", ttl=30 * DAY))
    ahead.now += 40 * DAY
    for _ in range(3 * 24 * 4):
        clock.passes(900.0)
        ahead.passes(900.0)
        watch.checks.run()
        other.checks.run()
    assert other.ledger.time.lag == pytest.approx(40 * DAY, abs=1800)
    assert "ahead of that of process" in other.checks.reasons()["clock"]
    assert watch.ledger.time.lag == 0
    other.ledger.close()
    watch.checks.run()
    watch.checks.run()
    assert watch.checks.reasons()["clock"] is None, "it is gone"
    watch.ledger.close()


def test_a_repair_takes_back_what_a_clock_ahead_had_refused(tmp_path, clock):
    ahead = Clock(NOW + 400 * DAY)
    before = opened(tmp_path / "l.db", ahead)  # a host that began so, and was set right by NTP
    accept(before, [label_of_epoch(1, when=ahead.now)])
    before.restored()
    before.close()
    watch = Watch(RING, opened(tmp_path / "l.db", clock), models={("m", "1"): Watched(Classes(3))})
    watch.checks.run()
    assert "run calib-serve ledger clock --repair" in watch.checks.reasons()["clock"]
    assert watch.ledger.accept(entries([label_of_epoch(2, when=NOW)])) == ["forgotten"]
    told = watch.ledger.repair_clock()
    assert (told["ledger"], told["label"]) == (1, 1)
    watch.checks.run()
    assert watch.checks.reasons()["clock"] is None
    clock.passes(1.0)
    assert watch.ledger.accept(entries([label_of_epoch(3, when=clock.now)])) == ["counted"]
    assert watch.ledger.accept(entries([label_of_epoch(2, when=NOW - 1)])) == ["forgotten"], (
        "it may have been"
    )
    watch.ledger.close()


@pytest.mark.parametrize("back", [300.0, 5 * DAY, 1_600_000_000.0], ids=["minutes", "days", "to 1973"])
def test_a_clock_that_falls_back_forgets_nothing_and_dates_nothing_into_the_past(tmp_path, clock, back):
    watch = Watch(RING, opened(tmp_path / "l.db", clock), models={("m", "1"): Watched(Classes(3))})
    clock.now -= back
    one = ServedPrediction("m", "1", 1, 0.9)
    receipts = watch.predictions([one] * 4, once=b"a")
    watch.predictions([ServedPrediction("m", "2", 1, 0.9)] * 3)
    watch.predictions([ServedPrediction("m", "1", 1, 0.9, id="order-1")])
    assert [o.accepted for o in watch.labels([{"receipt": r, "label": 1} for r in receipts])] == [True] * 4
    clock.passes(60.0)
    watch.ledger.sweep()
    watch.held.give_up()
    clock.now += back
    watch.ledger.sweep()
    watch.held.give_up()
    assert watch.predictions([one] * 4, once=b"a") == receipts
    assert watch.ledger.sums()["m", "1"].predictions.sum() == 5
    assert watch.ledger.held.counts() == {("m", "2"): 3}
    assert watch.labels([{"id": "order-1", "label": 1}])[0].accepted
    day = watch.windows_until_now(("m", "1"), ["24h"])["24h"]
    assert (day.sums.predictions.sum(), day.sums.labels.sum()) == (5, 5)
    watch.ledger.close()


def test_a_detector_that_a_clock_ahead_fed_goes_on_with_what_comes(tmp_path, clock):
    watch = Watch(
        RING, opened(tmp_path / "l.db", clock), models={("m", "1"): Watched(Classes(3))}, maturity=60.0
    )
    one = ServedPrediction("m", "1", 1, 0.9)
    for jump in (400 * DAY, -400 * DAY):
        clock.now += jump
        receipts = watch.predictions([one] * 5)
        watch.labels([{"receipt": r, "label": 1} for r in receipts])
        clock.passes(120.0)
        watch.feed.tick()
    progress = watch.ledger.followers.progress()["m", "1"]
    assert progress.late == 0
    assert progress.fed_until < clock.now
    watch.ledger.close()


@pytest.mark.parametrize("jump", sized([-400 * DAY, DAY], [-400 * DAY, -DAY, -1.0, 1.0, DAY, 400 * DAY]))
def test_a_served_watch_counts_each_label_once_over_a_jump(tmp_path, clock, jump: float):
    watch = Watch(RING, opened(tmp_path / "l.db", clock), models={("m", "1"): Watched(Classes(3))})
    one = ServedPrediction("m", "1", 1, 0.9)
    receipts = watch.predictions([one] * 4)
    labels = [{"receipt": r, "label": 1} for r in receipts]
    assert [o.accepted for o in watch.labels(labels[:2])] == [True, True]
    clock.now += jump
    # The first two were counted; the others are welcome, as none expires on the word of this clock.
    assert [o.accepted for o in watch.labels(labels)] == [False, False, True, True]
    fresh = watch.predictions([one])
    assert watch.labels([{"receipt": fresh[0], "label": 1}])[0].accepted
    clock.now = NOW
    assert not any(o.accepted for o in watch.labels(labels))
    assert watch.ledger.sums()["m", "1"].feedback.n == 5
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


def test_sample_logs_are_bounded_and_read_whole_after_a_jump_back(tmp_path, clock):
    log = SampleLog(tmp_path, rate=1.0, days=1, clock=clock)
    for i, jump in enumerate((0.0, 60.0, -10 * DAY, 60.0, 20 * DAY)):
        clock.now += jump
        log.predicted("m", "1", [i.to_bytes(10, "big")], np.zeros((1, 3)), times=[clock.now])
        log.flush()
    assert read_samples(tmp_path, model="m", version="1").predictions == 1  # the rest is older than a day
    assert len(list(tmp_path.iterdir())) == 1

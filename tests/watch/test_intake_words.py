"""What the intake says of every label, of clocks that are apart, and to whom; and the feed's bookkeeping."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calib_serve.errors import Refused
from calib_serve.receipts import Keyring, Label
from calib_serve.watch.caps import FREE
from calib_serve.watch.drift import Detector
from calib_serve.watch.feed import DriftFeed, detector_key
from calib_serve.watch.intake import Classes, Intake, Outcome
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.slices import Slices

NOW = 1_700_000_000.0
PETS = ("pets", "1")
RING = Keyring("k", {"k": bytes(32)})


def receipt(**changes: Any) -> str:
    facts = {"model": "pets", "version": "1", "predicted": 1, "confidence": 0.9, "time": NOW - 5}
    return RING.sign(**(facts | changes))


class At:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def made(tmp_path: Path):
    opened: list[SqliteLedger] = []

    def make(clock: Callable[[], float] = lambda: NOW, **options: Any) -> Intake:
        opened.append(SqliteLedger(tmp_path / f"{len(opened)}.db", clock=clock))
        return Intake(RING, opened[-1], models={PETS: Classes(3)}, clock=clock, **options)

    yield make
    for one in opened:
        one.close()


# Labels


def refused(classes: Classes, *given: Any) -> str:
    with pytest.raises(Refused) as error:
        classes.find(*given)
    return error.value.reason


def test_a_label_of_one_class_is_its_id_or_its_name() -> None:
    classes = Classes(3, ("zero", "one", "2"))
    assert [classes.find(label) for label in (0, 2, "zero", "one", "0", "1")] == [0, 2, 0, 1, 0, 1]
    assert classes.find("2", 0, "id") == 2
    assert classes.find("2", 0, "name") == 2
    assert classes.find(1, 0, "id") == 1
    for given in ((3,), (-1,), (True,), (1.0,), ("three",), (None,), (1, 0, "name"), ("zero", 0, "id")):
        assert refused(classes, *given) == "bad_label"
    crossed = Classes(2, ("1", "0"))
    assert refused(crossed, "1") == "bad_label"  # the name of one and the id of another
    assert (crossed.find("1", 0, "id"), crossed.find("1", 0, "name")) == (1, 0)
    assert Classes(2, ("a", "b")) == Classes(2, ("a", "b")) != Classes(2, ("a", "c"))


@pytest.mark.parametrize("no", [0, 2])
def test_a_label_of_several_is_no_or_yes_of_the_label_that_was_decided(no: int) -> None:
    classes = Classes.of_labels(2, ("cat", "dog"))
    assert (classes.count, classes.pairs, len(classes.names)) == (4, True, 4)
    for predicted in (no, no + 1):
        for label in (0, False, "0", "false", "FALSE"):
            assert classes.find(label, predicted) == no
        for label in (1, True, "1", "true", "True"):
            assert classes.find(label, predicted) == no + 1
        for i in (0, 1):
            assert classes.find(classes.names[no + i], predicted) == no + i
            assert classes.find(classes.names[no + i], predicted, "name") == no + i
            assert refused(classes, classes.names[no + i], predicted, "id") == "bad_label"
            assert classes.find(str(i), predicted, "id") == no + i
        for label in (2, -1, "yes", None, 0.5, [1], classes.names[2 - no]):
            assert refused(classes, label, predicted) == "bad_label"
        assert refused(classes, 1, predicted, "name") == "bad_label"
        assert refused(classes, "true", predicted, "name") == "bad_label"
    assert refused(classes, 1, 4) == "bad_label"  # of no label


def test_a_name_that_could_be_the_other_answer_is_refused() -> None:
    odd = Classes(2, ("true", "false"), pairs=True)
    assert refused(odd, "true") == "bad_label"
    assert odd.find("true", 0, "name") == 0
    assert odd.find("true", 0, "id") == 1
    assert odd.find(1) == 1


# Clocks


@pytest.mark.parametrize(
    ("ahead", "noted"), [(-5.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.5, 1.5), (299.0, 299.0)]
)
def test_a_receipt_dated_ahead_is_counted_and_noted_beyond_a_second(ahead: float, noted: float, made) -> None:
    intake = made()
    assert intake.ahead == (0.0, -math.inf)
    assert intake.take([{"receipt": receipt(time=NOW + ahead), "label": 1}]) == [Outcome(True)]
    assert intake.ahead[0] == pytest.approx(noted, abs=1e-3)
    assert math.isinf(intake.ahead[1]) is (noted == 0.0)


def test_one_that_is_refused_for_it_is_noted_as_well(made) -> None:
    intake = made()
    (outcome,) = intake.take([{"receipt": receipt(time=NOW + 400), "label": 1}])
    assert (outcome.accepted, outcome.reason) == (False, "dated_ahead")
    assert intake.ahead[0] == pytest.approx(400)
    assert intake.refused == {"dated_ahead": 1}


def test_a_sources_day_is_told_by_the_clock_that_is_given(made) -> None:
    clock = At()
    intake = made(clock, source_share=0.1)

    def send(n: int) -> list[str | None]:
        items = [{"receipt": receipt(time=clock.now - 5), "label": 1} for _ in range(n)]
        return [one.reason for one in intake.take(items, source="a")]

    first = send(FREE + 200)
    assert "source_cap" in first
    assert set(first) == {None, "source_cap"}
    assert send(1) == ["source_cap"]
    clock.now += 2 * 86_400
    assert send(1) == [None]


# Who is told


def test_only_what_is_counted_is_told_and_once(made) -> None:
    heard: list[Label] = []
    intake = made(on_counted=heard.extend)
    good = receipt()
    items = [{"receipt": good, "label": 2}, {"receipt": good, "label": 2}, {"receipt": "x", "label": 1}]
    assert [one.reason for one in intake.take(items)] == [None, "duplicate", "malformed"]
    assert [(one.label, one.correct) for one in heard] == [(2, False)]
    assert intake.take(items)[0].reason == "duplicate"
    assert len(heard) == 1
    assert intake.refused == {"duplicate": 3, "malformed": 2}


def test_labels_of_several_are_counted_and_not_told(made) -> None:
    heard: list[Label] = []
    intake = made(on_counted=heard.extend)
    intake.models = {PETS: Classes.of_labels(2, ("cat", "dog"))}
    assert intake.take([{"receipt": receipt(), "label": 1}]) == [Outcome(True)]
    assert heard == []


def test_labels_count_in_the_slices_that_are_given(made) -> None:
    for given, names in ((Slices({PETS: 3}, segments=["nord"]), {"nord"}), (None, {"nord", "south"})):
        intake = made(slices=given)
        items = [{"receipt": receipt(segment=name), "label": 1} for name in ("nord", "south")]
        assert intake.take(items) == [Outcome(True)] * 2
        assert {key.name for key in intake.ledger.slices("segment")} >= names
        assert ("south" in {key.name for key in intake.ledger.slices("segment")}) is (given is None)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"receipt": receipt(), "label": 1, "by": "class"}, "malformed"),
        ({"receipt": receipt(), "label": 1, "segment": 5}, "malformed"),
        ({"receipt": receipt(), "label": 1, "segment": "x" * 10_000}, "malformed"),
        ({"receipt": receipt(), "label": 1, "by": None, "segment": ""}, None),
        ({"receipt": receipt(), "label": 1, "by": "id"}, None),
        ({"receipt": receipt(), "label": 1, "id": "order 7"}, None),  # the receipt counts alone
        ({"receipt": "", "label": 1, "id": "order 7"}, "unknown_id"),
        ({"receipt": None, "label": 1, "id": ""}, "malformed"),
        ({"label": 1, "id": "order 7"}, "unknown_id"),
        ({"label": 1}, "malformed"),
    ],
)
def test_an_item_is_counted_or_refused_for_what_is_wrong(
    item: dict[str, Any], reason: str | None, made
) -> None:
    (outcome,) = made().take([item])
    assert (outcome.accepted, outcome.reason) == (reason is None, reason)
    assert outcome.as_dict() == (
        {"accepted": True}
        if reason is None
        else {"accepted": False, "reason": reason, "message": outcome.message}
    )


# The feed


def fed(intake: Intake, n: int, *, start: int, right: float = 0.0, **changes: Any) -> None:
    items = [
        {"receipt": receipt(time=NOW - 900 + start + i, **changes), "label": 1 if i < right * n else 0}
        for i in range(n)
    ]
    assert all(one.accepted for one in intake.take(items))


def test_labels_of_an_incident_are_counted_on_over_ticks(made) -> None:
    intake = made()
    feed = DriftFeed(intake.ledger, detector=lambda: Detector(arl=1e6), maturity=0.0, clock=lambda: NOW)
    alone, excess = Detector(arl=1e6), []
    alarms: list[Any] = []
    for tick, n in enumerate((3, 12, 5, 4)):
        fed(intake, n, start=100 * tick)
        feed.tick()
        alarms += alone.update(
            [0.9] * n, [0] * n, time=[NOW - 900 + 100 * tick + i for i in range(n)], predicted=[1] * n
        )
        excess += [0.9] * n
    assert alarms
    assert alarms[0].label > 3
    (kept,) = feed.incidents.latest()
    since = len(excess) - alarms[-1].label
    assert kept.alarms == len(alarms)
    assert kept.labels_since == since
    assert kept.labels == len(excess) - alarms[0].since_label + 1
    assert kept.excess == pytest.approx(0.9 * kept.labels)
    assert kept.onset == alarms[0].since_time
    assert Detector.restore(intake.ledger.load(detector_key(PETS))).state() == alone.state()


@pytest.mark.parametrize(
    ("given", "learned", "every", "took", "rest"),
    [
        (0.0, {}, 1.0, 0.0, 1.0), (0.0, {}, 1.0, 0.02, 2.0), (0.0, {}, 1.0, 9.0, 5.0),
        (0.0, {}, 7.0, 9.0, 7.0),
        (600.0, {}, 1.0, 9.0, 60.0), (600.0, {}, 1.0, 0.3, 30.0), (40.0, {}, 1.0, 9.0, 5.0),
        (None, {}, 1.0, 9.0, 5.0), (None, {"a": 600.0, "b": 100.0}, 1.0, 9.0, 10.0),
        (None, {"a": math.inf}, 1.0, 9.0, 5.0), (None, {"a": math.inf, "b": 600.0}, 1.0, 9.0, 60.0),
    ],
)  # fmt: skip
def test_it_rests_a_hundred_times_what_a_tick_took_within_a_tenth_of_the_wait(
    given: float | None, learned: dict[str, float], every: float, took: float, rest: float, tmp_path: Path
) -> None:
    with closing(SqliteLedger(tmp_path / "l.db")) as ledger:
        feed = DriftFeed(ledger, maturity=given)
        feed._learned = {(name, "1"): (seconds, 0.0) for name, seconds in learned.items()}
        assert feed._rest(every, took=took) == pytest.approx(rest)


def test_versions_with_groups_are_fed_in_steps_of_five_minutes_or_a_quarter_of_the_wait(
    tmp_path: Path,
) -> None:
    with closing(SqliteLedger(tmp_path / "l.db")) as ledger:
        feed = DriftFeed(ledger, maturity=600.0)
        for seconds, mature, plain, grouped in (
            (600.0, 1000.0, 1000.0, 900.0),
            (4000.0, 4999.0, 4999.0, 4000.0),
        ):
            wait: Any = SimpleNamespace(seconds=seconds)
            feed._grouped = set()
            assert feed._until(PETS, mature, wait) == plain
            feed._grouped = {PETS}
            assert feed._until(PETS, mature, wait) == grouped
        assert feed.late() == {}


def test_its_thread_ends_with_the_process_and_does_what_else_is_asked(tmp_path: Path) -> None:
    with closing(SqliteLedger(tmp_path / "l.db")) as ledger:
        feed, done = DriftFeed(ledger, maturity=0.0), threading.Event()
        feed.also(done.set, every=0.0)
        feed.start(every=0.01)
        (thread,) = (one for one in threading.enumerate() if one.name == "calib-drift")
        assert thread.daemon
        assert done.wait(20)
        feed.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_what_was_learned_of_delays_holds_for_a_minute(made, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = At()
    intake = made(clock)
    feed = DriftFeed(intake.ledger, clock=clock)
    asked: list[float] = []
    dated = intake.ledger.dated

    def counted(*args: Any, **options: Any) -> Any:
        asked.append(clock.now - NOW)
        return dated(*args, **options)

    monkeypatch.setattr(intake.ledger, "dated", counted)
    monkeypatch.setattr("calib_serve.watch.feed.time.thread_time", lambda: 0.0)
    for seconds in (0.0, 30.0, 59.9, 60.0, 61.0, 10.0):  # and a clock that is set back
        clock.now = NOW + seconds
        feed.maturity(PETS)
    assert asked == [0.0, 60.0, 10.0]
    assert np.isinf(feed.maturity(PETS).seconds)

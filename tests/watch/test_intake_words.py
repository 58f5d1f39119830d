"""What the intake says of every label, of clocks that are apart, and to whom; and the feed's bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calib_serve.errors import Refused
from calib_serve.receipts import Keyring, Label
from calib_serve.watch.drift import Detector
from calib_serve.watch.feed import DriftFeed, detector_key
from calib_serve.watch.intake import Classes, Intake, Outcome
from calib_serve.watch.ledger import SqliteLedger

NOW = 1_700_000_000.0
PETS = ("pets", "1")
RING = Keyring("k", {"k": bytes(32)})


def receipt(**changes: Any) -> str:
    facts = {"model": "pets", "version": "1", "predicted": 1, "confidence": 0.9, "time": NOW - 5}
    return RING.sign(**(facts | changes))


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

"""The numbers of an incident, label by label: its alarms, its size, where it goes, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calib_serve.ledger import Ledger
from calib_serve.monitor.drift.detector import Alarm, ShiftedBin, ShiftedClass
from calib_serve.monitor.incidents import Incident, IncidentLog

pytestmark = pytest.mark.store

NOW = 1_700_000_000.0
PETS, CARS = ("pets", "1"), ("cars", "2")
BIN = ShiftedBin(40, 0.9, 0.7, 3.5, bin=13, low=13 / 15, high=14 / 15)
CLASS = ShiftedClass(30, 0.9, 0.6, 2.5, predicted=2)


def alarm(
    label: int, since: int, gap: float = 0.2, direction: str = "overconfident", **more: object
) -> Alarm:
    facts = {"since_time": NOW - 60, "bins": (BIN,), "evidence": 1200.0}
    return Alarm(
        label=label, since_label=since, direction=direction, gap=gap, **(facts | more),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IncidentLog]:
    ledger = Ledger(tmp_path / "l.db", clock=lambda: NOW)
    yield IncidentLog(ledger)
    ledger.close()


def told(
    log: IncidentLog, excess: list[float], *alarms: Alarm, first: int, version=PETS, now=NOW
) -> list[Incident]:
    with log._ledger.transaction():
        return log.observe(version, excess, alarms, first=first, now=now)


def test_an_alarm_opens_one_with_the_labels_that_it_took(log: IncidentLog) -> None:
    (opened,) = told(log, [0.5] * 10, alarm(48, 41, classes=(CLASS,)), first=41)
    assert (opened.id, opened.model, opened.version, opened.direction) == (1, "pets", "1", "overconfident")
    assert (opened.opened, opened.latest, opened.onset) == (NOW, NOW, NOW - 60)
    assert (opened.took, opened.labels, opened.alarms) == (8, 8, 1)
    assert opened.excess == pytest.approx(8 * 0.2)
    assert (opened.bins[0]["bin"], opened.classes[0]["predicted"]) == (13, 2)
    # Two labels came after it in the same batch.
    (kept,) = log.latest()
    assert (kept.labels, kept.labels_since, kept.alarms, kept.open) == (10, 2, 1, True)
    assert (kept.excess, kept.excess_since) == (pytest.approx(1.6 + 1.0), pytest.approx(1.0))
    assert kept.gap == pytest.approx(0.26)
    said = kept.as_dict()
    assert (said["id"], said["labels"], said["gap"], said["closed"]) == (1, 10, kept.gap, None)


def test_two_alarms_of_one_batch_are_two_of_one_incident(log: IncidentLog) -> None:
    later = alarm(47, 45, -0.5, "underconfident", bins=(), classes=(CLASS,))
    opened = told(log, [0.25] * 10, alarm(44, 41), later, first=41)
    assert len(opened) == 1
    (kept,) = log.latest()
    assert (kept.alarms, kept.took, kept.direction) == (2, 3, "underconfident")
    assert (kept.bins, len(kept.classes)) == ((), 1)
    assert (kept.labels, kept.labels_since) == (10, 3)
    assert kept.excess == pytest.approx(4 * 0.2 + 6 * 0.25)
    assert kept.excess_since == pytest.approx(3 * 0.25)
    # And three more of the next batch make five.
    assert told(log, [0.0] * 6, *(alarm(n, n) for n in (51, 52, 56)), first=51, now=NOW + 5) == []
    (kept,) = log.latest()
    assert (kept.alarms, kept.took, kept.labels, kept.labels_since) == (5, 4, 16, 0)
    assert (kept.opened, kept.latest) == (NOW, NOW + 5)


def test_it_is_over_after_three_times_the_labels_that_the_alarm_took_and_five_hundred(
    log: IncidentLog,
) -> None:
    told(log, [0.1] * 200, alarm(200, 1), first=1)
    told(log, [0.0] * 599, first=201, now=NOW + 1)
    assert log.latest()[0].open
    told(log, [0.0], first=800, now=NOW + 2)
    (kept,) = log.latest()
    assert (kept.open, kept.closed, kept.closed_by) == (False, NOW + 2, "recovery")
    # The next alarm opens another; a short one waits for 500.
    told(log, [0.1] * 10, alarm(810, 801), first=801)
    told(log, [0.0] * 499, first=811)
    assert [one.open for one in log.latest()] == [False, True]
    told(log, [0.0], first=1310)
    assert [one.open for one in log.latest()] == [False, False]


@pytest.mark.parametrize(
    ("before", "since", "is_open"),
    [(0.2, 0.2, True), (0.2, 0.101, True), (0.25, 0.125, False), (-0.2, -0.2, True), (0.2, -0.11, True),
     (0.07, 0.07, False)],  # so small a gap of 400 labels may be none: other things moved
)  # fmt: skip
def test_it_is_not_over_while_its_gap_is_there(
    log: IncidentLog, before: float, since: float, is_open: bool
) -> None:
    told(log, [before] * 400, alarm(400, 1, before), first=1)
    told(log, [since] * 1199, first=401)
    assert log.latest()[0].open
    told(log, [since], first=1600)
    assert log.latest()[0].open is is_open
    if is_open:  # and it ends once it has gone
        told(log, [0.0] * 1201, first=1601)
        assert not log.latest()[0].open

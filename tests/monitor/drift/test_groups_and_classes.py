"""Labels that belong together are one bet, and predicted classes are watched apart."""

import math

import numpy as np
import pytest
from plain_detector import PlainDetector

from calib_serve.monitor import Detector


def draw(rng, n):
    return 1 - 0.75 * rng.beta(1, 4, n)


def labels(rng, c, gap=0.0):
    return rng.random(len(c)) < np.clip(c - gap, 0, 1)


@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_the_labels_of_a_group_are_one_bet(gap):
    rng = np.random.default_rng(21)
    c = draw(rng, 900)
    y = labels(rng, c, gap)
    group = np.where(rng.random(900) < 0.7, rng.integers(1, 60, 900), 0).astype(np.uint64)
    blocks = {}
    for row, one in enumerate(group.tolist()):
        blocks.setdefault(("group", one) if one else ("alone", row), []).append(row)
    arl = 300 if gap else 3000
    plain, detector = PlainDetector(arl=arl, groups=True), Detector(arl=arl)
    for rows in blocks.values():  # in the order of their first labels
        plain.take(c[rows], y[rows], np.full(len(rows), 15))
    alarms = detector.update(c, y, group=group)
    assert [a.label for a in alarms] == plain.alarms
    assert bool(alarms) == bool(gap)
    assert detector.labels == 900
    if not gap:
        assert detector.evidence == pytest.approx(plain.evidence[-1], rel=1e-9)


def test_what_a_group_says_later_is_left_out():
    rng = np.random.default_rng(22)
    c = draw(rng, 200)
    y = labels(rng, c)
    once, more = Detector(), Detector()
    group = np.arange(1, 101, dtype=np.uint64)
    for detector in (once, more):
        detector.update(c[:100], y[:100], group=group)
    more.update(c[100:], ~y[100:], group=group[::-1])
    assert (more.left_out, once.left_out) == (100, 0)
    assert more.evidence == once.evidence
    assert more.labels == 100
    # Ids near 2^64 are kept apart, as floats would not.
    more.update([0.9, 0.9], [1, 1], group=[2**64 - 1, 2**64 - 2])
    assert more.labels == 102


def test_errors_that_come_in_groups_are_no_drift_when_the_groups_are_told():
    rng = np.random.default_rng(23)
    alarms = {True: 0, False: 0}
    for _ in range(5):
        c = np.full(5000, 0.8)
        y = np.repeat(rng.random(250) < 0.8, 20)  # all twenty of a group are right, or wrong
        group = np.repeat(np.arange(1, 251), 20).astype(np.uint64)
        for told in alarms:
            alarms[told] += len(Detector(arl=5000).update(c, y, group=group if told else None))
    assert alarms[True] <= 5 + 3 * math.sqrt(5)
    assert alarms[False] > 50


def test_errors_that_cancel_over_predicted_classes_are_found_and_the_classes_named():
    rng = np.random.default_rng(24)
    c = rng.uniform(0.5, 0.9, 6000)
    predicted = rng.integers(100, 104, 6000)
    gap = np.where(np.arange(6000) >= 2000, np.where(predicted < 102, 0.1, -0.1), 0.0)
    y = labels(rng, c, gap)
    blind = Detector(arl=100_000).update(c, y)
    alarm = Detector(arl=100_000).update(c, y, predicted=predicted)[0]
    assert not blind
    assert 2000 < alarm.label < 3500
    assert alarm.direction == "mixed"
    assert len(alarm.classes) >= 3
    assert all((one.predicted < 102) == (one.gap > 0) for one in alarm.classes)
    assert alarm.classes[0].log_evidence >= alarm.classes[-1].log_evidence

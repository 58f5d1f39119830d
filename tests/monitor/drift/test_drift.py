"""The detector keeps its promised run length, finds what changed, and survives being moved."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_detector import PlainDetector

from calib_serve.core.errors import InputError
from calib_serve.monitor import Detector
from calib_serve.monitor.drift.bets import SPACING, PartBets
from calib_serve.monitor.drift.rounds import BlockCells, payoffs


def draw(rng, n):
    return 1 - 0.75 * rng.beta(1, 4, n)


def labels(rng, c, gap=0.0):
    return rng.random(len(c)) < np.clip(c - gap, 0, 1)


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 1), st.floats(0, 0.2), st.floats(-1, 1))
def test_no_bet_gains_while_accuracy_is_within_the_tolerance(confidence, tolerance, where):
    p = min(max(confidence + where * tolerance, 0), 1)
    right, wrong = (
        payoffs(np.array([confidence]), np.array([y]), tolerance=tolerance)[0] for y in (1.0, 0.0)
    )
    assert (right >= 0).all()
    assert (wrong >= 0).all()
    assert np.isfinite(right).all()
    assert np.isfinite(wrong).all()
    assert (p * right + (1 - p) * wrong <= 1 + 1e-9).all()


@pytest.mark.parametrize(
    ("tolerance", "gap"), [(0.0, 0.0), (0.01, 0.01), (0.01, -0.01), (0.05, 0.05), (0.05, -0.05), (0.05, 0.0)]
)
def test_false_alarms_are_at_least_as_rare_as_promised_wherever_the_gap_is_within_the_tolerance(
    tolerance, gap
):
    rng = np.random.default_rng(1)
    arl, streams, length = 300, 40, 1000
    alarms = 0
    for _ in range(streams):
        detector = Detector(arl=arl, tolerance=tolerance)
        c = rng.uniform(0.4, 0.6, length)  # single labels move the statistic least: nothing is left over
        alarms += len(detector.update(c, labels(rng, c, gap)))
    # On average at most one in arl labels; 3 sigma of a Poisson count above that.
    most = streams * length / arl
    assert alarms < most + 3 * math.sqrt(most)


@pytest.mark.parametrize("sizes", [[1] * 90, [7] * 12, [1, 40, 3, 3, 90, 1, 17]])
def test_no_more_than_one_label_is_staked_for_each_whatever_the_blocks(sizes):
    sizes = np.array(sizes)
    block, ends = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes)
    n, part = len(block), np.arange(len(block)) % 3
    # Bets that pay what was staked.
    cells = BlockCells.of(block, part, np.ones((n, 6)), np.ones((n, 3)), sizes)
    bets, worth = PartBets.none(100, parts=3).after(
        cells, 100 + ends - sizes + 1, sizes, np.zeros(len(sizes))
    )
    assert (worth <= ends + 1e-9).all()
    assert worth[-1] == pytest.approx(bets.paid - 100)
    assert worth[-1] >= ends[-1] - SPACING - sizes.max()


@pytest.mark.parametrize("wrong", [{"bins": 0}, {"bins": 1001}, {"arl": 1.0}, {"block": 0}])
def test_options_that_no_detector_has_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Detector(**wrong)


def test_it_says_when_where_and_which_way():
    rng = np.random.default_rng(3)
    c = rng.uniform(0.3, 1.0, 8000)
    when = np.arange(8000) * 60.0
    gap = np.where((np.arange(8000) >= 5000) & (c > 0.8), 0.2, 0.0)
    alarm = Detector(arl=100_000, tolerance=0.01).update(c, labels(rng, c, gap), time=when)[0]
    assert 5000 < alarm.label < 5600
    assert abs(alarm.since_label - 5000) < 250
    assert alarm.since_time == pytest.approx(60.0 * (alarm.since_label - 1))
    assert alarm.direction == "overconfident"
    assert all(b.high > 0.8 and b.gap > 0 for b in alarm.bins[:2])
    assert alarm.evidence >= 100_000


@pytest.mark.parametrize("block", [1, 10])
def test_state_moves_whole_at_any_label(block):
    rng = np.random.default_rng(6)
    c = draw(rng, 700)
    y = labels(rng, c, 0.1)
    told = {"predicted": rng.integers(0, 40, 700), "group": rng.integers(0, 300, 700).astype(np.uint64)}
    stays, moved = (Detector(arl=500, tolerance=0.01, bins=12, block=block) for _ in range(2))
    assert stays.log_evidence == -math.inf
    alarms, heard = [], []
    for at in range(0, 700, 97):
        batch = slice(at, at + 97)
        some = {name: values[batch] for name, values in told.items()}
        alarms += stays.update(c[batch], y[batch], **some)
        moved = Detector.restore(moved.state())
        heard += moved.update(c[batch], y[batch], **some)
    assert alarms
    assert repr(heard) == repr(alarms)  # every digit, and NaN is NaN
    assert moved.state() == stays.state()
    assert moved.left_out == stays.left_out > 0
    # Left out, taken, or waiting for the rest of a block: no label is lost.
    assert 700 - block < moved.labels + moved.left_out <= 700


@pytest.mark.parametrize("block", [1, 3, 20, 150])
@pytest.mark.parametrize("gap", [0.0, 0.03, 0.3])
def test_however_labels_are_batched_it_is_the_detector_that_was_defined(block, gap):
    rng = np.random.default_rng(12)
    c = draw(rng, 1200)
    y = labels(rng, c, gap)
    predicted = rng.integers(0, 7, 1200)
    plain = PlainDetector(arl=400, block=block)
    first_seen = list(dict.fromkeys(predicted.tolist()))
    plain.update(c, y, slots=np.array([first_seen.index(one) for one in predicted]))
    for batch in (1, 7, 97, 1200):
        detector = Detector(arl=400, block=block)
        alarms = []
        for at in range(0, 1200, batch):
            some = slice(at, at + batch)
            before = detector.labels
            raised = detector.update(c[some], y[some], predicted=predicted[some])
            alarms += raised
            if not raised and detector.labels > before:
                expected = plain.evidence[detector.labels // block - 1]
                assert detector.evidence == pytest.approx(expected, rel=1e-9)
        assert [a.label for a in alarms] == plain.alarms
        heard = [plain.evidence[label // block - 1] for label in plain.alarms]
        assert [a.evidence for a in alarms] == pytest.approx(heard, rel=1e-9)
    assert plain.alarms or not gap


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_the_surest_of_wrong_predictions_are_heard_at_once_and_overflow_nothing(confidence):
    detector = Detector(arl=1e30, tolerance=0.0)
    sure = np.full(500, confidence)
    assert not detector.update(sure, sure)
    alarms = detector.update(sure, 1 - sure)
    assert 1 <= alarms[0].label - 500 <= 20
    assert all(np.isfinite(alarm.evidence) for alarm in alarms)
    assert np.isfinite(detector.evidence)


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"rubbish",
        b"PK\x03\x04",
        b"[]\n",
        b"9" * 9999,
        Detector().state()[:-40],
        Detector().state() + b"12345678",
        Detector().state().replace(b" 15, 1]", b" 1500000000000, 1]"),
    ],
)
def test_a_spoilt_state_is_refused(spoilt):
    with pytest.raises(InputError):
        Detector.restore(spoilt)


def test_a_state_of_another_format_or_of_impossible_counts_is_refused():
    detector = Detector(arl=1000, tolerance=0.02, bins=5, block=3)
    detector.update([0.9] * 7, [1] * 7, group=[0, 0, 0, 5, 5, 6, 0])
    head, _, body = detector.state().partition(b"\n")
    for wrong in (
        {"format": 0}, {"format": "x"}, {"groups": -1}, {"groups": 4097}, {"waiting": -1},
        {"classes": list(range(16))}, {"options": [1, 0.02, 5, 3]}, {"labels": "x"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="detector"):
            Detector.restore(json.dumps(json.loads(head) | wrong).encode() + b"\n" + body)

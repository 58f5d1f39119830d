"""Where a detector's state ends, and the statistics beside it at their edges."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from calib_serve.bins import Bins
from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.drift import Detector
from calib_serve.watch.drift.statistics import auroc, expected_accuracy, psi, wilson
from calib_serve.watch.ledger.sums import Sums


def changed(state: bytes, **changes: object) -> bytes:
    head, _, body = state.partition(b"\n")
    return json.dumps(json.loads(head) | changes).encode() + b"\n" + body


def test_a_state_of_another_format_or_of_impossible_counts_is_refused() -> None:
    detector = Detector(arl=1000, tolerance=0.02, bins=5, block=3)
    detector.update([0.9] * 7, [1] * 7, group=[0, 0, 0, 5, 5, 6, 0])
    state = detector.state()
    head = json.loads(state.partition(b"\n")[0])
    assert (head["format"], head["options"]) == (1, [1000.0, 0.02, 5, 3])
    assert Detector.restore(changed(state)).state() == state
    for wrong in (
        {"format": 0}, {"format": "x"}, {"groups": -1}, {"groups": 4097}, {"waiting": -1},
        {"classes": list(range(16))}, {"options": [1, 0.02, 5, 3]}, {"labels": "x"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="detector"):
            Detector.restore(changed(state, **wrong))


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ({"arl": 2}, True), ({"arl": 1.99}, False), ({"arl": 1e30}, True), ({"arl": 1.01e30}, False),
        ({"tolerance": 0.0}, True), ({"tolerance": -0.001}, False), ({"tolerance": 0.499}, True),
        ({"tolerance": 0.5}, False), ({"bins": 1}, True), ({"bins": 0}, False), ({"bins": 1000}, True),
        ({"bins": 1001}, False), ({"block": 1}, True), ({"block": 0}, False),
    ],
)  # fmt: skip
def test_options_are_taken_up_to_their_limits(options: dict[str, float], good: bool) -> None:
    if good:
        (name,) = options
        assert getattr(Detector(**options), name) == options[name]  # type: ignore[arg-type]
        return
    with pytest.raises(InputError):
        Detector(**options)  # type: ignore[arg-type]


def test_evidence_and_threshold_are_told_as_logarithms() -> None:
    detector = Detector(arl=500)
    assert (detector.evidence, detector.log_evidence) == (0.0, -math.inf)
    assert detector.log_threshold == pytest.approx(math.log(500))
    assert detector.update([0.9, 0.8], [1, 0]) == []
    assert detector.log_evidence == pytest.approx(math.log(detector.evidence))
    (alarm,) = detector.update([0.99] * 3, [0, 0, 0])[:1]
    assert alarm.threshold == 500.0
    assert alarm.evidence >= 500.0


def test_a_stability_index_counts_no_share_below_a_ten_thousandth() -> None:
    p, q = np.array([1.0, 1e-4, 1e-4]), np.array([1e-4, 1e-4, 1.0])
    assert psi([7, 0, 0], [0, 0, 9]) == pytest.approx(((p - q) * np.log(p / q)).sum())
    assert psi([1, 3], [1, 1]) == pytest.approx(psi([1, 1], [1, 3]))
    assert math.isnan(psi([0, 0], [1, 1]))
    for wrong in (([1, 2], [1, 2, 3]), ([[1, 2]], [[1, 2]])):
        with pytest.raises(ShapeError, match="histograms"):
            psi(*wrong)


def test_accuracy_without_labels_has_the_noise_of_coins() -> None:
    confidence = np.array([0.3, 0.52, 0.53, 0.97, 0.98, 0.99])
    found = expected_accuracy(Sums.served(confidence))
    assert found.accuracy == pytest.approx(confidence.mean())
    alone, low, high = confidence[:1], confidence[1:3], confidence[3:]
    variance = sum(len(c) * c.mean() * (1 - c.mean()) for c in (alone, low, high))
    assert found.standard_error == pytest.approx(math.sqrt(variance) / 6)
    assert expected_accuracy(Sums.served(np.ones(4))).standard_error == 0.0


def test_an_auroc_without_a_pair_is_nan_and_the_others_are_counted_by_hand() -> None:
    assert math.isnan(auroc(Bins([3.0], [2.4], [3.0])))
    assert math.isnan(auroc(Bins([3.0], [2.4], [0.0])))
    # Right 1 and 2, wrong 2 and 1: of 9 pairs 4 are right above wrong, 4 alike.
    assert auroc(Bins([3.0, 3.0], [1.0, 2.0], [1.0, 2.0])) == pytest.approx((4 + 4 / 2) / 9)


def test_an_interval_of_a_share_is_at_95_percent_and_within_0_and_1() -> None:
    low, high = wilson(np.array([0.0, 5.0, 3.0]), np.array([5.0, 5.0, 0.0]))
    assert (low[0], high[1]) == (0.0, 1.0)
    assert high[0] == pytest.approx(1.96**2 / (5 + 1.96**2))
    assert low[1] == pytest.approx(1 - high[0])
    assert np.isnan([low[2], high[2]]).all()

"""The monitor's sums are exact, bounded, and merge; its windows forget what they should."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve.bins import Bins
from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.drift.statistics import auroc, compare, expected_accuracy, wilson
from calib_serve.watch.ledger.sums import Sums
from calib_serve.watch.monitor import OTHER, Key, Monitor
from calib_serve.watch.windows import Sliding

probabilities = st.lists(st.floats(0, 1), max_size=50)


@settings(deadline=None)
@given(probabilities)
def test_one_by_one_and_many_at_once_are_the_same(confidence):
    one, many = Monitor(), Monitor()
    for c in confidence:
        one.predicted("m", "1", c)
    many.predicted_many("m", "1", confidence)
    want = Sums.served(confidence)
    for monitor in (one, many):
        assert monitor.sums().get(Key("m", "1"), Sums.zeros()) == want


def test_ten_thousand_predictions_one_by_one_equal_numpy():
    rng = np.random.default_rng(0)
    c, y = rng.random(10_000), rng.integers(0, 2, 10_000)
    monitor = Monitor(bins=10)
    for value in c.tolist():
        monitor.predicted("m", "1", value)
    monitor.labelled("m", "1", c, y)
    sums = monitor.sums()[Key("m", "1")]
    np.testing.assert_allclose(sums.flat(), (Sums.served(c, bins=10) + Sums.labelled(c, y, bins=10)).flat())
    assert sums.brier() == pytest.approx(((c - y) ** 2).mean(), rel=1e-12)


def test_a_broken_model_is_counted_and_spoils_no_sum():
    monitor = Monitor()
    monitor.predicted_many("m", "1", [0.5, math.nan, 1.2, -0.1, math.inf])
    assert monitor.sums()[Key("m", "1")] == Sums.served([0.5])
    assert monitor.invalid == {Key("m", "1"): 4}


def test_unbounded_segments_end_in_other():
    monitor = Monitor(max_segments=2)
    for i in range(1000):
        monitor.predicted("m", "1", 0.9, segment=f"user {i}")
    counts = {key.segment: sums.predictions.sum() for key, sums in monitor.sums().items()}
    assert counts == {"user 0": 1, "user 1": 1, OTHER: 998}


def test_predicted_classes_are_counted_apart_when_given():
    monitor = Monitor()
    monitor.predicted("m", "1", 0.9, predicted=3)
    monitor.labelled("m", "1", [0.9], [True], predicted=3)
    assert set(monitor.sums()) == {Key("m", "1", "", 3)}


def test_an_opened_version_is_there_at_zero():
    monitor = Monitor()
    monitor.open("m", "2")
    assert monitor.sums() == {Key("m", "2"): Sums.zeros()}


def test_threads_lose_nothing():
    monitor = Monitor()

    def work():
        for _ in range(5000):
            monitor.predicted("m", "1", 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.sums()[Key("m", "1")].predictions.sum() == 20_000


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 500)), max_size=40))
def test_a_sliding_window_holds_what_a_slow_one_would(rows):
    rows = sorted(rows, key=lambda row: row[2])
    window = Sliding(100, slots=10)
    for c, y, at in rows:
        window.add(Sums.labelled([c], [y]), now=at)
    now = rows[-1][2] if rows else 0.0
    kept = [(c, y) for c, y, at in rows if now // 10 - at // 10 < 10]
    want = Sums.labelled([c for c, _ in kept], [y for _, y in kept])
    np.testing.assert_allclose(window.sums(now=now).flat(), want.flat(), atol=1e-9)


@settings(deadline=None)
@given(probabilities, probabilities)
def test_sums_merge_revert_and_travel_flat(a, b):
    one, two = Sums.served(a), Sums.labelled(b, np.ones(len(b)))
    assert one + two == two + one
    np.testing.assert_allclose((one + two - two).flat(), one.flat(), atol=1e-12)
    assert Sums.from_flat((one + two).flat()) == one + two


def test_sums_of_other_shapes_are_refused():
    with pytest.raises(ShapeError, match="15 bins with 10"):
        Sums.zeros() + Sums.zeros(10)
    with pytest.raises(ShapeError):
        Sums.from_flat([1.0, 2.0])
    with pytest.raises(InputError):
        Sums.zeros().scaled(-1)


def test_distances_of_histograms_equal_scipy():
    from scipy.spatial.distance import jensenshannon

    rng = np.random.default_rng(0)
    a, b = rng.integers(1, 100, 15), rng.integers(1, 100, 15)
    shift = compare(a, b)
    assert shift.js == pytest.approx(jensenshannon(a, b) ** 2, rel=1e-9)
    p, q = a / a.sum(), b / b.sum()
    assert shift.psi == pytest.approx(((p - q) * np.log(p / q)).sum(), rel=1e-12)
    assert compare(a, a) == compare(b, b)
    assert compare(a, 3 * a).psi == pytest.approx(0)
    assert math.isnan(compare(a, 0 * a).psi)


def test_auroc_from_bins_is_sklearns_with_binned_scores():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    c = rng.random(2000)
    y = rng.random(2000) < c
    binned = np.ceil(c * 15)
    assert auroc(Bins.tally(c, y)) == pytest.approx(roc_auc_score(y, binned), rel=1e-12)


def test_expected_accuracy_covers_the_truth_while_calibrated_and_is_wrong_under_concept_drift():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        c = rng.beta(5, 2, 400)
        accuracy = (rng.random(400) < c).mean()
        expected = expected_accuracy(Sums.served(c))
        inside += abs(accuracy - expected.accuracy) <= 1.96 * expected.standard_error
    assert inside >= 184  # 95 % of 200, less 2 sigma
    drifted = Sums.served(c) + Sums.labelled(c, rng.random(400) < c - 0.2)
    corrected = expected_accuracy(drifted)
    assert corrected.accuracy - corrected.corrected > 0.1
    assert corrected.corrected_error > corrected.standard_error


def test_wilson_intervals_equal_scipy():
    from scipy.stats import binomtest

    low, high = wilson(np.array([7.0, 0.0]), np.array([20.0, 5.0]), z=1.959963984540054)
    for k, n, a, b in ((7, 20, low[0], high[0]), (0, 5, low[1], high[1])):
        want = binomtest(k, n).proportion_ci(method="wilson")
        assert (a, b) == pytest.approx((want.low, want.high), abs=1e-12)

"""Differences between two methods: against scipy, and under no difference at all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib_serve import metrics
from calib_serve.errors import InputError, ShapeError


def test_welch_equals_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 5), rng.normal(0.7, 3, 8)
    found = metrics.welch(a, b, level=0.9)
    scipys = stats.ttest_ind(b, a, equal_var=False)
    low, high = scipys.confidence_interval(0.9)
    assert found.p == pytest.approx(scipys.pvalue, rel=1e-9)
    assert found.difference.low == pytest.approx(low, rel=1e-9)
    assert found.difference.high == pytest.approx(high, rel=1e-9)


@pytest.fixture(scope="module")
def sharpened() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibrated probabilities, the same overconfident, and labels."""
    rng = np.random.default_rng(4)
    z = 2 * rng.standard_normal((1500, 4))
    p = metrics.softmax(z)
    labels = (p.cumsum(axis=1) < rng.random((1500, 1))).sum(axis=1)
    return p, metrics.softmax(2.5 * z), labels


def test_a_real_change_is_found_in_each_metric_that_it_touches(sharpened) -> None:
    calibrated, overconfident, labels = sharpened
    found = metrics.paired_changes(overconfident, calibrated, labels, replicates=200)
    for name in (
        "ece",
        "adaptive_ece",
        "classwise_ece",
        "smooth_ece",
        "nll",
        "brier",
        "overconfidence_error",
    ):
        change = found[name]
        assert change.difference.high < 0, name
        assert change.p < 0.02, name
    assert found["entropy"].difference.low > 0


def test_the_difference_is_that_of_the_two_evaluations(sharpened) -> None:
    calibrated, overconfident, labels = sharpened
    found = metrics.paired_changes(overconfident, calibrated, labels, replicates=0)
    before = metrics.evaluate(overconfident, labels, replicates=0).estimates()
    after = metrics.evaluate(calibrated, labels, replicates=0).estimates()
    assert found.keys() == before.keys()
    for name, change in found.items():
        expected = after[name].value - before[name].value
        assert change.difference.value == pytest.approx(expected, abs=1e-12), name


def test_other_samples_are_refused(sharpened) -> None:
    calibrated, _, labels = sharpened
    more_classes = np.pad(calibrated, ((0, 0), (0, 1)))
    with pytest.raises(ShapeError, match="same samples"):
        metrics.paired_changes(calibrated, more_classes, labels)
    with pytest.raises(InputError, match="replicates"):
        metrics.paired_changes(calibrated, calibrated, labels, replicates=-1)

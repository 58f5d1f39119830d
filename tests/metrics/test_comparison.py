"""Differences between two methods: against scipy, and under no difference at all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib_serve import metrics


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


def test_the_difference_is_that_of_the_two_evaluations(sharpened) -> None:
    calibrated, overconfident, labels = sharpened
    found = metrics.paired_changes(overconfident, calibrated, labels, replicates=0)
    before = metrics.evaluate(overconfident, labels, replicates=0).estimates()
    after = metrics.evaluate(calibrated, labels, replicates=0).estimates()
    assert found.keys() == before.keys()
    for name, change in found.items():
        expected = after[name].value - before[name].value
        assert change.difference.value == pytest.approx(expected, abs=1e-12), name

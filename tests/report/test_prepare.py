"""What each figure shows, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib_serve.metrics import ece
from calib_serve.report import (
    class_table,
    confidence_density,
    confidence_histogram,
    reliability,
    risk_coverage,
)
from calib_serve.scores import softmax

RNG = np.random.default_rng(3)
PROBS = softmax(2.5 * RNG.standard_normal((4000, 6)))
LABELS = np.where(RNG.random(4000) < 0.6, PROBS.argmax(1), RNG.integers(0, 6, 4000))
CONFIDENCE = PROBS.max(1)
CORRECT = PROBS.argmax(1) == LABELS


def test_a_reliability_diagram_holds_the_mean_of_each_bin() -> None:
    data = reliability(PROBS, LABELS, bins=10)
    for b in range(10):
        inside = (data.edges[b] < CONFIDENCE) & (data.edges[b + 1] >= CONFIDENCE)
        assert data.count[b] == inside.sum()
        if inside.any():
            assert data.confidence[b] == pytest.approx(CONFIDENCE[inside].mean())
            assert data.accuracy[b] == pytest.approx(CORRECT[inside].mean())
            assert data.low[b] <= data.accuracy[b] <= data.high[b]
        else:
            assert np.isnan(data.accuracy[b])
    assert data.ece == pytest.approx(ece(PROBS, LABELS, bins=10))


def test_all_ranges_of_a_calibrated_model_hold_at_once_and_are_the_exact_ones() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        c = np.concatenate([rng.uniform(0.2, 1, 100), rng.beta(30, 1, 200)])
        probs = np.column_stack([c, *[(1 - c) / 9] * 9])
        data = reliability(probs, np.where(rng.random(300) < c, 0, rng.integers(1, 10, 300)))
        full = data.count > 0
        a, low, high = data.accuracy[full], data.expected_low[full], data.expected_high[full]
        held += bool(((low <= a + 1e-12) & (a <= high + 1e-12)).all())
        risk = 0.025 / full.sum()
        ppf = stats.binom.ppf([[risk], [1 - risk]], data.count[full], np.minimum(data.confidence[full], 1))
        np.testing.assert_allclose([low, high], ppf / data.count[full])
    assert held >= 185


def test_a_histogram_counts_every_prediction_once() -> None:
    data = confidence_histogram(PROBS, LABELS)
    assert data.count.sum() == len(LABELS)
    np.testing.assert_array_equal(data.count, np.histogram(CONFIDENCE, 20, (0, 1))[0])
    assert data.mean_confidence - data.accuracy == pytest.approx(CONFIDENCE.mean() - CORRECT.mean())


def test_the_densities_integrate_to_one_over_log_odds_and_sit_where_their_samples_are() -> None:
    data = confidence_density(PROBS, LABELS)
    odds = np.log(CONFIDENCE / (1 - CONFIDENCE))
    x = np.log(data.grid) - np.log1p(-data.grid)
    step = x[1] - x[0]
    for density, part in ((data.right, CORRECT), (data.wrong, ~CORRECT)):
        assert density.sum() * step == pytest.approx(1, abs=0.02)
        assert (density * x).sum() * step == pytest.approx(odds[part].mean(), abs=0.1)
    assert (data.n_right, data.n_wrong) == (CORRECT.sum(), (~CORRECT).sum())


def test_the_risk_coverage_curve_is_the_error_among_the_most_confident() -> None:
    data = risk_coverage(PROBS, LABELS)
    for coverage, risk, threshold in zip(data.coverage, data.risk, data.confidence, strict=True):
        answered = threshold <= CONFIDENCE
        assert coverage == pytest.approx(answered.mean())
        assert risk == pytest.approx((~CORRECT[answered]).mean())
    assert data.coverage[-1] == 1
    assert data.target == pytest.approx((~CORRECT).mean() / 2)


def test_the_class_table_has_every_class_with_its_own_gap() -> None:
    rows = class_table(PROBS, LABELS, class_names=list("abcdef"))
    assert sorted(row.name for row in rows) == list("abcdef")
    predicted = PROBS.argmax(1)
    for row in rows:
        k = "abcdef".index(row.name)
        own = predicted == k
        assert (row.occurs, row.predicted) == ((k == LABELS).sum(), own.sum())
        assert row.gap.value == pytest.approx(CONFIDENCE[own].mean() - CORRECT[own].mean())
        assert row.precision == pytest.approx(CORRECT[own].mean())
    assert [row.certain_gap for row in rows] == sorted((row.certain_gap for row in rows), reverse=True)


def test_a_rare_class_does_not_outrank_a_sure_error() -> None:
    # Class 0: 1,000 predictions, 30 points too confident. Class 1: 2 predictions, both wrong.
    probs = np.concatenate([np.tile([0.9, 0.1], (1000, 1)), np.tile([0.2, 0.8], (2, 1))])
    labels = np.concatenate([np.arange(1000) % 5 < 2, np.zeros(2)]).astype(int)
    rows = class_table(probs, labels)
    assert abs(rows[1].gap.value) > abs(rows[0].gap.value) > 0.25
    assert [row.name for row in rows] == ["0", "1"]

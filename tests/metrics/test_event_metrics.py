"""Metrics of P(y = 1): against scikit-learn, against R's numbers by hand, and where they have no value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.event import event_bins, loess

RNG = np.random.default_rng(0)
P = RNG.beta(2, 5, 1500)
Y = (RNG.random(1500) < np.clip(0.05 + 0.7 * P, 0, 1)).astype(int)
COUNTS = RNG.integers(0, 4, 1500)
REPEATED = np.repeat(np.arange(1500), COUNTS)
EACH = ("intercept", "slope", "observed_expected", "ece", "ici")


def test_slope_and_intercept_are_those_of_logistic_regression_on_the_log_odds() -> None:
    log_odds = np.log(P / (1 - P))
    free = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(log_odds[:, None], Y)
    found = metrics.evaluate_event(P, Y)
    assert found.slope == pytest.approx(free.coef_[0, 0], rel=1e-5)
    a = found.intercept.value
    assert (1 / (1 + np.exp(-log_odds - a))).mean() == pytest.approx(Y.mean(), rel=1e-9)  # its defining score


def test_a_calibrated_model_has_a_slope_of_one_and_its_interval_says_so() -> None:
    p = P[:300]
    found = [metrics.evaluate_event(p, row) for row in RNG.random((150, len(p))) < p]
    assert np.mean([e.slope for e in found]) == pytest.approx(1, abs=0.05)
    for name in ("slope", "observed_expected"):
        ends = [getattr(e, name) for e in found]
        assert 0.9 <= np.mean([e.low <= 1 <= e.high for e in ends]) <= 1, name


def test_a_weight_is_as_many_rows_and_a_scale_is_nothing() -> None:
    kept = COUNTS > 0
    weighted = metrics.evaluate_event(P, Y, sample_weight=COUNTS)
    repeated = metrics.evaluate_event(P[REPEATED], Y[REPEATED])
    scaled = metrics.evaluate_event(P, Y, sample_weight=2.5 * COUNTS)
    without = metrics.evaluate_event(P[kept], Y[kept], sample_weight=COUNTS[kept])
    for name in EACH:
        one = getattr(weighted, name).value
        near = 0.02 if name == "ici" else 1e-9  # a repeated row is one neighbour more
        assert one == pytest.approx(getattr(repeated, name), rel=near), name
        assert one == pytest.approx(getattr(scaled, name), rel=1e-9), name
        assert one == getattr(without, name), name


def test_groups_reach_every_interval_that_an_evaluation_has() -> None:
    groups, y = np.arange(len(P)) // 50, (RNG.random(30)[:, None] < P.reshape(30, 50)).ravel()
    alone, together = (metrics.evaluate_event(P, y, groups=of) for of in (None, groups))
    for name in ("intercept", "slope", "observed_expected"):
        one, other = (getattr(found, name) for found in (alone, together))
        assert (one.value, other.high - other.low > 1.2 * (one.high - one.low)) == (other.value, True), name


def test_loess_is_a_quadratic_where_the_truth_is_one() -> None:
    x = np.sort(RNG.random(200))
    at = np.array([0.1, 0.5, 0.9])
    found = loess(x, 1 - x + 2 * x**2, np.ones(200), at)
    np.testing.assert_allclose(found, 1 - at + 2 * at**2, atol=1e-9)


def test_quantiles_of_the_errors_are_in_order_and_small_for_a_calibrated_model() -> None:
    y = (RNG.random(len(P)) < P).astype(int)
    found = metrics.evaluate_event(P, y)
    assert found.e50 < found.e90
    assert found.ici < 0.03 < metrics.evaluate_event(np.sqrt(P), y).ici


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_are_those_of_scikit_learn(strategy: str) -> None:
    sums, _ = event_bins(P, Y, bins=10, strategy=strategy)
    came, said = calibration_curve(Y, P, n_bins=10, strategy=strategy)
    full = sums.count > 0
    np.testing.assert_allclose(sums.correct[full] / sums.count[full], came)
    np.testing.assert_allclose(sums.confidence[full] / sums.count[full], said)


NO_VALUE = {
    "no event": (P, np.zeros(len(P))),
    "events alone": (P, np.ones(len(P))),
    "one probability": (np.full(len(P), 0.3), Y),
    "a threshold tells all": (P, P > 0.3),
    "a threshold tells all the wrong way": (P, P < 0.3),
}


@pytest.mark.parametrize("name", NO_VALUE)
def test_a_slope_without_a_finite_value_is_nan(name: str) -> None:
    found = metrics.evaluate_event(*NO_VALUE[name]).slope
    assert all(math.isnan(x) for x in (found.value, found.low, found.high))


def test_zeros_and_ones_that_are_wrong_leave_numbers_finite() -> None:
    p = np.concatenate([P, [0.0, 1.0]])
    y = np.concatenate([Y, [1, 0]])
    found = metrics.evaluate_event(p, y).estimates()
    assert all(math.isfinite(e.value) for e in found.values())


WRONG = {
    "percent": (100 * P, Y, {}, InputError),
    "not a number": (np.where(P > 0.5, np.nan, P), Y, {}, InputError),
    "three outcomes": (P, np.arange(len(P)) % 3, {}, InputError),
    "fewer outcomes": (P, Y[:-1], {}, ShapeError),
    "three columns": (np.stack([P, P, P], axis=1), Y, {}, ShapeError),
    "no sample": ([], [], {}, ShapeError),
    "a negative weight": (P, Y, {"sample_weight": -np.ones(len(P))}, InputError),
    "no weight": (P, Y, {"sample_weight": np.zeros(len(P))}, InputError),
    "fewer weights": (P, Y, {"sample_weight": np.ones(3)}, ShapeError),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_right_is_refused(case: str) -> None:
    p, y, more, error = WRONG[case]
    with pytest.raises(error):
        metrics.evaluate_event(p, y, **more)

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
EACH = {
    "intercept": lambda p, y, **w: metrics.calibration_intercept(p, y, **w).value,
    "slope": lambda p, y, **w: metrics.calibration_slope(p, y, **w).value,
    "observed over expected": lambda p, y, **w: metrics.observed_expected(p, y, **w).value,
    "ece": metrics.event_ece,
    "ici": metrics.ici,
}


def test_slope_and_intercept_are_those_of_logistic_regression_on_the_log_odds() -> None:
    log_odds = np.log(P / (1 - P))
    free = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(log_odds[:, None], Y)
    assert metrics.calibration_slope(P, Y).value == pytest.approx(free.coef_[0, 0], rel=1e-5)
    a = metrics.calibration_intercept(P, Y).value
    assert (1 / (1 + np.exp(-log_odds - a))).mean() == pytest.approx(Y.mean(), rel=1e-9)  # its defining score


def test_a_calibrated_model_has_a_slope_of_one_and_its_interval_says_so() -> None:
    y = RNG.random((200, len(P))) < P
    slopes = [metrics.calibration_slope(P, row) for row in y]
    assert np.mean([e.value for e in slopes]) == pytest.approx(1, abs=0.03)
    assert 0.9 <= np.mean([e.low <= 1 <= e.high for e in slopes]) <= 0.99
    ratios = [metrics.observed_expected(P, row) for row in y]
    assert 0.9 <= np.mean([e.low <= 1 <= e.high for e in ratios]) <= 0.99


@pytest.mark.parametrize("name", EACH)
def test_a_weight_is_as_many_rows_and_a_scale_is_nothing(name: str) -> None:
    metric = EACH[name]
    weighted = metric(P, Y, sample_weight=COUNTS)
    near = 0.02 if name == "ici" else 1e-9  # a repeated row is one neighbour more
    assert weighted == pytest.approx(metric(P[REPEATED], Y[REPEATED]), rel=near)
    assert weighted == pytest.approx(metric(P, Y, sample_weight=2.5 * COUNTS), rel=1e-9)
    assert weighted == metric(P[COUNTS > 0], Y[COUNTS > 0], sample_weight=COUNTS[COUNTS > 0])


def test_groups_that_move_together_widen_intervals() -> None:
    groups = np.repeat(np.arange(150), 10)
    y = (RNG.random(150) < 0.3).astype(int)[groups]
    alone, together = (metrics.calibration_intercept(P, y, groups=g) for g in (None, groups))
    assert together.high - together.low > 2.5 * (alone.high - alone.low)
    assert together.value == alone.value


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
    assert metrics.e50(P, y) < metrics.e90(P, y)
    assert metrics.ici(P, y) < 0.03 < metrics.ici(np.sqrt(P), y)


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
    found = metrics.calibration_slope(*NO_VALUE[name])
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

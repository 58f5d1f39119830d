"""Groups stay together in every fold, soft labels are shares of a row, and weights do not move folds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from calib_serve import calibrate
from calib_serve.core.errors import InputError
from calib_serve.fit import fit_temperature
from calib_serve.fit.folds import folds_of
from calib_serve.fit.samples import Samples
from calib_serve.scores import log_softmax, softmax


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, 4))
    return z, (softmax(z / 2).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(6, 40), st.integers(0, 99))
def test_no_fold_parts_a_group_and_none_is_empty(folds: int, groups: int, seed: int) -> None:
    z, y = drawn(200, seed)
    codes = np.random.default_rng(seed).integers(0, groups, 200)
    fold = folds_of(Samples.of(z, y, groups=codes), folds=folds, seed=seed)
    for group in np.unique(codes):
        assert len(np.unique(fold[codes == group])) == 1
    assert set(fold) == set(range(folds))


def test_fewer_groups_than_folds_are_refused_by_number() -> None:
    z, y = drawn(60)
    with pytest.raises(InputError, match="number of groups, 3"):
        folds_of(Samples.of(z, y, groups=np.arange(60) % 3), folds=5, seed=0)


def test_a_choice_by_folds_sees_that_samples_repeat_with_noise() -> None:
    """Copies of a few patients: a flexible map looks good where folds part them, and does not where not."""
    z, y = drawn(60, 1)
    patient = np.repeat(np.arange(60), 20)
    many, labels = np.repeat(z, 20, axis=0), np.repeat(y, 20)
    many = many + 1e-3 * np.random.default_rng(2).normal(size=many.shape)
    apart, together = (
        calibrate(many, labels, "matrix", groups=groups, seed=0, outputs="logits").after["nll"]["value"]
        for groups in (None, patient)
    )
    assert together > 1.5 * apart


@settings(max_examples=20)
@given(st.integers(0, 99))
def test_folds_depend_on_rows_and_not_on_their_order(seed: int) -> None:
    z, y = drawn(150, seed)
    order = np.random.default_rng(seed).permutation(150)
    first, turned = (folds_of(Samples.of(z[o], y[o]), folds=5, seed=3) for o in (np.arange(150), order))
    np.testing.assert_array_equal(first[order], turned)


def test_one_hot_soft_labels_are_hard_ones_and_others_have_the_soft_cross_entropy() -> None:
    z, y = drawn(800)
    hard = fit_temperature(Samples.of(z, y)).fit["temperature"]
    assert fit_temperature(Samples.of(z, np.eye(4)[y])).fit["temperature"] == pytest.approx(hard, rel=1e-12)
    soft = 0.8 * np.eye(4)[y] + 0.2 * softmax(np.random.default_rng(5).normal(size=z.shape))
    soft /= soft.sum(axis=1, keepdims=True)

    def loss(t: float) -> float:
        return float(-(soft * log_softmax(z / t)).sum(axis=1).mean())

    best = minimize_scalar(loss, bounds=(0.2, 20), method="bounded", options={"xatol": 1e-11})
    assert fit_temperature(Samples.of(z, soft)).fit["temperature"] == pytest.approx(best.x, rel=1e-6)
    found = calibrate(z, soft, "structured-vector", outputs="logits")
    assert found.after["nll"]["value"] == pytest.approx(loss(best.x), abs=0.05)


def test_three_samples_are_fitted_or_told_about_samples() -> None:
    z, y = np.array([[0.0, 2.0], [1.0, 0.0], [0.5, 0.0]]), np.array([1, 0, 1])
    for method in ("auto", "temperature", "platt"):
        assert calibrate(z, y, method, outputs="logits").classes == 2

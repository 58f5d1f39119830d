"""CalibratedClassifier against scikit-learn's own checks, its cross-validation and its routing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import (
    StratifiedKFold,
    cross_val_predict,
    train_test_split,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calib_serve import calibrate
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.integrations.sklearn.estimators import CalibratedClassifier
from calib_serve.scores import softmax


def halves(load):
    x, y = load(return_X_y=True)
    return train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)


@parametrize_with_checks([CalibratedClassifier(LogisticRegression()), CalibratedClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "scores_of"),
    [
        (make_pipeline(StandardScaler(), LinearSVC()), "decision_function"),
        # So smooth that no probability is 0, of which a floor would be read.
        (make_pipeline(StandardScaler(), GaussianNB(var_smoothing=30)), "predict_proba"),
    ],
    ids=["decision_function", "predict_proba"],
)
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer], ids=["three classes", "two classes"])
def test_the_temperature_is_that_of_cross_validated_scores(estimator, scores_of, load):
    x, x_test, y, _ = halves(load)
    model = CalibratedClassifier(estimator, method="temperature", cv=4).fit(x, y)
    held_out = cross_val_predict(estimator, x, y, cv=StratifiedKFold(4), method=scores_of)
    if scores_of == "predict_proba":
        held_out = np.log(np.maximum(held_out, np.finfo(np.float32).tiny))
    expected = fit_temperature(Samples.of(held_out, y)).fit["temperature"]
    assert model.artifact_.fit["temperature"] == pytest.approx(expected, rel=1e-9)
    assert (model.response_method_, model.method_) == (scores_of, "temperature")
    whole = clone(estimator).fit(x, y)
    scores = getattr(whole, scores_of)(x_test)
    if scores_of == "predict_proba":
        scores = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    np.testing.assert_allclose(model.predict_proba(x_test), softmax(scores / expected), atol=1e-12)


@pytest.mark.parametrize("cv", ["prefit", 5], ids=["prefit", "frozen"])
def test_a_fitted_classifier_stays_and_is_calibrated_on_all_samples(cv):
    x, x_cal, y, y_cal = halves(load_digits)
    fitted = GaussianNB().fit(x, y)
    given = fitted if cv == "prefit" else FrozenEstimator(fitted)
    model = CalibratedClassifier(given, method="temperature", cv=cv).fit(x_cal, y_cal)
    alone = calibrate(fitted.predict_proba(x_cal), y_cal, "temperature", outputs="probabilities")
    assert model.artifact_.temperature == alone.temperature
    assert model.estimator_ is given


def test_a_number_of_folds_that_is_asked_for_stays():
    x, y = load_wine(return_X_y=True)
    few = np.r_[: len(y) - len(y[y == 2]) + 3]
    assert np.bincount(y[few]).min() == 3
    with pytest.warns(UserWarning, match="n_splits=4"):
        CalibratedClassifier(GaussianNB(), method="temperature", cv=4).fit(x[few], y[few])
    frozen = FrozenEstimator(GaussianNB().fit(x, y))
    chosen = [
        CalibratedClassifier(frozen, options=options).fit(x[few], y[few]).artifact_.selection.folds
        for options in (None, {"folds": 4})
    ]
    assert chosen == [3, 4]
    assert (
        CalibratedClassifier(GaussianNB(), method="temperature").fit(x[few], y[few]).method_ == "temperature"
    )


def test_where_no_choice_can_be_made_a_temperature_is_fitted_or_nothing():
    x, x_cal, y, y_cal = halves(load_digits)
    frozen = FrozenEstimator(GaussianNB().fit(x, y))
    first = np.unique(y_cal, return_index=True)[1]
    few = np.concatenate([first, np.flatnonzero(np.isin(y_cal, [1, 8]))[:40]])
    assert np.bincount(y_cal[few]).min() == 1
    assert CalibratedClassifier(frozen).fit(x_cal[few], y_cal[few]).method_ == "temperature"
    right = few[frozen.predict(x_cal[few]) == y_cal[few]]
    model = CalibratedClassifier(frozen).fit(x_cal[right], y_cal[right])
    assert model.method_ == "none"
    np.testing.assert_allclose(model.predict_proba(x_cal), frozen.predict_proba(x_cal), atol=1e-12)
    with pytest.raises(FitError, match="no finite temperature"):
        CalibratedClassifier(frozen, method="temperature").fit(x_cal[right], y_cal[right])


def test_weights_reach_the_classifier_and_the_calibration():
    x, _, y, _ = halves(load_breast_cancer)
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    cv = list(StratifiedKFold(3).split(x, y))
    model = CalibratedClassifier(GaussianNB(), method="temperature", cv=cv).fit(x, y, sample_weight=weight)
    held_out = np.empty((len(y), 2))
    for train, test in cv:
        held_out[test] = GaussianNB().fit(x[train], y[train], weight[train]).predict_proba(x[test])
    logs = np.log(np.maximum(held_out, np.finfo(np.float32).tiny))
    expected = fit_temperature(Samples.of(logs, y, sample_weight=weight)).fit["temperature"]
    assert model.artifact_.fit["temperature"] == pytest.approx(expected)


def test_scores_that_are_not_one_a_class_are_refused():
    x, _, y, _ = halves(load_wine)
    with pytest.raises(InputError, match="one-vs-one"):
        CalibratedClassifier(SVC(decision_function_shape="ovo")).fit(x, y)
    with pytest.raises(InputError, match="LinearRegression has no"):
        CalibratedClassifier(LinearRegression()).fit(x, y)
    with pytest.raises(InputError, match="response_method"):
        CalibratedClassifier(GaussianNB(), response_method="predict").fit(x, y)
    with pytest.raises(InputError, match="no method 'plat'"):
        CalibratedClassifier(GaussianNB(), method="plat").fit(x, y)
    with pytest.raises(InputError, match="labels \\[9\\] that are not among"):
        CalibratedClassifier(FrozenEstimator(GaussianNB().fit(x, y))).fit(x, np.where(y == 2, 9, y))

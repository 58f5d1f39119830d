"""Two classes: Platt scaling and beta calibration are what their papers say, on one logit and on two."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from sizes import sized
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from calib_serve import calibrate, evaluate
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit import TWO_CLASSES
from calib_serve.fit.output.selection import default_candidates
from calib_serve.metrics import nll
from calib_serve.scores import sigmoid

N = sized(ci=1500, nightly=20_000)


def shifted(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One logit a sample, too sure of itself, of a class 1 that has become rarer."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n) * 2
    return z, (rng.random(n) < sigmoid(0.6 * z - 1.5)).astype(int)


def targets(y: np.ndarray) -> np.ndarray:
    ones, zeros = y.sum(), (1 - y).sum()
    return np.where(y == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))


def test_platt_is_scikit_learns_sigmoid() -> None:
    x, y = make_classification(800, random_state=0)
    model = LogisticRegression(C=100).fit(x[:400], y[:400])
    x, y = x[400:], y[400:]
    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid", cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(x, y)
    artifact = calibrate(model.decision_function(x), y, "platt", outputs="logit")
    # cv=2 of a frozen model is fitted to all samples twice.
    expected = theirs.predict_proba(x)
    np.testing.assert_allclose(artifact.probs(model.decision_function(x)), expected, atol=1e-6)


def bent(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose low end says nothing: the best map of it is flat there."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=n) * 2
    return z, (rng.random(n) < sigmoid(np.logaddexp(0, z) + 0.3 * np.logaddexp(0, -z) - 1)).astype(int)


@pytest.mark.parametrize("make", [shifted, bent])
def test_beta_is_the_optimum_that_a_general_solver_finds(make) -> None:
    z, y = make()
    t = targets(y)

    def loss(theta: np.ndarray) -> float:
        s = -theta[0] * np.logaddexp(0, -z) + theta[1] * np.logaddexp(0, z) + theta[2]
        return float(np.mean(np.logaddexp(0, s) - t * s))

    found = minimize(loss, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)], tol=1e-14)
    fit = calibrate(z, y, "beta", cross_validate=False, outputs="logit").fit
    assert loss(np.array([fit["a"], fit["b"], fit["c"]])) <= found.fun + 1e-12
    np.testing.assert_allclose([fit["a"], fit["b"], fit["c"]], found.x, atol=2e-3)
    assert (fit["a"] == 0) == (make is bent)


@pytest.mark.parametrize("method", TWO_CLASSES)
def test_its_facts_are_the_nll_before_and_after_and_how_near_the_optimum_is(method: str) -> None:
    z, y = shifted(600)
    artifact = calibrate(z, y, method, cross_validate=False, outputs="logit")
    assert artifact.fit["nll_before"] == pytest.approx(nll(np.stack([sigmoid(-z), sigmoid(z)], axis=1), y))
    assert artifact.fit["nll_after"] == pytest.approx(nll(artifact.probs(z), y))
    assert 0 <= artifact.fit["gap"] < 1e-14
    assert artifact.fit["gradient_norm"] < 1e-6


@pytest.mark.parametrize("method", ["platt", "beta", "vector"])
def test_scores_that_speak_of_the_other_class_are_refused(method: str) -> None:
    z, y = shifted(600)
    with pytest.raises(FitError):
        calibrate(-z, y, method, outputs="logit")


def test_auto_corrects_a_share_that_changed_and_tables_do_too() -> None:
    z, y = shifted()
    chosen = calibrate(z, y, outputs="logit")
    assert chosen.method in ("platt", "beta", "structured-average")
    assert {score.method for score in chosen.selection.scores} == set(default_candidates())  # type: ignore[union-attr]
    for method in ("platt", "beta", "histogram-mass", "histogram-width", "isotonic"):
        probs = calibrate(z, y, method, cross_validate=False, outputs="logit").probs(z)
        assert abs(float(evaluate(probs, y, replicates=0).positive_gap)) < 0.01, method  # type: ignore[arg-type]


def test_a_threshold_that_tells_all_apart_has_a_finite_fit() -> None:
    for method in ("platt", "beta"):
        probs = calibrate([-2.0, -1, 1, 2] * 10, [0, 0, 1, 1] * 10, method, outputs="logit").probs(
            [-2.0, 2.0]
        )
        assert 0 < probs.min() < 0.05


@pytest.mark.parametrize("scores", [[1.7e308, -1.7e308, 0, 1], [1e200, 1, 2, 3]])
def test_logits_that_overflow_are_refused(scores: list[float]) -> None:
    for method in TWO_CLASSES:
        with pytest.raises(InputError, match="clip"):
            calibrate(scores, [0, 1, 0, 1], method, outputs="logit")

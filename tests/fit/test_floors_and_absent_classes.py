"""Probabilities of exactly 0, and classes without a sample: what a fit does with them, and says of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import _SigmoidCalibration
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from calib_serve import calibrate
from calib_serve.metrics import nll
from calib_serve.scores import softmax

HALF = slice(0, 2000), slice(2000, None)


def filled_in(share: float) -> tuple[np.ndarray, np.ndarray]:
    """P(y = 1) of a logistic model, of which a share is 0 or 1 by default, and outcomes."""
    rng = np.random.default_rng(5)
    s = 2 * rng.normal(size=4000)
    y = (rng.random(4000) < expit(0.6 * s - 1.5)).astype(int)
    p = expit(s)
    at = rng.permutation(4000)[: int(share * 4000)]
    p[at] = np.arange(len(at)) % 2
    return p, y


@pytest.mark.parametrize("method", ["auto", "platt", "beta", "temperature"])
def test_zeros_that_mean_nothing_do_not_decide_the_fit(method: str) -> None:
    p, y = filled_in(0.1)
    fit, held = HALF
    artifact = calibrate(p[fit], y[fit], method, outputs="probability")
    sigmoid = _SigmoidCalibration().fit(p[fit], y[fit]).predict(p[held])
    q = artifact.probs(p[held], outputs="probability")
    base = nll(np.tile([1 - y[fit].mean(), y[fit].mean()], (len(y[held]), 1)), y[held])
    best = nll(np.stack([1 - sigmoid, sigmoid], axis=1), y[held])
    if method != "temperature":  # which cannot move P(y = 1) as a whole
        assert nll(q, y[held]) < base - 0.6 * (base - best)
    assert any("% of the probabilities are 0" in said for said in artifact.fit.remarks)
    assert artifact.steps[0].least is not None


def test_without_zeros_there_is_no_floor_and_nothing_is_said() -> None:
    p, y = filled_in(0)
    artifact = calibrate(p, y, "platt", outputs="probability")
    assert all(getattr(step, "least", None) is None for step in artifact.steps)
    assert not any("are 0" in said for said in artifact.fit.remarks)


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits], ids=["two classes", "ten classes"])
@pytest.mark.parametrize("method", ["temperature", "auto"])
def test_a_forest_is_no_worse_than_its_scores_cut_off_at_the_best_floor(load, method: str) -> None:
    x, y = load(return_X_y=True)
    x, x_held, y, y_held = train_test_split(x, y, test_size=0.6, random_state=0, stratify=y)
    x_held, x_test, y_held, y_test = train_test_split(
        x_held, y_held, test_size=0.5, random_state=0, stratify=y_held
    )
    forest = RandomForestClassifier(30, random_state=0).fit(x, y)
    p, test = forest.predict_proba(x_held), forest.predict_proba(x_test)
    assert (p == 0).any()
    found = nll(calibrate(p, y_held, method).probs(test), y_test)
    cut = [np.maximum(test, floor) for floor in (1e-4, 1e-3, 0.01, 0.03)]
    assert found < 1.05 * min(nll(q / q.sum(axis=1, keepdims=True), y_test) for q in cut)


EVERY_CLASS_ITS_OWN = ("vector", "matrix", "structured-vector", "dirichlet-odir", "isotonic", "auto")


@pytest.mark.parametrize("method", EVERY_CLASS_ITS_OWN)
def test_a_class_without_a_sample_keeps_the_share_that_a_temperature_gives_it(method: str) -> None:
    rng = np.random.default_rng(2)
    z = 2 * rng.normal(size=(6000, 5))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    fit = (np.arange(6000) < 3000) & (y != 4)
    artifact = calibrate(z[fit], y[fit], method, outputs="logits")
    true, found = (q[:, 4].mean() for q in (softmax(z[3000:] / 2), artifact.of_logits(z[3000:])))
    assert found == pytest.approx(true, rel=0.5)
    [said] = [said for said in artifact.fit.remarks if "no sample" in said]
    assert said == "1 of 5 classes have no sample (4): nothing is learnt of them"


@pytest.mark.parametrize("cross_validate", [True, False])
def test_auto_knows_the_names_of_absent_classes_too_and_measures_all(cross_validate: bool) -> None:
    rng = np.random.default_rng(5)
    z = 3 * rng.standard_normal((300, 5))
    labels = (z / 2 + rng.gumbel(size=z.shape))[:, :3].argmax(axis=1)
    names = ["ant", "bee", "cat", "dog", "eel"]
    artifact = calibrate(z, labels, class_names=names, cross_validate=cross_validate, outputs="logits")
    assert artifact.class_names == tuple(names)
    # Of all five classes: without the absent two it would be lower by a half.
    assert artifact.metrics_before["nll"].value == pytest.approx(nll(softmax(z), labels))

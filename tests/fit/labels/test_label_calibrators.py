"""Each label of a multi-label model gets a calibrator of its own, or what it keeps is said."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sizes import sized
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_multilabel_classification
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from calib_serve import Artifact, calibrate, verdict
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.labels import LABEL_METHODS
from calib_serve.metrics import confidence_of_labels, nll
from calib_serve.scores import sigmoid

N = sized(ci=600, nightly=6000)


def draw(n: int = N, *, labels: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds (n, L) that are too sure, of labels from rare to frequent, and which are true."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, labels)) * 2
    return z, (rng.random(z.shape) < sigmoid(0.6 * z + np.linspace(-2, 1, labels))).astype(int)


def fit(z: Any, y: Any, method: str = "auto", **more: Any) -> Artifact:
    return calibrate(z, y, method, **{"outputs": "label_logits", "cross_validate": False, **more})


def test_platt_of_each_label_is_scikit_learns_of_that_label() -> None:
    x, y = make_multilabel_classification(600, n_classes=4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn's solvers
        model = OneVsRestClassifier(LogisticRegression(C=10)).fit(x[:300], y[:300])
        z = model.decision_function(x[300:])
        ours = fit(z, y[300:], "platt").probs(z)
        for k, estimator in enumerate(model.estimators_):
            theirs = CalibratedClassifierCV(FrozenEstimator(estimator), method="sigmoid", cv=2)
            expected = theirs.fit(x[300:], y[300:, k]).predict_proba(x[300:])[:, 1]
            np.testing.assert_allclose(ours[:, k], expected, atol=1e-6)


def test_isotonic_of_each_label_is_scikit_learns_of_that_label() -> None:
    z, y = draw()
    ours = fit(z, y, "isotonic").probs(z)
    for k in range(z.shape[1]):
        p, floor = sigmoid(z[:, k]), 1 / (2 * (len(z) + 1))
        theirs = IsotonicRegression(y_min=floor, y_max=1 - floor).fit_transform(p, y[:, k])
        np.testing.assert_allclose(ours[:, k], theirs, atol=1e-9)


def test_the_shared_temperature_has_the_least_mean_nll_of_a_label() -> None:
    z, y = draw()
    artifact = fit(z, y, "temperature")
    assert artifact.temperature is not None
    two = np.stack([sigmoid(-z.ravel()), sigmoid(z.ravel())], axis=1)

    def mean_nll(t: float) -> float:
        q = sigmoid(z.ravel() / t)
        return nll(np.stack([1 - q, q], axis=1), y.ravel())

    assert len(two) == z.size
    best = mean_nll(artifact.temperature)
    assert best <= min(mean_nll(artifact.temperature * f) for f in (0.98, 1.02))


@pytest.mark.parametrize("method", LABEL_METHODS)
def test_every_method_is_saved_whole_with_facts_that_watch_needs(method: str, tmp_path) -> None:
    z, y = draw(300)
    artifact = Artifact.load(fit(z, y, method).save(tmp_path / "a"))
    probs = artifact.probs(z)
    assert artifact.is_multilabel
    assert probs.shape == z.shape
    confidence, right = confidence_of_labels(probs, y)
    assert artifact.reference is not None
    assert artifact.reference.n == z.size
    assert artifact.reference.accuracy() == pytest.approx(right.mean())
    assert artifact.reference.mean_confidence() == pytest.approx(confidence.mean())
    assert artifact.reference_classes == tuple((probs > 0.5).sum(axis=0))
    assert artifact.examples is not None
    np.testing.assert_allclose(artifact.probs(artifact.examples.logits), artifact.examples.probs)


TABLES_TOO = pytest.mark.parametrize("method", ["platt", "isotonic"])


@TABLES_TOO
def test_a_label_that_says_too_little_keeps_the_temperature_of_all_and_that_is_said(method: str) -> None:
    z, y = draw()
    z[:, :3] -= 10 + np.log(N / 600) / 0.6  # about three of all samples
    y[:, :3] = np.random.default_rng(1).random((N, 3)) < sigmoid(0.6 * z[:, :3])
    artifact = fit(z, y, method, class_names=["rare", "scarce", "few", "fine"])
    (labels,) = artifact.fit["kept_temperature"].values()
    assert labels == [0, 1, 2]
    temperature = artifact.fit["shared_temperature"]
    expected = sigmoid(z[:, :3] / temperature)
    near = 1e-12 if method == "platt" else 0.1  # a table has steps
    np.testing.assert_allclose(artifact.probs(z)[:, :3], expected, atol=near)
    np.testing.assert_allclose(artifact.probs(z)[:, :3].mean(), expected.mean(), atol=1e-9)
    assert "3 of 4 labels keep the temperature of all" in str(verdict(artifact))
    assert "rare, scarce, few" in str(verdict(artifact))


@TABLES_TOO
def test_a_label_that_the_temperature_of_all_gets_wrong_has_an_offset_of_its_own(method: str) -> None:
    z, y = draw()
    y[:, 0] = 0
    y[:, 1] = 1
    y[:, 2] = 0
    y[:9, 2] = 1
    artifact = fit(z, y, method, class_names=["never", "always", "nine", "fine"])
    assert artifact.fit["kept_temperature"] == {}
    (labels,) = artifact.fit["kept_weight"].values()
    assert labels == [0, 1, 2]
    # Platt's targets add about one sample of the other kind.
    means = artifact.probs(z)[:, :3].mean(axis=0)
    np.testing.assert_allclose(means, [1 / len(z), 1 - 1 / len(z), 9.5 / len(z)], atol=1 / len(z))
    assert "3 of 4 labels keep the weight of all" in str(verdict(artifact))


RARE = np.array([-1.0, -2, -3, -8.5, -8.5, -9])  # log-odds of labels, the last of few trues


@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (4, 50), (1e5, 2e6)], ids=["balanced", "raw", "1e5"])
def test_auto_on_raw_scores_of_labels_is_nearly_as_good_as_the_scores_that_they_are_made_of(
    scale: float, offset: float
) -> None:
    rng = np.random.default_rng(0)
    z = 1.5 * rng.normal(size=(8000, 6)) + RARE
    y = (rng.random(z.shape) < sigmoid(z)).astype(int)
    scores = scale * (z - RARE) + offset
    artifact = fit(scores[:4000], y[:4000])
    p = artifact.probs(scores[4000:])
    ours, best = (-np.log(np.where(y[4000:] == 1, q, 1 - q)).mean(axis=0) for q in (p, sigmoid(z[4000:])))
    assert (ours < 1.1 * best + 0.002).all()
    for k in range(3):  # of many trues
        x = (scores[:, [k]] - offset) / scale
        theirs = LogisticRegression(C=1e6).fit(x[:4000], y[:4000, k]).predict_proba(x[4000:])[:, 1]
        np.testing.assert_allclose(p[:, k], theirs, atol=4e-3)


def test_where_no_method_fits_labels_the_artifact_says_why() -> None:
    z, y = draw()
    artifact = fit(50 - z, y, candidates=["temperature"])
    assert artifact.method == "none"
    assert any("nothing is fitted; temperature: no finite" in said for said in artifact.fit.remarks)


def test_auto_chooses_by_the_folds_and_records_all_candidates() -> None:
    z, y = draw(1500)
    artifact = fit(z, y)
    assert artifact.method == "platt"
    assert artifact.selection is not None
    assert [s.method for s in artifact.selection.scores][:3] == ["none", "temperature", "platt"]
    assert artifact.metrics_after["positive_ece"] < artifact.metrics_before["positive_ece"] / 3
    rng = np.random.default_rng(5)
    calibrated = rng.normal(size=(1500, 3))
    true = (rng.random(calibrated.shape) < sigmoid(calibrated)).astype(int)
    assert fit(calibrated, true).method == "none"


def test_one_label_is_two_classes() -> None:
    z, y = draw(labels=1)
    two = calibrate(z[:, 0], y[:, 0], "platt", cross_validate=False, outputs="logit")
    for labels in (y, y[:, 0]):
        np.testing.assert_allclose(fit(z, labels, "platt").probs(z)[:, 0], two.probs(z[:, 0])[:, 1])


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (lambda y: y[:, 0], ShapeError),
        (lambda y: y + 1, InputError),
        (lambda y: np.where(y, 0.5, 0.0), InputError),
        (lambda y: y[:5], ShapeError),
    ],
)
def test_labels_that_are_not_0_or_1_of_each_label_are_refused(labels: Any, error: type[Exception]) -> None:
    z, y = draw(50)
    with pytest.raises(error):
        fit(z, labels(y), "platt")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.7e308, 1e200])
def test_scores_that_no_calibrator_can_take_are_refused(bad: float) -> None:
    z, y = draw(50)
    z[7, 1] = bad
    for method in ("temperature", "platt", "isotonic"):
        with pytest.raises(InputError, match=r"row 7|clip"):
            fit(z, y, method)

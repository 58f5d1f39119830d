"""Scores that lie off zero: auto and linear maps are as good on them as a logistic regression is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sizes import sized
from sklearn.linear_model import LogisticRegression

from calib_serve import Artifact, calibrate
from calib_serve.core.errors import FitError
from calib_serve.fit import fit_by_name
from calib_serve.fit.output.offset import offset_of
from calib_serve.fit.samples import Samples
from calib_serve.metrics import nll
from calib_serve.scores import sigmoid, softmax

N = sized(ci=1500, nightly=8000)
Set = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Scores and labels to fit, and to test."""


def raw(rate: float, low: float, high: float, spread: float, *, n: int = N) -> Set:
    """Scores of one column, ``low`` of most samples, ``high`` where the label is 1."""
    rng = np.random.default_rng(3)
    y = (rng.random(n + 4000) < rate).astype(int)
    z = np.where(y == 1, high, low) + spread * rng.normal(size=len(y))
    return z[:n], y[:n], z[n:], y[n:]


def balanced() -> Set:
    """Log-odds of a model trained with balanced weights, for events of 4 in 1,000."""
    rng = np.random.default_rng(0)
    z = 0.8 * rng.normal(size=20_000) - 6
    y = (rng.random(len(z)) < sigmoid(z)).astype(int)
    return z[:10_000] + 6, y[:10_000], z[10_000:] + 6, y[10_000:]


def classes(offset: Any, *, scale: float = 1.0, n: int = N, k: int = 5) -> Set:
    """Calibrated logits of ``k`` classes, each moved by its own offset."""
    rng = np.random.default_rng(0)
    z = 1.5 * rng.normal(size=(n + 4000, k))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z = scale * (z + np.asarray(offset))
    return z[:n], y[:n], z[n:], y[n:]


def regressed(found: Set, weight: np.ndarray | None = None) -> np.ndarray:
    """Probabilities of the test samples by scikit-learn's logistic regression."""
    fit, y, test, _ = (one[:, None] if i % 2 == 0 and one.ndim == 1 else one for i, one in enumerate(found))
    centre = fit.mean(axis=0)
    unit = (fit - centre).std()
    model = LogisticRegression(C=1e6, max_iter=1000).fit((fit - centre) / unit, y, weight)
    return np.asarray(model.predict_proba((test - centre) / unit))


def chosen(found: Set, **more: Any) -> tuple[Artifact, float]:
    z, y, test, truth = found
    artifact = calibrate(z, y, outputs="logit" if z.ndim == 1 else "logits", **more)
    return artifact, nll(artifact.probs(test), truth)


VERIFIED = raw(0.2, 40, 52, 5)
ONE_COLUMN = {
    "verification": VERIFIED,
    "all negative, mostly true": raw(0.8, -52, -40, 5),
    "in hundreds of thousands": raw(0.2, 40e5, 52e5, 5e5),
    "far from zero": raw(0.2, 1e9, 1e9 + 2, 1),
    "told apart by a threshold": raw(0.2, 40, 60, 1),
    "few": raw(0.2, 40, 52, 5, n=60),
    "balanced weights, few events": balanced(),
}
HEIGHTS = np.array([7.0, -30, 3, 55, 12])
SEVERAL: dict[str, Set] = {
    "one class": classes([30, 0, 0, 0, 0]),
    "each class": classes(HEIGHTS),
    "far from zero": classes(1e7 * HEIGHTS),
    "two columns": tuple(np.stack([0 * x, x], axis=1) if x.dtype == float else x for x in VERIFIED),
    "few": classes(HEIGHTS, n=100),
}


@pytest.mark.parametrize("name", ONE_COLUMN)
def test_auto_on_raw_scores_is_as_good_as_a_logistic_regression(name: str) -> None:
    artifact, ours = chosen(ONE_COLUMN[name])
    theirs = nll(regressed(ONE_COLUMN[name]), ONE_COLUMN[name][3])
    assert ours < 1.02 * theirs + 0.002
    assert artifact.method == "structured-average"
    assert artifact.metrics_after["nll"] < artifact.metrics_before["nll"] / 2


@pytest.mark.parametrize("name", SEVERAL)
def test_auto_on_logits_with_offsets_is_as_good_as_a_logistic_regression(name: str) -> None:
    _, ours = chosen(SEVERAL[name])
    assert ours < 1.02 * nll(regressed(SEVERAL[name]), SEVERAL[name][3]) + 0.002


def test_an_offset_changes_no_probability_but_those_of_maps_without_one() -> None:
    z, y, test, truth = classes(HEIGHTS)
    far = calibrate(z + 1e4 * HEIGHTS, y, outputs="logits").probs(test + 1e4 * HEIGHTS)
    np.testing.assert_allclose(far, calibrate(z, y, outputs="logits").probs(test), atol=1e-3)
    plain, own, new, _ = classes(0)
    assert nll(far, truth) < 1.005 * nll(calibrate(plain, own, outputs="logits").probs(new), truth)


def kind(found: Set) -> Any:
    return "logit" if found[0].ndim == 1 else "logits"


@pytest.mark.parametrize("method", ["vector", "matrix", "structured-vector", "structured-matrix"])
@pytest.mark.parametrize("found", [VERIFIED, SEVERAL["each class"]], ids=["one column", "classes"])
def test_linear_maps_start_beside_an_offset(method: str, found: Set) -> None:
    z, y, test, truth = found
    artifact = calibrate(z, y, method, outputs=kind(found), cross_validate=False)
    assert nll(artifact.probs(test), truth) < 1.02 * nll(regressed(found), truth)
    before = nll(softmax(Samples.of(z, y, outputs=kind(found)).logits), y)
    assert artifact.fit["nll_before"] == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("found", [VERIFIED, SEVERAL["each class"]], ids=["one column", "classes"])
def test_class_shares_are_corrected_behind_an_offset(found: Set) -> None:
    z, y, test, truth = found
    old = np.bincount(y) / len(y)
    new = old[::-1] if len(old) == 2 else np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    expected = regressed(found) * new / old
    expected /= expected.sum(axis=1, keepdims=True)
    ours = calibrate(z, y, prior=new, outputs=kind(found)).probs(test)
    # New class shares, by weights of the test samples.
    weight = (new / old)[truth]
    losses = [-np.log(p[np.arange(len(truth)), truth]) @ weight / weight.sum() for p in (ours, expected)]
    assert losses[0] < 1.02 * losses[1] + 0.002


@pytest.mark.parametrize("absent", [0, 4])
def test_a_class_without_samples_takes_nothing_beside_an_offset(absent: int) -> None:
    z, y, test, truth = classes([30, 0, 0, 0, 0], n=3000)
    found = z[y != absent], y[y != absent], test[truth != absent], truth[truth != absent]
    artifact, ours = chosen(found)
    others = np.delete(np.arange(5), absent)
    theirs = regressed((found[0][:, others], found[1], found[2][:, others], found[3]))
    rows = np.searchsorted(others, found[3])
    assert ours < 1.02 * nll(theirs, rows) + 0.002
    assert 0 < artifact.probs(found[2])[:, absent].mean() < 0.002


def test_platt_scaling_far_from_zero_is_that_of_the_same_scores_near_it() -> None:
    z, y, test, _ = raw(0.2, 0, 2, 1)
    near, far = (
        calibrate(z + by, y, "platt", outputs="logit", cross_validate=False).probs(test + by)
        for by in (0.0, 1e8)
    )
    np.testing.assert_allclose(far, near, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: calibrate(*VERIFIED[:2], outputs="logit", keep_predictions=True), "want an offset"),
        (lambda: calibrate(*raw(0.2, 52, 40, 5)[:2], outputs="logit"), "check that the labels belong"),
        (lambda: calibrate([40.0, 52, 41], [0, 1, 0], outputs="logit"), "too few for folds"),
    ],
    ids=["only maps that keep predictions", "scores of the other class", "three samples"],
)
def test_where_nothing_is_fitted_the_artifact_says_why(make: Any, words: str) -> None:
    artifact = make()
    assert artifact.method == "none"
    (said,) = [remark for remark in artifact.fit.remarks if remark.startswith("nothing is fitted")]
    assert words in said


def test_where_a_temperature_does_or_a_map_near_it_there_is_no_offset() -> None:
    for offset, scale in ((0, 1), (0, 4), ([1, 0, 0, 0, -1], 2.5), ([2, 0, 0, 0, 0], 1)):
        z, y, *_ = classes(offset, scale=scale)
        t = fit_by_name("temperature", z, y).fit["temperature"]
        assert offset_of(Samples.of(z, y, outputs="logits"), t) is None
    assert "offset" not in calibrate(z, y, outputs="logits").fit.facts
    assert offset_of(Samples.of(*classes(HEIGHTS)[:2], outputs="logits"), 1e9) is not None


def test_where_every_sample_is_right_no_temperature_is_best_and_there_is_no_offset() -> None:
    z, _, *_ = classes(0, n=400)
    samples = Samples.of(z, z.argmax(axis=1), outputs="logits")
    assert offset_of(samples) is None
    with pytest.raises(FitError, match="every sample is classified right"):
        fit_by_name("structured-vector", samples)


def test_the_offset_is_what_the_logits_were_moved_by() -> None:
    z, y, *_ = classes(HEIGHTS, n=8000)
    found = offset_of(Samples.of(z, y, outputs="logits"), fit_by_name("temperature", z, y).fit["temperature"])
    assert found is not None
    np.testing.assert_allclose(found - found.mean(), HEIGHTS.mean() - HEIGHTS, atol=0.2)
    assert softmax(z + found).mean(axis=0) == pytest.approx(np.bincount(y) / len(y), abs=0.02)

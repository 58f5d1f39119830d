"""Batch and contextual calibration, which need no labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve import calibrate
from calib_serve.artifact import Artifact
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit import UNLABELLED, verdict
from calib_serve.scores import Scores

pytestmark = pytest.mark.unit

P = np.random.default_rng(0).dirichlet([3.0, 1.0, 1.0], 500)
Y = np.random.default_rng(1).integers(0, 3, 500)
UNKNOWN = Scores.of(P, outputs="probabilities", class_names=["a", "b", "c"])


@pytest.mark.parametrize("method", UNLABELLED)
def test_the_mean_of_what_it_was_fitted_to_becomes_even(method: str) -> None:
    artifact = calibrate(UNKNOWN, method=method)
    even = artifact.of_logits(np.log(P.mean(axis=0, keepdims=True)))
    np.testing.assert_allclose(even, 1 / 3, atol=1e-12)
    np.testing.assert_allclose(
        artifact.of_logits(np.log(P)), P / P.mean(0) / (P / P.mean(0)).sum(1)[:, None], atol=1e-12
    )


def test_a_batch_is_the_same_with_labels_and_without() -> None:
    without, labelled = calibrate(UNKNOWN, method="batch"), calibrate(P, Y, "batch", outputs="probabilities")
    np.testing.assert_array_equal(without.steps[0].bias, labelled.steps[0].bias)
    assert without.reference_classes == labelled.reference_classes


@pytest.mark.parametrize("method", UNLABELLED)
def test_nothing_that_needs_labels_is_said(method: str, tmp_path: Path) -> None:
    calibrate(UNKNOWN, method=method).save(tmp_path / "a")
    artifact = Artifact.load(tmp_path / "a")
    assert artifact.method == method
    assert artifact.class_names == ("a", "b", "c")
    assert artifact.reference is None
    assert {*artifact.data} == {"samples", "sha256", "weighted", "measured_on"}
    assert "fitted without labels" in verdict(artifact).headline
    assert bool(artifact.reference_classes) == (method == "batch"), "inputs without content are no traffic"


def test_it_is_measured_where_test_samples_have_labels() -> None:
    artifact = calibrate(UNKNOWN, method="contextual", test=Scores.of(P, Y, outputs="probabilities"))
    assert artifact.data["measured_on"] != "nothing: it was fitted without labels"
    assert artifact.after["ece"]["value"] > 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="have no labels"):
        calibrate(P, Y, "contextual", outputs="probabilities")
    with pytest.raises(InputError, match="have no labels: give them"):
        calibrate(UNKNOWN, method="temperature")
    with pytest.raises(InputError, match="have no labels: give them"):
        calibrate(UNKNOWN, method="batch", prior=[0.5, 0.3, 0.2])
    for prior in (np.array([0.5, 0.3, 0.2]), {"a": 0.5, "b": 0.3, "c": 0.2}):
        with pytest.raises(InputError, match="prior wants labels"):
            calibrate(UNKNOWN, method="contextual", prior=prior)
    with pytest.raises(InputError, match="class_weight wants labels"):
        calibrate(UNKNOWN, method="batch", class_weight="balanced")
    with pytest.raises(InputError, match="by wants labels"):
        calibrate(P, method="batch", outputs="probabilities", by={"site": ["a", "b"] * 250})
    with pytest.raises(InputError, match="not of labels"):
        calibrate(P, method="batch", outputs="label_probabilities")
    with pytest.raises(InputError, match="no option bins"):
        calibrate(UNKNOWN, method="batch", bins=5)


@pytest.mark.parametrize("method", UNLABELLED)
def test_a_class_without_any_probability_cannot_be_levelled(method: str) -> None:
    never = P * [1, 1, 0] / P[:, :2].sum(axis=1, keepdims=True)
    seldom = np.concatenate([never[:5], P])
    assert calibrate(seldom, method=method, outputs="probabilities").method == method
    with pytest.raises(FitError, match="'c'"):
        calibrate(Scores.of(never, outputs="probabilities", class_names=["a", "b", "c"]), method=method)

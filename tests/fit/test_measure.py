"""What held-out samples say of a calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from too_sure import draw

from calib_serve.artifact import Artifact, FitRecord, LogitMap, PriorCorrection
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.core.options.evaluate import MeasureOptions
from calib_serve.fit.folds import fits_of_folds, folds_of
from calib_serve.fit.measure import (
    HeldOut,
    cross_validated,
    facts_of_probabilities,
    over_folds,
    verdict,
    with_metrics,
)
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import evaluate_probs
from calib_serve.scores import softmax


def test_of_classes_each_sample_has_its_losses_and_its_prediction() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
    found = HeldOut.of(p, np.array([0, 2]))
    np.testing.assert_allclose(found.nll, -np.log([0.7, 0.3]))
    np.testing.assert_allclose(found.brier, [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.6**2 + 0.7**2])
    tops = found.tops
    assert tops.predicted.tolist() == [0, 1]
    assert tops.right.tolist() == [1, 0]
    assert tops.confidence.tolist() == [0.7, 0.6]


def test_of_labels_each_sample_has_the_means_of_its_labels() -> None:
    p = np.array([[0.9, 0.2], [0.4, 0.6]])
    found = HeldOut.of(p, np.array([[1, 0], [1, 1]]))
    np.testing.assert_allclose(found.nll, -np.log([0.9 * 0.8, 0.4 * 0.6]) / 2)
    np.testing.assert_allclose(found.brier, [(0.1**2 + 0.2**2) / 2, (0.6**2 + 0.4**2) / 2])
    np.testing.assert_allclose(found.confidence, [0.85, 0.6])
    np.testing.assert_allclose(found.correct, [1, 0.5])
    assert np.isnan(found.predicted).all()


@pytest.mark.parametrize(
    "weight", [None, np.random.default_rng(1).uniform(0.5, 2, 400)], ids=["", "weighted"]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_before_and_after_are_those_of_an_evaluation(classes: int, weight: np.ndarray | None) -> None:
    z, y = draw(400, classes)
    before, after = softmax(z), softmax(z / 2.5)
    found = facts_of_probabilities(before, after, Samples.of(z, y, sample_weight=weight))
    for probs, ours in ((before, found.before), (after, found.after)):
        theirs = evaluate_probs(probs, y, MeasureOptions(replicates=100), sample_weight=weight).estimates()
        assert ("positive_ece" in ours) == (classes == 2)
        for name, estimate in ours.items():
            assert float(estimate) == pytest.approx(float(theirs[name])), name
        for name in ("nll", "brier"):
            assert ours[name].low == pytest.approx(theirs[name].low), name
    assert found.moved is not None
    assert found.moved.share == 0


def test_results_of_folds_are_those_of_fits_to_the_others() -> None:
    samples = Samples.of(*draw(200))
    fold = folds_of(samples, folds=4, seed=0)
    told: list[tuple[int, int]] = []
    fits = fits_of_folds(samples, fold, fit_temperature, lambda *done: told.append(done))
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]
    found = over_folds(fits, samples, fold)
    for f in range(4):
        held, rest = samples.take(fold == f), samples.take(fold != f)
        own = HeldOut.of(fit_temperature(rest).of_logits(held.read(slice(0, len(held)))), held.labels)
        np.testing.assert_allclose(found.nll[fold == f], own.nll)


@pytest.mark.parametrize(("n", "groups"), [(3, None), (12, np.arange(12) // 4)])
def test_too_few_samples_are_not_measured_and_that_is_said(n: int, groups: np.ndarray | None) -> None:
    samples = Samples.of(*draw(n), groups=groups)
    artifact = cross_validated(fit_temperature(Samples.of(*draw(50))), samples, fit_temperature)
    said = "3 samples are too few" if groups is None else "3 groups of samples are too few"
    assert artifact.data["measured_on"].startswith(f"nothing: {said}")
    assert said in verdict(artifact).headline
    assert not artifact.after


def test_a_measured_artifact_says_on_what_and_what_moved() -> None:
    samples = Samples.of(*draw(200))
    fitted = fit_temperature(samples)
    found = cross_validated(fitted, samples, fit_temperature)
    assert found.data["measured_on"] == "5 folds of the calibration set"
    assert found.data["measured_samples"] == 200
    assert found.data["confusion"]["on"] == "held-out folds"
    said = verdict(found)
    assert (said.level, said.headline) == (found.data["verdict"], found.data["verdict_says"])
    assert said.changed == tuple(found.data["moved_says"]) != ()
    assert verdict(replace(found, steps=())).changed == ()
    of_some = cross_validated(replace(fitted, data={"samples": 1000}), samples, fit_temperature)
    assert of_some.data["measured_on"] == "5 folds of 200 samples of the calibration set"

    def fails(part: Samples) -> Artifact:
        raise FitError(f"{len(part)} samples are not enough")

    assert (
        cross_validated(fitted, samples, fails).data["measured_on"] == "nothing: 160 samples are not enough"
    )


def test_on_samples_of_their_own_all_metrics_are_an_evaluations() -> None:
    artifact, (z, y) = fit_temperature(Samples.of(*draw(300))), draw(200, seed=1)
    probs, groups = artifact.of_logits(z), np.arange(200) // 2
    found = with_metrics(artifact, z, probs, y, on="others", seed=3, groups=groups)
    wanted = evaluate_probs(probs, y, MeasureOptions(replicates=200, seed=3), groups=groups).estimates()
    assert found.after == {name: estimate.as_dict() for name, estimate in wanted.items()}
    assert float(found.metrics_before["nll"]) == pytest.approx(evaluate_probs(softmax(z), y).nll)
    assert (found.data["measured_on"], found.data["measured_samples"]) == ("others", 200)
    assert found.data["moved"]["share"] == 0


ONE = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3, data={"measured_on": "test"})


def known(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("before", "after", "floor", "left", "said"),
    [
        (known(0.05), known(0.02), None, None, ""),
        (known(0.05), known(0.06), None, None, "no better than before"),
        (known(0.05), known(0.05), None, None, "no better than before"),
        (known(0.05), known(0.06), known(0.05), None, "no better than before"),
        (known(0.05), known(0.06), known(0.06), None, ""),
        (known(0.05), known(0.06), known(0.05, 0.04, 0.06), None, ""),
        (known(0.05), known(0.06, 0.04, 0.08), known(0.05), None, ""),
        (known(0.05), known(0.06, 0.055, 0.07), known(0.05, 0.04, 0.052), None, "no better than before"),
        (known(0.09), known(0.06), known(0.01), 0.01, "far more than the 1.0 % that the calibration set"),
        (known(0.09), known(0.06), known(0.01), 0.04, ""),
        (known(0.09), known(0.06, 0.01, 0.1), known(0.005), 0.01, ""),
        (known(0.09), known(0.06), None, 0.01, ""),
    ],
)
def test_an_error_beyond_chance_that_did_not_fall_or_is_of_other_data_is_said(
    before: dict[str, Any], after: dict[str, Any], floor: dict[str, Any] | None, left: float | None, said: str
) -> None:
    more = {} if floor is None else {"noise_floor": floor}
    artifact = replace(ONE, before={"ece": before}, after={"ece": after, **more})
    if left is not None:
        bins = Bins.tally(np.full(100, 0.5 + left), np.arange(100) % 2)
        artifact = replace(artifact, reference=bins)
        assert bins.ece() == pytest.approx(left)
    headline = verdict(artifact).headline.replace(chr(160), " ")
    assert said in headline
    assert bool(said) == ("Of the error" in headline)
    assert "Of the error" not in verdict(replace(artifact, steps=())).headline
    of_folds = verdict(replace(artifact, data={"measured_on": "5 folds of the calibration set"}))
    assert "far more than" not in of_folds.headline


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [(0.92, 0.91, False), (0.92, 0.93, False), (0.92, 0.06, True), (0.9, 0.879, True), (0.9, None, False)],
)
def test_accuracy_that_falls_by_two_points_is_a_reason_not_to_serve(
    before: float, after: float | None, lost: bool
) -> None:
    """A head may be calibrated and wrong: its confidence does not show it."""
    measured = {"ece": known(0.01), **({} if after is None else {"accuracy": known(after)})}
    artifact = replace(ONE, before={"ece": known(0.05), "accuracy": known(before)}, after=measured)
    assert ("do not serve this" in " ".join(verdict(artifact).reasons)) == lost
    judged = replace(artifact, data={"verdict": "calibrated", "verdict_says": "It is."})
    assert verdict(artifact).level == "too_little"
    assert (verdict(judged).level, verdict(judged).headline) == ("calibrated", "It is.")
    assert verdict(judged).reasons == verdict(artifact).reasons
    prior = PriorCorrection((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), "given")
    assert not verdict(replace(artifact, fit=FitRecord(prior=prior))).reasons

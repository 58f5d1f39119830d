"""A refit in Python: every label judges, and the evidence may be asked for again and again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib_serve import Artifact, calibrate, refit
from calib_serve.artifact import Head, LogitMap
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit import fit_by_name
from calib_serve.fit.refitting import Prequential, block_starts, prequential
from calib_serve.fit.samples import Samples
from calib_serve.scores import softmax


def drifted(n: int, sure: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    return sure * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def temperature(t: float, **more: object) -> Artifact:
    return Artifact((LogitMap.temperature(t),), method="temperature", classes=3, **more)


def judged(artifact: Artifact, z: np.ndarray, y: np.ndarray) -> Prequential:
    return prequential(
        Samples.of(z, y), artifact.probs, lambda part: fit_by_name("temperature", part, part.labels).probs
    )


def test_a_calibration_that_drifted_is_replaced_and_the_head_stays() -> None:
    head = Head((np.eye(3),), (np.zeros(3),))
    old = Artifact((head, LogitMap.temperature(1.0)), method="temperature", classes=3)
    found = refit(old, *drifted(1000, 4.0), method="temperature")
    assert found.artifact is not None
    assert isinstance(found.artifact.steps[0], Head)
    assert found.artifact.fit["temperature"] == pytest.approx(4, rel=0.2)
    assert (found.samples, found.held_out) == (1000, 300)
    assert found.nll[1] < found.nll[0]
    assert found.gain > found.error
    assert found.evidence > 1 / found.alpha


def test_a_calibration_that_still_fits_stays() -> None:
    z, y = drifted(1000, 4.0)
    found = refit(calibrate(z, y, "temperature", outputs="logits"), z, y, method="temperature")
    assert found.artifact is None


def test_how_much_evidence_is_needed_is_what_alpha_says() -> None:
    z, y = drifted(260, 1.4, seed=1)
    evidence = refit(temperature(1.0), z, y, method="temperature").evidence
    assert evidence > 1
    for factor, kept in ((0.99, False), (1.01, True)):
        found = refit(temperature(1.0), z, y, method="temperature", alpha=factor / evidence)
        assert (found.artifact is not None) == kept


def test_asking_again_with_more_samples_goes_on_with_the_same_evidence() -> None:
    z, y = drifted(700, 1.5)
    old = temperature(1.0)
    whole = judged(old, z, y).log_evidence
    for n in (200, 339, 600):
        np.testing.assert_allclose(judged(old, z[:n], y[:n]).log_evidence, whole[:n], atol=1e-12)
    assert refit(old, z, y, method="temperature").evidence == pytest.approx(np.exp(whole[-1]))


def test_no_label_is_judged_by_a_fit_that_has_seen_it() -> None:
    z, y = drifted(400, 1.5)
    other = y.copy()
    other[225:] = (y[225:] + 1) % 3  # a block begins at 225
    first, second = (judged(temperature(1.0), z, labels) for labels in (y, other))
    np.testing.assert_array_equal(first.nll[1, :225], second.nll[1, :225])
    np.testing.assert_array_equal(first.confidence[:, :338], second.confidence[:, :338])
    assert (first.confidence[1, 338:] != second.confidence[1, 338:]).any()
    assert block_starts(400) == [100, 150, 225, 338]


def test_a_right_calibration_is_hardly_ever_replaced_however_often_it_is_asked() -> None:
    """80 streams, looked at after each of 1,000 labels; 5 % is promised, one standard error gives most."""
    replaced = 0
    for seed in range(80):
        z, _ = drifted(1000, 1.0, seed)
        y = (softmax(z).cumsum(1) < np.random.default_rng([seed, 1]).random((len(z), 1))).sum(1)
        replaced += judged(temperature(1.0), z, y).log_evidence.max() >= np.log(20)
    assert replaced <= 8


@pytest.mark.parametrize("fitted_to", [np.inf, 1000, 100, 1])
def test_the_expectation_of_the_evidence_is_at_most_one(fitted_to: float) -> None:
    """Over all labels of two samples that are bet on: p is a coin of .6, the fit says .3."""
    expectation = 0.0
    for labels in np.ndindex(2, 2):
        z = np.zeros((102, 2))
        y = np.concatenate([np.zeros(100, int), labels])
        told = {100: [0.3, 0.7]}
        found = prequential(
            Samples.of(z, y),
            lambda logits: np.tile([0.6, 0.4], (len(logits), 1)),
            lambda part: lambda logits: np.tile(told[len(part)], (len(logits), 1)),  # noqa: B023
            fitted_to=fitted_to,
        )
        expectation += np.prod(np.array([0.6, 0.4])[list(labels)]) * np.exp(found.log_evidence[-1])
    if fitted_to == np.inf:
        assert expectation == pytest.approx(1, abs=1e-12)
    else:
        assert expectation < 1 - 1e-4


def test_a_calibration_of_few_samples_that_would_move_itself_needs_more_evidence() -> None:
    z, y = drifted(1000, 1.5)
    evidence = [
        refit(temperature(1.0, data=data), z, y, method="temperature").evidence
        for data in ({}, {"samples": 10_000}, {"samples": 1000}, {"samples": 100})
    ]
    assert evidence == sorted(evidence, reverse=True)
    assert evidence[0] > 2 * evidence[-1]


def test_what_the_scores_are_stays_and_one_logit_is_fitted_as_one() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=800)
    y = (rng.random(800) < 1 / (1 + np.exp(-3 * z - 1))).astype(int)
    old = calibrate(z[:200], y[:200], "temperature", outputs="logit")
    assert old.model.outputs == "logit"
    old = replace(old, steps=(LogitMap.temperature(3.0),))
    found = refit(old, z[200:], y[200:], method="vector").artifact
    assert found is not None
    assert found.model.outputs == "logit"
    assert found.logit_maps[0].weight.ndim == 0  # a scale for each class is one of z


def test_a_block_after_which_nothing_could_be_fitted_bets_nothing() -> None:
    z, y = drifted(300, 1.0)
    y[:150] = z[:150].argmax(1)  # all right: no finite temperature is best
    found = judged(temperature(1.0), z, y)
    np.testing.assert_array_equal(found.nll[0, :225], found.nll[1, :225])
    np.testing.assert_allclose(found.log_evidence[:225], 0, atol=1e-12)
    assert (found.nll[0, 225:] != found.nll[1, 225:]).all()


def test_probabilities_of_zero_leave_the_evidence_finite() -> None:
    z, y = drifted(300, 1.0)
    found = refit(temperature(1e-30), z, y, method="temperature")
    assert found.artifact is not None
    assert np.isfinite(found.evidence)


def test_what_cannot_be_judged_is_refused() -> None:
    old = temperature(1.0)
    with pytest.raises(FitError, match="at least 200"):
        refit(old, *drifted(50, 4.0))
    with pytest.raises(InputError, match="of 4 classes, the samples of 3"):
        refit(Artifact((), method="none", classes=4), *drifted(300, 4.0))
    z, y = drifted(300, 4.0)
    with pytest.raises(InputError, match="these are probabilities"):
        refit(old, softmax(z), y)
    with pytest.raises(InputError, match="alpha must lie between 0 and 1"):
        refit(old, z, y, alpha=np.nan)
    with pytest.raises(FitError, match="no finite temperature"):
        refit(old, z, z.argmax(1), method="temperature")
    labels = Artifact((), method="none", classes=3, model={"outputs": "label_logits"})
    with pytest.raises(InputError, match="multi-label"):
        refit(labels, *drifted(300, 4.0))

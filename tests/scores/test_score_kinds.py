"""Kinds of scores: recognised, converted and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve import Artifact, calibrate, evaluate
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit import fit_temperature
from calib_serve.fit.output.linear import fit_vector
from calib_serve.fit.samples import Samples
from calib_serve.models.classifier import finite_logits
from calib_serve.scores import (
    Outputs,
    Scores,
    from_probs,
    labels01,
    proved,
    refuted,
    softmax,
    to_logits,
    to_probs,
)
from calib_serve.scores.kinds import log_softmax, sigmoid
from calib_serve.scores.recognition import recognise


@pytest.fixture
def overconfident() -> tuple[np.ndarray, np.ndarray]:
    """Logits (400, 4) that want a temperature of 2, and class ids."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(400, 4), scale=2)
    return z, np.array([rng.choice(4, p=p) for p in softmax(z / 2)])


@given(st.integers(2, 50), st.integers(1, 5), st.floats(0.1, 20), st.integers(0, 2**31))
def test_sums_prove_probabilities_and_refute_all_else(classes: int, n: int, scale: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=(n, classes), scale=scale)
    z[:, 0] = z.min() - 1  # below 0: logits, and not log-probabilities
    z[:, 1] = 3.0
    p = softmax(z)
    assert proved(z) is None
    assert refuted(z, "probabilities")
    assert refuted(z, "log_probs")
    assert refuted(p, "log_probs")
    assert not refuted(p, "probabilities")


def test_one_row_of_another_kind_makes_it_another_kind() -> None:
    assert refuted(np.array([[0.5, 0.5], [0.9, 0.9]]), "probabilities")
    assert not refuted(np.array([[0.5, 0.5], [0.9, 0.9]]), "label_probabilities")
    assert not refuted(np.array([[0.0, 1.0], [1.0, 0.0]]), "probabilities")
    assert refuted(np.array([[-1.0, -1.0], [-0.5, -3.0]]), "log_probs")


def test_halves_of_many_classes_are_added_up_in_double() -> None:
    p = np.random.default_rng(0).dirichlet(np.full(5000, 0.3), 30).astype(np.float16)
    assert recognise(p).outputs == "probabilities"


@pytest.mark.parametrize("low", [0.0, -1000.0, -700.0])
def test_rows_far_from_each_other_keep_their_probabilities(low: float) -> None:
    z = np.array([[0.0, 1000.0, 999.0], [low, low, low - 2.0]])
    with np.errstate(all="raise", under="ignore"):
        logs = log_softmax(z)
        np.testing.assert_allclose(softmax(z), np.exp(logs), atol=1e-15)
        np.testing.assert_array_equal(sigmoid(np.array([-1e4, 0, 1e4])), [0, 0.5, 1])
    odds = np.array([2 * np.exp(2), 1])  # of the two that are alike, and of the third
    np.testing.assert_allclose(np.exp(logs[1, 2]), odds[1] / odds.sum())
    np.testing.assert_allclose(logs[0], [-1000 - np.log1p(np.exp(-1)), *-np.log1p(np.exp([-1, 1]))])


@pytest.mark.parametrize("steps", [256, 255])
def test_probabilities_of_8_bits_are_told_and_move_no_number_by_more_than_a_step(steps: int) -> None:
    rng = np.random.default_rng(0)
    exact = softmax(3 * rng.normal(size=(2000, 5)))
    coarse = np.minimum(np.rint(exact * steps), 255) / steps
    found = recognise(coarse, "probabilities")
    assert found.why.endswith(f", in steps of 1/{steps} and none above {255 / steps:.3f}")
    labels = (exact.cumsum(1) > rng.random((2000, 1))).argmax(1)
    before, after = (evaluate(p, labels, outputs="probabilities") for p in (exact, coarse))
    assert abs(before.ece.value - after.ece.value) < 1 / 256
    for other in (exact, np.rint(exact[:, :1] * 4) / 4 @ np.array([[1.0, -1]]) + [0, 1], np.eye(5)):
        assert "steps" not in recognise(other, "probabilities").why


@pytest.mark.parametrize("far", [-1e31, 1e31])
def test_logits_of_which_products_overflow_are_refused(far: float) -> None:
    with pytest.raises(InputError, match=r"logits go up to 1e\+31; clip them"):
        recognise(np.array([[0.0, far], [1.0, 2.0]]), "logits")


@pytest.mark.parametrize("scale", [1e9, 1e20])
@pytest.mark.parametrize("method", ["temperature", "vector", "auto"])
def test_rows_whose_classes_are_all_masked_are_refused(method: str, scale: float) -> None:
    z = np.random.default_rng(0).normal(size=(120, 4))
    z[:, 0] = np.abs(z[:, 0])
    z[7::50] = -np.abs(z[7::50]) - 1
    calibrate(z * 1e8, np.arange(120) % 4, method, outputs="logits")
    with pytest.raises(
        InputError, match="row 8 and 2 others have no class left: each of their logits is -9e"
    ):
        calibrate(z * scale, np.arange(120) % 4, method, outputs="logits")


def test_probabilities_are_not_taken_for_logits(overconfident: tuple[np.ndarray, np.ndarray]) -> None:
    z, y = overconfident
    for taken, how in (
        (softmax(z), {}),
        (softmax(z).astype(np.float32), {}),
        (100 * softmax(z), {"outputs": "percent"}),
    ):
        found = calibrate(taken, y, "temperature", cross_validate=False, **how)
        assert found.model.outputs == "probabilities"
        assert found.fit["temperature"] == pytest.approx(
            fit_temperature(Samples.of(z, y)).fit["temperature"], rel=1e-4
        )
        with pytest.raises(InputError, match="--outputs probabilities"):
            fit_temperature(Samples.of(softmax(z), y))
    one = calibrate(softmax(z)[:, 1], y == 1, "platt", cross_validate=False, outputs="probability")
    assert one.model.outputs == "probability"
    np.testing.assert_allclose(one.probs(softmax(z)[:, 1]), one.probs(softmax(z)[:, 1:2]))


def test_an_artifact_takes_what_it_was_fitted_on_and_refuses_other_kinds(
    overconfident: tuple[np.ndarray, np.ndarray],
) -> None:
    z, y = overconfident
    of_probs = calibrate(softmax(z), y, "temperature", cross_validate=False)
    of_logits = calibrate(z, y, "temperature", cross_validate=False, outputs="logits")
    np.testing.assert_allclose(of_probs.probs(softmax(z)), of_logits.probs(z), atol=1e-6)
    with pytest.raises(InputError, match="lie in"):
        of_probs.probs(z)
    with pytest.raises(InputError, match="--outputs probabilities"):
        of_logits.probs(softmax(z))
    np.testing.assert_allclose(of_logits.probs(softmax(z), outputs="probabilities"), of_logits.probs(z))


def test_a_scale_for_each_class_takes_only_what_it_was_fitted_on(
    overconfident: tuple[np.ndarray, np.ndarray],
) -> None:
    z, y = overconfident
    vector = fit_vector(Samples.of(z, y))
    assert vector.takes("logits")
    assert not vector.takes("probabilities")
    with pytest.raises(InputError, match="fitted on logits"):
        vector.check_takes("log_probs", "these scores")
    assert fit_temperature(Samples.of(z, y)).takes("probabilities"), "a temperature is the same on both"
    both = Artifact((LogitMap(np.eye(4), np.ones(4)),), method="matrix", classes=4)
    assert both.takes("log_probs"), "rows that add up to the same make it the same"


ONE: dict[str, Any] = {"logit": [-2.0, 0.0, 3.0], "probability": [0.1, 0.5, 0.9]}


@pytest.mark.parametrize("kind", ONE)
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_number_a_sample_is_class_one(kind: Outputs, shape: tuple[int, ...]) -> None:
    scores = np.array(ONE[kind]).reshape(shape)
    probs = to_probs(scores, kind)
    assert probs.shape == (3, 2)
    np.testing.assert_allclose(from_probs(probs, scores, kind), scores, atol=1e-12)
    with pytest.raises(ShapeError, match="one number"):
        to_logits(np.ones((3, 2)), kind)


@pytest.mark.parametrize("kind", ["label_logits", "label_probabilities"])
def test_labels_keep_their_columns(kind: Outputs) -> None:
    logits = np.array([[-3.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    scores = logits if kind == "label_logits" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(to_logits(scores, kind), logits, atol=1e-12)
    np.testing.assert_allclose(from_probs(to_probs(scores, kind), scores, kind), scores, atol=1e-12)


@pytest.mark.parametrize("kind", ["logits", "log_probs", "probabilities", "logit", "probability"])
@pytest.mark.parametrize("shape", [(3, 2), (3, 4), (3, 1), (3,)])
def test_calibrated_probabilities_come_back_as_scores_of_the_kind_and_shape(
    kind: Outputs, shape: tuple[int, ...]
) -> None:
    one, one_kind = len(shape) == 1 or shape[1] == 1, kind in ("logit", "probability")
    if (one_kind and not one) or (kind == "log_probs" and one):
        return
    p = np.random.default_rng(0).dirichlet(np.ones(2 if one else shape[1]), 3)
    raw = np.full(shape, 0.5)
    made = from_probs(p, raw, kind)
    assert made.shape == shape
    np.testing.assert_allclose(to_probs(made, kind), p, atol=1e-12)
    raw[1] = np.nan
    held = from_probs(p, raw, kind)
    np.testing.assert_array_equal(held[[0, 2]], made[[0, 2]])
    assert np.isnan(held[1]).all()


def test_what_is_no_probability_becomes_nan() -> None:
    found = to_logits([[0.5, 0.5], [-0.1, 1.1], [np.nan, 0.5]], "probabilities")
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
    assert np.isnan(found[2, 0])


def test_columns_that_seem_to_be_ranks_are_classes_where_that_is_said() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 40)
    with pytest.raises(InputError, match="as if they were ranks"):
        Scores.of(np.sort(p)[:, ::-1])
    assert len(Scores.of(np.sort(p)[:, ::-1], outputs="probabilities")) == 40
    for other in (p, np.tile([0.5, 0.3, 0.2], (40, 1)), np.sort(p)[:5, ::-1]):  # a model of priors; too few
        assert Scores.of(other).outputs == "probabilities"


@pytest.mark.parametrize(("least", "refused"), [(0.5, True), (0.4, False)])
def test_confidences_of_whichever_class_was_predicted_are_not_of_class_one(
    least: float, refused: bool
) -> None:
    table = {"label": np.arange(30) % 2, "prob": np.linspace(least, 1, 30)}
    if refused:
        with pytest.raises(InputError, match=r"the column 'prob' .*whichever class .*--outputs probability"):
            Scores.of(table)
    else:
        assert Scores.of(table).outputs == "probability"
    assert Scores.of(table, outputs="probability").outputs == "probability"


def test_what_a_column_marks_as_missing_is_no_score_of_a_few_rows_or_of_masked_classes() -> None:
    z = np.random.default_rng(0).normal(size=(60, 3))
    z[3:9, 1] = -9999
    with pytest.raises(InputError, match=r"6 of 60 rows of the column 1 hold -9999.* --missing -9999"):
        Scores.of(z, outputs="logits")
    assert len(Scores.of(z, outputs="logits", missing=-9999)) == 54
    masked = Scores.of(z, outputs="logits", missing="none")
    np.testing.assert_array_equal(masked.values, z)
    np.testing.assert_array_equal(Scores.of(z[:10], outputs="logits").values, z[:10])


@pytest.fixture
def sure() -> tuple[np.ndarray, np.ndarray]:
    """Float32 probabilities of an overconfident model, many exactly 0, and class ids."""
    rng = np.random.default_rng(0)
    z = 20 * rng.standard_normal((400, 5))
    probs = softmax(5 * z).astype(np.float32)
    assert (probs == 0).sum() > 100
    return probs, np.where(rng.random(400) < 0.6, z.argmax(1), rng.integers(0, 5, 400))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_of_probabilities_gives_the_temperature_that_the_model_gives(
    dtype: type, sure: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    probs, labels = sure
    served = fit_temperature(Samples.of(finite_logits(probs, "probabilities", "the test"), labels))
    np.savez(tmp_path / "p.npz", probs=probs.astype(dtype), labels=labels)
    found = Scores.read(tmp_path / "p.npz")
    fitted = fit_temperature(Samples.of(found.logits, labels))
    assert fitted.fit["temperature"] == pytest.approx(served.fit["temperature"], rel=1e-5)


def test_what_is_expected_in_one_column_may_come_in_two() -> None:
    assert Scores.of([[0.0, 1.0], [2.0, -1.0]], expected="logit").outputs == "logits"
    assert Scores.of([[0.25, 0.75], [0.5, 0.5]], expected="probability").outputs == "probabilities"
    assert Scores.of([1.0, -1.0], expected="logit").outputs == "logit"


@pytest.mark.parametrize("labels", [[0, 1], [[0], [1]]])
def test_truths_of_a_single_label_are_one_column(labels: Any) -> None:
    assert labels01(labels, (2, 1)).tolist() == [[0], [1]]

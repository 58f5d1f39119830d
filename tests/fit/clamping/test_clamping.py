"""Neural Clamping finds the shift and the temperature that made the labels, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.core.errors import FitError, InputError, ShapeError
from calib_serve.fit import fit_neural_clamping, fit_neural_clamping_efficient
from calib_serve.fit.clamping.efficient import data_bounds, feasible_shift
from calib_serve.fit.clamping.objective import Objective
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import nll
from calib_serve.models import from_module
from calib_serve.models.torch_classifier import TorchClassifier
from calib_serve.scores import softmax

SHAPE = (2, 8, 8)
TRUE_T = 2.0


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        net[3].weight *= 40
    return net.eval()


@pytest.fixture(scope="module")
def classifier() -> TorchClassifier:
    return from_module(network(), input_shape=SHAPE, device="cpu")


def true_shift() -> np.ndarray:
    shift = np.zeros(SHAPE)
    shift[0], shift[1] = 0.6, -0.6
    return shift


@pytest.fixture(scope="module")
def drawn(classifier):
    """Inputs, labels drawn from softmax(f(x + true shift) / 2), and those probabilities."""
    rng = np.random.default_rng(1)
    inputs = rng.random((3_000, *SHAPE), dtype=np.float32)
    probs = softmax(classifier.logits(inputs, shift=InputShift(true_shift())) / TRUE_T)
    labels = (probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1)
    return inputs, np.minimum(labels, 3), probs


def test_the_shift_and_temperature_that_made_the_labels_are_found(classifier, drawn) -> None:
    inputs, labels, probs = drawn
    fit, held = slice(0, 2_000), slice(2_000, None)
    artifact = fit_neural_clamping(classifier, inputs[fit], labels[fit], penalty=1e-3, resolution=1)
    clamped = artifact.probs(classifier.logits(inputs[held], shift=artifact.input_shift))
    scaled = fit_temperature(Samples.of(classifier.logits(inputs[fit]), labels[fit]))
    plain = scaled.probs(classifier.logits(inputs[held]))
    best = nll(probs[held], labels[held])
    assert nll(clamped, labels[held]) < best + 0.01
    assert nll(plain, labels[held]) > best + 0.05
    assert artifact.fit["temperature"] == pytest.approx(TRUE_T, rel=0.15)
    np.testing.assert_allclose(artifact.input_shift.delta, true_shift(), atol=0.2)


@pytest.mark.parametrize(("gamma", "resolution"), [(0.0, None), (0.7, 3)])
def test_the_gradient_is_the_objective_s_own(classifier, drawn, gamma, resolution) -> None:
    inputs, labels, _ = drawn
    objective = Objective(
        classifier, inputs[:64], labels[:64], gamma=gamma, weight=0.1, resolution=resolution, scale=0.5,
    )  # fmt: skip
    rng = np.random.default_rng(2)
    at = np.append(rng.normal(0, 0.3, int(np.prod(objective.shape))), 0.2)
    _, gradient, _ = objective(at)
    for drawn_at_random in rng.normal(size=(5, len(at))):
        direction = drawn_at_random / np.linalg.norm(drawn_at_random)
        ahead, behind = objective(at + 1e-2 * direction)[0], objective(at - 1e-2 * direction)[0]
        assert (ahead - behind) / 2e-2 == pytest.approx(gradient @ direction, abs=2e-4, rel=2e-3)


def test_delta_behind_the_normalisation_is_scaled_by_its_deviation(classifier, drawn) -> None:
    inputs, labels, _ = drawn
    artifact = fit_neural_clamping(
        classifier, inputs[:400], labels[:400], resolution=None, normalisation=([0.5, 0.5], [0.5, 0.25])
    )
    assert artifact.fit["place"] == "after normalisation"
    behind = artifact.input_shift.delta / np.array([0.5, 0.25]).reshape(2, 1, 1)
    assert np.linalg.norm(behind) == pytest.approx(artifact.fit["delta_norm"], rel=1e-5)


def test_a_delta_fitted_to_few_samples_takes_the_temperature_of_those_held_out(classifier, drawn) -> None:
    inputs, labels, _ = drawn
    artifact = fit_neural_clamping(classifier, inputs[:24], labels[:24], penalty=1e-6, resolution=None)
    shifted = classifier.logits(inputs[1_000:], shift=artifact.input_shift)
    by_heart = softmax(shifted / artifact.fit["temperature_fitted"])
    assert artifact.fit["temperature"] > 1.5 * artifact.fit["temperature_fitted"]
    assert nll(artifact.probs(shifted), labels[1_000:]) < nll(by_heart, labels[1_000:]) - 0.1


def test_the_size_that_held_out_samples_are_best_under_is_chosen(classifier, drawn) -> None:
    inputs = drawn[0]
    fine = np.indices(SHAPE).sum(axis=0) % 2 - 0.5  # 1 x 1 sees nothing of it
    probs = softmax(classifier.logits(inputs, shift=InputShift(3 * fine)) / TRUE_T)
    labels = np.minimum((probs.cumsum(axis=1) < np.random.default_rng(1).random((3_000, 1))).sum(axis=1), 3)
    found = fit_neural_clamping(classifier, inputs, labels, penalty=1e-4, resolution=(1, None))
    assert found.fit["resolution"] is None
    few = fit_neural_clamping(
        classifier, *(part[:300] for part in drawn[:2]), penalty=1e-4, resolution=(1, None)
    )
    assert few.fit["resolution"] == 1


def test_each_search_computes_known_logits_never_again_and_steps_as_far_as_the_loss_bends(
    classifier, drawn, monkeypatch
) -> None:
    inputs, labels, _ = drawn
    forward, gradients = [], []
    for name, seen in (("logits", forward), ("input_gradient", gradients)):
        run = getattr(TorchClassifier, name)
        monkeypatch.setattr(
            TorchClassifier,
            name,
            lambda self, x, *given, _run=run, _seen=seen, **how: (
                _seen.append(len(x)) or _run(self, x, *given, **how)
            ),
        )
    found = fit_neural_clamping(classifier, inputs[:900], labels[:900], penalty=1e-3, resolution=1)
    # The inputs as they are, each fold's few for the first step, each fold held out, and the last few.
    assert forward == [900, 256, 300, 256, 300, 256, 300, 256]
    assert len(gradients) <= 4 * 12
    assert found.fit["objective_value"] < found.fit["loss_of_temperature_alone"] - 0.1


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 1000),
)
def test_the_data_driven_shift_is_feasible_and_none_feasible_gains_more(entries, seed) -> None:
    gradient, one, other = (np.array(column) for column in zip(*entries, strict=True))
    low, high = data_bounds(np.stack([one, other]))
    delta = feasible_shift(gradient, low, high, (0.0, 1.0))
    assert (low + delta >= -1e-12).all()
    assert (high + delta <= 1 + 1e-12).all()
    rival = np.random.default_rng(seed).uniform(-low, 1 - high)
    assert gradient @ rival <= gradient @ delta + 1e-9


def test_hostile_input_is_refused_before_any_long_work(classifier, drawn) -> None:
    inputs, labels, _ = drawn
    x, y = inputs[:20], labels[:20]
    with pytest.raises(ShapeError, match=r"takes inputs of \(2, 8, 8\)"):
        fit_neural_clamping(classifier, x[:, :1], y)
    with pytest.raises(InputError, match=r"labels must lie in \[0, 4\)"):
        fit_neural_clamping(classifier, x, np.full(20, 9))
    with pytest.raises(InputError, match="all 20 samples are of class 2"):
        fit_neural_clamping_efficient(classifier, x, np.full(20, 2))
    torn = x.copy()
    torn[7, 0, 3, 3] = np.nan
    with pytest.raises(InputError, match="input 7 holds NaN"):
        fit_neural_clamping(classifier, torn, y)
    with pytest.raises(InputError, match="outside of input_range"):
        fit_neural_clamping_efficient(classifier, x, y, input_range=(0.4, 0.6))
    with pytest.raises(FitError, match="every sample is right"):
        fit_neural_clamping(classifier, x, classifier.logits(x).argmax(axis=1), resolution=None)
    wrong = {
        "gamma": ("x", None, -1, 11),
        "penalty": ("fifth", None, -1, np.inf),
        "resolution": ("x", 0, 9, 2.5),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=name):
                fit_neural_clamping(classifier, x, y, **{"resolution": 1, name: value})

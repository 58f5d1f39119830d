"""Fits on scores and on a model, as a Python user calls them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve import Artifact, calibrate, calibrate_model, judge, verdict
from calib_serve.core.errors import FitError, InputError, ModelError, ShapeError
from calib_serve.fit import CANDIDATES, fit_by_name, fit_neural_clamping_paper
from calib_serve.metrics import evaluate, nll
from calib_serve.models import from_module
from calib_serve.scores import softmax


def drawn(n: int = 600, seed: int = 0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are three times too sure, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, classes))
    return (3 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize("method", sorted(CANDIDATES))
def test_every_output_method_says_what_it_does_to_samples_it_has_not_seen(method: str) -> None:
    z, y = drawn()
    artifact = calibrate(z, y, method, class_names=("a", "b", "c"), outputs="logits")
    assert artifact.method == method
    assert artifact.class_names == ("a", "b", "c")
    assert artifact.data["measured_on"] == "5 folds of the calibration set"
    assert artifact.before["nll"]["value"] == pytest.approx(nll(softmax(z), y), rel=1e-6)
    if method not in ("none", "batch"):  # the latter reads no label
        assert artifact.after["ece"]["value"] < artifact.before["ece"]["value"]
        assert artifact.after["ece"]["low"] <= artifact.after["ece"]["value"] <= artifact.after["ece"]["high"]
    whole = fit_by_name(method, z, y)
    np.testing.assert_array_equal(artifact.probs(z), whole.probs(z))


def test_folds_are_held_out_by_hand() -> None:
    from calib_serve.fit.folds import folds_of
    from calib_serve.fit.samples import Samples

    z, y = drawn()
    fold = folds_of(Samples.of(z, y), folds=5, seed=3)
    losses = np.empty(len(y))
    for k in range(5):
        part = fit_by_name("temperature", z[fold != k], y[fold != k])
        losses[fold == k] = -np.log(part.probs(z[fold == k])[np.arange((fold == k).sum()), y[fold == k]])
    found = calibrate(z, y, "temperature", seed=3, outputs="logits")
    assert found.after["nll"]["value"] == pytest.approx(losses.mean(), rel=1e-9)


def test_a_test_set_is_measured_instead_with_every_metric() -> None:
    z, y = drawn()
    test = drawn(seed=1)
    artifact = calibrate(z, y, "temperature", test=test, outputs="logits")
    wanted = evaluate(artifact.probs(test[0]), test[1], replicates=200)
    assert artifact.after == {name: e.as_dict() for name, e in wanted.estimates().items()}
    assert artifact.data["measured_on"] == "test"
    found = verdict(artifact)
    assert found.level == "no_error_found"
    assert found.headline == judge(artifact.probs(test[0]), test[1]).headline
    assert found.gain.startswith("ECE ")


def test_what_cannot_be_cross_validated_is_fitted_and_says_so() -> None:
    z, y = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 1.5], [1.0, 0.5]]), np.array([0, 1, 1, 0])
    artifact = calibrate(z, y, "temperature", outputs="logits")
    assert artifact.before == {}
    assert artifact.data["measured_on"].startswith("nothing: ")
    assert "was not measured" in str(verdict(artifact))


# On a model.


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
        net[3].weight *= 3
    return net.eval()


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.random((300, 1, 6, 6), dtype=np.float32)
    with torch.no_grad():
        p = (network()(torch.from_numpy(x)) / 3).softmax(1).double().numpy()
    return x, np.minimum((p.cumsum(axis=1) < rng.random((300, 1))).sum(axis=1), 2)


def test_a_method_behind_a_new_head_is_measured_on_folds_of_its_own(images) -> None:
    method = "masked-head"
    artifact = calibrate_model(network(), *images, method, device="cpu", then="vector")
    assert [step.kind for step in artifact.steps] == ["head", "logit_map"]
    assert artifact.fit["then"] == "vector"
    assert "folds of" in artifact.data["measured_on"]
    bare = calibrate_model(network(), *images, method, device="cpu", then="vector", cross_validate=False)
    assert not bare.after
    z = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_array_equal(bare.probs(z), artifact.probs(z))


@pytest.mark.parametrize("method", ["temperature", "masked-head"])
def test_tensors_are_taken_as_they_come(images, method: str) -> None:
    x, y = images
    tensors = torch.from_numpy(x).requires_grad_(), torch.from_numpy(y)
    found = calibrate_model(network(), *tensors, method, test=tensors, device="cpu")
    wanted = calibrate_model(network(), x, y, method, test=images, device="cpu")
    assert found.fingerprint == wanted.fingerprint


def test_what_does_not_fit_together_is_refused_before_the_fit(images) -> None:
    x, y = images
    with pytest.raises(InputError, match="train is for the masked head"):
        calibrate_model(network(), x, y, "temperature", train=(x, y))
    with pytest.raises(InputError, match="no option 'masking'"):
        calibrate_model(network(), x, y, "masked-head", masking="x")
    with pytest.raises(InputError, match="temperature has no option then"):
        calibrate_model(network(), x, y, "temperature", then="temperature")
    with pytest.raises(InputError, match="there is no method 'sharper'"):
        calibrate_model(network(), x, y, "masked-head", then="sharper")
    with pytest.raises(ModelError, match="there is no model file"):
        calibrate_model("nothing.pt", x, y)
    with pytest.raises((ShapeError, ModelError)):
        calibrate_model(network(), x[:, :, :5], y)
    with pytest.raises(ShapeError, match="labels must be"):
        calibrate_model(network(), x, y[:-1])


def test_a_schedule_of_neural_clamping_is_its_own_fit(images) -> None:
    some = images[0][:40], images[1][:40]
    model = from_module(network(), input_shape=(1, 6, 6), device="cpu")

    def fitted(schedule: str, **options: object) -> Artifact:
        return calibrate_model(
            network(), *some, "neural-clamping", device="cpu", schedule=schedule, **options
        )

    paper = fit_neural_clamping_paper(model, *some)
    assert fitted("paper").fingerprint == paper.fingerprint
    with pytest.raises(InputError, match="schedule must be one of 'ours', 'paper'"):
        fitted("toolkit")


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_that_tell_nothing_of_the_labels_are_remarked_on(classes: int) -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(300, classes))
    y = (softmax(z).cumsum(axis=1) > rng.random((300, 1))).argmax(axis=1)

    def remarks(scores: np.ndarray, labels: np.ndarray) -> str:
        found = calibrate(scores, labels, "none", cross_validate=False, outputs="logits")
        return " ".join(found.fit.remarks)

    assert "better than chance" not in remarks(z, y)
    assert "better than chance" in remarks(z, np.roll(y, 1)), "the labels are the neighbours'"
    assert "better than chance" in remarks(z[:, ::-1], y), "the classes are in another order"
    rare = (np.arange(300) % 20 == 0).astype(int)
    sure = np.stack([np.zeros(300), -3 + 2 * rare + rng.normal(size=300)], axis=1)
    assert "better than chance" not in remarks(sure, rare), (
        "a rare class that is told, though never predicted"
    )


@pytest.mark.parametrize("n", [3, 5, 40])
def test_auto_of_a_model_takes_few_samples_and_names_classes_that_have_none(n: int) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(4, 4).eval(), np.random.default_rng(0).standard_normal((n, 4), dtype=np.float32)
    artifact = calibrate_model(net, x, np.arange(n) % 3, class_names=("ant", "bee", "cat", "dog"))
    assert artifact.class_names == ("ant", "bee", "cat", "dog")
    assert any("(dog)" in said for said in artifact.fit.remarks)


def test_auto_of_a_model_that_is_always_right_is_an_output_method() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).eval(), np.random.default_rng(0).standard_normal((90, 4), dtype=np.float32)
    with torch.no_grad():
        labels = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    artifact = calibrate_model(net, x, labels)
    assert artifact.input_shift is None


@pytest.mark.parametrize("method", ["neural-clamping", "neural-clamping-efficient"])
def test_a_set_that_teaches_nothing_is_refused_by_methods_of_a_model_too(images, method: str) -> None:
    (x, _), net = images, network()
    with torch.no_grad():
        predicted = net(torch.from_numpy(x)).argmax(dim=1).numpy()
    with pytest.raises(FitError, match="not one of"):
        calibrate_model(net, x, (predicted + 1) % 3, method, device="cpu")
    with pytest.raises(FitError, match="the same for every sample"):
        calibrate_model(net, np.repeat(x[:1], 60, axis=0), np.arange(60) % 3, method, device="cpu")

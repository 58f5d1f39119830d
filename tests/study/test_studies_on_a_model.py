"""The studies with every method on a small network, trained on real digits until it is too sure."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import sized

from calib_serve.artifact import Head, InputShift
from calib_serve.demo import digits
from calib_serve.fit.on_model import ON_MODEL, FitOnModel
from calib_serve.metrics import ece, nll, softmax
from calib_serve.model import from_module
from calib_serve.study import ablation

SLOW = ("neural-clamping",)  # by minutes, at full size


@pytest.fixture(scope="module")
def parts():
    """The network, its training images, and 300 and 600 other ones."""
    data = digits.load(seed=0, sizes=(100, 300, 0))
    net = digits.train(data.train, epochs=sized(60, 200))
    model = from_module(net, input_shape=(1, 8, 8), device="cpu")
    held = data.test[:600]
    return model, *((part.images, part.labels) for part in (data.train, data.calibration, held)), net


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name == "neural-clamping-paper" else [])
        for name in sorted(ON_MODEL)
        if name not in SLOW
    ],
)
def test_each_method_on_the_model_is_studied_and_changes_it(parts, method: str) -> None:
    model, train, cal, test, _ = parts
    found = FitOnModel(model, train=train)
    artifact = found.fit(method, *cal)
    probs = found.probs(artifact, test[0])
    assert probs.shape == (600, 10)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)
    assert np.abs(probs - softmax(model.logits(test[0]))).max() > 0.01
    assert any(isinstance(step, (Head, InputShift)) for step in artifact.steps)


def test_the_ablation_tells_what_each_part_does(parts) -> None:
    model, train, cal, test, _ = parts
    methods = ["neural-clamping-efficient", "tuned-head", "no-mask-head+temperature"]
    study = ablation(cal, test, methods=methods, fit=FitOnModel(model, train=train))
    found = {row[:2]: row[2:] for row in study.rows}
    plain = softmax(model.logits(test[0]))
    assert found["none", "nothing"] == pytest.approx(
        (found["none", "nothing"][0], ece(plain, test[1]), nll(plain, test[1]))
    )
    assert set(found) == {
        ("none", "nothing"),
        ("temperature", "temperature"),
        *(("neural-clamping-efficient", part) for part in ("shift", "temperature", "shift + temperature")),
        *((name, part) for name in methods[1:] for part in ("head", "temperature", "head + temperature")),
    }
    artifact = FitOnModel(model).fit(methods[0], *cal)
    moved = softmax(model.logits(test[0], shift=artifact.input_shift))
    assert found[methods[0], "shift"][2] == pytest.approx(nll(moved, test[1]))
    assert found["tuned-head", "head + temperature"][2] < found["temperature", "temperature"][2]
    assert study.says[0].startswith("NLL: ")
    assert any("no-mask-head+temperature: " in sentence for sentence in study.says)

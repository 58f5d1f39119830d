"""Neural Clamping's schedule is that which the paper prints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.fit import fit_neural_clamping_efficient
from calib_serve.fit.clamping.objective import Objective
from calib_serve.fit.clamping.schedules import PAPER, Descent
from calib_serve.metrics import ece
from calib_serve.models import from_module
from calib_serve.models.torch_classifier import TorchClassifier
from calib_serve.scores import softmax

SHAPE = (2, 8, 8)


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(128, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        net[3].weight *= 20
    return net.eval()


@pytest.fixture(scope="module")
def classifier() -> TorchClassifier:
    return from_module(network(), input_shape=SHAPE, device="cpu")


@pytest.fixture(scope="module")
def drawn(classifier) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.random((60, *SHAPE), dtype=np.float32)
    y = np.where(rng.random(60) < 0.7, classifier.logits(x).argmax(axis=1), rng.integers(0, 4, 60))
    return x, y


def test_steps_are_those_of_torch_s_own_descent(classifier, drawn) -> None:
    """Focal loss of gamma 1 and the norm of delta, in one batch, by autograd and torch.optim."""
    x, y = drawn
    start = np.random.default_rng(0).normal(0, 0.1, 128)
    schedule = replace(PAPER, rate=0.01, momentum=0.9, epochs=3)
    objective = Objective(classifier, x, y, gamma=1.0, weight=0.01)
    found = Descent(schedule)(objective, start)
    net = network()
    delta = torch.tensor(start.reshape(SHAPE), dtype=torch.float32, requires_grad=True)
    t = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([delta, t], lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        log_p = (net(torch.from_numpy(x) + delta) / t).log_softmax(dim=1)[
            torch.arange(60), torch.from_numpy(y)
        ]
        (-((1 - log_p.exp()) * log_p).mean() + 0.01 * delta.norm()).backward()
        optimizer.step()
    np.testing.assert_allclose(found.coefficients.reshape(SHAPE), delta.detach().numpy(), atol=2e-5)
    assert found.temperature == pytest.approx(float(t.detach()), abs=2e-5)


def test_the_efficient_form_searches_the_grid_it_is_given(classifier, drawn) -> None:
    values = np.array([0.5, 1.5, 2.5])
    fit = fit_neural_clamping_efficient(classifier, *drawn, grid=values)
    assert fit.fit["grid"] == {"values": 3, "low": 0.5, "high": 2.5}
    z = classifier.logits(drawn[0], shift=InputShift(fit.input_shift.delta))
    eces = [ece(softmax(z / t), drawn[1]) for t in values]
    assert fit.fit["temperature"] == values[int(np.argmin(eces))]
    default = fit_neural_clamping_efficient(classifier, *drawn)
    assert default.fit["grid"] == {"values": 5000, "low": 0.001, "high": 5.0}
    assert fit_neural_clamping_efficient(classifier, *drawn, grid="coarse").fit["grid"]["high"] == 10.0

"""Neural Clamping's schedules are those that the paper prints and that its toolkit runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.errors import InputError
from calib_serve.fit.clamping import (
    fit_neural_clamping_efficient,
    fit_neural_clamping_paper,
    fit_neural_clamping_toolkit,
)
from calib_serve.fit.clamping.efficient import entropy_shift
from calib_serve.fit.clamping.objective import Objective
from calib_serve.fit.clamping.schedules import PAPER, TOOLKIT, Augmentation, Descent
from calib_serve.fit.facts import reference_bins
from calib_serve.metrics import softmax
from calib_serve.model import TorchClassifier, from_module

SHAPE = (2, 8, 8)
SHORT = replace(PAPER, epochs=2)


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


def test_the_data_driven_start_is_that_of_the_theorem(classifier, drawn) -> None:
    still = replace(PAPER, epochs=1, rate=1e-12)
    fit = fit_neural_clamping_paper(classifier, *drawn, start="data", input_range=(-1.0, 2.0), schedule=still)
    wanted = entropy_shift(classifier, drawn[0], input_range=(-1.0, 2.0)).delta
    np.testing.assert_allclose(fit.input_shift.delta, wanted, atol=1e-8)


def test_gammas_are_tried_in_separate_runs_from_one_start(classifier, drawn) -> None:
    both = fit_neural_clamping_paper(classifier, *drawn, gamma=(0.0, 1.0), schedule=SHORT)
    alone = [fit_neural_clamping_paper(classifier, *drawn, gamma=g, schedule=SHORT) for g in (0.0, 1.0)]
    assert [row["gamma"] for row in both.fit["candidates"]] == [0.0, 1.0]
    eces = [one.reference.ece() for one in alone]
    assert [row["score"] for row in both.fit["candidates"]] == pytest.approx(eces)
    best = alone[int(np.argmin(eces))]
    np.testing.assert_array_equal(both.input_shift.delta, best.input_shift.delta)


def test_steps_are_those_of_torch_s_own_descent(classifier, drawn) -> None:
    """Focal loss of gamma 1 and the norm of delta, in one batch, by autograd and torch.optim."""
    x, y = drawn
    start = np.random.default_rng(0).normal(0, 0.1, 128)
    schedule = replace(TOOLKIT, epochs=3, augmented=False)
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


def test_an_image_is_moved_flipped_and_cut_and_nothing_else() -> None:
    ramp = 1 + np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    vary = Augmentation(1, 2, np.zeros(1, np.float32), np.full(1, -1.0, np.float32))
    padded = np.pad(ramp[0, 0], 1)
    ways = [padded[i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    ways += [way[:, ::-1] for way in ways]
    met = set()
    for image in vary(np.repeat(ramp, 400, axis=0), np.random.default_rng(0))[:, 0]:
        cut = image == -1
        assert 1 <= cut.sum() <= 4
        (way,) = [i for i, way in enumerate(ways) if np.array_equal(way[~cut], image[~cut])]
        met.add(way)
    assert met == set(range(18))


def test_options_that_a_schedule_does_not_take_are_refused(classifier, drawn) -> None:
    with pytest.raises(InputError, match="starts 'random' or 'data'"):
        fit_neural_clamping_paper(classifier, *drawn, start="zero")
    with pytest.raises(InputError, match="input_range bounds the data-driven start"):
        fit_neural_clamping_paper(classifier, *drawn, input_range=(0, 1))
    with pytest.raises(InputError, match="one gamma and one penalty"):
        fit_neural_clamping_toolkit(classifier, *drawn, normalisation=(0, 1), gamma=(0.0, 1.0))
    with pytest.raises(InputError, match="one gamma and one penalty"):
        fit_neural_clamping_toolkit(classifier, *drawn, normalisation=(0, 1), penalty="tenth")
    with pytest.raises(InputError, match="mean must be 2 numbers"):
        fit_neural_clamping_toolkit(classifier, *drawn, normalisation=((0.1, 0.2, 0.3), 1))
    with pytest.raises(InputError, match="std must be 2 positive numbers"):
        fit_neural_clamping_toolkit(classifier, *drawn, normalisation=(0, 0))
    with pytest.raises(InputError, match="gamma must lie in"):
        fit_neural_clamping_paper(classifier, *drawn, gamma=-1)
    for wrong in ({"rate": 0.0}, {"momentum": 1.0}, {"batch": 0}, {"epochs": 0}):
        with pytest.raises(InputError, match="a schedule has"):
            replace(PAPER, **wrong)


def test_the_efficient_form_searches_the_grid_it_is_given(classifier, drawn) -> None:
    values = np.array([0.5, 1.5, 2.5])
    fit = fit_neural_clamping_efficient(classifier, *drawn, grid=values)
    assert fit.fit["grid"] == {"values": 3, "low": 0.5, "high": 2.5}
    z = classifier.logits(drawn[0], shift=InputShift(fit.input_shift.delta))
    eces = [reference_bins(softmax(z / t), drawn[1]).ece() for t in values]
    assert fit.fit["temperature"] == values[int(np.argmin(eces))]
    default = fit_neural_clamping_efficient(classifier, *drawn)
    assert default.fit["grid"] == {"values": 5000, "low": 0.001, "high": 5.0}
    assert fit_neural_clamping_efficient(classifier, *drawn, grid="coarse").fit["grid"]["high"] == 10.0

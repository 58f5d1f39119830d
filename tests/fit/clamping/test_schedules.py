"""Neural Clamping's schedules are those that the paper prints and that its toolkit runs."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.errors import FitError, InputError
from calib_serve.fit.clamping import (
    fit_neural_clamping_efficient,
    fit_neural_clamping_paper,
    fit_neural_clamping_toolkit,
)
from calib_serve.fit.clamping.augmentation import Augmentation
from calib_serve.fit.clamping.descent import Descent
from calib_serve.fit.clamping.entropy_shift import entropy_shift
from calib_serve.fit.clamping.objective import Objective, focal_loss
from calib_serve.fit.clamping.schedules import PAPER, TOOLKIT
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


# --- what is printed and published -----------------------------------------------------------------


def test_the_paper_s_hyperparameters_are_those_of_its_text() -> None:
    assert asdict(PAPER) == {
        "rate": 0.001,  # section 4.1
        "momentum": 0.0,
        "batch": 512,
        "epochs": 100,
        "spread": pytest.approx(0.01**0.5),  # appendix A: a variance of 0.01
        "gamma": 1.0,  # section 4.1: the default
        "penalty": "tenth",  # section 4.1: of the initial loss
        "augmented": False,
    }


def test_the_toolkit_s_hyperparameters_are_those_of_its_demonstration() -> None:
    assert asdict(TOOLKIT) == {
        "rate": 0.01,
        "momentum": 0.9,
        "batch": 1000,
        "epochs": 100,
        "spread": 0.001,
        "gamma": 1.0,
        "penalty": 0.01,
        "augmented": True,
    }


def test_the_paper_s_fit_begins_where_it_says_and_says_what_it_took(classifier, drawn) -> None:
    still = replace(PAPER, epochs=1, rate=1e-12)
    fit = fit_neural_clamping_paper(classifier, *drawn, schedule=still, seed=3)
    np.testing.assert_allclose(
        fit.input_shift.delta, np.random.default_rng(3).normal(0, 0.1, SHAPE), atol=1e-8
    )
    assert fit.fit["temperature"] == pytest.approx(1.0)
    assert fit.fit["schedule"] == asdict(still)
    assert (fit.fit["gamma"], fit.fit["place"]) == (1.0, "input")
    begun = classifier.logits(drawn[0], shift=fit.input_shift)
    assert fit.fit["lambda"] == pytest.approx(focal_loss(begun, drawn[1], 1.0, 1.0)[0] / 10, rel=1e-6)


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


def test_the_toolkit_s_delta_is_small_and_behind_the_normalisation(classifier, drawn) -> None:
    still = replace(TOOLKIT, epochs=1, rate=1e-12)
    fit = fit_neural_clamping_toolkit(
        classifier, *drawn, normalisation=((0.4, 0.5), (0.2, 0.25)), schedule=still, seed=5
    )
    behind = np.random.default_rng(5).normal(0, 0.001, SHAPE)
    wanted = behind * np.array([0.2, 0.25]).reshape(2, 1, 1)
    np.testing.assert_allclose(fit.input_shift.delta, wanted, atol=1e-9)
    assert (fit.fit["lambda"], fit.fit["gamma"]) == (0.01, 1.0)
    assert fit.fit["place"] == "after normalisation"


# --- the steps -------------------------------------------------------------------------------------


class Linear(nn.Module):
    """Logits (x, 0) of one number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.zeros_like(x)], dim=1)


def test_two_steps_with_momentum_are_those_computed_by_hand() -> None:
    """Logit x + delta over T against 0, label 0: loss softplus(-u) with u = (x + delta) / T."""
    classifier = from_module(Linear().eval(), input_shape=(1,), device="cpu")
    x = np.array([[1.0], [1.0]], np.float32)
    objective = Objective(classifier, x, np.array([0, 0]), weight=0.5)
    schedule = replace(PAPER, rate=0.1, momentum=0.9, batch=2, epochs=2)
    found = Descent(schedule)(objective, np.array([0.25]))
    delta, t, velocity = 0.25, 1.0, np.zeros(2)
    for _ in range(2):
        u = (1 + delta) / t
        falls = -1 / (1 + np.exp(u))  # d softplus(-u) / du
        gradient = np.array([falls / t + 0.5 * np.sign(delta), -falls * u / t])
        velocity = 0.9 * velocity + gradient
        delta, t = delta - 0.1 * velocity[0], t - 0.1 * velocity[1]
    assert found.coefficients[0] == pytest.approx(delta, rel=1e-5)
    assert found.temperature == pytest.approx(t, rel=1e-5)
    assert found.passes == 2


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


def test_an_epoch_is_every_sample_once_in_batches(classifier, drawn) -> None:
    seen: list[int] = []

    class Counting(Objective):
        def __call__(self, vector):
            seen.append(len(self.labels))
            return super().__call__(vector)

    objective = Counting(classifier, *drawn, weight=0.1)
    Descent(replace(PAPER, batch=25, epochs=2))(objective, np.full(128, 0.01))
    assert seen == [25, 25, 10] * 2


def test_a_temperature_that_falls_to_nothing_is_told() -> None:
    """Every sample is right, so a lower T is better: the first step of this rate goes past 0."""
    classifier = from_module(Linear().eval(), input_shape=(1,), device="cpu")
    objective = Objective(classifier, np.ones((4, 1), np.float32), np.zeros(4, np.intp))
    with pytest.raises(FitError, match=r"drove T to -.* in epoch 1"):
        Descent(replace(SHORT, rate=100.0))(objective, np.zeros(1))


# --- augmentation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "padding", "cut"), [(32, 4, 4), (28, 3, 2), (8, 1, 2)])
def test_the_sizes_are_the_toolkit_s_at_32_pixels_and_in_proportion(side, padding, cut) -> None:
    images = np.ones((2, 3, side, side), np.float32)
    found = Augmentation.of(images, (0.4, 0.5, 0.6))
    assert (found.padding, found.cut, found.flip) == (padding, cut, 0.5)


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


def test_what_is_padded_is_black_and_what_is_cut_is_the_mean() -> None:
    images = np.random.default_rng(0).uniform(0.25, 1, (4, 2, 8, 8)).astype(np.float32)
    images[:, 1] += 1
    found = Augmentation.of(images, (0.5, 0.75))
    np.testing.assert_array_equal(found.black, images.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(found.blank, np.float32([0.5, 0.75]))


# --- hostile options -------------------------------------------------------------------------------


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


def test_the_toolkit_s_crops_are_of_images(drawn) -> None:
    flat = from_module(nn.Linear(128, 4).eval(), input_shape=(128,), device="cpu")
    with pytest.raises(InputError, match="crops and flips are of images"):
        fit_neural_clamping_toolkit(flat, drawn[0].reshape(60, 128), drawn[1], normalisation=(0, 1))


# --- the efficient form's grid ---------------------------------------------------------------------


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


def test_a_grid_without_its_search_or_of_nonsense_is_refused(classifier, drawn) -> None:
    with pytest.raises(InputError, match="a grid is for the search by ECE"):
        fit_neural_clamping_efficient(classifier, *drawn, search="nll", grid="fine")
    with pytest.raises(InputError, match="search must be"):
        fit_neural_clamping_efficient(classifier, *drawn, search="oracle")
    with pytest.raises(InputError, match="grid must be temperatures or one of"):
        fit_neural_clamping_efficient(classifier, *drawn, grid="finest")
    with pytest.raises(InputError, match="two or more different temperatures"):
        fit_neural_clamping_efficient(classifier, *drawn, grid=[-1.0, 2.0])

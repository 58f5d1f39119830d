"""``schedule`` and ``grid`` of Neural Clamping, as a user of the library and of the command gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve import Artifact, calibrate_model
from calib_serve.errors import InputError
from calib_serve.fit.clamping import (
    fit_neural_clamping_paper,
    fit_neural_clamping_toolkit,
)
from calib_serve.model import from_module

SHAPE = (1, 4, 4)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.random((40, *SHAPE), dtype=np.float32)
    y = from_module(network(), input_shape=SHAPE, device="cpu").logits(x).argmax(axis=1)
    return x, np.where(rng.random(40) < 0.3, rng.integers(0, 3, 40), y)


def fitted(images, **options) -> Artifact:
    return calibrate_model(network(), *images, "neural-clamping", device="cpu", **options)


def test_the_paper_s_schedule_is_its_fit(images) -> None:
    wanted = fit_neural_clamping_paper(from_module(network(), input_shape=SHAPE, device="cpu"), *images)
    found = fitted(images, schedule="paper")
    assert found.fingerprint == wanted.fingerprint
    assert found.fit["gamma"] == 1.0


def test_the_toolkit_s_schedule_needs_to_know_the_normalisation(images) -> None:
    place = ([0.5], [0.25])
    wanted = fit_neural_clamping_toolkit(
        from_module(network(), input_shape=SHAPE, device="cpu"), *images, normalisation=place
    )
    assert fitted(images, schedule="toolkit", normalisation=place).fingerprint == wanted.fingerprint
    with pytest.raises(InputError, match="puts delta behind the normalisation: give the normalisation"):
        fitted(images, schedule="toolkit")
    pictures = {"mean": (0.5,), "std": (0.25,)}
    known = fitted(images, schedule="toolkit", pictures=pictures)
    plain = fitted(images, schedule="toolkit", normalisation=(0.0, 1.0))
    np.testing.assert_array_equal(known.input_shift.delta, plain.input_shift.delta)

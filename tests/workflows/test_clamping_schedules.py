"""``schedule`` and ``grid`` of Neural Clamping, as a user of the library and of the command gives them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from calib_serve import Artifact, calibrate_model
from calib_serve.cli import app
from calib_serve.errors import InputError
from calib_serve.fit.clamping import (
    fit_neural_clamping_efficient,
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


@pytest.mark.parametrize(
    ("schedule", "option"),
    [
        ("paper", {"resolution": 2}),
        ("toolkit", {"input_range": (0.0, 1.0)}),
    ],
)
def test_an_option_that_a_schedule_does_not_take_is_refused(images, schedule, option) -> None:
    (name,) = option
    with pytest.raises(InputError, match=f"schedule '{schedule}' has no option {name}; it has gamma"):
        fitted(images, schedule=schedule, **option)
    with pytest.raises(InputError, match="chooses no gamma"):
        fitted(images, schedule="toolkit", normalisation=(0.0, 1.0), gamma="paper")


def test_the_command_takes_a_schedule_and_a_grid(images, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", inputs=images[0], labels=images[1])
    torch.save(network().state_dict(), tmp_path / "weights.pt")
    on = ["fit", "--model", f"{__file__}:network", "--weights", str(tmp_path / "weights.pt")]
    on += ["--data", str(tmp_path / "data.npz"), "--device", "cpu", "--json"]

    def told(name: str, *options: str) -> dict:
        done = CliRunner().invoke(app, [*on, "--out", str(tmp_path / name), *options])
        assert done.exit_code == 0, (done.output, done.exception)
        assert json.loads(done.stdout)["artifact"].endswith(name)
        return dict(Artifact.load(tmp_path / name).fit)

    paper = told("paper", "--method", "neural-clamping", "--schedule", "paper")
    assert (paper["schedule"]["rate"], paper["gamma"], paper["solver"]) == (0.001, 1.0, "Descent")
    toolkit = ["--schedule", "toolkit", "--normalisation", "0.5,0.25", "--gamma", "0.5", "--penalty", "0.1"]
    fit = told("toolkit", "--method", "neural-clamping", *toolkit)
    assert (fit["schedule"]["momentum"], fit["gamma"], fit["lambda"]) == (0.9, 0.5, 0.1)
    coarse = told("coarse", "--method", "neural-clamping-efficient", "--grid", "coarse")
    classifier = from_module(network(), input_shape=SHAPE, device="cpu")
    wanted = fit_neural_clamping_efficient(classifier, *images, grid="coarse").fit
    assert coarse["grid"] == wanted["grid"] == {"values": 100, "low": 0.1, "high": 10.0}
    assert coarse["temperature"] == wanted["temperature"]
    refused = CliRunner().invoke(
        app, [*on, "--out", str(tmp_path / "no"), "--method", "neural-clamping", "--grid", "fine"]
    )
    assert isinstance(refused.exception, InputError)
    assert "has no option grid" in str(refused.exception)

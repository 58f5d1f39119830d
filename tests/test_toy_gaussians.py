"""The toy experiment of Lin 2025: its true probabilities, errors and choices are what the formulas say."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("toy_gaussians")


def test_the_posterior_of_two_gaussians_is_a_sigmoid(toy) -> None:
    means = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[0.0, 3.0], [0.5, -2.0], [-2.0, 0.0]], dtype=torch.float64)
    # log N(x; 1) - log N(x; -1) = 2 x, whatever the other coordinate.
    expected = [1 / (1 + math.exp(-2 * first)) for first in (0.0, 0.5, -2.0)]
    assert toy.posterior(x, means)[:, 0].tolist() == pytest.approx(expected)
    assert toy.posterior(x, means).sum(1).tolist() == pytest.approx([1, 1, 1])


def test_the_error_is_read_of_all_classes_and_of_the_predicted_one(toy) -> None:
    p = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    truth = torch.tensor([[0.3, 0.4, 0.3]], dtype=torch.float64)
    found = toy.errors(p, truth)
    assert found["all classes"].item() == pytest.approx(math.sqrt(0.18))
    assert found["predicted class"].item() == pytest.approx(0.3)


def test_a_network_learns_the_gaussians_nearly_as_well_as_can_be(toy) -> None:
    found = toy.run(0, each=500, epochs=5)
    assert found["accuracy"] > found["best possible accuracy"] - 0.05
    assert set(found["correlation"]) == {"all classes", "predicted class"}
    assert all(-1 <= r <= 1 for each in found["correlation"].values() for r in each.values())

"""What is measured of trained networks, each against a plain computation of the same."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve.fit import losses

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("loss_measures")


def test_gradient_norms_are_those_of_the_last_layer_for_each_sample_alone(measures) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y = torch.randn(40, 5), torch.randint(3, (40,))
    loss = partial(losses.focal, gamma=3.0)
    norms = []
    for i in range(40):
        network.zero_grad()
        loss(network(x[i : i + 1]), y[i : i + 1]).backward()
        norms.append(
            float((network[-1].weight.grad.square().sum() + network[-1].bias.grad.square().sum()).sqrt())
        )
    found = measures.gradients(network, loss, x, y)
    assert found["quantiles"] == pytest.approx(np.quantile(norms, (0.05, 0.25, 0.5, 0.75, 0.95)), rel=1e-4)
    assert -1 <= found["rank correlation"] <= 1


def test_the_histogram_gives_a_bin_its_share_of_right_predictions(measures) -> None:
    # Two confidences, .9 and .6. On cal: right 3 of 4, and 1 of 4; on test: right 2 of 4, and 1 of 4.
    z = np.log([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 4)
    cal = np.array([0, 0, 0, 1, 0, 1, 1, 1])
    test = np.array([0, 0, 1, 1, 0, 1, 1, 1])
    assert measures.after_histogram((z, cal), (z, test)) == pytest.approx(0.25 / 2)
    assert measures.after_histogram((z, cal), (z, cal)) == pytest.approx(0, abs=1e-9)


def test_nothing_of_the_test_set_is_fitted_but_the_optimum(measures) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=600)
    z = 3 * (np.eye(4)[y] + 0.8 * rng.standard_normal((600, 4)))
    cal, test = (z[:300], y[:300]), (z[300:], y[300:])
    found = measures.of_network(cal, test)
    shuffled = measures.of_network(cal, (test[0], rng.permutation(test[1])))
    for fitted in ("T", "pool T", "ECE on cal"):
        assert shuffled[fitted] == found[fitted]
    assert found["optimal ECE"] <= min(found["ECE"], found["ECE after pool TS"]) + 1e-5
    assert shuffled["ECE"] > found["ECE"]

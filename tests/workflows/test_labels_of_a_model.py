"""A multi-label network is calibrated label by label, and what is not of labels is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calib_serve import calibrate_model
from calib_serve.core.errors import ModelError, ShapeError
from calib_serve.scores import sigmoid

LABELS = 3


def network(*, ends: bool) -> nn.Module:
    """Log-odds three times too large, with a Sigmoid behind them if it ``ends`` in one."""
    layer = nn.Linear(4, LABELS)
    with torch.no_grad():
        layer.weight.copy_(3 * torch.tensor(np.random.default_rng(0).normal(size=(LABELS, 4))))
        layer.bias.zero_()
    return (nn.Sequential(layer, nn.Sigmoid()) if ends else layer).eval()


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1500, 4)).astype("f4")
    with torch.no_grad():
        odds = network(ends=False)(torch.from_numpy(x)).numpy() / 3
    return x, (rng.random(odds.shape) < sigmoid(odds)).astype(int)


@pytest.mark.parametrize("ends", [False, True])
def test_each_label_of_a_network_is_calibrated(ends: bool, data: tuple[np.ndarray, np.ndarray]) -> None:
    outputs = "label_probabilities" if ends else "label_logits"
    held = data[0][:300], data[1][:300]
    artifact = calibrate_model(network(ends=ends), *data, "platt", outputs=outputs, test=held)
    assert artifact.model.outputs == outputs
    assert artifact.model.input_shape == (4,)
    np.testing.assert_allclose(artifact.logit_maps[0].weight, 1 / 3, atol=0.08)
    assert artifact.metrics_after["ece"] < artifact.metrics_before["ece"]


def test_what_is_not_of_labels_is_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = data
    with pytest.raises(ModelError, match="--outputs label_probabilities"):
        calibrate_model(network(ends=True), x, y)
    with pytest.raises(ShapeError, match="3 labels, the data 2"):
        calibrate_model(network(ends=False), x, y[:, :2], outputs="label_logits")
    with pytest.raises(ModelError, match="beyond"):
        calibrate_model(network(ends=False), x, y, outputs="label_probabilities")


def test_what_is_not_to_be_measured_is_not(data: tuple[np.ndarray, np.ndarray]) -> None:
    plain = calibrate_model(network(ends=False), *data, "platt", outputs="label_logits", cross_validate=False)
    assert not plain.after

"""A fit that is killed computes no features of the model twice."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from injection import Fault, under
from sizes import sized
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.models import from_module
from calib_serve.models.cached_classifier import CachedClassifier
from calib_serve.models.torch_classifier import TorchClassifier

pytestmark = pytest.mark.server

SHAPE, ROWS = (2, 4, 4), 200
RNG = np.random.default_rng(1)
INPUTS = RNG.random((ROWS, *SHAPE), dtype=np.float32)


def classifier(batch_size: int = 256) -> TorchClassifier:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        net[3].weight *= 20
    return from_module(net, input_shape=SHAPE, device="cpu", batch_size=batch_size)


def cache(folder: Path) -> None:
    CachedClassifier(classifier(batch_size=1), folder).features(INPUTS)


@pytest.mark.parametrize("at", sized([8], list(range(2, 12))))
def test_features_are_computed_once_and_a_killed_run_goes_on(at: int, tmp_path: Path) -> None:
    assert under(Fault(kill_before=at), cache, tmp_path).signal == signal.SIGKILL
    plain, steps = classifier(batch_size=1), []
    cached = CachedClassifier(plain, tmp_path)
    features = cached.features(INPUTS, progress=lambda done, of: steps.append(done))
    assert (steps[0] > 32) == (at > 7)  # then the first rows were there
    assert isinstance(features, np.memmap)
    np.testing.assert_array_equal(features, plain.features(INPUTS))
    steps.clear()
    cached.features(INPUTS, progress=lambda done, of: steps.append(done))
    assert steps == []  # all is there: nothing runs
    shifted = cached.features(INPUTS, shift=InputShift(np.ones(SHAPE)))
    assert not np.array_equal(shifted, features)  # another shift is another file

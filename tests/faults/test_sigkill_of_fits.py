"""A fit that is killed goes on from its last checkpoint, and ends with the same numbers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from injection import Fault, under
from sizes import sized
from torch import nn

from calib_serve.artifact import Artifact, InputShift
from calib_serve.fit.clamping.fit import fit_neural_clamping
from calib_serve.fit.masked import Masking, fit_masked_head
from calib_serve.models import from_module
from calib_serve.models.cached_classifier import CachedClassifier
from calib_serve.models.torch_classifier import TorchClassifier
from calib_serve.scores import softmax

pytestmark = pytest.mark.server

SHAPE, ROWS = (2, 4, 4), 200
RNG = np.random.default_rng(1)
INPUTS, LABELS = RNG.random((ROWS, *SHAPE), dtype=np.float32), np.arange(ROWS) % 4


def classifier(batch_size: int = 256) -> TorchClassifier:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        net[3].weight *= 20
    return from_module(net, input_shape=SHAPE, device="cpu", batch_size=batch_size)


def clamp(folder: Path | None) -> Artifact:
    model, rng = classifier(), np.random.default_rng(2)
    # Labels that a temperature of 2 would explain.
    labels = np.array([rng.choice(4, p=p) for p in softmax(model.logits(INPUTS) / 2)])
    return fit_neural_clamping(model, INPUTS, labels, penalty=1e-3, resolution=2, checkpoints=folder)


def mask(folder: Path | None) -> Artifact:
    torch.set_num_threads(1)
    features = INPUTS.reshape(ROWS, -1)
    how = Masking(epochs=5, batch=32, hidden=8)
    return fit_masked_head(
        features[:100], LABELS[:100], features[100:], LABELS[100:], masking=how, checkpoints=folder
    )


def save_fit(fit: Any, folder: Path, out: Path) -> None:
    fit(folder).save(out)


@pytest.mark.parametrize("fit", [clamp, mask])
@pytest.mark.parametrize("at", sized([6], list(range(2, 15))))
def test_a_killed_fit_goes_on_and_ends_the_same(fit: Any, at: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    killed = under(Fault(kill_before=at), save_fit, fit, kept, tmp_path / "killed")
    assert killed.signal == signal.SIGKILL
    before = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    assert under(Fault(), save_fit, fit, kept, tmp_path / "resumed").well
    after = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    assert under(Fault(), save_fit, fit, tmp_path / "other", tmp_path / "whole").well
    resumed, whole = (Artifact.load(tmp_path / name) for name in ("resumed", "whole"))
    assert resumed.fingerprint == whole.fingerprint
    if fit is clamp:  # the masked head keeps one checkpoint and writes it anew
        assert before.items() <= after.items()  # nothing that was known was computed again
    assert before or at < 5


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

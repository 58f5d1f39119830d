"""There is one logarithm of a probability: what is fitted on a file is fitted on what the model serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve.fit.output import fit_temperature
from calib_serve.metrics import softmax
from calib_serve.model.face import finite_logits
from calib_serve.scores import Scores


@pytest.fixture
def sure() -> tuple[np.ndarray, np.ndarray]:
    """Float32 probabilities of an overconfident model, many exactly 0, and class ids."""
    rng = np.random.default_rng(0)
    z = 20 * rng.standard_normal((400, 5))
    probs = softmax(5 * z).astype(np.float32)
    assert (probs == 0).sum() > 100
    return probs, np.where(rng.random(400) < 0.6, z.argmax(1), rng.integers(0, 5, 400))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_of_probabilities_gives_the_temperature_that_the_model_gives(
    dtype: type, sure: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    probs, labels = sure
    served = fit_temperature(finite_logits(probs, "probabilities", "the test"), labels)
    np.savez(tmp_path / "p.npz", probs=probs.astype(dtype), labels=labels)
    found = Scores.read(tmp_path / "p.npz")
    fitted = fit_temperature(found.logits, labels)
    assert fitted.fit["temperature"] == pytest.approx(served.fit["temperature"], rel=1e-5)

"""What every fit writes down about its calibration set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve.artifact import Artifact
from calib_serve.fit.output.candidates import fit_by_name


@pytest.mark.parametrize("method", ["none", "temperature", "vector", "isotonic"])
def test_a_fit_counts_how_often_each_class_is_predicted(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((900, 5)) + [1, 0, 0, 0, -9]  # the last class is never predicted
    y = np.where(rng.random(900) < 0.7, z.argmax(1), rng.integers(0, 5, 900))
    artifact = fit_by_name(method, z, y)
    expected = np.bincount(artifact.probs(z).argmax(axis=1), minlength=5)
    assert list(artifact.reference_classes) == expected.tolist()
    assert artifact.reference is not None
    assert sum(artifact.reference_classes) == artifact.reference.n == 900
    loaded = Artifact.load(artifact.save(tmp_path / "artifact"))
    assert loaded.reference_classes == artifact.reference_classes
    assert loaded.fingerprint == artifact.fingerprint

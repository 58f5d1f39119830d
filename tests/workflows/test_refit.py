"""A refit in Python: judged on the latest samples, which neither calibration was fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import Artifact, Head, LogitMap, calibrate, refit
from calib_serve.errors import FitError, InputError


def drifted(n: int, sure: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    return sure * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def test_a_calibration_that_drifted_is_replaced_and_the_head_stays() -> None:
    head = Head((np.eye(3),), (np.zeros(3),))
    old = Artifact((head, LogitMap.temperature(1.0)), method="temperature", classes=3)
    found = refit(old, *drifted(1000, 4.0), method="temperature")
    assert found.artifact is not None
    assert isinstance(found.artifact.steps[0], Head)
    assert found.artifact.fit["temperature"] == pytest.approx(4, rel=0.2)
    assert (found.samples, found.held_out) == (1000, 300)
    assert found.nll[1] < found.nll[0]
    assert found.gain > found.error
    assert "better: temperature" in found.says()


def test_a_calibration_that_still_fits_stays() -> None:
    z, y = drifted(1000, 4.0)
    found = refit(calibrate(z, y, "temperature"), z, y, method="temperature")
    assert found.artifact is None
    assert "the current one stays" in found.says()
    assert not found.as_dict()["kept"]


def test_too_few_samples_and_other_classes_are_refused() -> None:
    old = Artifact((LogitMap.temperature(1.0),), method="temperature", classes=3)
    with pytest.raises(FitError, match="at least 200"):
        refit(old, *drifted(50, 4.0))
    with pytest.raises(InputError, match="the samples have 3 classes, the artifact 4"):
        refit(Artifact((), method="none", classes=4), *drifted(300, 4.0))

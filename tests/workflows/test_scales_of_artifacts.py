"""A calibration of scores on a scale takes others of that scale, and no others in silence."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import calibrate
from calib_serve.core.errors import InputError
from calib_serve.metrics import sigmoid

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.standard_normal(400)
PERCENT = 100 * sigmoid(LOGITS)
LABELS = (RNG.random(400) < sigmoid(LOGITS / 2)).astype(int)


def test_the_test_samples_are_of_the_scale_of_the_fitted_ones() -> None:
    half, rest = slice(200), slice(200, None)
    artifact = calibrate(
        PERCENT[half], LABELS[half], "platt", outputs="percent", test=(PERCENT[rest], LABELS[rest])
    )
    plain = calibrate(
        PERCENT[half] / 100,
        LABELS[half],
        "platt",
        outputs="probability",
        test=(PERCENT[rest] / 100, LABELS[rest]),
    )
    assert artifact.metrics_after["nll"].value == pytest.approx(plain.metrics_after["nll"].value)


def test_fractions_are_no_percents_of_an_artifact() -> None:
    artifact = calibrate(PERCENT, LABELS, "platt", outputs="percent")
    assert artifact.probs(PERCENT).shape == (400, 2)
    with pytest.raises(InputError, match="percent"):
        artifact.probs(PERCENT / 100)

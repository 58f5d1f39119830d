"""The threshold of abstention: what it is of, and what is said where there is none."""

from __future__ import annotations

import re

import numpy as np
import pytest

from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.decisions import fit_abstain
from calib_serve.metrics import abstention


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.5, 1, n)
    return np.stack([c, 1 - c], axis=1), (rng.random(n) >= c).astype(int)


def test_it_is_the_threshold_of_the_metric() -> None:
    p, y = draw(3000, 0)
    found = fit_abstain(p, y, risk=0.1, level=0.9)
    assert found.threshold == abstention(p, y, risk=0.1, level=0.9).threshold
    assert (found.risk, found.level) == (0.1, 0.9)
    assert (~found(p)).mean() == abstention(p, y, risk=0.1, level=0.9).answered


def test_a_risk_that_cannot_be_kept_is_an_error_that_names_one_that_can() -> None:
    p, y = draw(3000, 1)
    with pytest.raises(FitError, match=r"at 0.001 .* 3000 samples, of which at least 2995 ") as told:
        fit_abstain(p, y, risk=0.001)
    (can,) = re.findall(r"on them ([\d.]+) can be promised", str(told.value))
    assert fit_abstain(p, y, risk=float(can)).threshold < 1
    assert float(can) < 0.1
    with pytest.raises(FitError, match=r"no risk up to 0\.9"):
        fit_abstain(p[:20], 1 - p[:20].argmax(axis=1), risk=0.1)


def test_what_cannot_be_is_refused() -> None:
    p, y = draw(50, 3)
    for wrong in (0.0, 1.0, 5, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            fit_abstain(p, y, risk=wrong)
    with pytest.raises(InputError, match="level"):
        fit_abstain(p, y, risk=0.1, level=95)

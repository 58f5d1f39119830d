"""Studies on scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib_serve import calibrate, judge
from calib_serve.core.errors import InputError
from calib_serve.metrics import ece
from calib_serve.papers import optimal_temperature, validation_size
from calib_serve.papers.studies import ece_by_temperature
from calib_serve.scores import softmax


def drawn(n: int, seed: int, *, temperature: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are calibrated after division by ``temperature``."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 5))
    labels = np.array([rng.choice(5, p=p) for p in softmax(z)])
    return temperature * z, labels


CAL, TEST = drawn(3000, 1), drawn(3000, 2)


def test_the_ece_at_each_temperature_is_that_of_the_scaled_softmax() -> None:
    grid = [0.5, 1.0, 2.5, 7.0]
    expected = [ece(softmax(TEST[0] / t), TEST[1]) for t in grid]
    np.testing.assert_allclose(ece_by_temperature(*TEST, grid), expected, atol=1e-12)


def test_the_optimum_is_found_and_nothing_fitted_beats_it() -> None:
    study = optimal_temperature(CAL, TEST)
    found = {row[0]: row for row in study.rows}
    assert found["best for test"][1] == pytest.approx(2.5, rel=0.15)
    assert found["best for test"][2] == min(row[2] for row in study.rows)
    assert found["none"][2] == pytest.approx(ece(softmax(TEST[0]), TEST[1]))
    assert min(study.curves[0].y) == pytest.approx(found["best for test"][2], abs=0.01)


@pytest.mark.parametrize("sizes", [(50, None), (0,), (2.5,)])
def test_sizes_that_are_no_numbers_of_samples_are_refused(sizes: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="whole numbers of samples"):
        validation_size(CAL, TEST, sizes=sizes)


def test_the_size_study_asks_for_as_many_test_samples_as_the_verdict() -> None:
    rng = np.random.default_rng(8)
    z = 2 * rng.standard_normal((1500, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    cal, test = (3 * z[:700], y[:700]), (3 * z[700:], y[700:])
    *_, told = validation_size(cal, test, sizes=(100,), repeats=2).says
    fitted = calibrate(*cal, "temperature", cross_validate=False, outputs="logits")
    found = judge(fitted.probs(test[0]), test[1], outputs="probabilities")
    assert found.level == "no_error_found"
    assert told == f"temperature, tested: {found.headline} {found.do[0]}"
    assert "samples would prove" in told

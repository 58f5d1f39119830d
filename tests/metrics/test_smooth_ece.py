"""Smooth ECE and the smooth curve against brute-force sums of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve import metrics


def binary(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two-class probabilities whose top class has these confidences (above one half)."""
    return np.stack([confidence, 1 - confidence], axis=1), np.where(correct, 0, 1)


def brute_force(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Sum over mirror images of a Gaussian about every sample, integrate |.|, bisect for sigma."""
    t = np.linspace(0, 1, 3001)[:, None]
    images = np.concatenate([2 * k + sign * confidence for k in range(-4, 5) for sign in (1, -1)])
    residuals = np.tile((confidence - correct) / len(confidence), 18)

    def error(sigma: float) -> float:
        near = np.abs(images) < 1 + 8 * sigma  # farther ones add less than 1e-13
        kernel = np.exp(-(((t - images[near]) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        density = np.abs(kernel @ residuals[near])
        return float((density[1:] + density[:-1]).sum() / 2 / (len(t) - 1))

    low, high = 1e-3, 1.0
    for _ in range(22):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


@given(st.lists(st.tuples(st.floats(0.5, 1), st.booleans()), min_size=1, max_size=12))
@settings(deadline=None, max_examples=15)
def test_equals_the_definition_integrated_by_brute_force(pairs: list[tuple[float, bool]]) -> None:
    confidence = np.array([c for c, _ in pairs])
    correct = np.array([y for _, y in pairs])
    expected = brute_force(confidence, correct)
    found = metrics.smooth_ece(*binary(confidence, correct))
    # Below 1/1024 the grid answers with the error at its narrowest kernel instead.
    assert found == pytest.approx(expected, abs=2e-3 if expected < 2e-3 else 2e-5)


def test_the_curve_is_a_kernel_regression_with_mirror_images() -> None:
    rng = np.random.default_rng(0)
    confidence = np.concatenate([rng.uniform(0.5, 1, 400), np.ones(50)])
    correct = rng.random(450) < confidence**2
    curve = metrics.smooth_reliability(*binary(confidence, correct), replicates=0)
    assert curve.sigma == curve.ece == metrics.smooth_ece(*binary(confidence, correct))
    images = np.concatenate([confidence, -confidence, 2 - confidence])
    kernel = np.exp(-(((curve.confidence[:, None] - images) / curve.sigma) ** 2) / 2)
    shown = kernel.sum(axis=1) >= 0.1
    expected = kernel @ np.tile(correct, 3) / np.where(shown, kernel.sum(axis=1), 1)
    # Samples lie between the grid's nodes, so that few and far ones weigh a little less exactly.
    np.testing.assert_allclose(curve.accuracy[shown], expected[shown], atol=2e-4)
    assert np.isnan(curve.accuracy[kernel.sum(axis=1) < 0.09]).all()
    density = kernel.sum(axis=1) / (len(confidence) * curve.sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(curve.density, density, atol=1e-3)
    assert np.isnan(curve.low).all()
    assert np.isnan(curve.high).all()

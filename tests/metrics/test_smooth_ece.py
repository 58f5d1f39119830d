"""Smooth ECE against a brute-force integral of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve import metrics
from calib_serve.metrics.smooth import NODES, smoothed


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


def test_mass_at_the_boundary_is_not_inflated() -> None:
    # 70 % of the confidences at 1: leaving the boundary out of the reflection gives .137 for such data.
    rng = np.random.default_rng(2)
    confidence = np.where(rng.random(100) < 0.7, 1.0, rng.uniform(0.5, 1, 100))
    correct = rng.random(100) < 0.9 * confidence
    expected = brute_force(confidence, correct)
    assert metrics.smooth_ece(*binary(confidence, correct)) == pytest.approx(expected, abs=2e-5)


def test_a_gap_of_one_sign_is_the_mean_gap_and_no_gap_is_nothing() -> None:
    confidence = np.linspace(0.6, 1, 50)
    assert metrics.smooth_ece(*binary(confidence, np.zeros(50, bool))) == pytest.approx(confidence.mean())
    assert metrics.smooth_ece(*binary(np.ones(50), np.ones(50, bool))) == 0


def test_replicates_are_smoothed_as_each_by_itself() -> None:
    rng = np.random.default_rng(0)
    mass = rng.standard_normal((70, NODES + 1)) * rng.exponential(size=(70, 1)) / NODES
    mass[3] = 0
    alone = np.concatenate([smoothed(row[None]) for row in mass])
    assert smoothed(mass) == pytest.approx(alone, abs=2e-9)

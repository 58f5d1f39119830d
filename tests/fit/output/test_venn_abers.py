"""Venn-Abers predictors: equal to two isotonic fits for every score, and right on average."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import sized
from sklearn.isotonic import IsotonicRegression

from calib_serve.artifact import ProbTable
from calib_serve.fit import VennAbers, fit_venn_abers
from calib_serve.fit.output.venn_abers import merged
from calib_serve.fit.samples import Samples
from calib_serve.scores import softmax


def brute_force(p: np.ndarray, y: np.ndarray, w: np.ndarray, score: float) -> list[float]:
    """The isotonic fit with the score added, under label 0 and under label 1."""
    return [
        IsotonicRegression()
        .fit(np.append(p, score), np.append(y, label), sample_weight=np.append(w, 1.0))
        .predict([score])[0]
        for label in (0.0, 1.0)
    ]


def two(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("ties", [2, 8, 0])
@pytest.mark.parametrize("n", [1, 3, 25])
def test_intervals_are_those_of_two_isotonic_fits(n: int, ties: int) -> None:
    rng = np.random.default_rng([n, ties])
    for _ in range(sized(ci=2, nightly=50)):
        p = rng.random(n)
        p = np.round(p * ties) / ties if ties else p
        y = (rng.random(n) < rng.choice([0.1, 0.5, 0.9]) * p).astype(int)
        between = np.unique(np.concatenate([p, (p[1:] + p[:-1]) / 2, [0.0, 1.0], rng.random(3)]))
        expected = np.array([brute_force(p, y, np.ones(n), s) for s in between])
        found = VennAbers.of(two(p), y)
        np.testing.assert_allclose(found.intervals(two(between))[:, 1], expected, atol=1e-12)
        # Of the other class the interval is the mirrored one.
        np.testing.assert_allclose(found.intervals(two(between))[:, 0], 1 - expected[:, ::-1], atol=1e-9)


def test_weights_are_those_of_the_isotonic_fit_and_zero_is_no_sample() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random(30).round(1), rng.integers(0, 2, 30)
    w = rng.choice([0.0, 0.5, 1.5], 30)
    scaled = w * np.count_nonzero(w) / w.sum()
    kept = w > 0
    expected = [brute_force(p[kept], y[kept], scaled[kept], s) for s in p]
    found = VennAbers.of(two(p), y, sample_weight=w).intervals(two(p))[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_table_holds_the_merged_probability_of_any_score(classes: int) -> None:
    rng = np.random.default_rng(classes)
    z = 2 * rng.standard_normal((300, classes))
    z = np.round(z) if classes == 3 else z
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    artifact = fit_venn_abers(Samples.of(z, y))
    assert artifact.method == "venn-abers"
    assert isinstance(artifact.table, ProbTable)
    found = VennAbers.of(softmax(z), y)
    other = np.concatenate([z, 3 * rng.standard_normal((500, classes)), 60 * np.eye(classes)])
    apart = np.abs(softmax(other)[:, None] - softmax(z)).min(axis=1) > 2e-5  # else it counts as tied
    apart[: len(z)] = True
    other = other[apart.all(axis=1)]
    np.testing.assert_allclose(artifact.probs(other), found.probs(softmax(other)), atol=1e-12)
    intervals = found.intervals(softmax(other))
    assert (intervals[..., 0] <= intervals[..., 1]).all()
    if classes == 2:
        np.testing.assert_allclose(merged(intervals).sum(axis=1), 1, atol=1e-9)

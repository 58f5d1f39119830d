"""Two models on the same samples: what changes, what moves class, and whether it is chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from calib_serve import metrics
from calib_serve.metrics.comparison import Moved
from calib_serve.scores import softmax


@pytest.fixture(scope="module")
def sharpened() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibrated probabilities, the same overconfident, and labels."""
    rng = np.random.default_rng(4)
    z = 2 * rng.standard_normal((1500, 4))
    p = metrics.softmax(z)
    labels = (p.cumsum(axis=1) < rng.random((1500, 1))).sum(axis=1)
    return p, metrics.softmax(2.5 * z), labels


def test_the_difference_is_that_of_the_two_evaluations(sharpened) -> None:
    calibrated, overconfident, labels = sharpened
    found = metrics.paired_changes(overconfident, calibrated, labels, replicates=0)
    before = metrics.evaluate(overconfident, labels, replicates=0).estimates()
    after = metrics.evaluate(calibrated, labels, replicates=0).estimates()
    assert set(found) < set(before)
    assert set(found) >= {"accuracy", "nll", "ece", "adaptive_ece", "smooth_ece", "noise_floor", "aurc"}
    for name, change in found.items():
        expected = after[name].value - before[name].value
        assert change.difference.value == pytest.approx(expected, abs=1e-12), name


def drawn(seed: int, n: int = 500, noise: float = 0.8) -> tuple[Any, Any, Any]:
    """Worse probabilities, better ones, and class ids."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(n, 3))
    p = softmax(z)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return softmax(z + noise * rng.normal(size=z.shape)), p, y


def test_shares_and_areas_are_those_of_numpy_and_scikit_learn() -> None:
    worse, better, y = drawn(0)
    found = Moved.of_probs(worse, better, y)
    assert found.share == (worse.argmax(axis=1) != better.argmax(axis=1)).mean()
    for side, p in enumerate((worse, better)):
        right = p.argmax(axis=1) == y
        assert found.accuracy[side] == pytest.approx(right.mean())
        assert found.auroc[side] == pytest.approx(roc_auc_score(right, p.max(axis=1)))


def test_the_test_of_the_auroc_is_as_sure_as_repetition_shows() -> None:
    runs = [Moved.of_probs(*drawn(seed)).auroc for seed in range(300)]
    differences = np.array([after - before for before, after, _ in runs])
    half = np.array([(c.difference.high - c.difference.low) / 2 for *_, c in runs])
    assert half.mean() / stats.norm.ppf(0.975) == pytest.approx(differences.std(), rel=0.12)
    # Two models alike but for noise of the same size do not differ: one in twenty is found to.
    alike = []
    for seed in range(300):
        rng = np.random.default_rng([seed, 1])
        _, p, y = drawn(seed)
        first, second = (softmax(np.log(p) + 0.5 * rng.normal(size=p.shape)) for _ in range(2))
        alike.append(Moved.of_probs(first, second, y).auroc[2].p < 0.05)
    assert np.mean(alike) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_whole_weights_are_as_many_rows_and_groups_widen() -> None:
    worse, better, y = drawn(1)
    w = np.random.default_rng(0).integers(0, 4, len(y))
    weighed = Moved.of_probs(worse, better, y, sample_weight=w)
    rows = Moved.of_probs(*(np.repeat(one, w, axis=0) for one in (worse, better, y)))
    assert weighed.share == pytest.approx(rows.share)
    assert weighed.accuracy[:2] == pytest.approx(rows.accuracy[:2])
    assert weighed.auroc[:2] == pytest.approx(rows.auroc[:2])
    five = [np.repeat(one, 5, axis=0) for one in (worse, better, y)]
    alone, together = Moved.of_probs(*five), Moved.of_probs(*five, groups=np.repeat(np.arange(len(y)), 5))
    assert together.auroc[2].p > alone.auroc[2].p
    assert together.auroc[2].p == pytest.approx(Moved.of_probs(worse, better, y).auroc[2].p, rel=0.05)


def test_what_moves_nothing_says_so() -> None:
    _, p, y = drawn(2)
    same = Moved.of_probs(p, p, y)
    assert (same.share, same.accuracy[2].p, same.auroc[2].p) == (0, 1, 1)
    first, second = (line.replace("\N{NO-BREAK SPACE}", " ") for line in same.says())
    assert first == f"No prediction changes class: accuracy {100 * same.accuracy[0]:.1f} %."
    assert second.startswith("AUROC of right against wrong stays at ")
    colder = softmax(2 * np.log(p))
    assert Moved.of_probs(p, colder, y).share == 0
    all_right = Moved.of_probs(p, colder, p.argmax(axis=1))
    assert len(all_right.says()) == 1  # an AUROC needs right ones and wrong ones
    assert all_right.as_dict()["auroc"]["before"] is None

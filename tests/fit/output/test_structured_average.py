"""The average of structured scaling: what it is made of, and that it follows no single noisy choice."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve.fit.output.averaged import Averaged, fit_structured_average
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.fit.solve.folds import folds_of
from calib_serve.metrics import nll


def draw(n: int = 600, k: int = 4, t: float = 2.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k))
    return t * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def skewed(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    z, y = draw(n, seed=seed)
    return z * np.array([0.4, 1.0, 1.5, 2.5]) + np.array([3.0, 0.0, -3.0, 0.0]), y


def test_a_fold_is_weighed_without_its_own_samples() -> None:
    samples = Samples.of(*draw(200))
    average = Averaged.of(samples, folds_of(samples, folds=5, seed=0))
    inside = average.fold == 2
    member = average.members[0]
    before = average.weights(without=2)
    member.losses[inside] += 10
    assert average.weights(without=2) == before
    assert average.weights()[member.name] < before[member.name]


@pytest.mark.parametrize("seed", range(3))
def test_on_new_samples_it_is_as_good_as_a_temperature_and_better_where_classes_differ(seed: int) -> None:
    for make, most in ((draw, 1.03), (skewed, 0.95)):
        logits, labels = make(400, seed=seed)
        new, truth = make(5000, seed=seed + 100)
        ours = nll(fit_structured_average(logits, labels).probs(new), truth)
        assert ours < most * nll(fit_by_name("temperature", logits, labels).probs(new), truth)

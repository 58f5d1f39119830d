"""Prediction sets keep their promise: against exact distributions, and the formulas written out again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib_serve.artifact import PredictionSets, SetScore
from calib_serve.core.errors import InputError
from calib_serve.fit.decisions import always_in, fit_sets, kept_for_options
from calib_serve.metrics import conformal_rank

SCORES: tuple[SetScore, ...] = ("lac", "aps", "raps")
OPTIONS = {"lac": None, "aps": None, "raps": {"penalty": 0.05, "free_ranks": 1}}


def draw(n: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A model that is wrong often, and overconfident: the promise is for any."""
    z = rng.standard_normal((n, classes))
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    p = np.exp(3 * z)
    return p / p.sum(axis=1, keepdims=True), labels


def held(sets: PredictionSets, p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return sets(p)[np.arange(len(y)), y]


@pytest.mark.parametrize(
    ("score", "classes"), [("lac", 2), *((score, classes) for score in SCORES for classes in (10, 100))]
)
def test_the_coverage_over_many_draws_has_its_exact_distribution(score: SetScore, classes: int) -> None:
    rng = np.random.default_rng(0)
    runs, n, m, coverage = 150, 119, 100, 0.9
    counts = np.empty(runs)
    for i in range(runs):
        p, y = draw(n + m, classes, rng)
        sets = fit_sets(p[:n], y[:n], coverage=coverage, score=score, options=OPTIONS[score])
        counts[i] = held(sets, p[n:], y[n:]).sum()
    k = conformal_rank(n, coverage)
    exact = stats.betabinom(m, k, n + 1 - k)
    assert abs(counts.mean() - exact.mean()) < 4 * exact.std() / runs**0.5
    assert 0.6 < counts.var() / exact.var() < 1.6
    low, high = exact.ppf([0.025, 0.975])
    assert np.mean((counts >= low) & (counts <= high)) > 0.88


@pytest.mark.parametrize("score", SCORES)
def test_the_threshold_is_the_formulas(score: SetScore) -> None:
    p, y = draw(300, 7, np.random.default_rng(1))
    found = fit_sets(p, y, coverage=0.93, score=score, options=OPTIONS[score])
    each = []
    for row, label in zip(p, y, strict=True):
        order = np.argsort(-row, kind="stable").tolist()
        rank = order.index(label) + 1
        mass = row[order[: rank - 1]].sum()
        late = 0.05 * max(rank - 1, 0)
        each.append({"lac": 1 - row[label], "aps": mass, "raps": mass + late}[score] if rank > 1 else 0.0)
    expected = sorted(each)[int(np.ceil(301 * 0.93)) - 1]
    assert float(found.threshold) == pytest.approx(expected, abs=2e-6)
    assert float(found.threshold) > expected


@pytest.mark.parametrize("score", SCORES)
def test_with_too_few_samples_every_class_is_in_every_set(score: SetScore) -> None:
    p, y = draw(8, 4, np.random.default_rng(3))
    sets = fit_sets(p, y, coverage=0.9, score=score, options=OPTIONS[score])
    assert always_in(sets, 4) == (0, 1, 2, 3)
    certain = np.eye(4)[[0, 1]]
    assert sets(certain).all()
    assert sets(certain.astype(np.float32)).all()
    assert always_in(fit_sets(*draw(9, 4, np.random.default_rng(3)), coverage=0.9), 4) == ()


def test_a_threshold_for_each_class_keeps_the_promise_to_every_class_and_one_for_all_does_not() -> None:
    rng = np.random.default_rng(5)
    runs, coverage = 60, 0.9
    together, each = np.zeros((runs, 3)), np.zeros((runs, 3))
    for i in range(runs):
        y = rng.choice(3, 1000, p=[0.6, 0.3, 0.1])
        z = rng.standard_normal((1000, 3)) + 2 * np.eye(3)[y] * np.array([1.5, 1.0, 0.2])[y][:, None]
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        for out, per_class in ((together, False), (each, True)):
            sets = fit_sets(p[:500], y[:500], coverage=coverage, per_class=per_class)
            hit = held(sets, p[500:], y[500:])
            out[i] = [hit[y[500:] == k].mean() for k in range(3)]
    assert (each.mean(axis=0) > coverage - 0.015).all()
    assert (each.mean(axis=0)[1:] < coverage + 0.04).all()
    assert together.mean(axis=0)[2] < coverage - 0.1


def test_the_options_of_raps_are_chosen_on_samples_that_the_threshold_is_not_of() -> None:
    p, y = draw(1000, 20, np.random.default_rng(7))
    found = fit_sets(p, y, coverage=0.9, score="raps", seed=3)
    kept = kept_for_options(1000, seed=3)
    options = {"penalty": found.penalty, "free_ranks": found.free_ranks}
    again = fit_sets(p[~kept], y[~kept], coverage=0.9, score="raps", options=options)
    assert float(again.threshold) == float(found.threshold)
    assert kept.sum() == 200
    # The rank that the class of 90 % of the samples kept is in, and a penalty that makes small sets.
    ranks = 1 + (p[kept] > p[kept][np.arange(200), y[kept]][:, None]).sum(axis=1)
    assert found.free_ranks == np.sort(ranks)[conformal_rank(200, 0.9) - 1]
    aps = fit_sets(p, y, coverage=0.9, score="aps")
    assert found(p).sum() < aps(p).sum()


def test_groups_weigh_the_same_whatever_their_size() -> None:
    # Large groups are easy: by samples, the threshold is theirs, and a new group's sample falls out.
    rng = np.random.default_rng(8)
    runs, coverage = 400, 0.8
    by_group, by_sample = np.empty(runs), np.empty(runs)
    for i in range(runs):
        size = np.where(rng.random(40) < 0.5, 1, 30)
        groups = np.repeat(np.arange(40), size)
        score = np.where(size == 1, rng.uniform(0.5, 1, 40), rng.uniform(0.5, 0.6, 40))[groups]
        p = np.stack([1 - score, score], axis=1)  # class 0 is the true one, and never the top one
        y = np.zeros(len(p), int)
        new = rng.uniform(0.5, 1) if rng.random() < 0.5 else rng.uniform(0.5, 0.6)
        for out, given in ((by_group, groups), (by_sample, None)):
            out[i] = fit_sets(p, y, coverage=coverage, groups=given)([[1 - new, new]])[0, 0]
    assert by_group.mean() > coverage - 4 * 0.02
    assert by_sample.mean() < 0.7


def test_what_cannot_be_is_refused() -> None:
    p, y = draw(50, 3, np.random.default_rng(10))
    for wrong in (0.0, 1.0, 90, float("nan"), -0.1):
        with pytest.raises(InputError, match="between 0 and 1"):
            fit_sets(p, y, coverage=wrong)
    with pytest.raises(InputError, match="belong to the score raps"):
        fit_sets(p, y, score="aps", options={"penalty": 0.1})
    with pytest.raises(InputError, match="take lac"):
        fit_sets(*draw(50, 2, np.random.default_rng(10)), score="aps")
    with pytest.raises(InputError, match="too few"):
        fit_sets(p[:4], y[:4], score="raps")

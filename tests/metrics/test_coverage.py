"""Intervals of errors hold a known truth; paired tests find no more changes than they may, and no fewer."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import sized

from calib_serve.metrics import evaluate, evaluate_labels, paired_changes
from calib_serve.metrics.calibration import cumulative
from calib_serve.metrics.refinement import Separation
from calib_serve.scores import softmax

RUNS = sized(ci=20, nightly=200)
RUNS_OF_FEW = sized(ci=60, nightly=300)
FEWEST = sized(ci=0.75, nightly=0.89)  # of 95 %: below it by chance less than one time in 1,000


def drawn(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    return np.minimum((probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1), probs.shape[1] - 1)


def classwise(probs: np.ndarray, truth: np.ndarray) -> float:
    """Classwise ECE of true probabilities, class by class."""
    gaps = [
        np.bincount(np.ceil(np.clip(p, 1e-9, 1) * 15).astype(int) - 1, weights=p - q, minlength=15)
        for p, q in zip(probs.T, truth.T, strict=True)
    ]
    return float(np.abs(gaps).sum() / probs.size)


def top_ece(probs: np.ndarray, truth: np.ndarray) -> float:
    rows, top = np.arange(len(probs)), probs.argmax(axis=1)
    confidence = probs[rows, top]
    code = np.minimum(np.ceil(confidence * 15).astype(int) - 1, 14)
    return float(np.abs(np.bincount(code, weights=confidence - truth[rows, top])).sum() / len(probs))


@pytest.mark.parametrize("sharpened", sized([1.5], [1.0, 1.5]))
def test_intervals_hold_the_truth_of_a_hundred_classes(sharpened: float) -> None:
    rng = np.random.default_rng(7)
    z = 4 * rng.standard_normal((20_000, 100))
    p, q = softmax(sharpened * z), softmax(z)
    truth = {"ece": top_ece(p, q), "classwise_ece": classwise(p, q), "underconfidence_error": 0.0}
    held, nearer = dict.fromkeys(truth, 0), 0
    for run in range(RUNS):
        rows = rng.choice(len(z), 500, replace=False)
        found = evaluate(p[rows], drawn(rng, q[rows]), replicates=200, seed=run).estimates()
        for name, true in truth.items():
            held[name] += found[name].low <= true <= found[name].high
        e = found["classwise_ece"]
        nearer += abs(e.debiased - truth["classwise_ece"]) < abs(e.value - truth["classwise_ece"])
    assert min(held.values()) >= FEWEST * RUNS, held
    assert nearer > 0.9 * RUNS


def test_intervals_hold_the_truth_of_an_error_that_lies_in_one_bin() -> None:
    rng = np.random.default_rng(11)
    held = {"ece": 0, "adaptive_ece": 0, "smooth_ece": 0}
    for run in range(RUNS):
        c = rng.uniform(0.3, 1, 4000)
        probs = np.repeat((1 - c)[:, None] / 9, 10, axis=1)
        probs[:, 0] = c
        right = rng.random(4000) < np.where(c > 14 / 15, 0.7, c)
        labels = np.where(right, 0, rng.integers(1, 10, 4000))
        found = evaluate(probs, labels, replicates=200, seed=run, outputs="probabilities")
        true = (1 / 15) / 0.7 * ((14 / 15 + 1) / 2 - 0.7)  # the last bin's share, times its gap
        for name, e in found.estimates().items():
            if name in held:
                held[name] += e.low <= true <= e.high
    assert min(held.values()) >= FEWEST * RUNS, held


def test_intervals_hold_the_truth_of_as_many_classes_as_labels() -> None:
    rng = np.random.default_rng(99)
    z = 5 * rng.standard_normal((4_000, 1000))
    p, q = softmax(z), softmax(z + 0.5 * rng.standard_normal(1000))  # off a little in every class
    truth, held, runs = classwise(p, q), 0, sized(ci=10, nightly=100)
    for run in range(runs):
        rows = rng.choice(len(z), 1000, replace=False)
        found = evaluate(p[rows], drawn(rng, q[rows]), replicates=100, seed=run).classwise_ece
        held += found.low <= truth <= found.high
    assert held >= FEWEST * runs, held


def test_intervals_hold_the_truth_of_two_classes_in_groups() -> None:
    held = {"ece": 0, "positive_ece": 0, "smooth_ece": 0}
    rng = np.random.default_rng(3)
    groups = np.arange(400) // 8
    for run in range(RUNS):
        c = rng.uniform(0.05, 0.95, 400)
        # A uniform number of the whole group now and then: errors move together, and the model is calibrated.
        chance = np.where(rng.random(400) < 0.4, rng.random(50)[groups], rng.random(400))
        labels = (chance < c).astype(int)
        found = evaluate(np.stack([1 - c, c], 1), labels, replicates=200, seed=run, groups=groups).estimates()
        for name in held:
            held[name] += found[name].low == 0
    assert min(held.values()) >= FEWEST * RUNS, held


def test_average_precision_of_few_holds_the_truth() -> None:
    """Of 60 predictions some ten are right, or wrong: a normal interval misses in 7 of 100, at one side."""
    few = {"aupr_correct": lambda c: c**4, "aupr_incorrect": lambda c: 1 - (1 - c) ** 3}
    missed = dict.fromkeys(few, 0)
    for name, chance in few.items():
        rng = np.random.default_rng(5)
        c = np.sort(0.15 + 0.85 * rng.beta(2, 2, 200_000))
        right = chance(c)
        truth = Separation(cumulative(right), cumulative(1 - right)).areas()[name]
        for run in range(RUNS_OF_FEW):
            c = 0.15 + 0.85 * rng.beta(2, 2, 60)
            probs = np.repeat((1 - c)[:, None] / 9, 10, axis=1)
            probs[:, 0] = c
            labels = np.where(rng.random(60) < chance(c), 0, 1)
            how = {"replicates": 32, "seed": run, "outputs": "probabilities"}
            found = evaluate(probs, labels, **how).estimates()[name]
            missed[name] += not found.low <= truth <= found.high
    assert sum(missed.values()) <= 0.05 * len(few) * RUNS_OF_FEW, missed


@pytest.mark.parametrize("copies", [1, 6], ids=["apart", "six copies of a label"])
def test_intervals_hold_the_truth_of_labels(copies: int) -> None:
    rng = np.random.default_rng(5)
    held = {"each": 0.0, "mean": 0}
    for run in range(RUNS):
        q = rng.beta(1, 3, (400, 6 // copies))
        p = np.clip(q + 0.1, 0, 1)  # the truth is 0.1, but for what is cut off
        y = (rng.random(q.shape) < q).astype(int)
        found = evaluate_labels(*(np.repeat(one, copies, axis=1) for one in (p, y)), seed=run)
        true = float((p - q).mean())
        held["each"] += np.mean(
            [row.positive_ece.low <= true <= row.positive_ece.high for row in found.labels]
        )
        held["mean"] += found.positive_ece.low <= true <= found.positive_ece.high
    assert min(held.values()) >= FEWEST * RUNS, held


def test_no_change_is_found_as_often_as_the_level_says_and_a_real_one_more_often() -> None:
    rng = np.random.default_rng(0)
    names = ("ece", "adaptive_ece", "smooth_ece", "nll")
    none, real = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    runs, tried = sized(ci=(40, 10), nightly=(400, 100))
    for run in range(runs):
        z = 3 * rng.standard_normal((300, 10))
        labels = drawn(rng, softmax(z))
        a, b = (softmax(1.5 * (z + 0.7 * rng.standard_normal(z.shape))) for _ in range(2))
        same = paired_changes(a, b, labels, replicates=60, seed=run)
        for name in names:
            d = same[name].difference
            assert (same[name].p < 0.05) == (not d.low <= 0 <= d.high), name
            assert d.low < d.value < d.high, name
            none[name] += same[name].p < 0.2
        if run < tried:
            better = paired_changes(softmax(2.5 * z), softmax(z), labels, replicates=60, seed=run)
            for name in names:
                real[name] += better[name].p < 0.05
    # Binomial(40, .2) is below 2 or above 17 with probability 1e-3 each.
    low, high = sized(ci=(2, 17), nightly=(55, 108))
    assert low <= min(none.values()) <= max(none.values()) <= high, none
    assert min(real.values()) >= 0.8 * tried, real

"""Class shares: Bayes' rule from one to another, and estimates without labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sizes import sized

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.confusion import Confusion
from calib_serve.metrics.label_shift import bbse
from calib_serve.metrics.shares import as_shares, corrected
from calib_serve.scores import softmax


def drawn(shares, n, rng):
    """Two normal classes whose posterior is known: probs (n, 2) under equal shares, and labels."""
    y = rng.choice(2, n, p=shares)
    x = rng.normal(2 * y - 1.0)
    p = 1 / (1 + np.exp(-2 * x))
    return np.stack([1 - p, p], axis=1), y


def test_the_correction_is_the_posterior_under_the_new_shares() -> None:
    probs, y = drawn([0.9, 0.1], 200_000, np.random.default_rng(0))
    found = corrected(probs, [0.5, 0.5], [0.9, 0.1])[:, 1]
    odds = probs[:, 1] / probs[:, 0] * (0.1 / 0.9)
    np.testing.assert_allclose(found, odds / (1 + odds), atol=1e-12)
    assert found.mean() == pytest.approx(y.mean(), abs=0.003)
    assert abs(probs[:, 1].mean() - y.mean()) > 0.05


@pytest.mark.parametrize(
    "shares", [[0.5, 0.6], [1.0, 0.0], [1.5, -0.5], [math.nan, 1.0], [math.inf, 0.5], [1.7e308, 1.7e308]]
)
def test_shares_that_cannot_be_are_refused(shares: list[float]) -> None:
    with pytest.raises(InputError):
        as_shares(shares, 2)


def test_as_many_shares_as_classes_and_names_that_are_classes() -> None:
    with pytest.raises(ShapeError, match="one share for each of 3 classes"):
        as_shares([0.5, 0.5], 3)
    with pytest.raises(InputError, match="no class 'cow'"):
        as_shares({"cat": 0.5, "cow": 0.5}, 2, ["cat", "dog"])
    with pytest.raises(InputError, match="dog got none"):
        as_shares({"cat": 1.0}, 2, ["cat", "dog"])
    with pytest.raises(InputError, match="names repeat"):
        as_shares({"a": 1.0}, 2, ["a", "a"])
    assert as_shares({"1": 0.25, "0": 0.75}, 2).tolist() == [0.75, 0.25]
    assert as_shares([0.3333, 0.3333, 0.3333], 3).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("probs", [[[0.5, 0.6]], [[math.nan, 1.0]], [[-1.0, 2.0]], [[3.0, -2.0]]])
def test_what_are_no_probabilities_is_refused(probs: list[list[float]]) -> None:
    with pytest.raises(InputError):
        corrected(probs, [0.5, 0.5], [0.6, 0.4])


def test_a_confusion_comes_back_from_its_facts() -> None:
    rng = np.random.default_rng(0)
    top, y, confidence = rng.integers(0, 4, 500), rng.integers(0, 4, 500), rng.random(500)
    found = Confusion.tally(top, confidence, y, classes=4, on="held-out folds")
    again = Confusion.of(found.facts, 4)
    np.testing.assert_array_equal(again.at, found.at)
    np.testing.assert_array_equal(again.count, found.count)
    assert (again.bins, again.on, again.count.sum()) == (15, "held-out folds", 500)
    np.testing.assert_array_equal(found.labels, np.bincount(y, minlength=4))
    np.testing.assert_array_equal(found.predictions.sum(axis=1), np.bincount(top, minlength=4))


@pytest.mark.parametrize(
    "counts",
    ["0 0 0", "0 0 9 1", "0 0 -1 1", "0 0 0 -5", "a b c d", "0 0 0 " + "9" * 400, "0 99 0 1", 7, None],
)
def test_a_damaged_confusion_says_so(counts: object) -> None:
    with pytest.raises(InputError):
        Confusion.of({"bins": 15, "on": "x", "counts": counts}, 3)


def sample(shares, n, rng, *, distance=2.0, spread=1.0):
    """Normal classes at the corners of a simplex: probs calibrated under equal shares (spread 1), labels."""
    y = rng.choice(len(shares), n, p=shares)
    x = spread * rng.normal(size=(n, len(shares))) + distance * np.eye(len(shares))[y]
    return softmax(distance * x), y


def told(probs, y, bins=15):
    top = np.clip(probs.max(axis=1), 0, 1)
    return Confusion.tally(probs.argmax(axis=1), top, y, classes=probs.shape[1], bins=bins)


@pytest.mark.parametrize("classes", [2, 5])
def test_intervals_cover_and_tests_keep_their_level(classes: int) -> None:
    rng = np.random.default_rng(2)
    equal, runs = np.full(classes, 1 / classes), sized(ci=80, nightly=1500)
    covered, unlike, moved = [], 0, 0
    for _ in range(runs):
        confusion = told(*sample(equal, 1000, rng))
        shares = 0.8 * rng.dirichlet(np.ones(classes)) + 0.2 / classes
        probs, _ = sample(shares, 1500, rng)
        found = bbse(confusion, told(probs, np.zeros(1500, int)).predictions)
        covered.append((found.low <= shares) & (shares <= found.high))
        unlike += found.fits.p < 0.05
        same = bbse(confusion, told(sample(equal, 1500, rng)[0], np.zeros(1500, int)).predictions)
        moved += same.moved.p < 0.05
    assert 0.90 < np.mean(covered) < 0.99
    assert unlike / runs < 0.11
    assert moved / runs < 0.11


def test_other_changes_are_told_from_those_of_class_shares() -> None:
    rng = np.random.default_rng(3)
    equal = np.full(4, 0.25)
    confusion = told(*sample(equal, 4000, rng))
    shares = [0.55, 0.25, 0.1, 0.1]
    label_shift = bbse(confusion, told(*sample(shares, 4000, rng)).predictions)
    assert label_shift.kind == "moved"
    assert "class 0: 2" in label_shift.says()
    assert "cat: 2" in label_shift.says(["cat", "b", "c", "d"])
    for spread in (0.5, 0.7):  # the same classes, told apart more easily
        found = bbse(confusion, told(*sample(shares, 4000, rng, spread=spread)).predictions)
        assert found.kind == "other"
        assert "do not correct" in found.says()
    assert bbse(confusion, told(*sample(equal, 4000, rng)).predictions).kind == "same"


def test_of_classes_with_few_samples_the_confidences_of_all_tell_other_changes() -> None:
    rng = np.random.default_rng(5)
    confusion = told(*sample(np.full(30, 1 / 30), 600, rng, distance=3.0))
    for _ in range(8):
        shares = 0.9 * rng.dirichlet(np.full(30, 3.0)) + 0.1 / 30
        moved = bbse(confusion, told(*sample(shares, 1500, rng, distance=3.0)).predictions)
        assert (moved.kind, moved.fits.dof > 0) == ("moved", True)
        sharper = bbse(confusion, told(*sample(shares, 1500, rng, distance=3.0, spread=0.6)).predictions)
        assert sharper.kind == "other"


def test_with_one_cell_a_class_it_is_liptons_inverse() -> None:
    rng = np.random.default_rng(4)
    confusion = told(*sample(np.full(3, 1 / 3), 3000, rng), bins=1)
    seen = told(*sample([0.5, 0.3, 0.2], 3000, rng), bins=1).predictions
    a = np.zeros((3, 3))
    np.add.at(a, (confusion.at[:, 0], confusion.at[:, 2]), confusion.count)
    expected = np.linalg.solve(a / confusion.labels, seen[:, 0] / seen.sum())
    found = bbse(confusion, seen)
    np.testing.assert_allclose(found.shares, expected, atol=1e-6)
    assert found.fits.dof > 0 or found.kind == "unknown"


def test_too_little_is_unknown_and_the_impossible_refused() -> None:
    rng = np.random.default_rng(7)
    confusion = told(*sample([0.5, 0.5], 1000, rng))
    assert bbse(confusion, told(*sample([0.5, 0.5], 50, rng)).predictions).kind == "unknown"
    with pytest.raises(ShapeError, match="by predicted class and bin"):
        bbse(confusion, np.ones((2, 3)))
    for bad in (np.zeros((2, 15)), np.full((2, 15), np.nan), -np.ones((2, 15)), np.full((2, 15), np.inf)):
        with pytest.raises(InputError):
            bbse(confusion, bad)
    one_class = told(*sample([1.0, 0.0], 100, rng))
    with pytest.raises(InputError, match=r"no sample of classes \[1\]"):
        bbse(one_class, np.ones((2, 15)))

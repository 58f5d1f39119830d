"""Bayes' rule from one set of class shares to another, and what is no such set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.shares import Confusion, as_shares, corrected


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

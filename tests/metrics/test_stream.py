"""Sums that parts add to give what all samples give at once, in whatever order they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import Tally

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 400)
Y = np.array([RNG.choice(3, p=row**2 / (row**2).sum()) for row in P])
NAMED = ("accuracy", "mean_confidence", "ece", "mce", "noise_floor", "classwise_ece", "nll", "brier")


def numbers(tally: Tally) -> list[float]:
    return [getattr(tally, name) for name in NAMED]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 399), max_size=5), st.randoms())
def test_any_parts_in_any_order_are_the_whole(cuts: list[int], random) -> None:
    parts = [part for part in np.split(np.arange(400), sorted(cuts)) if len(part)]
    tallies = [Tally.empty(3).update(P[part], Y[part]) for part in parts]
    random.shuffle(tallies)
    merged = Tally.empty(3)
    for tally in tallies:
        merged = merged + tally
    whole = metrics.evaluate(P, Y, replicates=0)
    assert numbers(merged) == pytest.approx(numbers(Tally.empty(3).update(P, Y)), rel=1e-12)
    for name in NAMED:
        assert getattr(merged, name) == pytest.approx(getattr(whole, name).value, rel=1e-12), name


def test_weights_pictures_and_void_labels_are_taken_as_everywhere() -> None:
    counts = RNG.integers(0, 3, 400)
    again = np.repeat(np.arange(400), counts)
    assert numbers(Tally.empty(3).update(P, Y, sample_weight=counts)) == pytest.approx(
        numbers(Tally.empty(3).update(P[again], Y[again]))
    )
    pictures = P.reshape(4, 10, 10, 3).transpose(0, 3, 1, 2)
    void = np.where(np.arange(400) % 7 == 0, 255, Y)
    kept = void != 255
    found = Tally.empty(3).update(pictures, void.reshape(4, 10, 10), ignore_label=255)
    assert numbers(found) == pytest.approx(numbers(Tally.empty(3).update(P[kept], Y[kept])))
    assert found.n == kept.sum()


def test_no_sample_has_no_number_and_adds_nothing() -> None:
    empty, one = Tally.empty(3), Tally.empty(3).update(P, Y)
    assert np.isnan(numbers(empty)).sum() >= len(NAMED) - 2
    assert numbers(empty + one) == numbers(one + empty) == numbers(one)


def test_columns_of_another_order_are_the_same_classes_by_name() -> None:
    columns = dict(zip(("cat", "dog", "owl"), P.T, strict=True))
    turned = {name: columns[name] for name in ("owl", "cat", "dog")}
    names = np.array(list(columns))[Y]
    first = Tally.empty(3).update(columns, names)
    assert numbers(first.update(turned, names)) == pytest.approx(numbers(first + first))
    other, foxes = {"cat": P[:, 0], "dog": P[:, 1], "fox": P[:, 2]}, np.array(["cat", "dog", "fox"])[Y]
    with pytest.raises(InputError, match="fox"):
        first.update(other, foxes)
    foxes = dict(zip(("cat", "dog", "fox"), P.T, strict=True))
    others = Tally.empty(3).update(foxes, np.array(list(foxes))[Y])
    with pytest.raises(InputError, match="do not add up"):
        first + others


def test_names_that_differ_from_part_to_part_are_refused() -> None:
    first = Tally.empty(3).update(P[:3], ["a", "b", "c"])
    with pytest.raises(InputError):
        first.update(P[:3], ["a", "b", "d"])
    with pytest.raises(ShapeError, match="3 classes"):
        first.update(P[:, :2] / P[:, :2].sum(axis=1, keepdims=True), np.minimum(Y, 1))
    with pytest.raises(InputError, match="do not add up"):
        first + Tally.empty(3, bins=10)

"""The ranked probability score of ordered classes."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(5), 200)
Y = RNG.integers(0, 5, 200)


def by_loop(p: np.ndarray, y: np.ndarray) -> list[float]:
    """Epstein's sum, threshold by threshold."""
    return [
        sum((row[: k + 1].sum() - (label <= k)) ** 2 for k in range(len(row) - 1))
        for row, label in zip(p, y, strict=True)
    ]


def test_it_is_epsteins_sum() -> None:
    found = metrics.ranked_probability_score(P, Y)
    assert found == pytest.approx(np.mean(by_loop(P, Y)), rel=1e-12)
    assert metrics.ranked_probability_score(P, Y, normalized=True) == pytest.approx(found / 4)


def test_of_two_classes_it_is_half_the_brier_score() -> None:
    p, y = P[:, :2] / P[:, :2].sum(axis=1, keepdims=True), np.minimum(Y, 1)
    assert 2 * metrics.ranked_probability_score(p, y) == pytest.approx(metrics.brier(p, y))


def test_a_class_further_away_costs_more_and_brier_does_not_see_it() -> None:
    near, far = [[0.0, 1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 1.0]]
    assert metrics.ranked_probability_score(near, [0]) == 1
    assert metrics.ranked_probability_score(far, [0]) == 3
    assert metrics.brier(near, [0]) == metrics.brier(far, [0])


def test_weights_repeat_rows_and_soft_labels_are_their_mixture() -> None:
    counts = RNG.integers(0, 3, 200)
    again = np.repeat(np.arange(200), counts)
    assert metrics.ranked_probability_score(P, Y, sample_weight=counts) == pytest.approx(
        metrics.ranked_probability_score(P[again], Y[again])
    )
    hard = metrics.ranked_probability_score(P, np.eye(5)[Y])
    assert hard == pytest.approx(metrics.ranked_probability_score(P, Y))


@pytest.mark.parametrize(
    ("p", "y", "error"),
    [
        (np.log(P), Y, InputError),
        (P, Y[:-1], ShapeError),
        (P, np.full(200, 5), InputError),
        (P, np.full((200, 5), 0.5), InputError),
    ],
    ids=["logits", "fewer labels", "no class", "soft labels that sum to more"],
)
def test_what_cannot_be_right_is_refused(p, y, error) -> None:
    with pytest.raises(error):
        metrics.ranked_probability_score(p, y)

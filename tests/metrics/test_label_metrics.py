"""Metrics of labels are those of each label's own two classes, and their means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from calib_serve.core.errors import CalibServeError
from calib_serve.metrics import confidence_of_labels, ece, evaluate, evaluate_labels


def draw(n: int = 500, labels: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.random((n, labels)) ** 2
    return p, (rng.random(p.shape) < p).astype(int)


def test_each_label_has_the_numbers_of_its_two_classes() -> None:
    p, y = draw()
    found = evaluate_labels(p, y, replicates=32)
    for k, row in enumerate(found.labels):
        two = evaluate(np.stack([1 - p[:, k], p[:, k]], axis=1), y[:, k], replicates=32)
        assert row.positive_ece.as_dict() == pytest.approx(two.positive_ece.as_dict())
        assert row.positive_gap == pytest.approx(two.positive_gap)
        assert row.accuracy == pytest.approx(two.accuracy)
        assert row.positive_noise_floor == pytest.approx(two.positive_noise_floor)
        assert row.positive_brier == pytest.approx(brier_score_loss(y[:, k], p[:, k]))
        assert row.nll == pytest.approx(log_loss(y[:, k], p[:, k], labels=[0, 1]))
        assert row.positives == y[:, k].sum()
    for name in ("accuracy", "positive_ece", "positive_brier", "nll"):
        assert getattr(found, name) == pytest.approx(np.mean([getattr(row, name) for row in found.labels]))


def test_weighted_samples_have_the_noise_floor_that_chance_gives_them() -> None:
    rng = np.random.default_rng(3)
    p, weight = rng.random((400, 1)), rng.exponential(size=400)

    def shown() -> float:
        y = (rng.random(p.shape) < p).astype(int)
        return evaluate_labels(p, y, sample_weight=weight, replicates=0).labels[0].positive_ece.value

    found = evaluate_labels(p, np.zeros((400, 1), int), sample_weight=weight, replicates=0)
    assert found.labels[0].positive_noise_floor == pytest.approx(
        np.mean([shown() for _ in range(200)]), rel=0.08
    )


def test_the_decisions_of_all_labels_are_predictions_of_their_own() -> None:
    p, y = draw()
    confidence, right = confidence_of_labels(p, y)
    pair = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    found = evaluate_labels(p, y, replicates=0)
    assert found.ece == pytest.approx(ece(pair, y.ravel()))
    assert found.mean_confidence == pytest.approx(confidence.mean())
    assert found.bins.accuracy() == pytest.approx(right.mean())


def test_intervals_of_means_are_of_samples_whose_labels_move_together() -> None:
    rng = np.random.default_rng(0)
    one, y = draw(400, 1)
    together = evaluate_labels(np.repeat(one, 20, axis=1), np.repeat(y, 20, axis=1))
    alone = evaluate_labels(one, y)
    assert together.nll.high - together.nll.low == pytest.approx(alone.nll.high - alone.nll.low)
    apart = evaluate_labels(p := rng.random((400, 20)), (rng.random(p.shape) < p).astype(int))
    assert apart.nll.high - apart.nll.low < (alone.nll.high - alone.nll.low) / 2


@pytest.mark.parametrize(
    ("p", "y"),
    [
        ([[0.5]], [[2]]),
        ([[1.5]], [[1]]),
        ([[np.nan]], [[1]]),
        (np.empty((0, 3)), np.empty((0, 3))),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(p: Any, y: Any) -> None:
    with pytest.raises(CalibServeError):
        evaluate_labels(p, y)

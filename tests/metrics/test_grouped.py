"""Samples that belong together: intervals and tests hold although these move together."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_samples import grouped

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import evaluate, paired_changes
from calib_serve.metrics.samples import group_codes


def two_columns(c: np.ndarray) -> np.ndarray:
    return np.stack([1 - c, c], axis=1)


def test_groups_of_one_change_nothing() -> None:
    rng = np.random.default_rng(1)
    probs, labels = two_columns(rng.random(200)), rng.integers(0, 2, 200)
    names = [f"patient {i}" for i in range(200)]
    assert evaluate(probs, labels, replicates=50, groups=names) == evaluate(probs, labels, replicates=50)


def test_intervals_hold_the_truth_when_groups_move_together() -> None:
    held = {"with groups": 0, "copies": 0, "without": 0}
    for seed in range(60):
        c, y, groups = grouped(seed)
        near = c + 1e-6 * np.random.default_rng(seed).random(len(c))  # else they are known as copies
        for name, p, given in (("with groups", c, groups), ("copies", c, None), ("without", near, None)):
            gap = evaluate(two_columns(p), y.astype(int), replicates=0, groups=given).signed_gap
            held[name] += gap.low <= 0 <= gap.high
    assert held["with groups"] >= 53
    assert held["copies"] >= 53
    assert held["without"] <= 35


def test_a_change_between_groups_is_no_surer_than_they_are() -> None:
    c, y, groups = grouped(3)
    before, after = two_columns(c), two_columns(np.clip(c + 0.01, 0, 1))
    apart = paired_changes(before, after, y.astype(int), replicates=100)["brier"].difference
    together = paired_changes(before, after, y.astype(int), replicates=100, groups=groups)["brier"].difference
    assert together.value == apart.value
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"groups must be \(3,\)"):
        group_codes([1, 2], 3)
    with pytest.raises(InputError, match="one group"):
        group_codes([1, 1, 1], 3)
    with pytest.raises(InputError, match="NaN"):
        group_codes([1.0, np.nan, 2.0], 3)
    with pytest.raises(ShapeError):
        group_codes([{}, {}, {}], 3)

"""Prediction sets measured: by hand, and against scipy's exact distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calib_serve import metrics
from calib_serve.errors import ShapeError
from calib_serve.metrics.intervals import beta_binomial_at_most

SETS = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], bool)
LABELS = [0, 2, 2, 1, 0]


def test_every_number_by_hand() -> None:
    found = metrics.evaluate_sets(SETS, LABELS, confidence=[0.9, 0.5, 0.4, 0.9, 0.9], promised=0.9, bins=2)
    assert (found.n, found.coverage.value, found.mean_size.value) == (5, 0.6, 1.6)
    assert (found.sizes, found.singletons) == ((0, 3, 1, 1), 0.6)
    assert [e.value for e in found.by_class] == [0.5, 1.0, 0.5]
    groups = [(g.smallest, g.largest, g.count, g.coverage.value) for g in found.by_size]
    assert groups == [(1, 1, 3, pytest.approx(2 / 3)), (2, 2, 1, 0.0), (3, 3, 1, 1.0)]
    assert found.by_confidence is not None
    assert found.by_confidence.count.tolist() == [2, 3]
    assert found.by_confidence.correct.tolist() == [1, 2]
    assert math.isnan(found.p)
    assert found.as_dict()["p"] is None


def test_the_range_of_coverages_and_the_chance_of_so_few_are_scipys() -> None:
    for n, coverage in ((19, 0.9), (1000, 0.95), (50_000, 0.5)):
        k = metrics.conformal_rank(n, coverage)
        found = metrics.coverage_range(n, coverage)
        assert (found.low, found.high) == pytest.approx(stats.beta(k, n + 1 - k).ppf([0.025, 0.975]))
    for x, n, a, b in ((0, 5, 3, 2), (880, 1000, 901, 100), (49_000, 50_000, 4901, 100)):
        expected = stats.betabinom(n, a, b).cdf(x)
        assert beta_binomial_at_most(x, n, a, b) == pytest.approx(expected, rel=1e-6)


def test_the_rank_is_not_moved_by_rounding() -> None:
    # 0.55 * 100 is above 55 in floating point, and 0.07 * 100 above 7.
    assert [metrics.conformal_rank(99, c) for c in (0.55, 0.07, 0.29, 0.9)] == [55, 7, 29, 90]
    assert metrics.conformal_rank(8, 0.9) == 9  # more than there are: no threshold keeps that promise
    assert metrics.coverage_range(8, 0.9).value == 1


def test_too_few_sets_that_hold_the_class_are_said_and_chance_is_not() -> None:
    def of(held: int) -> metrics.SetEvaluation:
        sets = np.zeros((1000, 2), bool)
        sets[:held, 0] = True
        return metrics.evaluate_sets(sets, np.zeros(1000, int), promised=0.9, fitted_on=1000)

    assert of(860).p < 0.01
    assert "not like those" in of(860).says()
    assert "not like those" not in of(885).says()
    assert of(885).p == pytest.approx(stats.betabinom(1000, 901, 100).cdf(885))


def test_groups_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 25)
    held = np.repeat(rng.random(40) < 0.8, 25)
    sets = np.stack([held, ~held], axis=1)
    y = np.zeros(1000, int)
    alone, together = (metrics.evaluate_sets(sets, y, groups=g).coverage for g in (None, groups))
    assert together.high - together.low > 3 * (alone.high - alone.low)
    known = metrics.evaluate_sets(sets, y, groups=groups, promised=0.9, fitted_on=100)
    assert math.isnan(known.p)


@pytest.mark.parametrize("wrong", [np.ones((3, 2)), np.ones(3, bool), np.ones((0, 2), bool)])
def test_what_is_no_set_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="booleans"):
        metrics.evaluate_sets(wrong, [0] * len(wrong))

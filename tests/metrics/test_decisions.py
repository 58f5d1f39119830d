"""Thresholds and prediction sets, measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.distributions import beta_binomial_at_most


def binary(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([confidence, 1 - confidence], axis=1), np.where(correct, 0, 1)


def test_the_abstention_threshold_keeps_its_promise_on_new_data() -> None:
    # Right with probability c: answering above t is right with probability (1 + t) / 2 for uniform c.
    rng = np.random.default_rng(0)
    broken, answered = 0, []
    runs = 200
    for _ in range(runs):
        c = rng.uniform(0.5, 1, 2000)
        found = metrics.abstention(*binary(c, rng.random(2000) < c), risk=0.1, level=0.9)
        broken += (1 - max(found.threshold, 0.5)) / 2 > 0.1
        answered.append(found.answered)
        if found.answered:
            assert found.risk <= found.risk_high <= 0.1 + 1e-12
    assert broken <= 0.1 * runs
    assert np.mean(answered) > 0.25  # and not by answering next to nothing; 40 % is the most there is


@pytest.mark.parametrize("shape", ["flat", "worst where surest"])
def test_no_threshold_is_found_more_often_than_allowed_where_every_one_breaks_the_promise(shape: str) -> None:
    rng = np.random.default_rng(1)
    runs, n, risk = 600, 400, 0.2
    found = 0
    for _ in range(runs):
        c = rng.uniform(0.5, 1, n)
        wrong = 0.201 if shape == "flat" else 0.201 + 0.3 * (c > 0.95)
        found += metrics.abstention(*binary(c, rng.random(n) >= wrong), risk=risk, level=0.9).answered > 0
    assert found <= 0.1 * runs + 3 * (0.09 * runs) ** 0.5
    assert found > 0 or shape != "flat"  # and the level is spent, not kept back


def test_samples_of_one_group_do_not_prove_a_threshold_again_and_again() -> None:
    # Groups of 50 alike, each wrong with a chance of 0.25: as samples they break the promise at will.
    rng = np.random.default_rng(3)
    runs, found = 200, np.zeros(2)
    for _ in range(runs):
        right = np.repeat(rng.random(40) >= 0.25, 50)
        p, y = binary(np.repeat(rng.uniform(0.5, 1, 40), 50), right)
        for i, groups in enumerate((None, np.arange(2000) // 50)):
            found[i] += metrics.abstention(p, y, risk=0.24, level=0.9, groups=groups).answered > 0
    assert found[0] > 0.4 * runs
    assert found[1] <= 0.1 * runs + 3 * (0.09 * runs) ** 0.5


def test_abstention_is_measured_with_exact_intervals_and_says_when_it_breaks_its_promise() -> None:
    from scipy.stats import binomtest

    confidence = np.repeat([0.9, 0.6], [60, 40])
    p, y = binary(confidence, np.arange(100) >= 20)  # 20 of the 60 answers are wrong
    found = metrics.evaluate_abstention(p, y, threshold=0.8, promised=0.1)
    assert (found.answered.value, found.risk.value) == (0.6, pytest.approx(1 / 3))
    exact = binomtest(20, 60).proportion_ci(method="exact")
    assert (found.risk.low, found.risk.high) == pytest.approx((exact.low, exact.high))
    assert "more than promised" in found.says()
    none = metrics.evaluate_abstention(p, y, threshold=0.95)
    assert math.isnan(none.risk.value)
    assert none.says().startswith("Answers from 0.9500")
    grouped = metrics.evaluate_abstention(p, y, threshold=0.8, groups=np.arange(100) // 10)
    assert grouped.risk.low < found.risk.low  # ten groups are worth less than a hundred samples


def test_outliers_are_told_as_scikit_learns_area_says_and_none_is_refused() -> None:
    rng = np.random.default_rng(0)
    inside, outside = np.round(rng.beta(5, 2, 400), 2), np.round(rng.beta(2, 2, 300), 2)
    known = np.repeat([1, 0], [400, 300])
    scores = np.concatenate([inside, outside])
    assert metrics.open_set(inside, outside)["auroc"].value == pytest.approx(roc_auc_score(known, scores))
    with pytest.raises(ShapeError):
        metrics.open_set(inside, [])
    with pytest.raises(InputError):
        metrics.open_set(inside, [np.nan])


def test_ranking_measures_equal_scikit_learns_with_ties() -> None:
    rng = np.random.default_rng(0)
    c = np.round(rng.uniform(0.5, 1, 800), 2)
    correct = rng.random(800) < c
    sample = binary(c, correct)
    assert metrics.refinement_auroc(*sample) == pytest.approx(roc_auc_score(correct, c))
    found = metrics.evaluate(*sample, replicates=0)
    assert found.aupr_correct == pytest.approx(average_precision_score(correct, c))
    assert found.aupr_incorrect == pytest.approx(average_precision_score(~correct, -c))


def test_ece_terms_by_hand() -> None:
    # Two right at .9, one wrong at .9 and one wrong at .8: r = (2 / 2 + 2) / 4 of the four pairs.
    sample = binary(np.array([0.9, 0.9, 0.9, 0.8]), np.array([1, 1, 0, 0], bool))
    terms = metrics.ece_terms(*sample)
    assert terms.confidence == pytest.approx(0.875)
    assert terms.refinement == pytest.approx(0.75 * 2 * 2 * 2 / 16)
    assert terms.base_rate == pytest.approx((4 + 4) / 32)
    assert terms.ece == pytest.approx(abs(2.7 - 2) / 4 + 0.8 / 4)
    assert terms.residual == pytest.approx(terms.ece - (0.875 - 0.375 - 0.25))
    assert terms.of_bins == pytest.approx(0, abs=1e-12)  # both bins are overconfident
    assert terms.of_equation_8 == pytest.approx(0.375 + 0.25 - 0.5)


SETS = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], bool)
LABELS = [0, 2, 2, 1, 0]


def test_every_number_by_hand() -> None:
    found = metrics.evaluate_sets(SETS, LABELS, promised=0.9)
    assert (found.n, found.coverage.value, found.mean_size.value) == (5, 0.6, 1.6)
    assert (found.sizes, found.singletons) == ((0, 3, 1, 1), 0.6)
    assert [e.value for e in found.by_class] == [0.5, 1.0, 0.5]
    groups = [(g.smallest, g.largest, g.count, g.coverage.value) for g in found.by_size]
    assert groups == [(1, 1, 3, pytest.approx(2 / 3)), (2, 2, 1, 0.0), (3, 3, 1, 1.0)]
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

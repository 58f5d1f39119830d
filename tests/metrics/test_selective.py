"""Abstention, outliers and the decompositions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calib_serve import metrics


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


def test_outlier_measures_equal_scikit_learns() -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    inside, outside = np.round(rng.beta(5, 2, 400), 2), np.round(rng.beta(2, 2, 300), 2)
    known = np.repeat([1, 0], [400, 300])
    scores = np.concatenate([inside, outside])
    assert metrics.ood_auroc(inside, outside) == pytest.approx(roc_auc_score(known, scores))
    false, true, _ = roc_curve(known, scores, drop_intermediate=False)
    assert metrics.fpr95(inside, outside) == pytest.approx(false[true >= 0.95][0])


def test_ranking_measures_equal_scikit_learns_with_ties() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    rng = np.random.default_rng(0)
    c = np.round(rng.uniform(0.5, 1, 800), 2)
    correct = rng.random(800) < c
    sample = binary(c, correct)
    assert metrics.refinement_auroc(*sample) == pytest.approx(roc_auc_score(correct, c))
    assert metrics.aupr_correct(*sample) == pytest.approx(average_precision_score(correct, c))
    assert metrics.aupr_incorrect(*sample) == pytest.approx(average_precision_score(~correct, -c))


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


def test_adaptive_classwise_ece_is_the_mean_of_the_classes_adaptive_ece() -> None:
    rng = np.random.default_rng(0)
    p = metrics.softmax(2 * rng.standard_normal((200, 3)))
    y = rng.integers(0, 3, 200)

    def one(column: np.ndarray, hit: np.ndarray) -> float:
        order = np.argsort(column)
        return sum(abs(part.sum()) for part in np.array_split((column - hit)[order], 15)) / len(y)

    whole = [one(p[:, k], y == k) for k in range(3)]
    assert metrics.adaptive_classwise_ece(p, y) == pytest.approx(np.mean(whole))
    kept = p >= 0.05
    cut = [one(p[kept[:, k], k], (y == k)[kept[:, k]]) for k in range(3)]
    assert metrics.adaptive_classwise_ece(p, y, threshold=0.05) == pytest.approx(np.mean(cut))

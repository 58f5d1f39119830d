"""What holds for any predictions whatever."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calib_serve import metrics
from calib_serve.metrics.refinement import Separation, ranked_areas
from calib_serve.scores import Scores


@st.composite
def samples(draw, max_n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, zeros and ones among them, and labels."""
    n, classes = draw(st.integers(1, max_n)), draw(st.integers(2, 5))
    counts = draw(hnp.arrays(np.int64, (n, classes), elements=st.integers(0, 4)))
    counts[:, 0] += counts.sum(axis=1) == 0
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return counts / counts.sum(axis=1, keepdims=True), labels


@given(samples(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_samples_changes_nothing(sample, random) -> None:
    probs, labels = sample
    order = list(range(len(labels)))
    random.shuffle(order)
    before = metrics.evaluate(probs, labels, replicates=0, outputs="probabilities").estimates()
    after = metrics.evaluate(probs[order], labels[order], replicates=0, outputs="probabilities").estimates()
    for name, estimate in before.items():
        assert estimate.value == pytest.approx(after[name].value, abs=1e-7, nan_ok=True), name


@given(samples())
@settings(deadline=None)
def test_shares_and_errors_lie_where_they_can(sample) -> None:
    found = metrics.evaluate(*sample, replicates=0, outputs="probabilities").estimates()
    worst = {"positive_brier_skill": -np.inf, "positive_nll_skill": -np.inf}
    lowest = {"signed_gap": -1.0, "positive_gap": -1.0, **worst}
    highest = {
        "nll": np.inf,
        "entropy": np.log(sample[0].shape[1]) + 1e-12,
        "brier": 2.0,
        "rms_debiased": np.inf,
        "positive_cllr": np.inf,
    }
    for name, estimate in found.items():
        if not np.isnan(estimate.value):
            assert lowest.get(name, -1e-12) <= estimate.value <= highest.get(name, 1 + 1e-12), name
    if 0 < found["accuracy"].value < 1:
        assert not np.isnan(found["refinement_auroc"].value)


@given(samples())
def test_ece_is_never_less_than_what_coarser_bins_show(sample) -> None:
    # Each of 5 bins is a union of 3 of 15: joining bins can only let gaps cancel.
    fine, coarse = (metrics.ece(*sample, bins=bins) for bins in (15, 5))
    assert coarse <= fine + 1e-12
    assert abs(metrics.binned(*sample).signed_gap()) <= coarse + 1e-12


@given(samples())
@settings(deadline=None)
def test_adaptive_ece_is_the_mean_over_every_order_that_ties_could_have(sample) -> None:
    probs, labels = sample
    confidence, correct = probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float)
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(200):  # bins' mean gaps over random orders; ties average out before |.|
        order = np.lexsort((rng.random(len(labels)), confidence))
        parts = np.array_split((confidence - correct)[order], 3)
        gaps.append([part.sum() for part in parts])
    expected = np.abs(np.mean(gaps, axis=0)).sum() / len(labels)
    spread = np.std(gaps, axis=0).sum() / np.sqrt(200) / len(labels)
    assert metrics.adaptive_ece(probs, labels, bins=3) == pytest.approx(expected, abs=5 * spread + 1e-12)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=50))
def test_auroc_is_the_share_of_pairs_in_order(pairs: list[tuple[int, bool]]) -> None:
    right = np.array([score for score, positive in pairs if positive])
    wrong = np.array([score for score, positive in pairs if not positive])
    auroc = Separation.of([s for s, _ in pairs], [p for _, p in pairs]).auroc()
    if len(right) == 0 or len(wrong) == 0:
        assert np.isnan(auroc)
    else:
        won = (right[:, None] > wrong).mean() + (right[:, None] == wrong).mean() / 2
        assert float(auroc) == pytest.approx(won)


@given(samples())
@settings(deadline=None)
def test_a_rising_map_of_confidence_leaves_the_ranking_measures_alone(sample) -> None:
    probs, labels = sample
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == labels
    plain, mapped = Separation.of(confidence, correct), Separation.of(np.exp(3 * confidence) - 7, correct)
    for measure in ("auroc", "aupr_right", "aupr_wrong", "aurc", "best_aurc"):
        assert np.array_equal(getattr(plain, measure)(), getattr(mapped, measure)(), equal_nan=True)


@given(samples())
@settings(deadline=None)
def test_brier_terms_add_up_to_the_brier_score(sample) -> None:
    terms, score = metrics.brier_terms(*sample), metrics.brier(*sample)
    total = terms.calibration - terms.resolution + terms.uncertainty + terms.within_bins
    assert total == pytest.approx(score, abs=1e-12)
    assert terms.brier == pytest.approx(score, abs=1e-12)
    assert terms.refinement >= -1e-12
    assert min(terms.calibration, terms.resolution, terms.uncertainty) >= 0


@given(samples())
@settings(deadline=None)
def test_ece_terms_add_up_to_the_ece(sample) -> None:
    terms = metrics.ece_terms(*sample)
    total = terms.confidence - terms.refinement - terms.base_rate + terms.residual
    assert total == pytest.approx(terms.ece, abs=1e-12)
    assert terms.residual == pytest.approx(terms.of_bins + terms.of_equation_8, abs=1e-12)
    assert terms.of_bins >= -1e-12  # only a bin that is not overconfident adds to it


@given(samples(), st.integers(1, 40))
@settings(deadline=None)
def test_parts_of_the_data_add_up_to_what_all_of_it_shows(sample, cut: int) -> None:
    (probs, labels), bins = sample, metrics.binned(*sample)
    parts = [
        metrics.binned(probs[rows], labels[rows])
        for rows in (slice(cut), slice(cut, None))
        if len(labels[rows])
    ]
    total = sum(parts[1:], parts[0])
    for name in ("accuracy", "mean_confidence", "ece", "mce", "ace", "l2", "noise_floor", "signed_gap"):
        assert getattr(total, name)() == pytest.approx(getattr(bins, name)(), abs=1e-12), name


def test_areas_by_runs_of_rows_are_those_of_all_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    # Ties that are longer than a run of rows, and as many distinct confidences as rows.
    c = np.sort(np.concatenate([rng.random(70_000), np.full(150_000, 0.5), np.round(rng.random(50_000), 3)]))
    right, weight = rng.random(len(c)) < c, rng.random(len(c)) + 0.5
    for w in (None, weight):
        areas, error, few, ends = ranked_areas(c, right, w)
        whole = Separation.of(c, right, 1.0 if w is None else w)
        for name, area in whole.areas().items():
            assert areas[name] == pytest.approx(float(area), abs=1e-12), name
        assert error == pytest.approx(float(whole.auroc_error()), abs=1e-12)
        assert ends[-1] == len(c)
        assert (few.rights[-1], few.wrongs[-1]) == pytest.approx((whole.rights[-1], whole.wrongs[-1]))


def test_evaluate_holds_few_bytes_a_row_beside_the_scores() -> None:
    n = 2_000_000
    rng = np.random.default_rng(0)
    rows = Scores.of(rng.standard_normal((n, 4), np.float32), rng.integers(0, 4, n), outputs="logits")
    tracemalloc.start()
    metrics.evaluate(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * n

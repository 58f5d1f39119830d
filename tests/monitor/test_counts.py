"""What labels say is counted: estimates are of the rest alone, and never say what known labels rule out."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sizes import NIGHTLY

from calib_serve.core.bins import Bins, bin_index
from calib_serve.monitor.contracts.evidence import Labelled, for_all
from calib_serve.monitor.estimates import estimate, estimated_accuracy, estimated_gap
from calib_serve.monitor.live_verdict import judge_estimates
from calib_serve.receipts.sums import Sums

BINS = 15
RUNS = 4000 if NIGHTLY else 200


@st.composite
def streams(draw):
    """Confidences, outcomes, weights and groups of streams of every size, spread over few or many bins."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 300))
    sharp = draw(st.sampled_from([0.1, 1.0, 10.0]))
    c = draw(st.sampled_from([rng.beta(sharp, 1, n), np.full(n, rng.random()), rng.integers(0, 2, n) * 1.0]))
    y = (rng.random(n) < np.clip(c + draw(st.floats(-1, 1)), 0, 1)).astype(float)
    weight = draw(
        st.sampled_from([np.ones(n), np.where(c < 0.7, 1.0, 50.0), 1 / rng.uniform(1e-3, 1, n), 1 + 1e6 * y])
    )
    return c, y, weight, rng.integers(0, draw(st.sampled_from([1, 4, 32])), n)


def sums_of(c, y, asked, weight):
    return Sums.served(c) + Sums.labelled(c[asked], y[asked], weight=weight[asked])


def parts_of(c, y, asked, weight, group):
    return [
        Sums.labelled(c[one], y[one], weight=weight[one])
        for one in (asked & (group == g) for g in np.unique(group))
    ]


@settings(max_examples=200, deadline=None)
@given(streams(), st.booleans())
def test_with_all_labels_in_every_number_is_the_one_of_numpy_whatever_the_weights(stream, grouped):
    c, y, weight, group = stream
    every = np.ones(len(c), bool)
    sums = sums_of(c, y, every, weight)
    found = estimate(sums, groups=parts_of(c, y, every, weight, group) if grouped else ())
    told = (found.accuracy.value, found.gap.value, found.ece, found.confidence)
    counted = (y.mean(), (c - y).mean(), Bins.tally(c, y).ece(), c.mean())
    assert told == pytest.approx(counted, abs=1e-9)
    assert (found.coverage, found.label_share, found.bounds.unseen, found.worst.unseen) == (1, 1, 0, 0)
    assert found.worst.accuracy == pytest.approx((y.mean(), y.mean()), abs=1e-9)
    assert estimated_accuracy(sums).value == pytest.approx(y.mean(), abs=1e-9)
    assert estimated_gap(sums).value == pytest.approx((c - y).mean(), abs=1e-9)
    index = np.clip(np.ceil(c * BINS).astype(int) - 1, 0, BINS - 1)
    for b, row in enumerate(found.bins):
        mine = index == b
        if mine.any():
            assert (row.served, row.labels, row.covered) == (mine.sum(), mine.sum(), True)
            assert row.accuracy == pytest.approx(y[mine].mean(), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(streams(), st.booleans())
def test_with_all_labels_in_intervals_and_verdict_are_those_of_plain_sampling(stream, grouped):
    c, y, weight, group = stream
    every, plain = np.ones(len(c), bool), np.ones(len(c))
    found, alone = (
        estimate(sums_of(c, y, every, w), groups=parts_of(c, y, every, w, group) if grouped else ())
        for w in (weight, plain)
    )
    for name in ("accuracy", "gap", "debiased_ece"):
        assert astuple(getattr(found, name)) == pytest.approx(astuple(getattr(alone, name)), abs=1e-6)
    assert (found.noise_floor, found.effective) == pytest.approx(
        (alone.noise_floor, alone.effective), rel=1e-6, nan_ok=True
    )
    assert judge_estimates(found).level == judge_estimates(alone).level


def allowed(c, y, asked):
    """The least and the greatest accuracy, gap and ECE that unlabelled outcomes can make."""
    index = np.clip(np.ceil(c * BINS).astype(int) - 1, 0, BINS - 1)
    low = y[asked].sum() / len(c)
    high = low + (~asked).mean()
    ece = np.zeros(2)
    for b in np.unique(index):
        mine = index == b
        right = y[mine & asked].sum() + np.arange((mine & ~asked).sum() + 1)
        gaps = np.abs(c[mine].sum() - right)
        inside = min(gaps) if not right[0] <= c[mine].sum() <= right[-1] else 0
        ece += [inside / len(c), max(gaps) / len(c)]
    return (low, high), (c.mean() - high, c.mean() - low), tuple(ece)


@settings(max_examples=200, deadline=None)
@given(streams(), st.floats(0, 1), st.integers(0, 1000))
def test_no_number_lies_outside_of_what_the_known_labels_allow(stream, share, seed):
    c, y, weight, _ = stream
    asked = np.random.default_rng(seed).random(len(c)) < share
    found = estimate(sums_of(c, y, asked, weight))
    accuracy, gap, ece = allowed(c, y, asked)
    if not asked.any():
        assert math.isnan(found.accuracy.value)
        return
    # By chance, the mean of a sample of that size lies so far from the truth at most (Hoeffding 1963).
    chance = math.sqrt(math.log(1e4) / 2 / len(c))
    for number, (low, high), width in ((found.accuracy, accuracy, 1), (found.gap, gap, 2)):
        assert low - 1e-9 <= number.value <= high + 1e-9
        assert number.low <= number.value <= number.high
        if len(c) >= 30:
            assert low - width * chance <= number.low
            assert number.high <= high + width * chance
    assert ece[0] - 1e-9 <= found.ece <= ece[1] + 1e-9
    assert found.worst.accuracy == pytest.approx(accuracy, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(streams(), st.integers(0, 1000))
def test_the_estimate_tends_to_the_count_as_labels_come(stream, seed):
    c, y, weight, _ = stream
    order = np.random.default_rng(seed).permutation(len(c))
    for missing in (1, 2, 5):
        asked = np.ones(len(c), bool)
        asked[order[:missing]] = False
        if asked.any():
            found = estimate(sums_of(c, y, asked, weight))
            far = 2 * missing / len(c) + 1e-9  # some may be left out as well
            assert abs(found.accuracy.value - y.mean()) <= far
            assert abs(found.gap.value - (c - y).mean()) <= 2 * far
            assert abs(found.ece - Bins.tally(c, y).ece()) <= 2 * far


def test_few_wrong_labels_in_many_bins_are_not_left_out_of_the_accuracy_or_the_verdict():
    c = np.append(np.repeat((np.arange(2, 9) + 0.5) / 15, 4), np.full(72, 0.99))
    y = np.append(np.zeros(28), np.ones(72))
    found = estimate(Sums.served(c) + Sums.labelled(c, y))
    assert found.accuracy.value == pytest.approx(0.72, abs=1e-9)
    plain = stats.binomtest(72, 100).proportion_ci(method="wilson")
    assert (found.accuracy.low, found.accuracy.high) == pytest.approx((plain.low, plain.high), abs=0.03)
    assert found.gap.value == pytest.approx(c.mean() - 0.72, abs=1e-9)
    assert judge_estimates(found).level == "off"


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("right", [0.5, 0.9])
def test_the_interval_of_all_labels_holds_the_accuracy_of_the_process_as_often_as_it_says(n, right):
    held, rng = np.zeros(2), np.random.default_rng(1)
    for _ in range(RUNS):
        c = rng.beta(right * 2, 2 * (1 - right), n)  # of mean ``right``, calibrated
        found = estimate(sums_of(c, rng.random(n) < c, np.ones(n, bool), 1 / rng.uniform(0.02, 1, n)))
        held += [found.accuracy.low <= right <= found.accuracy.high, found.gap.low <= 0 <= found.gap.high]
    assert (held >= RUNS * 0.95 - 3 * math.sqrt(RUNS * 0.95 * 0.05)).all()


@pytest.mark.parametrize("answered", [0.3, 0.97])
def test_an_accuracy_that_moves_with_the_weights_inside_a_bin_is_estimated_without_bias(answered):
    """All labels of a queue, and some of the others, which are right more often at the same confidence."""
    found, rng = [], np.random.default_rng(2)
    for _ in range(200):
        c, queued = np.full(2000, 0.9), rng.random(2000) < 0.5
        y = rng.random(2000) < np.where(queued, 0.6, 0.95)
        asked = queued | (rng.random(2000) < answered)
        weight = np.where(queued, 1.0, 1 / answered)
        found.append(estimate(sums_of(c, y, asked, weight)).accuracy.value - y.mean())
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(200) + 1e-4


def test_labels_under_a_clause_bet_alike_once_all_are_in_whatever_they_were_asked_for():
    rng = np.random.default_rng(3)
    c, y, weight = rng.random(300), rng.integers(0, 2, 300) * 1.0, 1 / rng.uniform(0.02, 1, 300)
    rows = Labelled(y, weight, bin_index(c, bins=BINS), np.zeros(300, np.int64))
    asked = rng.random(300) < 0.5
    assert for_all(sums_of(c, y, np.ones(300, bool), weight), rows) == pytest.approx(np.ones(300))
    some = for_all(sums_of(c, y, asked, weight), rows.part(asked))
    assert (some.min() > 0, some.mean()) == (True, pytest.approx(1))

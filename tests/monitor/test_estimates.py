"""Live numbers are those of plain arithmetic, hold for all that was served, and know their own noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calib_serve.core.bins import Bins
from calib_serve.monitor._bin_gaps import bin_gaps
from calib_serve.monitor.estimates import estimate
from calib_serve.receipts.sums import Sums

BINS = 15


def bin_of(c):
    return np.clip(np.ceil(c * BINS).astype(int) - 1, 0, BINS - 1)


def drawn(seed, n, *, rate, gap=0.0, group=1):
    """Confidences, outcomes and which are labelled with what weight; in groups that share their luck."""
    rng = np.random.default_rng(seed)
    c = np.repeat(1 - 0.75 * rng.beta(1, 4, n // group), group)
    y = (np.repeat(rng.random(n // group), group) < c - gap).astype(float)
    chance = np.clip(rate(c), 0, 1)
    asked = np.repeat(rng.random(n // group), group) < chance
    return c, y, asked, 1 / chance


def live(c, y, asked, weight, **options):
    return estimate(Sums.served(c) + Sums.labelled(c[asked], y[asked], weight=weight[asked]), **options)


def everywhere(c):
    return np.full(len(c), 0.05)


def queue(c):
    return np.where(c < 0.7, 1.0, 0.02)


def standing_for(served, weight):
    """What each label counts: itself, and its part of the rest by the odds of not having been asked for."""
    odds = weight * max(served / weight.sum(), 1.0) - 1
    return 1 + odds * max(served - len(weight), 0) / max(odds.sum(), 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_those_of_plain_arithmetic_over_the_labels(seed):
    c, y, asked, weight = drawn(seed, 20_000, rate=queue, gap=0.05)
    found = live(c, y, asked, weight)
    index, served, gap, accuracy, variance = bin_of(c), 0, 0, 0, 0
    ece, floor, of_all, means = 0, 0, 0, []
    for b in range(BINS):
        mine = asked & (index == b)
        if not mine.any():
            continue
        size, r = (index == b).sum(), (c - y)[mine]
        w = weight[mine]
        covered = w.sum() ** 2 >= 5 * (w**2).sum() or len(w) == size
        w = standing_for(size, w) if covered else np.ones(len(w))
        mean, counts = (w * r).sum() / w.sum(), w.sum()
        of_all += size
        ece += size * abs(mean)
        floor += size * math.sqrt(2 / math.pi * (w**2 * (c * (1 - c))[mine]).sum()) / w.sum()
        means.append((counts, mean))
        served += counts
        gap += counts * mean
        accuracy += counts * ((c[index == b] if covered else c[mine]).mean() - mean)
        noise = (w**2 * (c * (1 - c))[mine]).sum()
        n = w.sum() ** 2 / (w**2).sum()
        seen, said = (w**2 * (r - mean) ** 2).sum() / (w**2).sum(), noise / (w**2).sum()
        # As if labels of a calibrated model that surprises twice had come too.
        one = max(seen + said / n, (n * seen + 2) / (n + 2 / said))
        variance += counts**2 * one / n
    for counts, mean in means:  # it is chance as well how many fall into each bin
        variance += served * counts * (mean - gap / served) ** 2 / len(c)
    assert found.gap.value == pytest.approx(gap / served, rel=1e-9)
    assert found.accuracy.value == pytest.approx(accuracy / served, rel=1e-9)
    assert found.gap.se == pytest.approx(math.sqrt(variance) / served, rel=1e-9)
    assert found.ece == pytest.approx(ece / of_all, rel=1e-9)
    assert found.noise_floor == pytest.approx(floor / of_all, rel=1e-4)
    assert found.coverage == pytest.approx(served / len(c), rel=1e-12)
    assert found.confidence == pytest.approx(c.mean())
    assert (found.labels, found.served, found.groups) == (asked.sum(), 20_000, 0)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 5))
def test_shards_add_up_to_the_same_estimate(seed, shards):
    c, y, asked, weight = drawn(seed, 500, rate=queue)
    part = np.random.default_rng(seed).integers(0, shards, len(c))
    total = Sums.zeros()
    for s in range(shards):
        mine = part == s
        total += Sums.served(c[mine])
        total += Sums.labelled(c[mine & asked], y[mine & asked], weight=weight[mine & asked])
    whole, merged = live(c, y, asked, weight), estimate(total)
    assert whole.gap.value == pytest.approx(merged.gap.value, abs=1e-9, nan_ok=True)
    assert whole.ece == pytest.approx(merged.ece, abs=1e-9, nan_ok=True)
    assert whole.debiased_ece.high == pytest.approx(merged.debiased_ece.high, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("n", [7, 300, 20_000])
def test_the_ece_of_labels_that_have_all_come_is_the_one_that_everybody_computes(n):
    c, y, _, _ = drawn(n, n, rate=everywhere, gap=0.03)
    found = live(c, y, np.ones(n, bool), np.ones(n))
    offline = Bins.tally(c, y)
    assert found.ece == pytest.approx(offline.ece(), abs=1e-9)
    assert found.noise_floor == pytest.approx(offline.noise_floor(), abs=1e-9)


@pytest.mark.parametrize("rate", [everywhere, queue], ids=["everywhere", "queue"])
@pytest.mark.parametrize("gap", [0.0, 0.01, 0.06])
def test_intervals_hold_the_truth_and_the_ece_is_nearly_unbiased(rate, gap):
    held, bias, plain = np.zeros(2), [], []
    for seed in range(200):
        found = live(*drawn(seed, 10_000, rate=rate, gap=gap))
        held += [
            found.gap.low <= gap <= found.gap.high,
            found.debiased_ece.low <= gap <= found.debiased_ece.high,
        ]
        bias.append(found.unclipped_ece - gap)
        plain.append(found.ece - gap)
    assert (held >= 181).all()  # 95 % of 200, less 3 sigma
    assert abs(np.mean(bias)) < 0.7 * np.std(bias)
    assert gap > 0.01 or np.mean(plain) > 1.5 * np.std(plain)


def in_groups(seed, *, size, gap=0.0, groups=32):
    c, y, asked, weight = drawn(seed, 20_000, rate=everywhere, gap=gap, group=size)
    unit = np.repeat(np.arange(len(c) // size), size)
    falls = np.random.default_rng(seed + 9999).integers(0, groups, unit.max() + 1)[unit]
    parts = [
        Sums.labelled(c[one], y[one], weight=weight[one])
        for one in (asked & (falls == g) for g in range(groups))
    ]
    return (c, y, asked, weight), parts


def test_labels_that_move_together_need_groups_for_a_true_interval():
    alone = together = ece = 0
    effects = []
    for seed in range(100):
        stream, parts = in_groups(seed, size=10)
        found, plain = live(*stream, groups=parts), live(*stream)
        together += found.gap.low <= 0 <= found.gap.high
        ece += found.debiased_ece.low == 0
        alone += plain.gap.low <= 0 <= plain.gap.high
        effects.append(found.design_effect)
    assert alone < 0.7 * 100
    assert together >= 0.89 * 100
    assert ece >= 0.88 * 100
    assert np.mean(effects) == pytest.approx(10, rel=0.15)


def test_a_group_that_holds_half_a_bin_hides_none_of_its_noise():
    rng, told = np.random.default_rng(4), []
    for _ in range(600):
        parts = [Sums.labelled(np.full(n, 0.75), rng.random(n) < 0.75) for n in (50, 10, 10, 10, 10, 10)]
        told.append(bin_gaps(sum(parts[1:], parts[0]), parts).gap_noise.grouped.max())
    assert np.mean(told) == pytest.approx(0.75 * 0.25 / 100, rel=0.1)


def test_without_predictions_counted_labels_weigh_the_bins_and_it_is_said():
    c, y, asked, weight = drawn(8, 50_000, rate=queue, gap=0.05)
    found = estimate(Sums.labelled(c[asked], y[asked], weight=weight[asked]))
    w, a = weight[asked], y[asked]
    mean = (w * a).sum() / w.sum()
    assert found.weighed_by == "labels"
    assert found.accuracy.value == pytest.approx(mean, abs=2e-3)  # all but what bins of few labels hold
    spread = math.sqrt((w**2 * (a - mean) ** 2).sum()) / w.sum()
    assert found.accuracy.se == pytest.approx(spread, rel=0.02)
    assert math.isnan(found.label_share)
    assert found.worst.accuracy == (0, 1)


def test_what_no_label_covers_is_left_out_and_bounded():
    c, y, _, _ = drawn(9, 20_000, rate=everywhere)
    asked = c < 0.7
    found = live(c, y, asked, np.ones(len(c)))
    covered = bin_of(c) <= bin_of(np.array([0.69]))[0]
    assert found.coverage == pytest.approx(covered.mean(), abs=1e-3)
    low, high = found.bounds.accuracy
    assert low < y.mean() < high
    assert high - low > 1 - found.coverage
    assert "nearly anything" in found.bounds.says()
    worst = (y[asked].sum() / len(c), 1 - (asked.sum() - y[asked].sum()) / len(c))
    assert found.worst.accuracy == pytest.approx(worst, abs=1e-9)


def test_nothing_labelled_and_nothing_served_are_not_numbers():
    for sums in (Sums.zeros(), Sums.served([0.9, 0.5])):
        found = estimate(sums)
        assert found.coverage == found.labels == found.effective == 0
        assert math.isnan(found.gap.value)
        assert math.isnan(found.ece)
        assert math.isnan(found.debiased_ece.low)
        assert math.isnan(found.noise_floor)
        assert not any(row.covered for row in found.bins)
    assert estimate(Sums.served([0.9, 0.5])).confidence == pytest.approx(0.7)
    assert estimate(Sums.served([0.9])).bounds.accuracy == (0, 1)


def test_more_labels_than_predictions_and_huge_weights_stay_sane():
    c, y, _, _ = drawn(10, 3000, rate=everywhere)
    heavy = np.where(np.arange(3000) == 0, 1e12, 1.0)
    for sums in (
        Sums.served([0.9]) + Sums.labelled(c, y),
        Sums.served(c) + Sums.labelled(c, y, weight=heavy),
        Sums.served(c) + Sums.labelled(np.ones(3000), np.ones(3000)),
        Sums.labelled([0.0, 1.0] * 10, [0, 1] * 10),
    ):
        found = estimate(sums)
        for number in (found.accuracy, found.debiased_ece):
            assert 0 <= number.low <= number.value <= number.high <= 1
        assert -1 <= found.gap.low <= found.gap.value <= found.gap.high <= 1
        assert found.gap.se > 0
        assert all(low <= high for low, high in (found.worst.accuracy, found.bounds.accuracy))
        assert found.label_share <= 1 or math.isnan(found.label_share)
    drowned = estimate(Sums.served(c) + Sums.labelled(c, y, weight=heavy))
    bin_ = drowned.bins[int(bin_of(c[:1])[0])]
    assert (bin_.covered, bin_.effective) == (True, bin_.labels)  # all are known, whatever they weigh
    drowned = estimate(Sums.served(np.tile(c, 2)) + Sums.labelled(c, y, weight=heavy))
    assert not drowned.bins[int(bin_of(c[:1])[0])].covered  # one label outweighs all others of its bin


@pytest.mark.parametrize(("n", "right"), [(50, 0.95), (100, 0.93), (400, 0.98), (60, 0.85)])
def test_intervals_hold_where_few_of_few_are_wrong(n, right):
    held = 0.0
    for wrong in range(n + 1):
        y = np.where(np.arange(n) < wrong, 0.0, 1.0)
        found = estimate(Sums.served(np.full(9000, 0.97)) + Sums.labelled(np.full(n, 0.97), y))
        if found.gap.low <= 0.97 - right <= found.gap.high:
            held += stats.binom.pmf(wrong, n, 1 - right)
    assert 0.92 <= held <= 0.995

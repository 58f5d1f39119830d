"""Verdicts test against a tolerance, say why, and admit what is not known."""

from dataclasses import replace

import numpy as np
import pytest

from calib_serve.watch.estimates import Bounds, Estimates, Number, estimate
from calib_serve.watch.ledger.sums import Sums
from calib_serve.watch.verdict import judge


def confidences(seed, n):
    return 1 - 0.75 * np.random.default_rng(seed).beta(1, 4, n)


def live(seed, n, accuracy, *, asked=lambda c: c == c, **options):
    c = confidences(seed, n)
    y = np.random.default_rng(seed + 1).random(n) < accuracy(c)
    mine = asked(c)
    return estimate(Sums.served(c) + Sums.labelled(c[mine], y[mine]), **options)


def test_five_million_labels_with_a_gap_within_the_tolerance_are_fine():
    c = confidences(0, 500_000)
    part = Sums.served(c) + Sums.labelled(c, np.random.default_rng(1).random(len(c)) < c - 0.0015)
    found = estimate(Sums(15, 10 * part.vector))
    assert found.labels == 5_000_000
    assert found.gap.low > 0  # it is surely not 0
    assert judge(found).level == "calibrated"
    assert judge(found).headline == "Confidence means what it says, to within 1 point."
    assert judge(found, tolerance=0.001).level == "off"


def test_errors_that_cancel_are_off_although_the_mean_is_right():
    def wobbling(c):
        return np.where(np.ceil(c * 15) % 2 == 0, c - 0.05, np.minimum(c + 0.05, 1))

    found = live(2, 200_000, wobbling)
    assert abs(found.gap.value) < 0.01
    verdict = judge(found)
    assert verdict.level == "off"
    assert verdict.headline.startswith("Some confidences are off")
    assert "cancel" in str(verdict)


def test_a_calibrated_model_is_never_called_off_and_enough_labels_show_that_it_is_fine():
    kinds = [judge(live(seed, 1000, lambda c: c)).level for seed in range(100)]
    assert "off" not in kinds
    assert judge(live(3, 100_000, lambda c: c)).level == "calibrated"


def test_few_labels_say_how_many_would_do_and_so_many_do():
    verdict = judge(live(4, 2000, lambda c: c))
    assert verdict.level == "unproven"
    assert verdict.headline.startswith("Too few labels to tell: 2,000, and about ")
    enough = int(verdict.headline.split("about ")[1].split(" ")[0].replace(",", ""))
    assert 2000 < enough < 50_000
    levels = [judge(live(seed, 3 * enough, lambda c: c)).level for seed in range(20)]
    assert np.mean([level == "calibrated" for level in levels]) > 0.7


def test_what_labels_do_not_cover_is_never_called_fine():
    verdict = judge(live(6, 400_000, lambda c: c, asked=lambda c: c < 0.8))
    assert verdict.level == "unproven"
    assert "labels cover" in verdict.headline
    assert "left out" in str(verdict)
    little = live(6, 400_000, lambda c: c - 0.02, asked=lambda c: c < 0.8)
    assert little.gap.low > 0.015  # of the covered third: not a point of all
    assert judge(little).level == "unproven"
    # Off by 25 points, that third alone makes it several points overall, whatever the rest is.
    assert judge(live(6, 40_000, lambda c: c - 0.25, asked=lambda c: c < 0.8)).level == "off"


# At every limit, from numbers made by hand.


def number(value, low, high):
    return Number(value, (high - low) / 3.92, low, high)


BOUNDS = Bounds((0.8, 0.9), (-0.05, 0.05), unseen=0.1)
FINE = Estimates(
    weighed_by="predictions", missing="chance", served=20_000.0, labels=10_000.0, effective=9000.0,
    label_share=0.5, coverage=1.0, confidence=0.85, covered_confidence=0.845,
    accuracy=number(0.845, 0.84, 0.85), gap=number(0.0, -0.004, 0.004), brier=number(0.1, 0.09, 0.11),
    ece=number(0.004, 0.001, 0.008),
    ece_unclipped=0.004, ece_observed=0.012, noise_floor=0.009, groups=0, design_effect=1.0, bounds=BOUNDS,
    worst=BOUNDS, bins=(),
)  # fmt: skip


def level(*, tolerance=0.01, **changes):
    return judge(replace(FINE, **changes), tolerance=tolerance).level


@pytest.mark.parametrize("sign", [1, -1])
def test_off_is_three_standard_errors_beyond_the_tolerance(sign):
    def gap(value, half):
        ends = sorted((sign * (value - half), sign * (value + half)))
        return number(sign * value, *ends)

    # 0.03 less 1.5 halves of the interval: 0.0105 with 0.013, 0.0099 with 0.0134.
    assert level(gap=gap(0.03, 0.013)) == "off"
    assert level(gap=gap(0.03, 0.0134)) == "unproven"
    # All that is not covered may be perfect: half of it is half of the gap.
    assert level(gap=gap(0.03, 0.004), coverage=0.5) == "off"
    assert level(gap=gap(0.03, 0.009), coverage=0.5) == "unproven"
    # The interval is longer on the far side: only the side of 0 counts.
    assert level(gap=number(sign * 0.03, *sorted((sign * 0.017, sign * 0.09)))) == "off"
    assert level(gap=number(sign * 0.03, *sorted((sign * 0.01, sign * 0.031)))) == "unproven"


def test_bins_that_are_off_are_off_though_the_mean_is_right():
    assert level(ece=number(0.03, 0.018, 0.07)) == "off"
    assert level(ece=number(0.03, 0.016, 0.04)) == "unproven"
    assert level(ece=number(0.03, 0.018, 0.04), coverage=0.9) == "off"
    assert level(ece=number(0.03, 0.018, 0.04), coverage=0.6) == "unproven"
    # At the tolerance it is not beyond: 1/2 less 1.5 times 1/4 is 1/8; and the same of the gap.
    for numbers in ({"ece": number(0.5, 0.25, 0.5)}, {"gap": number(0.5, 0.25, 0.5)}):
        assert level(**numbers, tolerance=0.125) == "unproven"
        assert level(**numbers, tolerance=0.1249) == "off"


@pytest.mark.parametrize(
    ("at_the_limit", "beyond"),
    [
        ({"gap": number(0.0, -0.004, 0.01)}, {"gap": number(0.0, -0.004, 0.0101)}),
        ({"gap": number(0.0, -0.01, 0.004)}, {"gap": number(0.0, -0.0101, 0.004)}),
        ({"coverage": 0.9}, {"coverage": 0.899}),
        ({"ece": number(0.01, 0.0, 0.02)}, {"ece": number(0.0101, 0.0, 0.02)}),
        ({"ece": number(0.004, 0.0, 0.02)}, {"ece": number(0.004, 0.0, 0.0201)}),
    ],
)  # fmt: skip
def test_calibrated_is_up_to_the_limits_and_unproven_beyond_one(at_the_limit, beyond):
    assert level(**at_the_limit) == "calibrated"
    assert level(**beyond) == "unproven"


@pytest.mark.parametrize(
    ("gap", "found"),
    [
        ((0.011, 0.03), "off"), ((-0.03, -0.011), "off"), ((-0.01, 0.01), "calibrated"),
        ((-0.0101, 0.01), "unproven"), ((-0.01, 0.0101), "unproven"), ((0.01, 0.03), "unproven"),
        ((-0.03, -0.01), "unproven"),
    ],
)  # fmt: skip
def test_labels_missing_for_unknown_reasons_are_judged_by_bounds(gap, found):
    assert level(missing="unknown", worst=Bounds((0.7, 0.9), gap, unseen=0.2)) == found

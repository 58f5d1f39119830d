"""The live verdict at every limit, from numbers made by hand: its level, its way and the numbers it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calib_serve.watch.bounds import Bounds
from calib_serve.watch.estimates import Estimates, Number
from calib_serve.watch.verdict import TOLERANCE, judge


def number(value: float, low: float, high: float) -> Number:
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


def said(**changes: Any) -> tuple[str, str]:
    found = judge(replace(FINE, **changes))
    return found.level, found.headline


def test_the_tolerance_is_one_point_unless_told_otherwise() -> None:
    assert TOLERANCE == 0.01
    assert judge(FINE) == judge(FINE, tolerance=0.01)
    assert said() == ("calibrated", "Confidence means what it says, to within 1 point.")
    wider = judge(FINE, tolerance=0.025)
    assert wider.headline == "Confidence means what it says, to within 2.5 points."
    assert judge(FINE, tolerance=0.02).headline.endswith("to within 2 points.")
    assert judge(FINE, tolerance=0.3).headline.endswith("to within 30 points.")


@pytest.mark.parametrize(("sign", "word"), [(1, "Overconfident"), (-1, "Underconfident")])
def test_off_is_three_standard_errors_beyond_the_tolerance_and_says_which_way(sign: int, word: str) -> None:
    def gap(value: float, half: float) -> Number:
        ends = sorted((sign * (value - half), sign * (value + half)))
        return number(sign * value, *ends)

    # 0.03 less 1.5 halves of the interval: 0.0105 with 0.013, 0.0099 with 0.0134.
    right = number(0.815, 0.8, 0.83)
    assert said(gap=gap(0.03, 0.013), accuracy=right) == (
        "off",
        f"{word}: it says 84.5 % and is right 81.5 % of the time.",
    )
    assert said(gap=gap(0.03, 0.0134))[0] == "unproven"
    # All that is not covered may be perfect: half of it is half of the gap.
    assert said(gap=gap(0.03, 0.004), coverage=0.5)[0] == "off"
    assert said(gap=gap(0.03, 0.009), coverage=0.5)[0] == "unproven"
    # The interval is longer on the far side: only the side of 0 counts.
    far = number(sign * 0.03, *sorted((sign * 0.017, sign * 0.09)))
    assert said(gap=far)[0] == "off"
    near = number(sign * 0.03, *sorted((sign * 0.01, sign * 0.031)))
    assert said(gap=near)[0] == "unproven"


def test_bins_that_are_off_are_off_though_the_mean_is_right() -> None:
    found = judge(replace(FINE, ece=number(0.03, 0.018, 0.07)))
    assert (found.level, found.headline) == (
        "off",
        "Some confidences are off, by 3.0 points on average: see the diagram.",
    )
    assert found.reasons[0] == "They nearly cancel overall."
    for gap, cancels in ((0.01, True), (-0.01, True), (0.0101, False), (-0.0101, False)):
        told = judge(replace(FINE, ece=number(0.03, 0.018, 0.07), gap=number(gap, gap - 0.02, gap + 0.02)))
        assert (told.reasons[0] == "They nearly cancel overall.") is cancels
    assert said(ece=number(0.03, 0.016, 0.04))[0] == "unproven"
    assert said(ece=number(0.03, 0.018, 0.04), coverage=0.9)[0] == "off"
    assert said(ece=number(0.03, 0.018, 0.04), coverage=0.6)[0] == "unproven"
    # At the tolerance it is not beyond: 1/2 less 1.5 times 1/4 is 1/8; and the same of the gap.
    for numbers in ({"ece": number(0.5, 0.25, 0.5)}, {"gap": number(0.5, 0.25, 0.5)}):
        assert judge(replace(FINE, **numbers), tolerance=0.125).level == "unproven"
        assert judge(replace(FINE, **numbers), tolerance=0.1249).level == "off"


@pytest.mark.parametrize(
    "at_the_limit",
    [
        {"gap": number(0.0, -0.004, 0.01)}, {"gap": number(0.0, -0.01, 0.004)}, {"coverage": 0.9},
        {"ece": number(0.01, 0.0, 0.02)}, {"ece": number(0.004, 0.0, 0.02)},
    ],
)  # fmt: skip
def test_calibrated_is_up_to_the_limits(at_the_limit: dict[str, Any]) -> None:
    assert said(**at_the_limit)[0] == "calibrated"


@pytest.mark.parametrize(
    "beyond",
    [
        {"gap": number(0.0, -0.004, 0.0101)}, {"gap": number(0.0, -0.0101, 0.004)}, {"coverage": 0.899},
        {"ece": number(0.0101, 0.0, 0.02)}, {"ece": number(0.004, 0.0, 0.0201)},
    ],
)  # fmt: skip
def test_beyond_one_of_them_it_is_not_proven(beyond: dict[str, Any]) -> None:
    assert said(**beyond)[0] == "unproven"


def test_unproven_says_what_is_missing() -> None:
    assert said(coverage=0.42)[1] == "Not known for all predictions: labels cover 42 % of them."
    # Beyond the tolerance by its interval, and not by three standard errors.
    over, under = number(0.02, 0.0105, 0.0295), number(-0.02, -0.0295, -0.0105)
    assert said(gap=over)[1] == "Probably overconfident, by 2 points: not sure yet."
    assert said(gap=under)[1] == "Probably underconfident, by 2 points: not sure yet."
    assert said(gap=number(0.012, 0.0, 0.024))[1].startswith("Too few labels")
    # A half interval of 0.02 round 0 against a tolerance of 0.01: four times the labels.
    assert (
        said(gap=number(0.0, -0.02, 0.02))[1] == "Too few labels to tell: 10,000, and about 40,000 would do."
    )
    assert said(gap=number(-0.001, -0.021, 0.019))[1] == said(gap=number(0.0, -0.02, 0.02))[1]
    # The ECE is held against twice as much: half an interval of 0.03 against 0.02 is 2.25 times.
    assert said(ece=number(0.0, 0.0, 0.06))[1] == "Too few labels to tell: 10,000, and about 23,000 would do."
    # An interval off 0 is judged by its distance from the limit: (0.0022 / 0.0025)^2, not more labels.
    close = number(0.0095, 0.0073, 0.0117)
    assert said(gap=close)[1] == "At the limit of 1 point: too close to call."
    # Beyond the limit it takes three standard errors: 1.5 times the half, (1.5 * 0.0022 / 0.0025)^2.
    beyond = number(0.0105, 0.0083, 0.0127)
    assert said(gap=beyond)[1] == "Too few labels to tell: 10,000, and about 18,000 would do."
    assert said(gap=number(-0.0105, -0.0127, -0.0083))[1] == said(gap=beyond)[1]


def test_without_labels_nothing_is_known() -> None:
    nothing = judge(replace(FINE, labels=0.0))
    assert (nothing.level, nothing.headline) == (
        "unproven",
        "No labels yet: nothing is known about calibration.",
    )
    assert nothing.reasons == (BOUNDS.says,)
    thin = judge(replace(FINE, labels=1234.0, coverage=0.0))
    assert (thin.level, thin.headline) == ("unproven", "Too few labels to tell: 1,234, and in no bin enough.")
    assert thin.reasons == (BOUNDS.says,)
    # Labels that lie in bins a little are enough to speak of.
    assert said(labels=1.0, coverage=0.01)[1].startswith("Not known for all")


@pytest.mark.parametrize(
    ("gap", "level", "headline"),
    [
        ((0.011, 0.03), "off", "Overconfident by at least 1.1 points, whatever the missing labels are."),
        ((-0.03, -0.011), "off", "Underconfident by at least 1.1 points, whatever the missing labels are."),
        (
            (-0.01, 0.01), "calibrated",
            "Confidence is within 1 point of accuracy, whatever the missing labels are.",
        ),
        ((-0.0101, 0.01), "unproven", "Not to be told while labels are missing for unknown reasons."),
        ((-0.01, 0.0101), "unproven", "Not to be told while labels are missing for unknown reasons."),
        ((0.01, 0.03), "unproven", "Not to be told while labels are missing for unknown reasons."),
        ((-0.03, -0.01), "unproven", "Not to be told while labels are missing for unknown reasons."),
    ],
)  # fmt: skip
def test_labels_missing_for_unknown_reasons_are_judged_by_bounds(
    gap: tuple[float, float], level: str, headline: str
) -> None:
    worst = Bounds((0.7, 0.9), gap, unseen=0.2)
    found = judge(replace(FINE, missing="unknown", worst=worst))
    assert (found.level, found.headline) == (level, headline)
    assert found.reasons == ("Labels may be missing for what the outcome was.", worst.says)


def test_the_reasons_are_the_numbers() -> None:
    gap, ece = number(0.0123, -0.004, 0.0286), number(0.021, 0.013, 0.034)
    first, second, *more = judge(replace(FINE, gap=gap, ece=ece)).reasons
    assert first == "Confidence less accuracy is +1.2 points (95 % interval -0.4 to +2.9)."
    assert second == "The ECE is 2.1 % (1.3 to 3.4): bins show 1.2 %, and noise alone would show 0.9 %."
    assert more == []
    assert judge(replace(FINE, coverage=0.995)).reasons[2:] == ()
    assert judge(replace(FINE, coverage=0.93)).reasons[2:] == (
        "7 % of predictions lie where there are too few labels, and are left out.",
    )
    assert judge(replace(FINE, weighed_by="labels", coverage=0.93)).reasons[2:] == (
        "No predictions are counted, so this speaks of labelled ones alone.",
    )

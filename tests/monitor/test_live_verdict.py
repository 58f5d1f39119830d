"""Verdicts on live sums: the levels of every other verdict, at the tolerance, of all predictions served."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sizes import sized

from calib_serve.core.text import points
from calib_serve.metrics.judging import judge
from calib_serve.monitor.estimates import Bounds, Estimates, estimate
from calib_serve.monitor.live_verdict import judge_estimates
from calib_serve.receipts.sums import Sums

Truth = Callable[[Any], Any]


def confidences(seed: int, n: int, *, b: float = 4) -> Any:
    return 1 - 0.75 * np.random.default_rng(seed).beta(1, b, n)


def live(seed: int, n: int, accuracy: Truth, *, asked: Truth = lambda c: c == c, b: float = 4) -> Estimates:
    c = confidences(seed, n, b=b)
    y = np.random.default_rng(seed + 1).random(n) < accuracy(c)
    mine = asked(c)
    return estimate(Sums.served(c) + Sums.labelled(c[mine], y[mine]))


def enough(found: Any) -> int:
    (said,) = (re.search(r"About ([\d,]+) labels", line) for line in found.do)
    assert said is not None
    return int(said[1].replace(",", ""))


def test_five_million_labels_with_a_gap_within_the_tolerance_are_fine() -> None:
    c = confidences(0, 500_000)
    part = Sums.served(c) + Sums.labelled(c, np.random.default_rng(1).random(len(c)) < c - 0.0015)
    found = estimate(Sums(15, 10 * part.vector))
    assert found.labels == 5_000_000
    assert found.gap.low > 0  # it is surely not 0
    assert judge_estimates(found).level == "calibrated"
    assert judge_estimates(found, tolerance=0.001).level == "off"


def test_errors_that_cancel_are_off_although_the_mean_is_right() -> None:
    def wobbling(c: Any) -> Any:
        return np.where(np.ceil(c * 15) % 2 == 0, c - 0.05, np.minimum(c + 0.05, 1))

    found = live(2, 200_000, wobbling)
    assert abs(found.gap.value) < 0.01
    verdict = judge_estimates(found)
    assert verdict.level == "off"
    assert "too sure in some ranges and not in others" in verdict.headline


@pytest.mark.parametrize(("shift", "words"), [(-0.05, "overconfident"), (0.04, "underconfident")])
def test_off_says_which_way_and_how_far(shift: float, words: str) -> None:
    estimates = live(4, 20_000, lambda c: np.minimum(c + shift, 1))
    verdict = judge_estimates(estimates)
    assert verdict.level == "off"
    assert verdict.headline.startswith(f"Not calibrated: {words}, on average ")
    gap, error = verdict.reasons[:2]
    assert gap.startswith(f"Confidence less accuracy is {100 * estimates.gap.value:+.1f} points ")
    assert f"the error that remains is {100 * estimates.debiased_ece.value:.1f} points " in error


def test_a_calibrated_model_is_hardly_ever_called_off() -> None:
    levels = [judge_estimates(live(seed, 1000, lambda c: c)).level for seed in range(200)]
    assert levels.count("off") <= 3
    assert set(levels) <= {"off", "no_error_found", "calibrated"}
    assert judge_estimates(live(3, 100_000, lambda c: c)).level == "calibrated"


def test_a_model_that_is_three_points_off_is_hardly_ever_called_calibrated() -> None:
    levels = [judge_estimates(live(seed, 4000, lambda c: c - 0.03)).level for seed in range(200)]
    assert levels.count("calibrated") <= 10


STREAMS: dict[str, dict[str, Any]] = {
    "all are labelled": {},
    "sure predictions": {"b": 12},
    "a third is labelled": {"asked": lambda c: np.random.default_rng(9).random(len(c)) < 1 / 3},
    "unsure ones are labelled more": {
        "asked": lambda c: np.random.default_rng(9).random(len(c)) < np.where(c < 0.8, 0.9, 0.3)
    },
}


@pytest.mark.parametrize("stream", STREAMS)
def test_so_many_labels_do_as_it_says_and_half_as_many_do_not(stream: str) -> None:
    how, runs = STREAMS[stream], sized(40, 200)
    share = live(5, 20_000, lambda c: c, **how).labels / 20_000
    n = enough(judge_estimates(live(5, int(600 / share), lambda c: c, **how))) / share

    def said(size: float) -> float:
        levels = [
            judge_estimates(live(100 + 2 * i, int(size), lambda c: c, **how)).level for i in range(runs)
        ]
        return float(np.mean([level == "calibrated" for level in levels]))

    assert said(n) >= 0.75
    assert said(n / 2) < 0.75


def test_the_same_samples_get_the_same_level_live_and_offline() -> None:
    """A stream of ten classes whose labels have all come."""
    c = confidences(7, 30_000)
    for truth, level in ((c, "calibrated"), (np.maximum(c - 0.06, 0), "off")):
        y = np.random.default_rng(8).random(len(c)) < truth
        probs = np.column_stack([c, np.tile((1 - c)[:, None] / 9, 9)])
        named = np.random.default_rng(6).integers(0, 10, len(c))
        probs = np.stack([np.roll(p, k) for p, k in zip(probs, named, strict=True)])
        labels = np.where(y, named, (named + 1 + np.random.default_rng(3).integers(0, 9, len(c))) % 10)
        assert judge_estimates(estimate(Sums.served(c) + Sums.labelled(c, y))).level == level
        assert judge(probs, labels, outputs="probabilities").level == level


def test_what_labels_do_not_cover_is_never_called_fine() -> None:
    verdict = judge_estimates(live(6, 400_000, lambda c: c, asked=lambda c: c < 0.8))
    assert verdict.level == "no_error_found"
    assert "labels cover only" in verdict.headline
    assert "left out" in str(verdict)
    little = live(6, 400_000, lambda c: c - 0.03, asked=lambda c: c < 0.8)
    assert little.gap.low > 0.02  # of the covered third: not two points of all
    assert judge_estimates(little).level == "no_error_found"
    # Off by 25 points, that third alone makes it several points overall, whatever the rest is.
    assert judge_estimates(live(6, 40_000, lambda c: c - 0.25, asked=lambda c: c < 0.8)).level == "off"


def test_without_labels_or_with_few_nothing_is_said() -> None:
    none = judge_estimates(estimate(Sums.served(confidences(0, 100))))
    assert (none.level, none.headline) == ("too_little", "Too little to say anything: no labels yet.")
    few = judge_estimates(live(1, 3, lambda c: c))
    assert (few.level, few.tests) == ("too_little", ())
    assert few.headline == "Too little to say anything: 3 labels."
    assert judge_estimates(live(1, 20, lambda c: c)).level == "too_little"


@pytest.mark.parametrize(
    ("gap", "found"),
    [
        ((0.011, 0.03), "off"), ((-0.03, -0.011), "off"), ((-0.01, 0.01), "calibrated"),
        ((-0.0101, 0.01), "too_little"), ((-0.01, 0.0101), "too_little"), ((0.01, 0.03), "too_little"),
        ((-0.03, -0.01), "too_little"),
    ],
)  # fmt: skip
def test_labels_missing_for_unknown_reasons_are_judged_by_bounds(
    gap: tuple[float, float], found: str
) -> None:
    fine = live(1, 1000, lambda c: c)
    unknown = replace(fine, missing="unknown", worst=Bounds((0.7, 0.9), gap, unseen=0.2))
    verdict = judge_estimates(unknown, tolerance=0.01)
    assert verdict.level == found
    way, least = ("overconfident", gap[0]) if gap[0] > 0 else ("underconfident", -gap[1])
    assert (f"Not calibrated: {way} by {points(least)} at least" in verdict.headline) == (found == "off")

"""Verdicts test against a tolerance, say why, and admit what is not known."""

import numpy as np
import pytest

from calib_serve.errors import InputError
from calib_serve.watch.estimates import estimate
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


def test_overconfidence_is_named_with_both_numbers():
    verdict = judge(live(1, 20_000, lambda c: c - 0.1))
    assert verdict.level == "off"
    assert verdict.headline.startswith("Overconfident: it says 8")
    assert "95 % interval" in str(verdict)
    assert "noise alone" in str(verdict)
    assert judge(live(1, 20_000, lambda c: np.minimum(c + 0.08, 1))).headline.startswith("Underconfident")


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


def test_no_labels_and_none_that_suffice_are_unknown():
    assert judge(estimate(Sums.zeros())).headline.startswith("No labels yet")
    few = estimate(Sums.served(confidences(5, 100)) + Sums.labelled([0.9, 0.8], [1, 0]))
    assert judge(few).headline.startswith("Too few labels to tell: 2,")


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


def test_labels_missing_for_unknown_reasons_leave_only_bounds():
    most = live(7, 50_000, lambda c: c, asked=lambda c: np.arange(len(c)) % 50 > 0, missing="unknown")
    assert judge(most).level == "unproven"
    assert judge(most, tolerance=0.05).level == "calibrated"
    off = live(7, 50_000, lambda c: c - 0.2, asked=lambda c: np.arange(len(c)) % 50 > 0, missing="unknown")
    verdict = judge(off)
    assert verdict.headline.startswith("Overconfident by at least 1")
    assert "missing" in str(verdict)
    assert "no bound" not in str(verdict)
    half = live(7, 50_000, lambda c: c - 0.2, asked=lambda c: np.arange(len(c)) % 5 > 3, missing="unknown")
    assert judge(half).level == "unproven"
    assert "nearly anything" in str(judge(half))


def test_labels_without_predictions_speak_of_themselves():
    c = confidences(8, 100_000)
    y = np.random.default_rng(9).random(100_000) < c
    verdict = judge(estimate(Sums.labelled(c, y)))
    assert verdict.level == "calibrated"
    assert "labelled ones alone" in str(verdict)


@pytest.mark.parametrize("tolerance", [0, -0.1, 1, float("nan")])
def test_a_tolerance_is_a_difference_of_probabilities(tolerance):
    with pytest.raises(InputError, match="tolerance"):
        judge(estimate(Sums.zeros()), tolerance=tolerance)

"""Weights and groups reach every number of a fit, a comparison and a study."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import Scores, calibrate, compare_methods
from calib_serve.fit.refinement import recalibrated_losses
from calib_serve.papers import optimal_temperature

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((1200, 3))
Y = (Z / 2 + RNG.gumbel(size=Z.shape)).argmax(axis=1)
COUNTS = RNG.integers(0, 4, len(Y))
AGAIN = np.repeat(np.arange(len(Y)), COUNTS)
WEIGHED = Scores.of(Z, Y, outputs="logits", sample_weight=COUNTS)
REPEATED = Scores.of(Z[AGAIN], Y[AGAIN], outputs="logits")


def test_a_comparison_weighs_what_it_fits_and_what_it_tests() -> None:
    one, other = (compare_methods(of, of, ["temperature", "vector"]) for of in (WEIGHED, REPEATED))
    for weighed, rows in zip(one, other, strict=True):
        assert weighed.metrics is not None
        assert rows.metrics is not None
        for name in ("ece", "nll", "classwise_ece", "accuracy"):
            found = (getattr(report.metrics, name).value for report in (weighed, rows))
            assert next(found) == pytest.approx(next(found), abs=1e-9)


def test_what_recalibration_removes_is_of_the_weighted_rows() -> None:
    one, other = (recalibrated_losses(of) for of in (WEIGHED, REPEATED))
    assert one is not None
    assert other is not None
    assert one.nll.loss.value == pytest.approx(other.nll.loss.value)
    assert one.nll.calibration.value == pytest.approx(other.nll.calibration.value, rel=1e-6)


def test_a_test_set_that_weighs_is_measured_by_its_weights() -> None:
    weighed, rows = (calibrate(Z, Y, "temperature", outputs="logits", test=of) for of in (WEIGHED, REPEATED))
    for name in ("ece", "nll", "accuracy"):
        assert weighed.after[name]["value"] == pytest.approx(rows.after[name]["value"], abs=1e-9)
    assert weighed.data["verdict"] == rows.data["verdict"]


def test_a_study_is_of_rows_as_often_as_they_weigh() -> None:
    one, other = (optimal_temperature(of, of) for of in (WEIGHED, REPEATED))
    assert one.as_dict() == other.as_dict()


def test_held_out_numbers_of_soft_labels_are_of_their_mixture() -> None:
    shares = 0.8 * np.eye(3)[Y] + 0.2 / 3
    artifact = calibrate(Z, shares, "temperature", outputs="logits")
    p = artifact.of_logits(Z)
    nll = -(shares * np.log(p)).sum(axis=1).mean()
    assert artifact.after["nll"]["value"] == pytest.approx(nll, rel=0.02)


def test_groups_widen_what_is_held_out() -> None:
    groups = np.arange(len(Y)) // 10
    y = np.where((RNG.random(120) < 0.3)[groups], (Y + 1) % 3, Y)  # whole groups are wrong
    alone, together = (
        calibrate(Z, y, "temperature", outputs="logits", groups=of).after["accuracy"] for of in (None, groups)
    )
    assert together["high"] - together["low"] > 1.3 * (alone["high"] - alone["low"])


def test_labels_that_weigh_are_measured_by_their_weights() -> None:
    truths = (RNG.random(Z.shape) < 1 / (1 + np.exp(-Z / 2))).astype(int)
    truths[:600, 0] = 1  # the rows that weigh more are others than the rest
    weight = np.where(np.arange(len(Z)) < 600, 2.5, 0.5)
    for method in ("platt", "auto"):
        found = calibrate(Z, truths, method, outputs="label_logits", sample_weight=weight)
        p = 1 / (1 + np.exp(-Z))
        nll = -np.log(np.where(truths == 1, p, 1 - p)).mean(axis=1)
        assert found.before["nll"]["value"] == pytest.approx(np.average(nll, weights=weight), rel=1e-6)

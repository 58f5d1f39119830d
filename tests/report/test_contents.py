"""What a report holds and says: numbers made by hand, groups and weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calib_serve import Artifact
from calib_serve.artifact import LogitMap
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Change, Estimate, Evaluation, evaluate, evaluate_labels
from calib_serve.metrics.conclusion import CALIBRATE, DEPLOY, Verdict
from calib_serve.report import Contents, prepare_report, render
from calib_serve.report.comparison import compared
from calib_serve.scores import softmax

P = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]])
AFTER = evaluate(P, [0, 1, 1, 0], replicates=0)
BEFORE = replace(
    AFTER, ece=Estimate(0.0475), nll=Estimate(0.25), accuracy=Estimate(0.9), refinement_auroc=Estimate(0.8)
)
FOUND = Verdict("calibrated", "It is.", ("Because.",), do=(DEPLOY,))
OFF = Verdict("off", "It is not.", ("Because.",), do=(CALIBRATE, "Mind the gap."))


def change(difference: float, p: float, half: float = 0.01) -> Change:
    return Change(Estimate(difference, difference - half, difference + half), p)


def plain(lines: tuple[str, ...]) -> list[str]:
    return [line.replace("\xa0", " ").replace("\N{MINUS SIGN}", "-") for line in lines]


def of(
    changes: dict[str, Change] | None, after: Evaluation = AFTER, found: Verdict = FOUND, **more: Any
) -> Verdict:
    return compared(found, after, before=BEFORE, changes=changes, **more)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"nll": change(0.01, 0.049)}, "the negative log-likelihood rose"),
        ({"nll": change(0.01, 0.05)}, ""),
        ({"nll": change(-0.01, 0.001)}, ""),
        ({"nll": change(0.0, 0.001)}, ""),
        ({"nll": change(0.01, math.nan)}, ""),
        ({"accuracy": change(-0.01, 0.049)}, "accuracy fell"),
        ({"accuracy": change(-0.01, 0.05)}, ""),
        ({"accuracy": change(0.01, 0.001)}, ""),
        ({"ece": change(0.01, 0.001)}, ""),
        (
            {"nll": change(2.0, 0.0), "accuracy": change(-3.0, 0.0)},
            "accuracy fell and the negative log-likelihood rose",
        ),
        ({"nll": change(2.0, 0.0), "accuracy": change(-3.0, 0.2)}, "the negative log-likelihood rose"),
    ],
)  # fmt: skip
def test_a_calibration_that_costs_likelihood_or_accuracy_beyond_chance_is_not_to_be_deployed(
    changes: dict[str, Change], refused: str
) -> None:
    told = f"Do not deploy this calibration: {refused}."
    assert of(changes).do == ((told,) if refused else (DEPLOY,))
    # What else there is to do stays, after it.
    kept = replace(OFF, level="no_error_found")
    assert of(changes, found=kept).do == ((told, *kept.do) if refused else kept.do)


def test_what_is_known_of_one_class_a_sample_says_nothing_of_labels() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, (200, 3))
    y = (rng.random(p.shape) < p).astype(int)
    before, after = evaluate_labels(p**2, y, replicates=0), evaluate_labels(p, y, replicates=0)
    found = compared(OFF, after, before=before, artifact=_fitted(0.01))
    assert f"{100 * before.positive_ece:.1f} -> {100 * after.positive_ece:.1f}" in found.gain
    assert found.do == OFF.do


def _fitted(error: float, n: float = 1000.0) -> Artifact:
    """Off by this much where it was fitted, noise included."""
    bins = Bins([n], [0.8 * n], [(0.8 - error) * n]) if n else Bins.zeros(1)
    return Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2, reference=bins)


DATA = "The test data differ from the calibration data, where the error is "
MORE = "Try a more flexible method, or more calibration samples, and compare on held-out data."


@pytest.mark.parametrize(
    ("learned", "error", "differ"),
    [
        # Noise alone shows sqrt(2 / pi * 0.16 / 1000) = 0.0101 where it was fitted.
        (0.0, 0.001, True), (0.02, 0.0190, False), (0.02, 0.0205, True),
        # 0.03 there is 0.0199 more than noise, and twice that is 0.0398.
        (0.03, 0.0390, False), (0.03, 0.0405, True),
    ],
)  # fmt: skip
def test_an_error_far_beyond_that_of_the_fit_is_of_the_data(
    learned: float, error: float, differ: bool
) -> None:
    after = replace(AFTER, ece=Estimate(0.01 + error), noise_floor=Estimate(0.01))
    found = compared(OFF, after, artifact=_fitted(learned))
    told = f"{DATA}{100 * learned:.1f} %: fit again on samples of the data that it meets now."
    assert plain(found.do) == [told if differ else MORE, "Mind the gap."]


def test_where_the_fit_is_not_known_or_nothing_is_off_it_is_not_spoken_of() -> None:
    bare = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    for artifact in (None, bare, _fitted(0.0, 0.0)):
        assert compared(OFF, AFTER, artifact=artifact).do == OFF.do
    assert compared(FOUND, AFTER, artifact=_fitted(0.0)).do == (DEPLOY,)
    assert compared(replace(OFF, level="no_error_found"), AFTER, artifact=_fitted(0.0)).do == OFF.do


def report(after: Any, before: Any = None, artifact: Artifact | None = None, **options: Any) -> Contents:
    asked = ReportOptions(**{"replicates": 40, **options})
    return prepare_report(title="x", after=after, before=before, artifact=artifact, options=asked)


def test_on_a_real_shift_the_remedy_is_data(data_dir: Path) -> None:
    with np.load(data_dir / "logits" / "pneumonia_cnn_inhouse.npz") as arrays:
        cal, test = (
            tuple(arrays[f"{part}_{what}"] for what in ("logits", "labels")) for part in ("cal", "test")
        )
    artifact = fit_temperature(Samples.of(*cal))
    after = artifact.probs(test[0]), test[1]
    found = report(after, (softmax(test[0]), test[1]), artifact).verdict
    assert found.level == "off"
    assert any("The test data differ from the calibration data" in line for line in found.do)


RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((900, 3))
Y = (Z / 2 + RNG.gumbel(size=Z.shape)).argmax(axis=1)
P, Q = softmax(Z), softmax(Z / 2)


def test_counts_are_as_many_rows_in_every_number() -> None:
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 4, len(Y))
    again = np.repeat(np.arange(len(Y)), counts)
    weighed = report((Q, Y), (P, Y), sample_weight=counts)
    rows = report((Q[again], Y[again]), (P[again], Y[again]))
    for one, other in zip(weighed.sides, rows.sides, strict=True):
        np.testing.assert_equal(vars(one.reliability), vars(other.reliability))
        np.testing.assert_equal(vars(one.risk_coverage), vars(other.risk_coverage))
        assert one.metrics.ece.value == pytest.approx(other.metrics.ece.value)
    for name, change in weighed.changes.items():
        assert change.p == pytest.approx(rows.changes[name].p, nan_ok=True)
        if "floor" not in name:
            assert change.difference.value == pytest.approx(rows.changes[name].difference.value, abs=1e-9)
    assert weighed.verdict.level == rows.verdict.level


def test_weights_that_are_no_counts_change_figures_and_metrics_alike() -> None:
    rng = np.random.default_rng(3)
    weight = rng.exponential(size=len(Y)) * np.where(Q.argmax(axis=1) == Y, 2.0, 0.5)
    found = report((Q, Y), (P, Y), sample_weight=weight)
    side, bare = found.sides[1], report((Q, Y)).sides[0]
    assert side.metrics.accuracy.value > bare.metrics.accuracy.value + 0.1
    assert side.reliability.ece == pytest.approx(side.metrics.ece.value, abs=0.03)
    change = found.changes["nll"].difference
    first, second = (one.metrics.nll.value for one in found.sides)
    assert change.value == pytest.approx(second - first)
    assert change.low < change.value < change.high


def test_labels_weigh_too() -> None:
    rng = np.random.default_rng(4)
    p = rng.random((400, 4))
    y = (rng.random((400, 4)) < p).astype(int)
    counts = rng.integers(0, 3, 400)
    again = np.repeat(np.arange(400), counts)
    weighed = report((p**0.9, y), (p, y), sample_weight=counts)
    rows = report(((p**0.9)[again], y[again]), (p[again], y[again]))
    one, other = (found.changes["nll"].difference.value for found in (weighed, rows))
    assert one == pytest.approx(other)
    assert weighed.sides[1].metrics.nll.value == pytest.approx(rows.sides[1].metrics.nll.value)


def test_a_report_of_labels_says_that_its_samples_are_those_of_the_fit_and_takes_no_groups() -> None:
    rng = np.random.default_rng(5)
    p = rng.random((400, 4))
    y = (rng.random((400, 4)) < p).astype(int)
    assert report((p, y), own="they are those of the fit").verdict.level == "too_little"
    with pytest.raises(InputError, match="groups"):
        report((p, y), groups=np.arange(400) // 2)


def test_weighed_samples_are_counted_as_rows_beside_what_they_are_worth() -> None:
    rng = np.random.default_rng(6)
    weight = rng.choice([0.5, 1.0, 2.5], len(Y))
    found = report((Q, Y), sample_weight=weight)
    worth = round(weight.sum() ** 2 / (weight**2).sum())
    assert found.worth == worth < len(Y)
    assert found.after.reliability.samples.sum() == len(Y)
    assert found.after.reliability.count.sum() == worth
    assert sum(row.occurs for row in found.rows) == sum(row.predicted for row in found.rows) == len(Y)
    assert found.after.density.n_right + found.after.density.n_wrong == len(Y)
    assert f"{len(Y):,} samples, worth {worth:,}" in render(found)

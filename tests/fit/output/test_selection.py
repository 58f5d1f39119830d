"""A calibrator is chosen by what held-out samples say, and one that does harm is never chosen."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from too_sure import draw

from calib_serve.artifact import LogitMap, Score
from calib_serve.fit.facts import fit_none
from calib_serve.fit.folds import fits_of_folds, folds_of
from calib_serve.fit.measure import over_folds
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output import candidates, selection
from calib_serve.fit.output.selection import select
from calib_serve.fit.samples import Samples
from calib_serve.metrics import nll
from calib_serve.scores import softmax


@pytest.fixture
def harmful(monkeypatch: pytest.MonkeyPatch):
    """Adds methods that calibrate and do harm, as real ones that knowingly forget would."""

    def shuffled(samples, **options):
        """Calls class 0 always, with the confidence of its share: calibrated, and useless."""
        share = np.bincount(samples.labels, minlength=samples.classes) / len(samples) + 1e-6
        flat = LogitMap(np.zeros(samples.classes), np.log(share))
        return replace(fit_none(samples), steps=(flat,), method="forgetful")

    def dull(samples, **options):
        """Keeps every prediction and calls each as sure as the average: refinement is gone."""
        right = 0.5
        if samples.rows is not None:
            right = (samples.logits.argmax(axis=1)[samples.rows] == samples.labels).mean()
        k = samples.classes
        gain = math.log(right * (k - 1) / (1 - right))
        artifact = replace(fit_none(samples), method="dull")
        sure = lambda z, _: (softmax(gain * (z == z.max(axis=1, keepdims=True))), 0)  # noqa: E731
        object.__setattr__(artifact, "of_segments", sure)
        return artifact

    table = {**candidates.CANDIDATES, "forgetful": shuffled, "dull": dull}
    monkeypatch.setattr(candidates, "CANDIDATES", table)


def row(artifact, method: str) -> Score:
    return next(r for r in artifact.selection.scores if r.method == method)


def test_a_method_that_forgets_is_refused_for_its_accuracy_with_the_numbers(harmful):
    artifact = select(Samples.of(*draw(800)), candidates=["temperature", "forgetful"])
    refused = row(artifact, "forgetful").refused
    assert "accuracy falls by" in refused
    assert_significant(refused)
    assert artifact.method == "temperature"


def assert_significant(refused: str) -> None:
    """The interval of the fall holds its value, and lies above the tolerance."""
    value, low, high, tolerance = map(float, re.findall(r"\d+\.\d+", refused))
    assert tolerance == 0.005 < low < value < high


def test_a_method_that_is_equally_sure_of_all_is_refused_for_its_refinement(harmful):
    artifact = select(Samples.of(*draw(800, t=1.0)), candidates=["temperature", "dull"])
    assert "refinement AUROC falls by" in row(artifact, "dull").refused
    assert_significant(row(artifact, "dull").refused)
    # A better NLL alone does not pay for it: the Brier score is worse.
    one_score = select(Samples.of(*draw(1500)), candidates=["dull"])
    assert row(one_score, "dull").score < row(one_score, "none").score
    assert "refinement AUROC falls by" in row(one_score, "dull").refused
    # Where the proper scores gain as a whole, they may pay for it with refinement.
    assert row(select(Samples.of(*draw(800, t=9.0)), candidates=["dull"]), "dull").refused is None


def test_no_calibration_wins_where_there_is_nothing_to_gain():
    artifact = select(Samples.of(*draw(2000, t=1.0)), candidates=["temperature", "structured-vector"])
    assert artifact.method == "none"
    assert artifact.steps == ()


def test_of_methods_within_a_thousandth_the_simplest_wins():
    artifact = select(
        Samples.of(*draw(800)), candidates=["temperature", "structured-vector", "structured-matrix"]
    )
    selection = artifact.selection
    rows = {r.method: r for r in selection.scores if not math.isnan(r.above_best)}
    near = 1e-3 * rows[selection.best].score
    close = [name for name, r in rows.items() if r.above_best <= near]
    assert artifact.method == selection.chosen == close[0]
    assert "none" not in close


def test_a_score_is_the_mean_over_folds_that_the_fit_has_not_seen():
    logits, labels = draw(500)
    artifact = select(Samples.of(logits, labels), candidates=["temperature"], folds=4, seed=7)
    fold = folds_of(Samples.of(logits, labels), folds=4, seed=7)
    losses = np.empty(500)
    for f in range(4):
        inside, out = fold != f, fold == f
        p = candidates.fit_by_name("temperature", logits[inside], labels[inside]).probs(logits[out])
        losses[out] = -np.log(p[np.arange(out.sum()), labels[out]])
    assert row(artifact, "temperature").score == pytest.approx(losses.mean(), rel=1e-9)
    assert artifact.after["nll"]["value"] == pytest.approx(losses.mean(), rel=1e-9)
    assert row(artifact, "none").score == pytest.approx(nll(softmax(logits), labels), rel=1e-9)
    full = candidates.fit_by_name("temperature", logits, labels)
    assert artifact.fit["temperature"] == full.fit["temperature"]


def test_auto_on_real_logits_keeps_close_to_the_best_single_method(data_dir: Path):
    data = np.load(data_dir / "logits" / "resnet50_c10_cross_entropy.npz")
    cal, test = ((data[f"{s}_logits"], data[f"{s}_labels"]) for s in ("cal", "test"))
    names = ["temperature", "structured-vector", "structured-matrix", "isotonic"]
    chosen = nll(select(Samples.of(*cal), candidates=names, folds=3).probs(test[0]), test[1])
    best = min(nll(candidates.fit_by_name(name, *cal).probs(test[0]), test[1]) for name in names)
    assert chosen <= 1.01 * best
    assert chosen < nll(softmax(test[0]), test[1])


def chosen_from(n: int, t: float, few: int, monkeypatch: pytest.MonkeyPatch):
    """What auto chooses of n samples where it begins with ``few``."""
    with monkeypatch.context() as patched:
        other = MEASURED._replace(most_samples_cross_validated=few, samples_compared_a_parameter=1)
        patched.setattr(selection, "MEASURED", other)
        return select(Samples.of(*draw(n, t=t)), candidates=("none", "temperature"))


def test_a_clear_choice_is_made_on_few_samples_and_fitted_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen_from(4000, 2.5, 400, monkeypatch)
    assert found.method == "temperature"
    assert found.data["measured_samples"] == 400
    assert "the method is chosen on 400 of the 4,000 samples" in found.fit.remarks
    whole = chosen_from(4000, 2.5, 4000, monkeypatch)
    assert found.fit["temperature"] == whole.fit["temperature"]
    assert found.data["samples"] == 4000


def test_every_candidate_has_its_turn_and_its_paired_difference_from_the_best() -> None:
    samples, told = Samples.of(*draw(300)), list[tuple[str, int, int]]()
    more = {"class_names": "abcd", "progress": lambda *turn: told.append(turn)}
    found = select(samples, candidates=["temperature"], seed=3, **more)
    assert told == [("none", 0, 2), ("temperature", 1, 2)]
    assert found.class_names == ("a", "b", "c", "d")
    assert found.selection is not None
    assert (found.selection.seed, found.selection.best) == (3, "temperature")
    scores = {one.method: one for one in found.selection.scores}
    fold = folds_of(samples, folds=5, seed=3)
    losses = {}
    for name in ("none", "temperature"):
        fits = fits_of_folds(samples, fold, candidates.fitter_of(name, {}))
        losses[name] = over_folds(fits, samples, fold).nll
        assert scores[name].score == pytest.approx(losses[name].mean())
        assert scores[name].above_best == pytest.approx(scores[name].score - scores["temperature"].score)
    paired = losses["none"] - losses["temperature"]
    assert scores["none"].standard_error == pytest.approx(paired.std(ddof=1) / 300**0.5)


@pytest.mark.parametrize(
    ("labels", "keep", "methods"),
    [
        (1, False, ("none", "temperature", "structured-average")),
        (1, True, ("none", "temperature")),
        (2, False, ("none", "temperature", "platt")),
    ],
)
def test_what_is_tried_by_default(labels: int, keep: bool, methods: tuple[str, ...]) -> None:
    z, y = draw(200, 2)
    kind = "logits" if labels == 1 else "label_logits"
    samples = Samples.of(z, y if labels == 1 else (z + 2 * z[::-1] > 0).astype(int), outputs=kind)
    found = select(samples, keep_predictions=keep)
    assert found.selection is not None
    assert tuple(one.method for one in found.selection.scores) == methods

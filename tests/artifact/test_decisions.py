"""Prediction sets and abstention in an artifact: kept, checked, and none of the probabilities' business."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calib_serve import Artifact, LogitMap
from calib_serve.artifact import Abstain, PredictionSets
from calib_serve.cli import app
from calib_serve.errors import CalibServeError

SETS = PredictionSets(np.array([0.9, 0.8, 0.7]), coverage=0.9)
PLAIN = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)


def test_aps_takes_the_likeliest_classes_until_their_mass_is_reached() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(6), size=200)
    inside = PredictionSets(np.array(0.8), coverage=0.9, score="aps")(p)
    for row, kept in zip(p, inside, strict=True):
        order = np.argsort(-row, kind="stable")
        size = max(1, int((np.cumsum(row[order]) <= 0.8).sum()))
        assert sorted(np.flatnonzero(kept)) == sorted(order[:size])


@pytest.mark.parametrize(
    "wrong",
    [
        {"coverage": 1.0},
        {"threshold": np.array([[0.5]])},
        {"threshold": np.array(-0.5)},
        {"threshold": np.array(np.nan)},
        {"score": "saps"},
        {"penalty": 0.1},
        {"score": "raps", "penalty": -1.0},
    ],
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CalibServeError):
        PredictionSets(**{"threshold": np.array(0.5), "coverage": 0.9, **wrong})


def test_thresholds_of_other_classes_and_decisions_on_labels_are_refused() -> None:
    with pytest.raises(CalibServeError, match="3 classes but 2"):
        replace(PLAIN, sets=PredictionSets(np.array([0.5, 0.5]), coverage=0.9))
    with pytest.raises(CalibServeError, match="not for labels"):
        Artifact(
            (), method="none", classes=3, model={"outputs": "label_logits"}, abstain=Abstain(0.5, risk=0.1)
        )
    with pytest.raises(CalibServeError, match="threshold"):
        Abstain(1.5, risk=0.1)


def test_an_artifact_shows_what_it_decides_and_apply_writes_it(tmp_path: Path) -> None:
    artifact = replace(PLAIN, sets=SETS, abstain=Abstain(0.6, risk=0.1))
    assert repr(artifact).endswith(f", sets of {SETS.coverage:g} ({SETS.score}), abstains below 0.6)")
    assert "sets" not in repr(PLAIN)
    logits = np.random.default_rng(0).normal(size=(9, PLAIN.classes))
    np.savez(tmp_path / "z.npz", logits=logits)
    for one, names in ((artifact, {"set", "abstain"}), (PLAIN, set())):
        one.save(tmp_path / "a")
        out = tmp_path / "p.npz"
        call = ["apply", str(tmp_path / "a"), "--logits", str(tmp_path / "z.npz"), "-o", str(out)]
        assert CliRunner().invoke(app, call).exit_code == 0
        with np.load(out) as made:
            assert {*made} - {"probs", "predictions", "confidence"} == names
            for name in names:
                decide = {"set": SETS, "abstain": artifact.abstain}[name]
                np.testing.assert_array_equal(made[name], decide(made["probs"]))

"""Prediction sets and abstention in an artifact: kept, checked, and none of the probabilities' business."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib_serve import Artifact
from calib_serve.artifact import Abstain, LogitMap, PredictionSets
from calib_serve.errors import CalibServeError

PLAIN = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)


def test_aps_takes_each_class_that_less_mass_than_the_threshold_lies_above() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(6), size=200)
    inside = PredictionSets(np.array(0.8), coverage=0.9, score="aps")(p)
    for row, kept in zip(p, inside, strict=True):
        order = np.argsort(-row, kind="stable")
        above = np.cumsum(row[order]) - row[order]
        size = max(1, int((above <= 0.8).sum()))
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

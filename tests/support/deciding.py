"""Prediction sets and abstention of every kind, for artifacts of tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib_serve import Artifact
from calib_serve.artifact import Abstain, PredictionSets

SCORES = ("lac", "aps", "raps", "lac a class", "aps a class", "raps a class")


def sets_of(score: str, classes: int) -> PredictionSets:
    """Sets by a score, of one threshold or, "a class", of one for each."""
    name, _, each = score.partition(" ")
    threshold = np.linspace(0.55, 0.9, classes) if each else np.array(0.8)
    raps = {"penalty": 0.07, "free_ranks": 1} if name == "raps" else {}
    return PredictionSets(threshold, coverage=0.9, score=name, **raps)


def deciding(artifact: Artifact, score: str = "lac", *, below: float = 0.5) -> Artifact:
    """The artifact with sets by a score, and with abstention below a confidence."""
    return replace(artifact, sets=sets_of(score, artifact.classes), abstain=Abstain(below, risk=0.05))

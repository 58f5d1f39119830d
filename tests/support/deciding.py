"""Prediction sets and abstention of every kind, for artifacts of tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib_serve import Artifact
from calib_serve.artifact import Abstain, Choice, Clause, Contract, PredictionSets

SCORES = ("lac", "aps", "raps", "lac a class", "aps a class", "raps a class")


def sets_of(score: str, classes: int) -> PredictionSets:
    """Sets by a score, of one threshold or, "a class", of one for each."""
    name, _, each = score.partition(" ")
    threshold = np.linspace(0.55, 0.9, classes) if each else np.array(0.8)
    raps = {"penalty": 0.07, "free_ranks": 1} if name == "raps" else {}
    return PredictionSets(threshold, coverage=0.9, score=name, **raps)


def choosing(classes: int) -> Choice:
    """To name a class, or to look where none is likely enough; the names are not of ASCII."""
    names = (*(f"take {k}, éh" for k in range(classes)), "nachsehen ü")
    costs = np.c_[1 - np.eye(classes), np.full(classes, 0.45)]
    return Choice(names, "cost", 0.5, costs=costs)


ACTS = Contract((Clause(0.9, above=0.45), Clause(0.95, above=0.6, predicted=1)))
"""A contract that lets act from one confidence on, and of class 1 from another."""
IN_SEGMENTS = Contract((*ACTS.clauses, Clause(0.99, above=0.8, segment="nord")))
"""The same, with a segment where more is asked."""


def acts_by_hand(probs: np.ndarray, segment: str = "") -> list[bool]:
    """What ``IN_SEGMENTS`` says of probabilities (n, K), and of no segment ``ACTS``."""
    least = [max(0.45, 0.6 if p.argmax() == 1 else 0, 0.8 if segment == "nord" else 0) for p in probs]
    return [bool(p.max() >= one) for p, one in zip(probs, least, strict=True)]


def deciding(artifact: Artifact, score: str = "lac", *, below: float = 0.5) -> Artifact:
    """The artifact with sets by a score, and with abstention below a confidence."""
    return replace(artifact, sets=sets_of(score, artifact.classes), abstain=Abstain(below, risk=0.05))

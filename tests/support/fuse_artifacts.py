"""Artifacts of every kind of step, and what each must give, computed without the fuser."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from calib_serve import Artifact
from calib_serve.artifact import Head, LogitMap, Mixture, ProbTable
from calib_serve.scores import Outputs

KINDS = [
    *("temperature", "vector", "matrix", "bias", "scaled bias", "dirichlet", "floor"),
    *("mixture", "top", "classwise"),
]


def output_steps(kind: str, classes: int, rng: np.random.Generator) -> tuple:
    """The steps on logits and probabilities that a kind stands for."""
    near_one = np.eye(classes) + 0.1 * rng.normal(size=(classes, classes))
    bias = 0.3 * rng.normal(size=classes)
    edges = np.sort(rng.uniform(0.05, 0.95, (classes, 4)), axis=1)
    return {
        "none": (),
        "temperature": (LogitMap.temperature(1.7),),
        "vector": (LogitMap(np.diag(near_one)),),
        "matrix": (LogitMap(near_one, bias),),
        "bias": (LogitMap(np.ones(classes), bias),),
        "scaled bias": (LogitMap(np.array(0.8), bias),),
        "dirichlet": (LogitMap(near_one, bias, "log_probs"),),
        "floor": (LogitMap(np.array(1.0), None, "log_probs", 0.05), LogitMap.temperature(1.7)),
        "mixture": (LogitMap.temperature(1.2), Mixture([1.0, 0.5], [0.6, 0.3, 0.1])),
        "top": (ProbTable(edges[:1], rng.uniform(0.3, 1, (1, 5))),),
        "classwise": (LogitMap.temperature(1.4), ProbTable(edges, rng.random((classes, 5)))),
    }[kind]


def head(width: int, classes: int, layers: int, rng: np.random.Generator) -> Head:
    """A head of one or two layers."""
    sizes = [width, 5, classes] if layers == 2 else [width, classes]
    pairs = list(pairwise(sizes))
    return Head(
        tuple(0.5 * rng.normal(size=(o, i)) for i, o in pairs),
        tuple(0.2 * rng.normal(size=o) for _, o in pairs),
    )


def artifact(*steps, classes: int, outputs: Outputs | None = "logits", **facts) -> Artifact:
    """An artifact of steps, with a name, fitted on scores of this kind."""
    facts.setdefault("model", {"outputs": outputs})
    return Artifact(steps, method="test", classes=classes, **facts)

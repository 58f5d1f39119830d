"""Structured vector and matrix scaling: few, regularised parameters after a temperature (Berta 2025).

After temperature scaling, softmax((I + diag(v) + M) ln p + b) with squared penalties that grow with
the number of parameters and shrink with that of samples, so that with little data nothing but the
temperature remains.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact, LogitMap, Mixture
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.softmax_regression import Penalty, Problem, along_path

__all__ = ["STRENGTHS", "fit_structured_matrix", "fit_structured_vector", "penalty_of"]

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""What the penalties are multiplied with, strongest first; 1 is the authors' choice for all data."""

_GAP = 1e-8


def fit_structured_vector(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    strength: float | None = None,
    folds: int = 5,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """A temperature, then one scale and one bias per class, penalised by strength K / n.

    ``logits`` (n, K), ``labels`` (n,). Without ``strength`` it is cross-validated over STRENGTHS.
    Raises InputError for invalid arrays, FitError where no temperature is best.
    Berta 2025, SVS.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit(samples, "diagonal", "structured-vector", strength, folds=folds, seed=seed)


def fit_structured_matrix(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    strength: float | None = None,
    folds: int = 5,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """As ``fit_structured_vector`` with a full matrix, off the diagonal by strength K (K - 1) / n.

    Berta 2025, SMS.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit(samples, "full", "structured-matrix", strength, folds=folds, seed=seed)


def _fit(
    samples: Samples,
    shape: Literal["full", "diagonal"],
    method: str,
    strength: float | None,
    *,
    folds: int,
    seed: int,
) -> Artifact:
    if strength is not None and not (np.isfinite(strength) and strength > 0):
        raise InputError(f"strength must be positive, got {strength}")
    begin = temperature(samples)
    problem = Problem.of(samples, shape, on="log_probs", scale=1 / begin["temperature"])
    start = np.zeros(problem.size)
    n, k = len(samples), samples.classes
    chosen = {}
    if strength is None:
        path = along_path(problem, [penalty_of(n, k, s) for s in STRENGTHS], start, folds=folds, seed=seed)
        strength, start = STRENGTHS[path.best], path.mean()
        scores = {f"{s:g}": score for s, score in zip(STRENGTHS, path.scores, strict=False)}
        chosen = {"folds": folds, "seed": seed, "scores": scores}
    found = problem.solve(penalty_of(n, k, strength), start, gap=_GAP)
    weight, bias = problem.map(found.x)
    return complete(
        [LogitMap.temperature(begin["temperature"]), LogitMap(weight, bias, "log_probs"), _floor(n)],
        samples,
        method=method,
        fit={
            "objective": "nll + strength (K / n (bias^2 + (diagonal - 1)^2) + K (K - 1) / n off-diagonal^2)",
            "strength": strength,
            "temperature": begin["temperature"],
            **chosen,
            **found.certificate(),
            "nll_before": begin["nll_before"],
            "nll_after": problem.nll(found.x),
        },
        packages=("scipy",),
    )


def penalty_of(n: int, classes: int, strength: float) -> Penalty:
    """The penalty of ``strength`` for n samples: K / n of scales and biases, K (K - 1) / n of the rest."""
    return Penalty(strength * classes * (classes - 1) / n, strength * classes / n, strength * classes / n)


def _floor(n: int) -> Mixture:
    """A uniform part of one sample's weight, which keeps probabilities above 0."""
    return Mixture(scales=np.array([1.0]), weights=np.array([n, 1.0]) / (n + 1))

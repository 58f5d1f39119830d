"""Vector and matrix scaling: softmax(W z + b) with a diagonal or a full W (Guo 2017, section 4.2).

With off-diagonal and intercept regularisation (Kull 2019) on logits, or on log-probabilities: Dirichlet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.softmax_regression import Penalty, Problem, along_path

__all__ = [
    "STRENGTHS",
    "fit_dirichlet_odir",
    "fit_matrix",
    "fit_matrix_odir",
    "fit_vector",
]

_RIDGE = 1e-6
_GAP = 1e-9


def fit_vector(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    ridge: float = _RIDGE,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """One scale and one bias per class, by least NLL.

    ``logits`` (n, K), ``labels`` (n,). ``ridge``, the weight of the squared distance from
    temperature scaling, is small but not 0: without it a class that never occurs has no finite
    optimum. Raises InputError for invalid arrays. Guo 2017, section 4.2.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit(samples, "diagonal", "vector", ridge)


def fit_matrix(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    ridge: float = _RIDGE,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """A full matrix and a bias, by least NLL: K^2 + K numbers, which overfit without many samples.

    Options and errors as in ``fit_vector``. Guo 2017, section 4.2.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit(samples, "full", "matrix", ridge)


def _fit(samples: Samples, shape: Literal["full", "diagonal"], method: str, ridge: float) -> Artifact:
    if not (np.isfinite(ridge) and ridge > 0):
        raise InputError(f"ridge must be positive, got {ridge}")
    begin = temperature(samples)
    scale = 1 / begin["temperature"]
    problem = Problem.of(samples, shape, scale=scale)
    found = problem.solve(Penalty(ridge, ridge, ridge), gap=_GAP)
    weight, bias = problem.map(found.x)
    return complete(
        [LogitMap(scale * weight, bias)],
        samples,
        method=method,
        fit={
            "objective": "nll + ridge squared distance from temperature scaling",
            "ridge": ridge,
            "temperature": begin["temperature"],
            **found.certificate(),
            "nll_before": begin["nll_before"],
            "nll_after": problem.nll(found.x),
        },
        packages=("scipy",),
    )


STRENGTHS = tuple(10.0**e for e in range(4, -3, -1))
"""The seven values that lambda and mu are chosen from, strongest first."""

_ODIR_GAP = 1e-8
# The paper leaves the diagonal free. This small ridge keeps it finite where a class is never mistaken.
_DIAGONAL = 1e-8


def fit_dirichlet_odir(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    lam: float | None = None,
    mu: float | None = None,
    folds: int = 5,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """softmax(W ln p + b) with ODIR: NLL + lam mean_{i != j} W_ij^2 + mu mean_j b_j^2.

    ``logits`` (n, K), ``labels`` (n,). Without ``lam`` the strength is cross-validated over
    STRENGTHS with mu = lam, then mu alone; without only ``mu``, mu = lam. Raises InputError for invalid
    arrays, FitError where no optimum is found. Kull 2019, sections 3 and 4.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit_odir(samples, "log_probs", "dirichlet-odir", lam=lam, mu=mu, folds=folds, seed=seed)


def fit_matrix_odir(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    lam: float | None = None,
    mu: float | None = None,
    folds: int = 5,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """softmax(W z + b) on logits with ODIR, as ``fit_dirichlet_odir`` on log-probabilities (Kull 2019)."""
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return _fit_odir(samples, "logits", "ms-odir", lam=lam, mu=mu, folds=folds, seed=seed)


def _fit_odir(
    samples: Samples,
    on: Literal["logits", "log_probs"],
    method: str,
    *,
    lam: float | None,
    mu: float | None,
    folds: int,
    seed: int,
) -> Artifact:
    problem = Problem.of(samples, "full", on=on)
    k = samples.classes
    begin = temperature(samples)
    strongest = STRENGTHS[0] if lam is None else lam
    start = _diagonal(problem, _odir(k, strongest, strongest if mu is None else mu), begin["temperature"])
    chosen: dict[str, Any] = {}
    if lam is None:
        path = along_path(
            problem, [_odir(k, s, s if mu is None else mu) for s in STRENGTHS], start, folds=folds, seed=seed
        )
        lam = STRENGTHS[path.best]
        chosen = {"folds": folds, "seed": seed, "lambda_scores": _named(path.scores)}
        if mu is None:
            penalties = [_odir(k, lam, s) for s in STRENGTHS]
            path = along_path(problem, penalties, path.thetas, folds=folds, seed=seed)
            mu = STRENGTHS[path.best]
            chosen["mu_scores"] = _named(path.scores)
        start = path.mean()
    mu = lam if mu is None else mu
    found = problem.solve(_odir(k, lam, mu), start, gap=_ODIR_GAP)
    weight, bias = problem.map(found.x)
    return complete(
        [LogitMap(weight, bias, on)],
        samples,
        method=method,
        fit={
            "objective": "nll + lambda mean off-diagonal^2 + mu mean bias^2",
            "lambda": lam,
            "mu": mu,
            **chosen,
            **found.certificate(),
            "objective_value": found.value,
            "nll_before": begin["nll_before"],
            "nll_after": problem.nll(found.x),
        },
        packages=("scipy",),
    )


def _diagonal(problem: Problem, penalty: Penalty, temperature: float) -> NDArray[np.float64]:
    """The solution for an infinite lambda: a diagonal, with few parameters."""
    k = problem.samples.classes
    start = np.concatenate([np.full(k, 1 / temperature - 1), np.zeros(k)])
    found = replace(problem, shape="diagonal").solve(penalty, start, gap=_ODIR_GAP)
    weight, bias = found.x[:k], found.x[k:]
    return np.concatenate([np.diag(weight).ravel(), bias])


def _odir(classes: int, lam: float, mu: float) -> Penalty:
    return Penalty(lam / (classes * (classes - 1)), _DIAGONAL, mu / classes)


def _named(scores: tuple[float, ...]) -> dict[str, float]:
    return {f"{strength:g}": score for strength, score in zip(STRENGTHS, scores, strict=False)}

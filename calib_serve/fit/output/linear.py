"""Vector and matrix scaling: softmax(W z + b) with a diagonal or a full W (Guo 2017, section 4.2).

With off-diagonal and intercept regularisation (Kull 2019) on logits, or on log-probabilities: Dirichlet.
Structured (Berta 2025): after a temperature, softmax((I + diag(v) + M) ln p + b) with squared penalties
that grow with the number of parameters and shrink with that of samples, so that with little data nothing
but the temperature remains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap, Mixture
from calib_serve.fit.facts import complete
from calib_serve.fit.folds import FOLDS
from calib_serve.fit.lbfgs import Vector
from calib_serve.fit.output.offset import tempered, with_offset
from calib_serve.fit.output.temperature import Optimum, temperature
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import Penalty, Problem, Shape, along_path

_GAP = 1e-8  # of the penalised NLL

ODIR_STRENGTHS = tuple(10.0**e for e in range(4, -3, -1))
"""The seven values that lambda and mu are chosen from, strongest first."""
STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""What the penalties are multiplied with, strongest first; 1 is the authors' choice for all data."""


def fit_vector(samples: Samples) -> Artifact:
    """Fit one scale and one bias per class, by least NLL (Guo 2017, section 4.2)."""
    return _fit(samples, "diagonal", "vector")


def fit_matrix(samples: Samples) -> Artifact:
    """Fit a full matrix and a bias, by least NLL: K^2 + K numbers, which overfit without many samples.

    Guo 2017, section 4.2.
    """
    return _fit(samples, "full", "matrix")


def _fit(samples: Samples, shape: Shape, method: str) -> Artifact:
    near, offset, begin = _tempered(samples)
    # Behind a temperature W begins at I, and one small ridge suits logits of any size.
    scale = 1 / begin.temperature
    problem = Problem.of(near, shape, scale=scale)
    ridge = 1e-6  # keeps the optimum finite where a class never occurs
    (weight, bias), certificate = _solved(problem, Penalty(ridge, ridge, ridge), gap=1e-9)
    weight = scale * weight
    if offset is not None:
        bias = bias + (weight @ offset if shape == "full" else weight * offset)
    return complete(
        [LogitMap(weight, bias)],
        samples,
        method=method,
        fit={
            "objective": "nll + ridge squared distance from temperature scaling",
            "ridge": ridge,
            "temperature": begin.temperature,
            "nll_before": begin.nll_before,
            **certificate,
        },
        packages=("scipy",),
    )


def _tempered(samples: Samples) -> tuple[Samples, Vector | None, Optimum]:
    """The samples with the offset that a temperature needs, this or None, and the temperature."""
    near, offset, begin = with_offset(samples, temperature)
    if offset is not None:
        nll = Problem(samples, "diagonal").nll(np.zeros(2 * samples.classes))
        begin = begin._replace(nll_before=nll)
    return near, offset, begin


def _solved(
    problem: Problem, penalty: Penalty, start: Vector | None = None, *, gap: float
) -> tuple[tuple[Vector, Vector], dict[str, Any]]:
    """W and b of least penalised NLL, and how near to the least the search ended."""
    found = problem.solve(penalty, start, gap=gap)
    certificate = {"objective_value": found.value, "nll_after": problem.nll(found.x), **found.certificate()}
    return problem.map(found.x), certificate


def fit_dirichlet_odir(samples: Samples, *, seed: int = 0) -> Artifact:
    """Fit softmax(W ln p + b) with ODIR: NLL + lambda mean_{i != j} W_ij^2 + mu mean_j b_j^2.

    lambda is cross-validated over ODIR_STRENGTHS with mu = lambda, then mu alone. Raises FitError where no
    optimum is found. Kull 2019, sections 3 and 4.
    """
    return _fit_odir(samples, "log_probs", "dirichlet-odir", seed)


def fit_matrix_odir(samples: Samples, *, seed: int = 0) -> Artifact:
    """Fit softmax(W z + b) on logits with ODIR; otherwise as ``fit_dirichlet_odir`` (Kull 2019)."""
    return _fit_odir(samples, "logits", "ms-odir", seed)


def _fit_odir(samples: Samples, on: Literal["logits", "log_probs"], method: str, seed: int) -> Artifact:
    problem, k = Problem.of(samples, "full", on=on), samples.classes
    begin, strongest = temperature(samples), ODIR_STRENGTHS[0]
    start = _diagonal(problem, odir(k, strongest, strongest), begin.temperature)
    penalties = {s: odir(k, s, s) for s in ODIR_STRENGTHS}
    both = along_path(problem, penalties, start, folds=FOLDS, seed=seed)
    lam = both.strength
    penalties = {s: odir(k, lam, s) for s in ODIR_STRENGTHS}
    path = along_path(problem, penalties, both.thetas, folds=FOLDS, seed=seed)
    mu = path.strength
    (weight, bias), certificate = _solved(problem, odir(k, lam, mu), path.mean(), gap=_GAP)
    return complete(
        [LogitMap(weight, bias, on)],
        samples,
        method=method,
        fit={
            "objective": "nll + lambda mean off-diagonal^2 + mu mean bias^2",
            "lambda": lam,
            "mu": mu,
            "nll_before": begin.nll_before,
            "folds": FOLDS,
            "seed": seed,
            "lambda_scores": both.scores,
            "mu_scores": path.scores,
            **certificate,
        },
        packages=("scipy",),
    )


def _diagonal(problem: Problem, penalty: Penalty, temperature: float) -> NDArray[np.float64]:
    """The solution for an infinite lambda: a diagonal, with few parameters."""
    k = problem.samples.classes
    start = np.concatenate([np.full(k, 1 / temperature - 1), np.zeros(k)])
    found = replace(problem, shape="diagonal").solve(penalty, start, gap=_GAP)
    weight, bias = found.x[:k], found.x[k:]
    return np.concatenate([np.diag(weight).ravel(), bias])


def odir(classes: int, lam: float, mu: float) -> Penalty:
    """The penalty of off-diagonal entries and biases, which are means as in the paper's equation.

    Published code sums the squares by default. The paper leaves the diagonal free; a small ridge keeps it
    finite where a class is never mistaken.
    """
    return Penalty(lam / (classes * (classes - 1)), 1e-8, mu / classes)


def fit_structured_vector(samples: Samples, *, seed: int = 0) -> Artifact:
    """Fit a temperature, then one scale and one bias per class, penalised by strength K / n.

    The strength is cross-validated over STRENGTHS. Raises FitError where no temperature is best. Berta 2025,
    SVS.
    """
    return _fit_structured(samples, "diagonal", "structured-vector", seed)


def fit_structured_matrix(samples: Samples, *, seed: int = 0) -> Artifact:
    """Fit as ``fit_structured_vector``, with a full matrix, off the diagonal by strength K (K - 1) / n.

    Berta 2025, SMS.
    """
    return _fit_structured(samples, "full", "structured-matrix", seed)


def _fit_structured(samples: Samples, shape: Shape, method: str, seed: int) -> Artifact:
    near, offset, begin = _tempered(samples)
    problem = Problem.of(near, shape, on="log_probs", scale=1 / begin.temperature)
    n, k = len(samples), samples.classes
    penalties = {s: penalty_of(n, k, s) for s in STRENGTHS}
    path = along_path(problem, penalties, np.zeros(problem.size), folds=FOLDS, seed=seed)
    (weight, bias), certificate = _solved(problem, penalties[path.strength], path.mean(), gap=_GAP)
    return complete(
        # A uniform part of one sample's weight keeps probabilities above 0.
        [
            tempered(begin.temperature, offset),
            LogitMap(weight, bias, "log_probs"),
            Mixture(scales=np.array([1.0]), weights=np.array([n, 1.0]) / (n + 1)),
        ],
        samples,
        method=method,
        fit={
            "objective": "nll + strength (K / n (bias^2 + (diagonal - 1)^2) + K (K - 1) / n off-diagonal^2)",
            "strength": path.strength,
            "temperature": begin.temperature,
            "nll_before": begin.nll_before,
            "folds": FOLDS,
            "seed": seed,
            "scores": path.scores,
            **certificate,
        },
        packages=("scipy",),
    )


def penalty_of(n: int, classes: int, strength: float) -> Penalty:
    """The penalty for n samples: ``strength`` K / n, off the diagonal times K - 1 more."""
    return Penalty(strength * classes * (classes - 1) / n, strength * classes / n, strength * classes / n)

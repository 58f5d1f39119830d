"""Vector and matrix scaling: softmax(W z + b) with a diagonal or a full W (Guo 2017, section 4.2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.solve.softmax_regression import Penalty, Problem

__all__ = ["fit_matrix", "fit_vector"]

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

"""The calibration of scores that an estimator asked for, also where there is little to choose by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from calib_serve.artifact import Artifact, Outputs
from calib_serve.errors import FitError
from calib_serve.metrics import log_probs
from calib_serve.workflows.fit_scores import calibrate

__all__ = ["as_logits", "calibrated", "seed_of"]

_FOLDS = 5


def as_logits(scores: ArrayLike, outputs: Outputs) -> NDArray[np.float64]:
    """Scores (n, K) as logits (n, K); one column, or (n,), is the second of two classes.

    >>> as_logits([0.0, 2.0], "logits").tolist()
    [[0.0, 0.0], [0.0, 2.0]]
    >>> as_logits([0.75], "probabilities").round(4).tolist()
    [[-1.3863, -0.2877]]
    """
    z = np.asarray(scores, np.float64)
    z = z[:, None] if z.ndim == 1 else z
    if z.ndim == 2 and z.shape[1] == 1:
        z = np.hstack([_first_of_two(z, outputs), z])
    return np.asarray(log_probs(z)) if outputs == "probabilities" else z


def _first_of_two(second: NDArray[np.float64], outputs: Outputs) -> NDArray[np.float64]:
    if outputs == "probabilities":
        return np.asarray(1 - second)
    return np.asarray(log_probs(-np.expm1(second))) if outputs == "log_probs" else np.zeros_like(second)


def calibrated(
    logits: NDArray[np.float64],
    labels: NDArray[np.intp],
    *,
    method: str,
    outputs: Outputs,
    class_names: Iterable[Any],
    sample_weight: ArrayLike | None,
    options: Mapping[str, Any] | None,
    seed: int,
) -> Artifact:
    """Fit ``method`` to logits (n, K) and class ids (n,); "auto" chooses by cross-validation.

    Where "auto" cannot cross-validate, because a class has fewer than two samples, it fits a temperature,
    or, where no finite temperature is best, calibrates nothing.
    """
    given: dict[str, Any] = {"sample_weight": sample_weight, "seed": seed, **(options or {})}
    if method == "auto":
        artifact = _auto(logits, labels, **given)
    else:
        artifact = calibrate(logits, labels, method, cross_validate=False, **given)
    names = tuple(str(name) for name in class_names)
    return replace(artifact, class_names=names, model={"outputs": outputs})


def _auto(logits: NDArray[np.float64], labels: NDArray[np.intp], **given: Any) -> Artifact:
    smallest = int(np.bincount(labels, minlength=logits.shape[1]).min())
    given["folds"] = min(given.get("folds", _FOLDS), smallest)
    if given["folds"] > 1:
        return calibrate(logits, labels, **given)
    how = {"sample_weight": given["sample_weight"], "cross_validate": False}
    try:
        return calibrate(logits, labels, "temperature", **how)
    except FitError:
        return calibrate(logits, labels, "none", **how)


def seed_of(random_state: Any) -> int:
    """The seed that scikit-learn's ``random_state`` stands for: itself, or a number drawn from it."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

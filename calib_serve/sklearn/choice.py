"""The calibration of scores that an estimator asked for, also where there is little to choose by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from calib_serve.artifact import Artifact
from calib_serve.fit.calibrate import calibrate
from calib_serve.fit.samples import Samples
from calib_serve.scores import Outputs

_FOLDS = 5


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
    samples = Samples.of_kind(logits, labels, outputs, sample_weight=sample_weight)
    given: dict[str, Any] = {"seed": seed, **(options or {})}
    if method == "auto":
        smallest = int(np.bincount(samples.labels, minlength=samples.classes).min())
        given["folds"] = max(min(given.get("folds", _FOLDS), smallest), 1)
    artifact = calibrate(samples, samples.labels, method, cross_validate=method == "auto", **given)
    names = tuple(str(name) for name in class_names)
    return replace(artifact, class_names=names, model={"outputs": outputs})


def seed_of(random_state: Any) -> int:
    """The seed that scikit-learn's ``random_state`` stands for: itself, or a number drawn from it."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

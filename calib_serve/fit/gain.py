"""Is Neural Clamping worth it beside the best output method? Judged in pairs on held-out folds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.fit.clamping import checked, fit_neural_clamping
from calib_serve.fit.samples import stratified
from calib_serve.metrics import log_probs
from calib_serve.model import Classifier, Progress, calibrated_probs

Floats = NDArray[np.floating[Any]]
OutputFit = Callable[[Floats, NDArray[np.intp]], Artifact]
"""(logits, labels) -> the artifact of an output method."""


_SURE = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Gain:
    """How much held-out NLL Neural Clamping takes off the output method's, with its standard error."""

    nll_output: float
    nll_clamping: float
    gain: float
    standard_error: float

    @property
    def worth_it(self) -> bool:
        """Above 0 at a level of 5 %, one-sided: else the simpler artifact serves.

        This is asked once for given samples, unlike a refit, which may be asked again and again.
        """
        return self.gain > _SURE * self.standard_error


def fit_best(
    classifier: Classifier,
    inputs: Floats,
    labels: ArrayLike,
    output_fit: OutputFit,
    *,
    logits: Floats,
    folds: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """The output method's artifact, or Neural Clamping's where that is worth it.

    ``logits`` (n, K) are the model's of ``inputs``. ``artifact.fit["beside"]`` tells the held-out NLL of
    both and the paired gain. Costs ``folds`` fits
    of Neural Clamping on parts of the data and one on all of it where it wins.
    """
    y = checked(classifier, inputs, labels)
    found = clamping_gain(
        classifier, inputs, y, logits, output_fit, folds=folds, seed=seed, progress=progress
    )
    if found.worth_it:
        best = fit_neural_clamping(classifier, inputs, y, seed=seed, progress=progress)
    else:
        best = replace(output_fit(logits, y), model=classifier.facts())
    return replace(best, fit={**best.fit, "beside": vars(found) | {"folds": folds}})


def clamping_gain(
    classifier: Classifier,
    inputs: Floats,
    labels: NDArray[np.intp],
    logits: Floats,
    output_fit: OutputFit,
    *,
    folds: int,
    seed: int,
    progress: Progress | None = None,
) -> Gain:
    """Both methods fitted on the same folds and judged on the same held-out samples."""
    if not 2 <= folds <= len(labels) // 2:
        raise InputError(f"folds must lie in 2..{len(labels) // 2}, got {folds}")
    fold = stratified(labels, folds=folds, seed=seed)
    losses = np.empty((2, len(labels)))
    for k in range(folds):
        kept, held = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        output = output_fit(logits[kept], labels[kept])
        clamped = fit_neural_clamping(classifier, inputs[kept], labels[kept], seed=seed, progress=progress)
        losses[0, held] = _nll(output.of_logits(logits[held]), labels[held])
        losses[1, held] = _nll(calibrated_probs(classifier, inputs[held], clamped), labels[held])
    gains = losses[0] - losses[1]
    return Gain(
        float(losses[0].mean()),
        float(losses[1].mean()),
        float(gains.mean()),
        float(gains.std(ddof=1) / math.sqrt(len(gains))),
    )


def _nll(probs: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.asarray(-log_probs(probs[np.arange(len(labels)), labels]))

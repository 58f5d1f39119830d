"""How a study fits a method and applies what was fitted: to logits, or to the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.fit.output import CANDIDATES, TWO_CLASSES, fit_by_name
from calib_serve.metrics import two_columns


class Fit(Protocol):
    """Methods by name, on one kind of inputs: ``calib_serve.fit.on_model.FitOnModel`` is one, too."""

    def fit(self, method: str, inputs: NDArray[Any], labels: ArrayLike) -> Artifact:
        """``method`` fitted to inputs (n, ...) and class ids (n,); FitError where it has no optimum."""
        ...

    def probs(self, artifact: Artifact, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K) of inputs (n, ...)."""
        ...


@dataclass(frozen=True)
class OutputFit:
    """The output methods, on logits (n, K) or (n,), or on inputs of which ``logits_of`` makes logits.

    >>> found = OutputFit()
    >>> found.probs(found.fit("none", np.zeros((2, 2)), [0, 1]), np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    logits_of: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    seed: int = 0

    def fit(self, method: str, inputs: NDArray[Any], labels: ArrayLike) -> Artifact:
        """See ``Fit``; InputError for a method that needs the model."""
        if method not in (*CANDIDATES, *TWO_CLASSES):
            raise InputError(
                f"{method} is none of the output methods, {', '.join((*CANDIDATES, *TWO_CLASSES))}; a method "
                "inside the model needs the model itself: give --model with --data, or fit=FitOnModel(...)"
            )
        return fit_by_name(method, self._logits(inputs), labels, seed=self.seed)

    def probs(self, artifact: Artifact, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """See ``Fit``."""
        return artifact.of_logits(self._logits(inputs))

    def _logits(self, inputs: NDArray[Any]) -> NDArray[Any]:
        return two_columns(inputs if self.logits_of is None else self.logits_of(inputs))

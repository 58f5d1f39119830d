"""Every method, by name, on a deployed model: for studies, where logits alone are not enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.fit.from_model import calibrate_model
from calib_serve.models import CachedClassifier, Classifier, calibrated_probs
from calib_serve.scores import Scores

ON_MODEL: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "neural-clamping": ("neural-clamping", {}),
        "neural-clamping-paper": ("neural-clamping", {"schedule": "paper"}),
        "neural-clamping-efficient": ("neural-clamping-efficient", {}),
        "masked-head": ("masked-head", {}),
        "masked-head-paper": ("masked-head", {"reading": "paper"}),
        "no-mask-head": ("masked-head", {"reading": "no-mask"}),
        "tuned-head": ("tuned-head", {}),
    }
)
"""Name of a study's method -> the method of ``calibrate_model`` and its options."""


@dataclass(frozen=True)
class FitOnModel:
    """Methods on a model: those of ``ON_MODEL``, and the output methods on its logits.

    "HEAD+METHOD" puts an output method behind a head, as in "no-mask-head+temperature". It is a
    ``calib_serve.papers.Fit``.

    Args:
        classifier: Deployed model, which is not changed.
        train: Inputs (n, *input_shape) and class ids (n,) that masked heads train on; None: a part of the
            samples that they are fitted to.
        seed: Seed of each fit.
    """

    classifier: Classifier
    train: tuple[ArrayLike, ArrayLike] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classifier", CachedClassifier(self.classifier))

    def fit(self, method: str, inputs: NDArray[Any], labels: ArrayLike) -> Artifact:
        """Fit a method, without measuring it.

        Args:
            method: Its name; "HEAD+METHOD" for an output method behind a head.
            inputs: (n, *input_shape).
            labels: Class ids (n,).
        """
        name, plus, then = method.partition("+")
        if plus and not then:
            raise InputError(f"{method!r}: name the output method behind the +, as in {name}+temperature")
        base, options = ON_MODEL.get(name, (name, {}))
        return calibrate_model(
            self.classifier,
            inputs,
            labels,
            base,
            train=self.train if base == "masked-head" else None,
            cross_validate=False,
            seed=self.seed,
            **{**options, **({"then": then} if plus else {})},
        )

    def scores(self, inputs: NDArray[Any], labels: ArrayLike) -> Scores:
        """The model's own scores (n, K), with class ids.

        Args:
            inputs: (n, *input_shape).
            labels: Class ids (n,).
        """
        return Scores.of_logits(self.classifier.logits(inputs), labels, self.classifier.outputs)

    def probs(self, artifact: Artifact, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K).

        Args:
            artifact: Calibration of the model.
            inputs: (n, *input_shape).
        """
        return calibrated_probs(self.classifier, inputs, artifact)

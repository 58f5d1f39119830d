"""The deployed model with an artifact applied, each step where it belongs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.metrics import softmax
from calib_serve.model.face import Classifier, Floats, Progress

__all__ = ["calibrated_probs"]


def calibrated_probs(
    classifier: Classifier, inputs: Floats, artifact: Artifact | None, *, progress: Progress | None = None
) -> NDArray[np.float64]:
    """Probabilities (n, K) of inputs (n, *input_shape); with None the model's own.

    The InputShift is added to the inputs, the Head reads the last linear layer's features, the other
    steps follow. One pass over the inputs.
    """
    if artifact is None:
        return softmax(classifier.logits(inputs, progress=progress))
    shift = artifact.input_shift
    if artifact.head is None:
        return artifact.probs(classifier.logits(inputs, shift=shift, progress=progress))
    return artifact.probs(artifact.head(classifier.features(inputs, shift=shift, progress=progress)))

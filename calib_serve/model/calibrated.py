"""The deployed model with an artifact applied, each step where it belongs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.metrics import sigmoid, softmax
from calib_serve.model.face import Classifier, Floats, Progress
from calib_serve.scores import LABELS

__all__ = ["calibrated_probs", "logits_under"]


def calibrated_probs(
    classifier: Classifier, inputs: Floats, artifact: Artifact | None, *, progress: Progress | None = None
) -> NDArray[np.float64]:
    """Probabilities (n, K) of inputs (n, *input_shape), of labels (n, L); with None the model's own.

    The InputShift is added to the inputs, the Head reads the last linear layer's features, the other
    steps follow. One pass over the inputs. InputError where the model returns what the artifact was not
    fitted on, and it matters.
    """
    if artifact is None:
        z = classifier.logits(inputs, progress=progress)
        return sigmoid(z) if classifier.outputs in LABELS else softmax(z)
    return artifact.probs(logits_under(classifier, inputs, artifact, progress=progress))


def logits_under(
    classifier: Classifier, inputs: Floats, artifact: Artifact, *, progress: Progress | None = None
) -> Floats:
    """Logits (n, K) of inputs (n, *input_shape) as the output steps take them: under its shift and head."""
    shift = artifact.input_shift
    if artifact.head is None:
        artifact.check_takes(classifier.outputs, "what the model returns")
        return classifier.logits(inputs, shift=shift, progress=progress)
    return artifact.head(classifier.features(inputs, shift=shift, progress=progress))

"""What the model's own scores are, and how they become what the artifact was fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError
from calib_serve.fuse.checks import UNKNOWN
from calib_serve.fuse.torch._modules import Change
from calib_serve.metrics import log_softmax
from calib_serve.scores import LABELS, PROBABILITIES, Outputs, exact, measured

__all__ = ["as_fitted", "change_to_fitted", "kind_of"]

Floats = NDArray[np.floating[Any]]

_SUM = 1e-3
_SUM_OF_HALF = 1e-2  # of a thousand probabilities, each rounded
_TELLING = 20  # fewer numbers may lie in [0, 1] by chance


def kind_of(scores: Tensor, artifact: Artifact, told: Outputs | None) -> Outputs:
    """What ``scores`` (n, K), (n,) or (n, 1) are: as ``told`` if they can be, else by their numbers.

    Raises FuseError where they are not what was told, or their numbers do not say.
    """
    rows = scores.detach().double().cpu().numpy()
    if not np.isfinite(rows).all():
        raise FuseError(
            "the model's outputs for these inputs are NaN or infinite; "
            "give inputs it was made for with --inputs (inputs=)"
        )
    wide = scores.dtype in (torch.float32, torch.float64)
    numbers = measured(rows, tolerance=_SUM if wide else _SUM_OF_HALF)
    columns = 1 if rows.ndim == 1 else rows.shape[1]
    if told is not None:
        _check_told(rows, numbers, exact(told, columns))
        return exact(told, columns)
    if artifact.is_multilabel:
        return _of_labels(numbers, rows, artifact)
    if numbers == "probability" and artifact.model.outputs != "probability":
        raise FuseError(
            "the model's one score lies in [0, 1] for every input, a logit or a probability; "
            'say which: --outputs logit or --outputs probability (outputs="probability")'
        )
    if numbers == "label_probabilities":
        raise FuseError(
            "the model's scores lie in [0, 1] and do not sum to 1, one probability a label, and the artifact "
            'is of one class a sample; if they are logits, say --outputs logits (outputs="logits")'
        )
    return numbers


def _of_labels(numbers: Outputs, rows: Floats, artifact: Artifact) -> Outputs:
    if numbers in ("logits", "logit"):
        return "label_logits"
    sure = numbers == "label_probabilities" and rows.size >= _TELLING
    if sure or (numbers != "log_probs" and artifact.model.outputs == "label_probabilities"):
        return "label_probabilities"
    raise FuseError(
        f"the artifact is of labels, and by their numbers the model's scores may be {numbers}; "
        "say which with --outputs label_logits or --outputs label_probabilities (outputs=)"
    )


def _check_told(rows: Floats, numbers: Outputs, told: Outputs) -> None:
    possible = {
        "probabilities": numbers == "probabilities",
        "probability": numbers == "probability",
        "label_probabilities": bool(((rows >= 0) & (rows <= 1)).all()),
        "log_probs": numbers == "log_probs",
    }
    if not possible.get(told, True):
        raise FuseError(
            f"the model's outputs are not {told}: they lie between {rows.min():.3g} and {rows.max():.3g}, "
            f'and are {numbers} by their numbers; say --outputs {numbers} (outputs="{numbers}")'
        )


def change_to_fitted(outputs: Outputs, artifact: Artifact) -> Change:
    """What makes scores of this kind those that the artifact was fitted on.

    Raises FuseError or InputError where nothing does: what a softmax took away does not come back.
    """
    if artifact.is_multilabel != (outputs in LABELS):
        of = "labels" if artifact.is_multilabel else "one class a sample"
        raise FuseError(
            f"the model's outputs are {outputs}, and the artifact was fitted on scores of {of}; "
            "say with --outputs (outputs=) what they are, or fit it on this model's"
        )
    fitted = artifact.model.outputs
    if artifact.takes(outputs):
        return "none"
    if fitted is None:
        raise FuseError(UNKNOWN)
    if fitted == "logit":
        return "difference"
    if fitted in PROBABILITIES or fitted == "log_probs":
        return "normalise"
    artifact.check_takes(outputs, "the model's outputs")
    raise AssertionError(f"{fitted} and {outputs}")  # pragma: no cover - check_takes raises


def as_fitted(logits: Floats, change: Change) -> Floats:
    """Logits (n, K) of the model's scores as those that the artifact was fitted on."""
    if change == "normalise":
        return log_softmax(logits)
    if change == "difference":
        return np.stack([np.zeros_like(logits[:, 0]), logits[:, 1] - logits[:, 0]], axis=1)
    return logits

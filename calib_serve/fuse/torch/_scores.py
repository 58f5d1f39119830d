"""The scores among the results of a torch model: where they lie, and of which kind they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError
from calib_serve.fuse._kinds import check_numbers
from calib_serve.fuse.torch._model import device_and_dtype
from calib_serve.fuse.torch._whole import Where, lookup
from calib_serve.scores import ONE_COLUMN, Form, Outputs, exact, find_scores, infer_outputs

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class ReturnedScores:
    """The scores among a model's results: the ``path`` to them, their kind, dtype and device."""

    path: Where
    outputs: Outputs
    dtype: torch.dtype
    device: torch.device


def scores_as_told(
    model: nn.Module, artifact: Artifact, output: str | None, outputs: Outputs | None
) -> ReturnedScores:
    """Take the scores' place and kind as told, without an example."""
    device, dtype = device_and_dtype(model)
    return ReturnedScores(Form.parse(output or "").path, artifact.model.returned(outputs), dtype, device)


def locate_scores(
    returned: Any, artifact: Artifact, output: str | None, outputs: Outputs | None, samples: int
) -> ReturnedScores:
    """Find the scores among the results of an example, and their kind."""
    classes = artifact.classes if artifact.classes > 1 else None
    form = find_scores(returned, classes)[0] if output is None else Form.parse(output)
    form.scores(returned, classes)
    path = _positions(returned, form.path)
    scores = lookup(returned, path)
    if not isinstance(scores, Tensor):
        raise FuseError(f"the model returns its scores as a {type(scores).__name__}; it must be one tensor")
    # One row of scores for many inputs is pooled over the batch, and belongs to no sample.
    if len(scores) != samples:
        raise FuseError(
            f"the model returns scores {tuple(scores.shape)} for {samples} inputs; it must be a row each"
        )
    kind = _kind_of(scores, artifact, outputs)
    columns, wanted = scores[0].numel(), 1 if kind in ONE_COLUMN else artifact.classes
    if columns != wanted or (kind in ONE_COLUMN and artifact.classes != 2):
        raise FuseError(
            f"the model returns {tuple(scores.shape)}, {columns} of {kind} a sample, and the artifact is for "
            f"{artifact.classes} {'labels' if artifact.is_multilabel else 'classes'}; fit it on this model"
        )
    return ReturnedScores(path, kind, scores.dtype, scores.device)


def _kind_of(scores: Tensor, artifact: Artifact, told: Outputs | None) -> Outputs:
    """The kind of ``scores`` (n, K), (n,) or (n, 1): as ``told`` if possible, else by their numbers.

    Raises FuseError where they are not what was told, or their numbers do not say.
    """
    rows = scores.detach().double().cpu().numpy()
    if not np.isfinite(rows).all():
        raise FuseError(
            "the model's outputs for these inputs are NaN or infinite; "
            "give inputs it was made for with --inputs (inputs=)"
        )
    wide = scores.dtype in (torch.float32, torch.float64)
    tolerance = 1e-3 if wide else 1e-2  # of a thousand probabilities, each rounded
    numbers = infer_outputs(rows, tolerance=tolerance)
    columns = 1 if rows.ndim == 1 else rows.shape[1]
    if told is not None:
        kind = exact(told, columns)
        matrix = rows.reshape(len(rows), -1)
        check_numbers(matrix, kind, "what the model returns", told=True, tolerance=tolerance)
        return kind
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


def _of_labels(numbers: Outputs, rows: Numbers, artifact: Artifact) -> Outputs:
    if numbers in ("logits", "logit"):
        return "label_logits"
    # Fewer numbers may lie in [0, 1] by chance.
    sure = numbers == "label_probabilities" and rows.size >= 20
    if sure or (numbers != "log_probs" and artifact.model.outputs == "label_probabilities"):
        return "label_probabilities"
    raise FuseError(
        f"the artifact is of labels, and by their numbers the model's scores may be {numbers}; "
        "say which with --outputs label_logits or --outputs label_probabilities (outputs=)"
    )


def numbers(tensor: Tensor) -> Numbers:
    """A tensor as an array, at least float32."""
    exact = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    return exact.cpu().numpy()


def _positions(returned: Any, path: Where) -> Where:
    """Replace the names of a named tuple by positions, which TorchScript and exports need."""
    made: list[str | int] = []
    for step in path:
        fields = getattr(returned, "_fields", ())
        made.append(fields.index(step) if step in fields else step)
        returned = lookup(returned, (made[-1],))
    return tuple(made)

"""The scores among the results of a torch model: where they lie, and of which kind they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError
from calib_serve.fuse._kinds import check_numbers
from calib_serve.fuse.torch._model import device_and_dtype
from calib_serve.fuse.torch._whole import Where, lookup
from calib_serve.scores import MADE, ONE_COLUMN, Form, MadeBy, Outputs, Trace, exact, find_scores, proved


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
    ran: tuple[Any, Trace],
    artifact: Artifact,
    output: str | None,
    outputs: Outputs | None,
    samples: int,
) -> ReturnedScores:
    """Find the scores among the results of an example, and their kind by the trace of its run."""
    returned, trace = ran
    classes = artifact.classes if artifact.classes > 1 else None
    whole, returned = returned, pytree.tree_map(lambda leaf: rows_of(leaf, artifact), returned)
    form = find_scores(returned, classes)[0] if output is None else Form.parse(output)
    form.scores(returned, classes)
    path = _positions(returned, form.path)
    scores = lookup(returned, path)
    if not isinstance(scores, Tensor):
        raise FuseError(f"the model returns its scores as a {type(scores).__name__}; it must be one tensor")
    # One row of scores for many inputs is pooled over the batch, and belongs to no sample.
    if len(lookup(whole, path)) != samples:
        raise FuseError(
            f"the model returns scores {tuple(scores.shape)} for {samples} inputs; it must be a row each"
        )
    kind = _kind_of(scores, trace.made_by(scores), artifact, outputs)
    columns, wanted = scores[0].numel(), 1 if kind in ONE_COLUMN else artifact.classes
    if columns != wanted or (kind in ONE_COLUMN and artifact.classes != 2):
        raise FuseError(
            f"the model returns {tuple(scores.shape)}, {columns} of {kind} a sample, and the artifact is for "
            f"{artifact.classes} {'labels' if artifact.is_multilabel else 'classes'}; fit it on this model"
        )
    return ReturnedScores(path, kind, scores.dtype, scores.device)


def _kind_of(scores: Tensor, made_by: MadeBy, artifact: Artifact, told: Outputs | None) -> Outputs:
    """The kind of ``scores`` (n, K), (n,) or (n, 1): as ``told``, as proved, or as they were fitted.

    Raises FuseError where their numbers contradict it, or nothing says it.
    """
    rows = scores.detach().double().cpu().numpy().reshape(len(scores), -1)
    if not np.isfinite(rows).all():
        raise FuseError(
            "the model's outputs for these inputs are NaN or infinite; "
            "give inputs it was made for with --inputs (inputs=)"
        )
    kind = exact(told, rows.shape[1]) if told is not None else proved(rows, made_by)
    if told is None and artifact.is_multilabel:
        kind = {"layer": "label_logits", "Sigmoid": "label_probabilities"}.get(made_by)  # type: ignore[assignment]
    known = artifact.model
    if kind is None and known.outputs is not None and known.seam is None:
        kind = exact(known.outputs, rows.shape[1])
    if kind is None:
        raise FuseError(
            "neither the model's last layer nor sums of 1 prove what its scores are, and the artifact does "
            "not say it of this model; say --outputs (outputs=)"
        )
    if kind not in MADE.get(made_by, (kind,)):
        raise FuseError(
            f"the model's scores are made by a {made_by}: they are {' or '.join(MADE[made_by])}, not {kind}; "
            "fit on these, or leave out --outputs (outputs=)"
        )
    sure = told is not None or made_by == "layer"
    check_numbers(rows, kind, "what the model returns", told=sure)
    return kind


def rows_of(value: Any, artifact: Artifact) -> Any:
    """Scores with the artifact's class axis as rows (N, K), one a place; all else as it is."""
    axis = artifact.model.class_axis
    if axis is None or not isinstance(value, Tensor) or value.dim() < 3:
        return value
    return value.movedim(axis, -1).flatten(0, -2)


def numbers(tensor: Tensor) -> AnyFloats:
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

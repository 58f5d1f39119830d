"""The expected results of a fused graph: the raw graph's outputs, calibrated in numpy as the fit did it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.checks import far_from_edges, size_of
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.plan import Plan, carry_out, make_plan
from calib_serve.fuse.onnx.tail import NORMALISED
from calib_serve.metrics import log_softmax, sigmoid, softmax
from calib_serve.options.fuse import OnnxOptions
from calib_serve.scores import ONE_COLUMN, PROBABILITIES, measured, to_logits

__all__ = [
    "Expected",
    "class_logits",
    "expect",
    "of_logits",
    "prepare",
    "scores_of",
    "sees_log_probs",
    "steps_alone",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expected:
    """Probabilities and logits as the output means them, (n, K) or (n, 1); logits None where none are left.

    ``scale`` is the size of the logits, but for masked ones; ``sure`` (n,) is False where a probability
    lies within ``near`` of a table's edge, so that either bin is right. ``classes``: the probabilities of
    every class.
    """

    probs: Floats
    logits: Floats | None
    scale: float
    sure: NDArray[np.bool_]
    classes: Floats


def prepare(feeds: Mapping[str, NDArray[Any]], plan: Plan) -> dict[str, NDArray[Any]]:
    """The raw graph's inputs: normalised and shifted in numpy."""
    ready = dict(feeds)
    if plan.shifted is None:
        return ready
    if plan.shifted not in ready:
        raise InputError(f"--inputs (inputs=) lack {plan.shifted!r}; they are {sorted(ready)}")
    x = ready[plan.shifted]
    dtype = x.dtype
    if plan.normalization is not None:
        mean, std = plan.normalization.shaped(x.ndim)
        x = (x.astype(np.float64) - mean) / std
    step = plan.artifact.input_shift
    ready[plan.shifted] = (x if step is None else step(x)).astype(dtype)
    return ready


def expect(raw: Floats, plan: Plan, near: float) -> Expected:
    """The calibrated results of the raw graph's values at ``plan.source``, (n, d), (n, K) or (n, 1)."""
    logits = _logits(raw, plan)
    return of_logits(logits, plan.artifact.of_logits(logits), plan, near)


def of_logits(logits: Floats, probs: Floats, plan: Plan, near: float) -> Expected:
    """What the output shows of logits (n, K), as the steps take them, and their calibrated ``probs``."""
    artifact, mapped = plan.artifact, logits
    for step in artifact.logit_maps:
        mapped = step(mapped)
    scale = size_of(mapped, labels=artifact.is_multilabel)
    sure = np.ones(len(mapped), np.bool_)
    if artifact.table is not None:
        before = replace(artifact, steps=artifact.output_steps[:-1]).of_logits(logits)
        sure = far_from_edges(before, artifact.table, near * scale)
    left, classes = artifact.mixture is None and artifact.table is None, probs
    if plan.outputs == "log_probs":
        mapped = log_softmax(mapped)
    if plan.outputs in ONE_COLUMN and plan.returns == "same":
        probs, mapped = probs[:, 1:], mapped[:, 1:] - mapped[:, :1]
    return Expected(probs, mapped if left else None, scale, sure, classes)


def _logits(raw: Floats, plan: Plan) -> Floats:
    """What the artifact's output steps act on, made of the graph's own scores."""
    artifact = plan.artifact
    if artifact.head is not None:
        return np.asarray(artifact.head(raw), np.float64)
    if plan.activation is None:
        _check_outputs(raw, plan)
    z = class_logits(raw, plan)
    return log_softmax(z) if sees_log_probs(artifact) else z


def sees_log_probs(artifact: Artifact) -> bool:
    """Whether the artifact tells the logits of a model from its log-probabilities, and acts on these."""
    return artifact.depends_on_kind and artifact.model.outputs in NORMALISED


def class_logits(raw: Floats, plan: Plan) -> Floats:
    """Scores (n, K) or (n, 1) of the raw graph, before any activation, as logits (n, K)."""
    kind = plan.outputs
    if plan.activation is not None:
        kind = "label_logits" if kind == "label_probabilities" else "logits"
    return np.asarray(to_logits(raw, kind), np.float64)


def _check_outputs(raw: Floats, plan: Plan) -> None:
    """FuseError where the numbers of scores that no activation makes are not of their kind."""
    kind, name = plan.outputs, plan.source
    # One row may be near 1 by chance; several are not.
    near = _SUM if len(raw) > 1 or kind in PROBABILITIES else _SUM / 100
    found = measured(raw, tolerance=near)
    if kind in PROBABILITIES or kind == "log_probs":
        wrong = found != kind
    else:
        doubtful = len(raw) > 1 and not plan.told
        wrong = found == "probabilities" or (found in ("probability", "label_probabilities") and doubtful)
    if wrong and not (kind == "label_probabilities" and found == "probabilities"):
        raise FuseError(
            f"{name!r} is taken for {kind}, but its numbers are {found}, which no activation of the graph "
            f"shows; say --outputs {found} (outputs={found!r}), or what else it holds"
        )


_SUM = 1e-2  # how far probabilities of a narrow type may be from 1 together


def steps_alone(artifact: Artifact, plan: Plan, opset: int) -> tuple[ir.Model, Plan]:
    """A graph of the plan's activation and the artifact's output steps, float32, and its own plan.

    Its one input "scores" takes what ``scores_of`` makes.
    """
    columns = 1 if plan.outputs in ONE_COLUMN else artifact.classes
    scores = ir.Value(name="scores", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, columns]))
    made = ir.node(plan.activation or "Identity", [scores])
    shown = made.outputs[0]
    shown.type, shown.shape = scores.type, scores.shape
    graph = ir.Graph([scores], [shown], nodes=[made], opset_imports={"": opset})
    model = ir.Model(graph, ir_version=8)
    alone = replace(artifact, steps=artifact.output_steps)
    told = plan.outputs if plan.activation is None else None
    editor = Editor(model)
    own = make_plan(editor, alone, OnnxOptions(returns=plan.returns, outputs=told))
    carry_out(editor, own)
    return model, own


def scores_of(logits: NDArray[np.floating[Any]], plan: Plan) -> NDArray[np.float32]:
    """Logits (m, K) that steps act on, as the graph has them before its activation, or returns them."""
    z = np.asarray(logits, np.float64)
    if plan.outputs in ONE_COLUMN:
        z = z[:, 1:] - z[:, :1]
    if plan.activation is None:
        if plan.outputs in ("probability", "label_probabilities"):
            z = sigmoid(z)
        elif plan.outputs in ("probabilities", "log_probs"):
            z = softmax(z) if plan.outputs == "probabilities" else log_softmax(z)
    return z.astype(np.float32)

"""What the numbers of the raw graph mean: its scores as the logits that the artifact acts on, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError
from calib_serve.core.options.fuse import OnnxOptions
from calib_serve.fuse._kinds import NORMALISED, check_numbers
from calib_serve.fuse.onnx._graph import Editor
from calib_serve.fuse.onnx._plan import Plan, carry_out, make_plan
from calib_serve.scores import ONE_COLUMN, PROBABILITIES, log_softmax, sigmoid, softmax, to_logits


def prepare(feeds: Mapping[str, NDArray[Any]], plan: Plan) -> dict[str, NDArray[Any]]:
    """Normalise and shift the raw graph's inputs in numpy."""
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


def logits_of(raw: AnyFloats, plan: Plan) -> AnyFloats:
    """Convert the graph's own scores (n, d) to the logits that the artifact's output steps act on."""
    artifact = plan.artifact
    if artifact.head is not None:
        return np.asarray(artifact.head(raw), np.float64)
    # An activation of the graph proves the kind of its output; the kind of bare scores is checked by their
    # numbers.
    if plan.activation is None:
        # One row may be near 1 by chance; several are not, as far as sums of a narrow type are from 1.
        near = 1e-2 if len(raw) > 1 or plan.outputs in PROBABILITIES else 1e-4
        check_numbers(raw, plan.outputs, repr(plan.source), told=plan.told, tolerance=near)
    z = class_logits(raw, plan)
    return log_softmax(z) if sees_log_probs(artifact) else z


def sees_log_probs(artifact: Artifact) -> bool:
    """Whether the artifact acts on log-probabilities, and logits would give other results."""
    return artifact.depends_on_kind and artifact.model.outputs in NORMALISED


def class_logits(raw: AnyFloats, plan: Plan) -> AnyFloats:
    """Scores (n, K) or (n, 1) of the raw graph, before any activation, as logits (n, K)."""
    kind = plan.outputs
    if plan.activation is not None:
        kind = "label_logits" if kind == "label_probabilities" else "logits"
    return np.asarray(to_logits(raw, kind), np.float64)


def steps_alone(artifact: Artifact, plan: Plan, opset: int) -> tuple[ir.Model, Plan]:
    """Make a float32 graph of the plan's activation and the artifact's output steps alone, and its plan.

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
    """Convert logits (m, K) to the values that the graph has before its activation, or returns."""
    z = np.asarray(logits, np.float64)
    if plan.outputs in ONE_COLUMN:
        z = z[:, 1:] - z[:, :1]
    if plan.activation is None:
        if plan.outputs in ("probability", "label_probabilities"):
            z = sigmoid(z)
        elif plan.outputs in ("probabilities", "log_probs"):
            z = softmax(z) if plan.outputs == "probabilities" else log_softmax(z)
    return z.astype(np.float32)

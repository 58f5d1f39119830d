"""The fit's own scores through the fused steps: they must come out as the fit's own probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.plan import Plan, Request, carry_out, make_plan
from calib_serve.metrics import log_softmax, sigmoid, softmax
from calib_serve.scores import ONE_COLUMN

__all__ = ["scores_of", "steps_alone"]


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
    own = make_plan(editor, alone, Request(plan.returns, told))
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

"""Head: the artifact's layers in the place of the last linear layer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Head
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import FLOATS, Editor, describe
from calib_serve.fuse.onnx.linear import Linear, find_linear
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["find_features", "replace_head"]


def find_features(editor: Editor, tail: Tail, head: Head, name: str | None) -> ir.Value:
    """The tensor (n, d) the head reads: the named one, or the last linear layer's input."""
    if name is None:
        linear = find_linear(tail.logits)
        if not isinstance(linear, Linear):
            raise FuseError(f"the last linear layer was not found: {linear.why}; name its input (features=)")
        value = linear.features
    else:
        found = [v for n in editor.graph for v in n.outputs if v.name == name]
        found += [v for v in editor.graph.inputs if v.name == name]
        if not found:
            raise FuseError(f"the graph has no tensor {name!r} to take as features")
        value = found[0]
    width = head.weights[0].shape[1]
    known = value.dtype in FLOATS and value.shape is not None and len(value.shape) == 2
    if not known or (isinstance(value.shape[1], int) and value.shape[1] != width):  # type: ignore[index]
        raise FuseError(
            f"the head reads features (n, {width}), but {value.name!r} is {value.dtype} {value.shape}; "
            "the artifact is of another model, or its features must be named (features=)"
        )
    return value


def replace_head(editor: Editor, tail: Tail, head: Head, features: ir.Value) -> tuple[Tail, str]:
    """Let the logits be the head's.

    Requires: features (n, d). Ensures: the way out reads head(features); the old layer goes where
    nothing else reads it, and one layer in the place of one adds no node.
    """
    linear = find_linear(tail.logits)
    alone = not tail.strangers(tail.logits)
    if isinstance(linear, Linear) and alone and linear.features is features and len(head.weights) == 1:
        weight, bias = head.weights[0].astype(np.float64), head.biases[0].astype(np.float64)
        if linear.rewrite(editor, weight, bias):
            return tail, f"head put into {describe(linear.product)}"
    dtype, value = features.dtype or ir.DataType.FLOAT, features
    for i, (w, b) in enumerate(zip(head.weights, head.biases, strict=True)):
        rows = None if features.shape is None else ir.Shape((features.shape[0], len(b)))
        if i:
            value = editor.node("Relu", [value], shape=value.shape)
        layer = [value, editor.number(w, dtype, f"head{i}.weight"), editor.number(b, dtype, f"head{i}.bias")]
        value = editor.node("Gemm", layer, {"transB": 1}, shape=rows)
    old = tail.logits
    tail = tail.replace_logits(editor, value)
    editor.remove_unused(old)
    return tail, f"head of {len(head.weights)} layers reads {features.name!r}"

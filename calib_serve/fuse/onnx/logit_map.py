"""LogitMap: into the last linear layer, into a quantisation scale, else one node before the activation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor, describe
from calib_serve.fuse.onnx.linear import Linear, NotLinear, find_linear
from calib_serve.fuse.onnx.quantized import scale_quantized
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["map_logits"]

Floats = NDArray[np.float64]


def map_logits(editor: Editor, tail: Tail, step: LogitMap) -> tuple[Tail, str]:
    """Calibrate the logits.

    Requires: logits (n, K). Ensures: the activation, or the output, sees W z + b. No node is added
    where the last linear layer has constant weights and nothing else reads the logits; else one
    (two on log-probabilities). Says in words what was done.
    """
    step = _for_sigmoid(tail, step)
    if is_nothing(step):
        return tail, "the logit map changes nothing: nothing to do"
    # A softmax forgets what is the same for all classes: 1 / T may act before or after the log.
    normalised = tail.meaning in ("probabilities", "log_probs") and tail.activation is not None
    if step.weight.ndim == 0 and normalised:
        step = LogitMap(step.weight, step.bias)
    if step.on == "logits":
        others = tail.strangers(tail.logits)
        linear: Linear | NotLinear = find_linear(tail.logits)
        if isinstance(linear, Linear) and not others and _fold(editor, linear, step):
            return tail, f"logit map folded into {describe(linear.product)}"
        scalar = step.weight.ndim == 0 and step.bias is None
        if scalar and not others and (node := scale_quantized(editor, tail.logits, float(step.weight))):
            return tail, f"logit map folded into the scale of {node}"
        why = f"{', '.join(others)} also reads the logits" if others else _why(linear)
    else:
        why = "it acts on log-probabilities"
    new = _insert(editor, tail.logits, step)
    first = "LogSoftmax and " if step.on == "log_probs" else ""
    return tail.replace_logits(editor, new), f"logit map put in as {first}{_op(new)} ({why})"


def is_nothing(step: LogitMap) -> bool:
    """True where W is the identity and b zero, on logits."""
    w = step.weight
    return (
        step.on == "logits"
        and bool(np.all(w == (np.eye(len(w)) if w.ndim == 2 else 1)))
        and (step.bias is None or not step.bias.any())
    )


def _for_sigmoid(tail: Tail, step: LogitMap) -> LogitMap:
    """The map of a single logit z that stands for the two logits (0, z)."""
    if tail.meaning != "sigmoid" or tail.logits.shape is None or tail.logits.shape[1] != 1:
        if tail.meaning == "sigmoid" and step.on == "log_probs":
            raise FuseError(
                "a map on log-probabilities needs a softmax; this graph ends in a Sigmoid a class"
            )
        return step
    if step.on == "log_probs" and step.weight.ndim != 0:
        raise FuseError("a map on log-probabilities of one logit is not linear in it; export two logits")
    w = step.weight
    matrix = np.eye(2) * w if w.ndim == 0 else np.diag(w) if w.ndim == 1 else w
    offset = 0.0 if step.bias is None else float(step.bias[1] - step.bias[0])
    slope = float(matrix[1, 1] - matrix[0, 1])
    return LogitMap(np.array([slope]), np.array([offset]) if offset else None)


def _why(linear: Linear | NotLinear) -> str:
    return linear.why if isinstance(linear, NotLinear) else "its bias has no place in a MatMul"


def _fold(editor: Editor, linear: Linear, step: LogitMap) -> bool:
    w = step.weight
    weight = w @ linear.weight if w.ndim == 2 else (w * linear.weight.T).T
    if linear.bias is None:
        bias = step.bias
    else:
        bias = step(linear.bias[None])[0]
    return linear.rewrite(editor, weight, None if bias is None else bias.astype(np.float64))


def _insert(editor: Editor, logits: ir.Value, step: LogitMap) -> ir.Value:
    dtype, shape = logits.dtype or ir.DataType.FLOAT, logits.shape
    z = logits
    if step.on == "log_probs":
        z = editor.node("LogSoftmax", [z], {"axis": -1}, shape=shape)
    w, b = step.weight, step.bias
    if w.ndim == 2:
        inputs = [z, editor.number(w, dtype, "weight")]
        more = [] if b is None else [editor.number(b, dtype, "bias")]
        return editor.node("Gemm", [*inputs, *more], {"transB": 1}, shape=shape)
    if b is None:
        return editor.node("Mul", [z, editor.number(w, dtype, "scale")], shape=shape)
    if bool(np.all(w == 1)):
        return editor.node("Add", [z, editor.number(b, dtype, "bias")], shape=shape)
    # A batch normalisation of mean 0 and variance 1 is scale and bias in one node.
    per_class = (np.broadcast_to(w, b.shape), b, np.zeros_like(b), np.ones_like(b))
    names = ("scale", "bias", "mean", "var")
    numbers = [editor.number(n, dtype, name) for n, name in zip(per_class, names, strict=True)]
    return editor.node("BatchNormalization", [z, *numbers], {"epsilon": 0.0}, shape=shape)


def _op(value: ir.Value) -> str:
    node = value.producer()
    return "a constant" if node is None else f"one {node.op_type}"

"""LogitMap: into the last linear layer, into a quantisation scale, else one node before the activation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import LogitMap
from calib_serve.fuse.onnx._probabilities import is_flat
from calib_serve.fuse.onnx.edit import Editor, describe, dtype_of, require
from calib_serve.fuse.onnx.linear import Linear, NotLinear, find_linear
from calib_serve.fuse.onnx.quantized import scale_quantized
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["MapLogits"]


@dataclass(frozen=True, eq=False)
class MapLogits:
    """Make the activation, or the output, read W z + b.

    No node is added where the last linear layer has constant weights and nothing else reads the
    logits; else one (two on log-probabilities).
    """

    step: LogitMap

    def requires(self, tail: Tail) -> None:
        """Logits (n, K), or of any shape for a scalar map."""
        flat = is_flat(tail.logits)
        scalar = self.step.is_scalar and (self.step.on == "logits" or tail.normalised)
        require(flat or scalar, "a logit map needs logits (n, K)")

    def ensures(self, tail: Tail) -> None:
        """The path to the output is intact."""
        tail.check()

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """Folded where that is exact, else put in as nodes."""
        step = self.step
        if step.is_nothing:
            return tail, "the logit map changes nothing: nothing to do"
        if (
            step.weight.ndim == 0 and step.least is None and tail.normalised
        ):  # 1 / T may act before or after the log
            step = LogitMap(step.weight, step.bias)
        if step.on == "logits":
            others = tail.strangers(tail.logits)
            linear: Linear | NotLinear = find_linear(tail.logits)
            if isinstance(linear, Linear) and not others and _fold(editor, linear, step):
                return tail, f"logit map folded into {describe(linear.product)}"
            scale = float(step.weight) if step.is_scalar and not others else None
            if scale is not None and (node := scale_quantized(editor, tail.logits, scale)):
                return tail, f"logit map folded into the scale of {node}"
            why = f"{', '.join(others)} also reads the logits" if others else _why(linear)
        else:
            why = "it acts on log-probabilities"
        new = _insert(editor, tail.logits, step)
        first = "LogSoftmax and " if step.on == "log_probs" else ""
        return tail.replace_logits(editor, new), f"logit map put in as {first}{_op(new)} ({why})"


def _why(linear: Linear | NotLinear) -> str:
    return linear.why if isinstance(linear, NotLinear) else "its bias has no place in a MatMul"


def _fold(editor: Editor, linear: Linear, step: LogitMap) -> bool:
    old = np.zeros(len(linear.weight)) if linear.bias is None else linear.bias
    weight, bias = step.fold_into(linear.weight, old)
    return linear.rewrite(editor, weight, None if linear.bias is None and step.bias is None else bias)


def _insert(editor: Editor, logits: ir.Value, step: LogitMap) -> ir.Value:
    dtype = dtype_of(logits)
    z = logits
    if step.on == "log_probs":
        z = editor.node("LogSoftmax", [z], {"axis": -1})
    if step.least is not None:
        z = editor.node("Max", [z, editor.number(np.log(step.least), dtype, "least")])
    w, b = step.weight, step.bias
    if w.ndim == 2:
        inputs = [z, editor.number(w, dtype, "weight")]
        more = [] if b is None else [editor.number(b, dtype, "bias")]
        return editor.node("Gemm", [*inputs, *more], {"transB": 1})
    if b is None:
        return editor.node("Mul", [z, editor.number(w, dtype, "scale")])
    if bool(np.all(w == 1)):
        return editor.node("Add", [z, editor.number(b, dtype, "bias")])
    # A batch normalisation of mean 0 and variance 1 is scale and bias in one node.
    per_class = (np.broadcast_to(w, b.shape), b, np.zeros_like(b), np.ones_like(b))
    numbers = [editor.number(n, dtype, "normalization") for n in per_class]
    return editor.node("BatchNormalization", [z, *numbers], {"epsilon": 0.0})


def _op(value: ir.Value) -> str:
    node = value.producer()
    assert node is not None
    return f"one {node.op_type}"

"""Head: the artifact's layers in the place of the last linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Head
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx._probabilities import cast
from calib_serve.fuse.onnx.edit import FLOATS, Editor, describe, dtype_of, require
from calib_serve.fuse.onnx.follow import reaches
from calib_serve.fuse.onnx.linear import Linear, find_linear
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["ReplaceHead", "find_features"]


def find_features(editor: Editor, tail: Tail, head: Head, name: str | None) -> ir.Value:
    """The tensor (n, d) the head reads: the named one, or the last linear layer's input."""
    if name is None:
        linear = find_linear(tail.logits)
        if not isinstance(linear, Linear):
            raise FuseError(
                f"the last linear layer was not found: {linear.why}; name its input: --option features=NAME"
            )
        value = linear.features
    else:
        found = [v for n in editor.graph for v in n.outputs if v.name == name]
        found += [v for v in editor.graph.inputs if v.name == name]
        if not found:
            raise FuseError(f"the graph has no tensor {name!r} to take as --option features=NAME")
        value = found[0]
        if value is not tail.logits and reaches(value, {str(tail.logits.name)}):
            raise FuseError(
                f"{name!r} is made of the logits {tail.logits.name!r}, which the head is to replace: name a "
                "tensor before them: --option features=NAME"
            )
    if not _fits(value, head):
        raise FuseError(
            f"the head reads features (n, {head.weights[0].shape[1]}), but {value.name!r} is {value.dtype} "
            f"{value.shape}; the artifact is of another model, or another tensor holds them: --option "
            "features=NAME"
        )
    return value


def _fits(features: ir.Value, head: Head) -> bool:
    if features.dtype not in FLOATS or features.shape is None or len(features.shape) != 2:
        return False
    return not isinstance(features.shape[1], int) or features.shape[1] == head.weights[0].shape[1]


@dataclass(frozen=True, eq=False)
class ReplaceHead:
    """Make the logits ``head(features)``.

    The old layer is removed where nothing else reads it; replacing it by one layer adds no node.
    """

    head: Head
    features: ir.Value

    def requires(self, _: Tail) -> None:
        """Features (n, d)."""
        require(_fits(self.features, self.head), f"the head cannot read {self.features.name!r}")

    def ensures(self, tail: Tail) -> None:
        """The logits are a linear layer's, for as many classes as the head's."""
        tail.check()
        made = find_linear(tail.logits)
        whole = isinstance(made, Linear) and len(made.weight) == self.head.classes
        require(whole, "the head is not in place")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """In the layer's own node if nothing else reads it, else in new nodes."""
        head, value, linear = self.head, self.features, find_linear(tail.logits)
        alone = len(head.weights) == 1 and not tail.strangers(tail.logits)
        if isinstance(linear, Linear) and alone and linear.features is value:
            weight, bias = head.weights[0].astype(np.float64), head.biases[0].astype(np.float64)
            if linear.rewrite(editor, weight, bias):
                return tail, f"head put into {describe(linear.product)}"
        dtype = dtype_of(tail.logits)
        value = cast(editor, value, dtype)
        for i, (w, b) in enumerate(zip(head.weights, head.biases, strict=True)):
            if i:
                value = editor.node("Relu", [value])
            numbers = [editor.number(w, dtype, "head.weight"), editor.number(b, dtype, "head.bias")]
            value = editor.node("Gemm", [value, *numbers], {"transB": 1})
        old = tail.logits
        tail = tail.replace_logits(editor, value)
        editor.remove_unused(old)
        return tail, f"head of {len(head.weights)} layers reads {self.features.name!r}"

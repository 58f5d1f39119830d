"""A quantised tail: a temperature goes into scales; calibrated scores are not rounded to the old steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx.edit import Editor, constant, describe, require, users
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["KeepPrecision", "scale_quantized"]


@dataclass(frozen=True)
class KeepPrecision:
    """Take QuantizeLinear and DequantizeLinear off the path behind the activation.

    The steps were chosen for the uncalibrated scores. Other readers of the dequantised scores keep them.
    """

    def requires(self, tail: Tail) -> None:
        """An activation, and quantisers behind it."""
        require(tail.activation is not None and bool(_quantizers(tail)), "no scores are quantised")

    def ensures(self, tail: Tail) -> None:
        """A path without quantisers."""
        tail.check()
        require(not _quantizers(tail), "the scores are still quantised")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail without them."""
        steps = [_step(quantize) for quantize, _ in _quantizers(tail)]
        for quantize, dequantize in _quantizers(tail):
            old, new = dequantize.outputs[0], quantize.inputs[0]
            assert new is not None
            tail = tail.replace_scores(editor, old, new, ())
            path = tuple(node for node in tail.path if node not in (quantize, dequantize))
            tail = replace(tail, path=path)
            editor.remove_unused(old)
        made = "" if tail.activation is None else describe(tail.activation)
        return tail, (
            f"QuantizeLinear and DequantizeLinear behind {made} removed: calibrated scores are not rounded "
            f"to its old steps{steps[0]}"
        )


def _step(quantize: ir.Node) -> str:
    scale = constant(quantize.inputs[1])
    return "" if scale is None or scale.size != 1 else f" of {float(scale.reshape(-1)[0]):.2g}"


def _quantizers(tail: Tail) -> list[tuple[ir.Node, ir.Node]]:
    """The pairs of QuantizeLinear and DequantizeLinear on the path."""
    pairs = zip(tail.path, tail.path[1:], strict=False)
    return [(a, b) for a, b in pairs if (a.op_type, b.op_type) == ("QuantizeLinear", "DequantizeLinear")]


def scale_quantized(editor: Editor, logits: ir.Value, factor: float) -> str | None:
    """Multiply the logits by ``factor``; returns the changed node's name, or None if unchanged.

    Requires: logits that nothing else reads, made by a DequantizeLinear, or by a Gemm or MatMul (with
    Add) whose weight, and bias if any, come from DequantizeLinear or are constant. Ensures: only
    scales and floating-point biases change.
    """
    maker = logits.producer()
    if maker is None:
        return None
    if _scale_of(maker) is not None:
        _multiply(editor, maker, 1, factor)
        return describe(maker)
    places = _layer(maker)
    if places is None:
        return None
    first = places[0][0].inputs[places[0][1]]
    dequantizer = None if first is None else first.producer()
    if dequantizer is None or _scale_of(dequantizer) is None or not all(_own(n, i) for n, i in places):
        return None
    for node, place in places:
        value = node.inputs[place]
        source = None if value is None else value.producer()
        if source is not None and _scale_of(source) is not None:
            _multiply(editor, source, 1, factor)
        else:
            _multiply(editor, node, place, factor)
    return describe(dequantizer)


def _layer(maker: ir.Node) -> Sequence[tuple[ir.Node, int]] | None:
    """(node, input) of the weight, and of the bias if any, of the layer that ``maker`` ends."""
    if maker.domain != "":
        return None
    if maker.op_type == "Gemm":
        return [(maker, 1), *([(maker, 2)] if len(maker.inputs) > 2 and maker.inputs[2] is not None else [])]
    if maker.op_type == "MatMul":
        return [(maker, 1)]
    if maker.op_type != "Add":
        return None
    for i, value in enumerate(maker.inputs):
        product = None if value is None else value.producer()
        if product is not None and product.op_type == "MatMul" and product.domain == "":
            alone = len(users(product.outputs[0])) == 1 and not product.outputs[0].is_graph_output()
            return [(product, 1), (maker, 1 - i)] if alone else None
    return None


def _own(node: ir.Node, place: int) -> bool:
    """Whether an input is a constant, or dequantised for this node alone."""
    value = node.inputs[place]
    if value is None or constant(value) is not None:
        return value is not None
    source = value.producer()
    alone = len(users(value)) == 1 and not value.is_graph_output()
    return source is not None and alone and _scale_of(source) is not None


def _scale_of(node: ir.Node) -> ir.Value | None:
    """The constant scale of a DequantizeLinear, else None."""
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "com.microsoft"):
        return None
    return node.inputs[1] if constant(node.inputs[1]) is not None else None


def _multiply(editor: Editor, node: ir.Node, place: int, factor: float) -> None:
    numbers = constant(node.inputs[place])
    if numbers is not None:
        editor.put(node, place, numbers.astype(np.float64) * factor, "scale")

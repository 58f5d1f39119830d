"""A temperature in a quantised tail: into scales, so that weights stay integers and no node is added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx.edit import Editor, constant, describe, users

__all__ = ["scale_quantized"]


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
    """Another constant for one input of one node; the old one stays for other readers."""
    old = node.inputs[place]
    numbers = constant(old)
    if old is None or numbers is None:
        return
    dtype = old.dtype or ir.DataType.FLOAT
    node.replace_input_with(place, editor.number(numbers.astype(np.float64) * factor, dtype, "scale"))
    editor.remove_unused(old)

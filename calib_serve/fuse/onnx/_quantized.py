"""Quantised layers: keep the precision of what follows them, and scale their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, constant, describe, is_private
from calib_serve.fuse.onnx._tail import Tail


def keep_precision(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Take QuantizeLinear and DequantizeLinear off the path behind the activation.

    Their steps were chosen for the uncalibrated scores. Other readers of the dequantised scores keep them.
    Raises FuseError where the output itself is quantised.
    """
    if tail.output.dtype not in FLOATS:
        raise FuseError(
            f"the output {tail.output.name!r} is {tail.output.dtype}, quantised scores; name another "
            "output: --output-name (output_name=), or export this one behind a DequantizeLinear"
        )
    ops = ("QuantizeLinear", "DequantizeLinear")
    steps = zip(tail.path, tail.path[1:], strict=False)
    pairs = [(a, b) for a, b in steps if (a.op_type, b.op_type) == ops]
    width = constant(pairs[0][0].inputs[1])
    step = "" if width is None or width.size != 1 else f" of {float(width.item()):.2g}"
    for quantize, dequantize in pairs:
        old, new = dequantize.outputs[0], quantize.inputs[0]
        assert new is not None
        tail = tail.replace_scores(editor, old, new)
        tail = replace(tail, path=tuple(n for n in tail.path if n not in (quantize, dequantize)))
        editor.remove_unused(old)
    assert tail.activation is not None
    made = describe(tail.activation)  # it may have the output's name now
    return tail, (
        f"QuantizeLinear and DequantizeLinear behind {made} removed: calibrated scores are not rounded "
        f"to its old steps{step}"
    )


def scale_quantized(editor: Editor, logits: ir.Value, factor: float) -> str | None:
    """Multiply the logits by ``factor``; returns the changed node's name, or None if unchanged.

    Requires: logits that nothing else reads, made by a DequantizeLinear, or by a Gemm or MatMul (with
    Add) whose weight, and bias if any, come from DequantizeLinear or are constant. Ensures: only
    scales and floating-point biases change.
    """
    maker = logits.producer()
    if maker is None:
        return None
    places = [_scaled_by(node, place) for node, place in _constants_of(maker)]
    places = [(maker, 1)] if _is_scaled(maker) else places
    known = [place for place in places if place is not None]
    if not known or len(known) < len(places) or not _is_scaled(known[0][0]):
        return None
    # Scales alone change: the integers of a quantised model stay as its calibration chose them.
    for node, place in known:
        numbers = constant(node.inputs[place])
        assert numbers is not None
        editor.put(node, place, numbers.astype(np.float64) * factor, "scale")
    return describe(known[0][0])


def _constants_of(maker: ir.Node) -> Sequence[tuple[ir.Node, int]]:
    """List (node, input) of the weight, and of any bias, of the layer that ``maker`` ends."""
    if maker.domain != "":
        return ()
    if maker.op_type in ("Gemm", "MatMul"):
        return [(maker, place) for place, value in enumerate(maker.inputs) if place and value is not None]
    for i, value in enumerate(maker.inputs if maker.op_type == "Add" else ()):
        product = None if value is None else value.producer()
        if product is not None and product.op_type == "MatMul" and product.domain == "":
            return [(product, 1), (maker, 1 - i)] if is_private(product.outputs[0]) else ()
    return ()


def _scaled_by(node: ir.Node, place: int) -> tuple[ir.Node, int] | None:
    """Find the constant that scales an input: itself, or the scale of its own DequantizeLinear."""
    value = node.inputs[place]
    assert value is not None
    if constant(value) is not None:
        return node, place
    source = value.producer()
    return (source, 1) if source is not None and _is_scaled(source) and is_private(value) else None


def _is_scaled(node: ir.Node) -> bool:
    """Whether a node is a DequantizeLinear of a constant scale."""
    known = node.op_type == "DequantizeLinear" and node.domain in ("", "com.microsoft")
    return known and constant(node.inputs[1]) is not None

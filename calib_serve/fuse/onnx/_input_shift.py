"""InputShift: one Add in front of the graph, or a part of the normalisation that is put there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import InputShift
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, dtype_of, users


def shifted_input(graph: ir.Graph, shape: tuple[int, ...]) -> ir.Value:
    """Find the graph input a shift of ``shape`` belongs to: the only floating one that fits."""
    inputs = [v for v in graph.inputs if not v.is_initializer()]
    tensors = [v for v in inputs if isinstance(v.type, ir.TensorType) and v.dtype in FLOATS]
    fits = [v for v in tensors if _fits(v.shape, shape)]
    if len(fits) == 1:
        return fits[0]
    have = ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in inputs)
    if not fits:
        raise FuseError(
            f"no floating-point input takes a shift of shape {shape}; the graph has {have}; "
            "the artifact is of another model"
        )
    raise FuseError(f"several inputs may take the shift: {have}; leave such a shape to one of them")


def _fits(actual: ir.Shape | None, shape: tuple[int, ...]) -> bool:
    assert actual is not None  # onnx's checker wants the rank of inputs
    dims = list(actual)[1:]
    return len(actual) == len(shape) + 1 and all(
        not isinstance(d, int) or d == s for d, s in zip(dims, shape, strict=True)
    )


def shift_input(editor: Editor, step: InputShift) -> str:
    """Put the shift before the graph: clip(x + delta) in place of x; describe the edit."""
    if step.is_nothing:
        return "the shift is zero: nothing to do"
    value = shifted_input(editor.graph, step.delta.shape)
    dtype, readers = dtype_of(value), users(value)
    new = editor.node("Add", [value, editor.number(step.delta[None].astype(np.float64), dtype, "add")])
    if step.low is not None:
        ends = [editor.number(end, dtype, "clip") for end in (step.low, step.high)]
        new = editor.node("Clip", [new, *ends])
    editor.move(value, new, readers)
    return f"shift added to input {value.name!r}" + ("" if step.low is None else " and clipped")

"""InputShift: into the normalisation or first layer the graph starts with, else one Add."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import InputShift
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, attribute, constant, describe, dtype_of, users
from calib_serve.fuse.onnx._layers import Linear, find_linear


def shifted_input(editor: Editor, shape: tuple[int, ...] | None, name: str | None) -> ir.Value:
    """Find the graph input a shift of ``shape`` belongs to: by name, or the only floating one that fits."""
    inputs = [v for v in editor.graph.inputs if not v.is_initializer()]
    if name is not None and name not in [v.name for v in inputs]:
        raise FuseError(
            f"the graph has no input {name!r}; fuse_onnx(input_name=) is one of {[v.name for v in inputs]}"
        )
    named = [v for v in inputs if name in (None, v.name)]
    tensors = [v for v in named if isinstance(v.type, ir.TensorType) and v.dtype in FLOATS]
    fits = [v for v in tensors if shape is None or _fits(v.shape, shape)]
    if len(fits) == 1:
        return fits[0]
    have = ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in named)
    if not fits:
        raise FuseError(
            f"no floating-point input takes a shift of shape {shape}; the graph has {have}; "
            "the artifact is of another model, or another input takes it: fuse_onnx(input_name=)"
        )
    raise FuseError(f"several inputs take the shift: {have}; name one: fuse_onnx(input_name=)")


def _fits(actual: ir.Shape | None, shape: tuple[int, ...]) -> bool:
    assert actual is not None  # onnx's checker wants the rank of inputs
    dims = list(actual)[1:]
    return len(actual) == len(shape) + 1 and all(
        not isinstance(d, int) or d == s for d, s in zip(dims, shape, strict=True)
    )


def shift_input(editor: Editor, value: ir.Value, step: InputShift) -> str:
    """Put the shift before the graph: clip(x + delta) in place of x; describe the edit.

    A shift alone is folded where that is exact, else put in as nodes.
    """
    if step.is_nothing:
        return "the shift is zero: nothing to do"
    delta = step.delta.astype(np.float64)
    # A clip is not linear: what is behind it cannot take the shift.
    folded = _fold(editor, value, delta) if step.low is None else None
    if folded is not None:
        return f"shift folded into {folded}"
    _insert(editor, value, delta[None], step)
    return f"shift added to input {value.name!r}" + ("" if step.low is None else " and clipped")


def _insert(editor: Editor, value: ir.Value, delta: Floats, step: InputShift) -> None:
    dtype, readers = dtype_of(value), users(value)
    new = editor.node("Add", [value, editor.number(delta, dtype, "add")])
    if step.low is not None:
        ends = [editor.number(end, dtype, "clip") for end in (step.low, step.high)]
        new = editor.node("Clip", [new, *ends])
    editor.move(value, new, readers)


def _fold(editor: Editor, value: ir.Value, shift: Floats) -> str | None:
    """Follow the input's only path to a constant that can take the shift; None where there is none."""
    # Only along a path without branches: another reader must not see the shift.
    while len(value.uses()) == 1 and not value.is_graph_output():
        (node,) = users(value)
        if node.graph is not editor.graph or node.domain != "":
            return None
        if _absorb(editor, node, value, shift):
            return describe(node)
        # A node that is linear in its input maps x + d to the sum of its results for x and for d.
        carried = _carry(node, value, shift)
        if carried is None:
            return None
        value, shift = node.outputs[0], carried
    return None


def _carry(node: ir.Node, value: ir.Value, shift: Floats) -> Floats | None:
    """Carry the shift through a node that is linear in its input; None where it is not."""
    rank = shift.ndim + 1
    if node.op_type == "Identity":
        return shift
    if node.op_type == "Flatten" and attribute(node, "axis", 1) == 1:
        return shift.reshape(-1)
    if node.op_type == "Transpose":
        order = list(attribute(node, "perm", range(rank)[::-1]))
        kept = order[0] == 0 and sorted(order) == list(range(rank))
        return shift.transpose([p - 1 for p in order[1:]]) if kept else None
    if node.op_type == "Mul":
        factor = _per_sample(_other(node, value), shift)
        return None if factor is None else shift * factor
    if node.op_type == "Div":
        factor = _per_sample(node.inputs[1], shift)  # none where the input is below the line
        return None if factor is None or not factor.all() else shift / factor
    return None


def _absorb(editor: Editor, node: ir.Node, value: ir.Value, shift: Floats) -> bool:
    """Add the shift to the node's own constants where that is exact."""
    if node.op_type in ("Add", "Sub"):
        old = _per_sample(_other(node, value), shift)
        if old is None:
            return False
        new = old + shift if node.op_type == "Add" else old - shift
        editor.put(node, 1 - list(node.inputs).index(value), new[None], "shifted")
        return True
    if node.op_type == "BatchNormalization":
        return _absorb_batch_norm(editor, node, shift)
    if node.op_type == "Conv":
        return _absorb_conv(editor, node, shift)
    if node.op_type in ("Gemm", "MatMul"):
        return _absorb_linear(editor, node, shift)
    return False


def _absorb_batch_norm(editor: Editor, node: ir.Node, shift: Floats) -> bool:
    scale, bias, _, var = (constant(v) for v in node.inputs[1:])
    per_channel = _per_channel(shift)
    # In training mode the mean is the batch's own: it would take the shift away again.
    training = attribute(node, "training_mode", 0) or len(node.outputs) > 1
    if per_channel is None or scale is None or bias is None or var is None or training:
        return False
    root = np.sqrt(var.astype(np.float64) + attribute(node, "epsilon", 1e-5))
    editor.put(node, 2, bias.astype(np.float64) + per_channel * scale.astype(np.float64) / root, "shifted")
    return True


def _absorb_conv(editor: Editor, node: ir.Node, shift: Floats) -> bool:
    weight = constant(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    old = constant(bias)
    if weight is None or (bias is not None and old is None):
        return False
    auto = attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    padded = auto or any(attribute(node, "pads", ()))
    if padded or weight.shape[1:2] != shift.shape[:1]:
        return False  # padding has no shift, which a bias cannot express; and groups see a part of it
    w = weight.astype(np.float64)
    per_channel = _per_channel(shift)
    if w.shape[1:] == shift.shape:
        more = (w * shift).reshape(len(w), -1).sum(axis=1)
    elif per_channel is not None:
        more = w.reshape(len(w), w.shape[1], -1).sum(axis=2) @ per_channel
    else:
        return False
    editor.put(node, 2, more if old is None else old.astype(np.float64) + more, "shifted")
    return True


def _absorb_linear(editor: Editor, node: ir.Node, shift: Floats) -> bool:
    product = node.outputs[0]
    behind = [n.outputs[0] for n in users(product) if n.graph is editor.graph]  # an Add may hold the bias
    for output in (*behind, product):
        linear = find_linear(output)
        if not isinstance(linear, Linear) or linear.product is not node:
            continue
        if shift.shape != (linear.weight.shape[1],):
            return False
        more = linear.weight @ shift
        return linear.rewrite(editor, linear.weight, more if linear.bias is None else linear.bias + more)
    return False


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _per_sample(value: ir.Value | None, shift: Floats) -> Floats | None:
    """A constant per sample, broadcast to the shift's shape; None if it differs between samples."""
    numbers = constant(value)
    if numbers is None:
        return None
    if numbers.ndim > shift.ndim:
        if len(numbers) != 1:
            return None
        numbers = numbers[0]
    try:
        return np.broadcast_to(numbers.astype(np.float64), shift.shape)
    except ValueError:
        return None


def _per_channel(shift: Floats) -> Floats | None:
    """The shift by channel (C,) where it is constant within each channel, else None."""
    if shift.ndim == 0:
        return None
    flat = shift.reshape(len(shift), -1)
    return flat[:, 0] if bool((flat == flat[:, :1]).all()) else None

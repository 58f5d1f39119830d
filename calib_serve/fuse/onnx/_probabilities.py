"""Probabilities from calibrated logits, in standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Mixture, ProbTable
from calib_serve.fuse._decisions import rounded_down
from calib_serve.fuse.onnx._graph import Editor, dtype_of, work_type
from calib_serve.scores import LEAST


def cast(editor: Editor, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Cast ``value`` to ``dtype``, unless it has it."""
    if value.dtype == dtype:
        return value
    return editor.node("Cast", [value], {"to": dtype.value})


def add_softmax(editor: Editor, logits: ir.Value) -> ir.Value:
    """Make probabilities of logits."""
    return editor.node("Softmax", [logits], {"axis": -1})


def at_least(editor: Editor, value: ir.Value, least: ir.Value) -> ir.Value:
    """Raise numbers to the ``least``, but for NaN: OpenVINO's Max would make it the least, a number."""
    return editor.node("Where", [editor.node("Less", [value, least]), least, value])


def clamped_log(editor: Editor, probs: ir.Value) -> ir.Value:
    """Make log-probabilities, finite where a probability is 0."""
    dtype = dtype_of(probs)
    work = work_type(dtype)  # in half precision, LEAST would be 0
    least = editor.number(LEAST, work, "least")
    return cast(editor, editor.node("Log", [at_least(editor, cast(editor, probs, work), least)]), dtype)


def log_odds(editor: Editor, probs: ir.Value) -> ir.Value:
    """Make log p - log(1 - p) of each probability on its own, finite."""
    one = editor.number(1.0, dtype_of(probs), "number")
    rest = clamped_log(editor, editor.node("Sub", [one, probs]))
    return editor.node("Sub", [clamped_log(editor, probs), rest])


def mix(editor: Editor, logits: ir.Value, step: Mixture, classes: int) -> ir.Value:
    """Mix probabilities of logits, both (n, K): one softmax over (n, M, K), and a weighted sum."""
    dtype = dtype_of(logits)
    scales = editor.number(step.scales[:, None], dtype, "scales")
    # All temperatures in one softmax: the graph does not grow with their number.
    parts = add_softmax(editor, editor.node("Mul", [widen(editor, logits), scales]))
    weights = editor.number(step.weights[None, :-1], dtype, "weights")
    mixed = editor.node("MatMul", [weights, parts])
    summed = editor.node("Squeeze", [mixed, _axis(editor)])
    uniform = float(step.weights[-1]) / classes
    return editor.node("Add", [summed, editor.number(uniform, dtype, "uniform")])


def look_up(editor: Editor, probs: ir.Value, step: ProbTable, classes: int) -> ir.Value:
    """Map probabilities by the table, both (n, K)."""
    if len(step.edges) > 1:
        # Uniform where every class falls into a bin of value 0, as the sum is of values of at least LEAST.
        looked_up = of_each(editor, probs, step.edges, np.maximum(step.values, LEAST))
        total = reduce(editor, "ReduceSum", looked_up, keepdims=1)
        return editor.node("Div", [looked_up, total])
    dtype = dtype_of(probs)
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1})
    ids = editor.number(np.arange(classes)[None], ir.DataType.INT64, "ids")
    is_top = editor.node("Equal", [ids, top])
    old = reduce(editor, "ReduceMax", probs, keepdims=1)
    new = _gather(editor, step.values[0], count_below(editor, old, step.edges, keepdims=1), dtype)
    # At least LEAST: then the sum is never 0, and no runtime divides by a number too small for it.
    least = at_least(editor, probs, editor.number(LEAST, dtype, "least"))
    others = editor.node("Where", [is_top, editor.number(0, dtype, "zero"), least])
    # Summing the others is exact where 1 - old is rounded.
    rest = reduce(editor, "ReduceSum", others, keepdims=1)
    factor = editor.node("Div", [editor.node("Sub", [editor.number(1, dtype, "one"), new]), rest])
    scaled = editor.node("Mul", [others, factor])
    return _or_nan(editor, probs, editor.node("Where", [is_top, new, scaled]))


def of_each(editor: Editor, probs: ir.Value, edges: Any, values: Any) -> ir.Value:
    """Look each column of (n, R) up in its own row: ``edges`` (R, B - 1), ``values`` (R, B)."""
    rows, bins = values.shape
    # Every probability lies above an edge of -1, which counts for the bins of the rows before.
    edges = np.concatenate([np.full((rows, 1), -1.0), edges], axis=1)
    counts = np.ones((rows, bins), np.int32)
    counts[:, 0] = np.arange(rows) * bins
    index = count_below(editor, widen(editor, probs), edges.T[None], counts.T[None], keepdims=0)
    return _or_nan(editor, probs, _gather(editor, values.reshape(-1), index, dtype_of(probs)))


def _or_nan(editor: Editor, probs: ir.Value, found: ir.Value) -> ir.Value:
    """Keep NaN, which lies in no bin."""
    return editor.node("Where", [editor.node("IsNaN", [probs]), probs, found])


def count_below(editor: Editor, value: ir.Value, edges: Any, counts: Any = 1, *, keepdims: int) -> ir.Value:
    """Count the edges below each value, along axis 1: its bin, for bins (lo, hi].

    ``counts``, of the edges' shape and any integer type, are what each edge counts for: an Add behind the sum
    would do it too, but OpenVINO fuses the two, and adds wrongly to integers.
    """
    dtype, counts = dtype_of(value), np.asarray(counts)
    inner = np.asarray(edges) if dtype == ir.DataType.DOUBLE else rounded_down(np.asarray(edges))
    # NaN is above none: OpenVINO takes it for Greater, and not for Less.
    below = editor.node("Less", [editor.number(inner, dtype, "edges"), value])
    count = ir.DataType.from_numpy(counts.dtype)
    numbers = [editor.number(n, count, "counts") for n in (counts, 0)]
    counted = editor.node("Where", [below, *numbers])
    return reduce(editor, "ReduceSum", counted, keepdims=keepdims)


def reduce(editor: Editor, op: str, value: ir.Value, *, keepdims: int) -> ir.Value:
    """Reduce over the classes; opset 18 moved the axes of ReduceMax from an attribute to an input."""
    if op != "ReduceSum" and editor.opset < 18:
        return editor.node(op, [value], {"axes": [1], "keepdims": keepdims})
    return editor.node(op, [value, _axis(editor)], {"keepdims": keepdims})


def _gather(editor: Editor, table: Any, index: ir.Value, dtype: ir.DataType) -> ir.Value:
    return editor.node("Gather", [editor.number(table, dtype, "values"), index])


def widen(editor: Editor, value: ir.Value) -> ir.Value:
    """Add one more axis, of size 1, before the classes."""
    return editor.node("Unsqueeze", [value, _axis(editor)])


def _axis(editor: Editor) -> ir.Value:
    """The axis of the classes of (n, K)."""
    return editor.number([1], ir.DataType.INT64, "axis")


def is_flat(value: ir.Value) -> bool:
    """Whether a value is known to be (n, K)."""
    return value.shape is not None and len(value.shape) == 2

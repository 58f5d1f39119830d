"""Mixture and ProbTable in standard operators, from logits to probabilities (n, K)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Mixture, ProbTable
from calib_serve.fuse.edges import rounded_down
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.metrics.logits import LEAST

__all__ = [
    "cast",
    "clamped_log",
    "count_below",
    "log_odds",
    "look_up",
    "mix",
    "of_each",
    "reduce",
    "softmax",
    "widen",
]


def cast(editor: Editor, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """``value`` as ``dtype``; unchanged where it is that already."""
    if value.dtype == dtype:
        return value
    return editor.node("Cast", [value], {"to": dtype.value}, dtype=dtype, shape=value.shape)


def softmax(editor: Editor, logits: ir.Value) -> ir.Value:
    """Probabilities of logits."""
    return editor.node("Softmax", [logits], {"axis": -1}, shape=logits.shape)


def clamped_log(editor: Editor, probs: ir.Value) -> ir.Value:
    """Log-probabilities, finite where a probability is 0."""
    dtype = probs.dtype or ir.DataType.FLOAT
    least = editor.number(LEAST, dtype, "least")
    return editor.node("Log", [editor.node("Max", [probs, least], shape=probs.shape)], shape=probs.shape)


def log_odds(editor: Editor, probs: ir.Value) -> ir.Value:
    """Log p - log(1 - p) of each probability on its own, finite."""
    one = editor.number(1.0, probs.dtype or ir.DataType.FLOAT, "number")
    rest = clamped_log(editor, editor.node("Sub", [one, probs], shape=probs.shape))
    return editor.node("Sub", [clamped_log(editor, probs), rest], shape=probs.shape)


def mix(editor: Editor, logits: ir.Value, step: Mixture, classes: int) -> ir.Value:
    """The mixture's probabilities of logits, both (n, K): one softmax over (n, M, K), and a weighted sum."""
    dtype = logits.dtype or ir.DataType.FLOAT
    scales = editor.number(step.scales[:, None], dtype, "scales")
    parts = softmax(editor, editor.node("Mul", [widen(editor, logits, 1), scales]))
    weights = editor.number(step.weights[None, :-1], dtype, "weights")
    mixed = editor.node("MatMul", [weights, parts])
    summed = editor.node("Squeeze", [mixed, _axes(editor, 1)], shape=logits.shape)
    uniform = float(step.weights[-1]) / classes
    return editor.node("Add", [summed, editor.number(uniform, dtype, "uniform")], shape=logits.shape)


def look_up(editor: Editor, probs: ir.Value, step: ProbTable, classes: int) -> ir.Value:
    """Probabilities mapped by the table, both (n, K)."""
    return _top(editor, probs, step, classes) if len(step.edges) == 1 else _each(editor, probs, step)


def _top(editor: Editor, probs: ir.Value, step: ProbTable, classes: int) -> ir.Value:
    dtype, shape = probs.dtype or ir.DataType.FLOAT, probs.shape
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1}, dtype=ir.DataType.INT64)
    ids = editor.number(np.arange(classes)[None], ir.DataType.INT64, "ids")
    is_top = editor.node("Equal", [ids, top], dtype=ir.DataType.BOOL, shape=shape)
    old = reduce(editor, "ReduceMax", probs, keepdims=1)
    new = _gather(editor, step.values[0], count_below(editor, old, step.edges, keepdims=1), dtype)
    # At least LEAST: then the sum is never 0, and no runtime divides by a number too small for it.
    least = editor.node("Max", [probs, editor.number(LEAST, dtype, "least")], shape=shape)
    others = editor.node("Where", [is_top, editor.number(0, dtype, "zero"), least], dtype=dtype, shape=shape)
    # Summing the others is exact where 1 - old is rounded.
    rest = reduce(editor, "ReduceSum", others, keepdims=1)
    factor = editor.node("Div", [editor.node("Sub", [editor.number(1, dtype, "one"), new]), rest])
    scaled = editor.node("Mul", [others, factor], shape=shape)
    return editor.node("Where", [is_top, new, scaled], dtype=dtype, shape=shape)


def _each(editor: Editor, probs: ir.Value, step: ProbTable) -> ir.Value:
    # Uniform where every class falls into a bin of value 0, as the sum is of values of at least LEAST.
    looked_up = of_each(editor, probs, step.edges, np.maximum(step.values, LEAST))
    total = reduce(editor, "ReduceSum", looked_up, keepdims=1)
    return editor.node("Div", [looked_up, total], shape=probs.shape)


def of_each(editor: Editor, probs: ir.Value, edges: Any, values: Any) -> ir.Value:
    """Each column of (n, R) looked up in its own row: ``edges`` (R, B - 1), ``values`` (R, B)."""
    rows, bins = values.shape
    # Every probability lies above an edge of -1, which counts for the bins of the rows before.
    edges = np.concatenate([np.full((rows, 1), -1.0), edges], axis=1)
    counts = np.ones((rows, bins), np.int32)
    counts[:, 0] = np.arange(rows) * bins
    index = count_below(editor, widen(editor, probs, 1), edges.T[None], counts.T[None], keepdims=0)
    index.shape = probs.shape
    return _gather(editor, values.reshape(-1), index, probs.dtype or ir.DataType.FLOAT)


def count_below(editor: Editor, value: ir.Value, edges: Any, counts: Any = 1, *, keepdims: int) -> ir.Value:
    """How many edges lie below each value, along axis 1: its bin, for bins (lo, hi].

    ``counts``, of the edges' shape and any integer type, are what each edge counts for: an Add behind the sum
    would do it too, but OpenVINO fuses the two, and adds wrongly to integers.
    """
    dtype, counts = value.dtype or ir.DataType.FLOAT, np.asarray(counts)
    inner = np.asarray(edges) if dtype == ir.DataType.DOUBLE else rounded_down(np.asarray(edges))
    below = editor.node("Greater", [value, editor.number(inner, dtype, "edges")], dtype=ir.DataType.BOOL)
    count = ir.DataType.from_numpy(counts.dtype)
    numbers = [editor.number(n, count, name) for n, name in ((counts, "counts"), (0, "zero"))]
    counted = editor.node("Where", [below, *numbers], dtype=count)
    return reduce(editor, "ReduceSum", counted, keepdims=keepdims)


def reduce(editor: Editor, op: str, value: ir.Value, *, keepdims: int) -> ir.Value:
    """Reduce over the classes; opset 18 moved the axes of ReduceMax from an attribute to an input."""
    if op != "ReduceSum" and editor.opset < 18:
        return editor.node(op, [value], {"axes": [1], "keepdims": keepdims})
    return editor.node(op, [value, _axes(editor, 1)], {"keepdims": keepdims})


def _gather(editor: Editor, table: Any, index: ir.Value, dtype: ir.DataType) -> ir.Value:
    values = editor.number(table, dtype, "values")
    return editor.node("Gather", [values, index], dtype=dtype, shape=index.shape)


def widen(editor: Editor, value: ir.Value, axis: int) -> ir.Value:
    """With one more axis, of size 1."""
    return editor.node("Unsqueeze", [value, _axes(editor, axis)])


def _axes(editor: Editor, axis: int) -> ir.Value:
    return editor.number([axis], ir.DataType.INT64, "axis")

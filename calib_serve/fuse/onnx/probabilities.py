"""Mixture and ProbTable in standard operators, from logits to probabilities (n, K)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Mixture, ProbTable
from calib_serve.fuse.edges import rounded_down
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.metrics.logits import LEAST

__all__ = ["cast", "clamped_log", "count_below", "look_up", "mix", "reduce", "softmax"]


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


def mix(editor: Editor, logits: ir.Value, step: Mixture, classes: int) -> ir.Value:
    """The mixture's probabilities of logits, both (n, K): one softmax over (n, M, K), and a weighted sum."""
    dtype = logits.dtype or ir.DataType.FLOAT
    scales = editor.number(step.scales[:, None], dtype, "scales")
    parts = softmax(editor, editor.node("Mul", [_widen(editor, logits, 1), scales]))
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
    zero, one = (editor.number(v, dtype, "number") for v in (0.0, 1.0))
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1}, dtype=ir.DataType.INT64)
    ids = editor.number(np.arange(classes)[None], ir.DataType.INT64, "ids")
    is_top = editor.node("Equal", [ids, top], dtype=ir.DataType.BOOL, shape=shape)
    old = reduce(editor, "ReduceMax", probs, keepdims=1)
    new = _gather(editor, step.values[0], count_below(editor, old, step.edges, keepdims=1), dtype)
    others = editor.node("Where", [is_top, zero, probs], dtype=dtype, shape=shape)
    # Summing the others is exact where 1 - old is rounded.
    rest = reduce(editor, "ReduceSum", others, keepdims=1)
    some = editor.node("Greater", [rest, zero], dtype=ir.DataType.BOOL)
    known = editor.node("Where", [some, rest, one], dtype=dtype)
    alike = editor.number(1.0 / max(classes - 1, 1), dtype, "alike")
    proportion = editor.node("Div", [others, known], shape=shape)
    shared = editor.node("Where", [some, proportion, alike], dtype=dtype, shape=shape)
    scaled = editor.node("Mul", [shared, editor.node("Sub", [one, new])], shape=shape)
    return editor.node("Where", [is_top, new, scaled], dtype=dtype, shape=shape)


def _each(editor: Editor, probs: ir.Value, step: ProbTable) -> ir.Value:
    dtype, shape = probs.dtype or ir.DataType.FLOAT, probs.shape
    classes, bins = step.values.shape
    found = count_below(editor, _widen(editor, probs, 2), step.edges[None], keepdims=0)
    starts = editor.number(np.arange(classes)[None] * bins, ir.DataType.INT64, "starts")
    index = editor.node("Add", [found, starts], dtype=ir.DataType.INT64, shape=shape)
    looked_up = _gather(editor, step.values.reshape(-1), index, dtype)
    total = reduce(editor, "ReduceSum", looked_up, keepdims=1)
    some = editor.node("Greater", [total, editor.number(0.0, dtype, "number")], dtype=ir.DataType.BOOL)
    known = editor.node("Where", [some, total, editor.number(1.0, dtype, "number")], dtype=dtype)
    # Uniform where every class falls into a bin of value 0.
    alike = editor.number(1.0 / classes, dtype, "alike")
    proportion = editor.node("Div", [looked_up, known], shape=shape)
    return editor.node("Where", [some, proportion, alike], dtype=dtype, shape=shape)


def count_below(editor: Editor, value: ir.Value, edges: Any, *, keepdims: int) -> ir.Value:
    """How many edges lie below each value, along the last axis: its bin, for bins (lo, hi]."""
    dtype = value.dtype or ir.DataType.FLOAT
    inner = np.asarray(edges) if dtype == ir.DataType.DOUBLE else rounded_down(np.asarray(edges))
    below = editor.node("Greater", [value, editor.number(inner, dtype, "edges")], dtype=ir.DataType.BOOL)
    ones = cast(editor, below, ir.DataType.INT64)
    return editor.node(
        "ReduceSum", [ones, _axes(editor, -1)], {"keepdims": keepdims}, dtype=ir.DataType.INT64
    )


def reduce(editor: Editor, op: str, value: ir.Value, *, keepdims: int) -> ir.Value:
    """Reduce over the classes; opset 18 moved the axes of ReduceMax from an attribute to an input."""
    if op != "ReduceSum" and editor.opset < 18:
        return editor.node(op, [value], {"axes": [1], "keepdims": keepdims})
    return editor.node(op, [value, _axes(editor, 1)], {"keepdims": keepdims})


def _gather(editor: Editor, table: Any, index: ir.Value, dtype: ir.DataType) -> ir.Value:
    values = editor.number(table, dtype, "values")
    return editor.node("Gather", [values, index], dtype=dtype, shape=index.shape)


def _widen(editor: Editor, value: ir.Value, axis: int) -> ir.Value:
    return editor.node("Unsqueeze", [value, _axes(editor, axis)])


def _axes(editor: Editor, axis: int) -> ir.Value:
    return editor.number([axis], ir.DataType.INT64, "axis")

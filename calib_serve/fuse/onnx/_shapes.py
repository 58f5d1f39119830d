"""Scores of other shapes than (n, K): flat for the steps, and as they were for other readers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx._graph import Editor, dtype_of, users
from calib_serve.fuse.onnx._probabilities import add_softmax, clamped_log, is_flat
from calib_serve.fuse.onnx._tail import Tail, class_axis


def flat(editor: Editor, value: ir.Value) -> ir.Value:
    """Flatten a value (n, K, 1, ...), (n, 1, K) or (n,) to (n, K) or (n, 1)."""
    return value if is_flat(value) else editor.node("Flatten", [value], {"axis": 1})


def unflat(editor: Editor, value: ir.Value, shape: ir.Shape | None) -> ir.Value:
    """Restore the ``shape`` that ``flat`` flattened to (n, K); unchanged where it is not known."""
    if shape is None or len(shape) == 2:
        return value
    extra = [axis for axis in range(1, len(shape)) if axis != class_axis(shape)] or [1]
    axes = editor.number(extra, ir.DataType.INT64, "axes")
    return editor.node("Squeeze" if len(shape) == 1 else "Unsqueeze", [value, axes])


def flatten_scores(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Put a Flatten before the activation and an Unsqueeze after it: other readers see the same values."""
    wide, shape, head, followers = tail.logits, tail.logits.shape, tail.activation, tail.followers
    reading = [n for n in users(wide) if n in followers]
    narrow = flat(editor, wide)
    old, scores = wide, narrow
    if head is not None:
        head.replace_input_with(0, narrow)
        head.attributes.pop("axis", None)  # the last one, by default
        old = scores = head.outputs[0]
        scores.shape = narrow.shape
    readers = tail.readers(old)
    back = unflat(editor, scores, shape)
    node = back.producer()
    assert node is not None
    if head is not None and reading:
        shown = unflat(editor, narrow, shape)
        editor.move(wide, shown, reading)
        followers |= {n for n in (shown.producer(),) if n is not None}
    rest = tuple(n for n in tail.path if n is not head)
    path = (*(() if head is None else (head,)), node, *rest)
    output = tail.output
    editor.move(old, back, readers)
    if old.is_graph_output():
        (shown,) = editor.replace_output(old, [back], [str(old.name)])
        output = shown if old is output else output
    tail = replace(tail, logits=narrow, output=output, path=path, followers=followers)
    return tail, f"scores of another shape than (n, K) flattened (Flatten, {node.op_type} added)"


def widen_column(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Turn a binary model's one score into two logits and a softmax; the output keeps its one column.

    A Sigmoid becomes the Softmax of (0, z), of which class 1 is shown; a bare logit the difference of two
    log-probabilities; a bare probability goes through its logarithm.
    """
    old, followers = tail.logits, tail.followers
    bare = tail.activation is None
    logits = split_column(editor, old, probability=bare and tail.outputs == "probability")
    if tail.outputs == "probability":
        scores = add_softmax(editor, logits)
        column = editor.number([1], ir.DataType.INT64, "column")
        one = editor.node("Gather", [scores, column], {"axis": 1})
    else:
        scores, one = _odds(editor, logits)
    reading = [n for n in users(old) if n in followers]
    if not bare and reading:
        shown, odds = _odds(editor, logits)
        editor.move(old, odds, reading)
        followers |= {n for n in (shown.producer(),) if n is not None}
    # A Sigmoid goes with the column: the softmax of (0, z) is the same number.
    replaced = old if tail.activation is None else tail.activation.outputs[0]
    rest = tuple(node for node in tail.path if node is not tail.activation)
    tail = tail.replace_scores(editor, replaced, one)
    editor.remove_unused(replaced)
    nodes = tuple(node for value in (scores, one) if (node := value.producer()) is not None)
    tail = Tail(logits, tail.output, (*nodes, *rest), nodes[0], tail.outputs, followers)
    return tail, "one score a sample made two, as the calibration acts on both classes"


def _odds(editor: Editor, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Make log-probabilities of two logits, and their difference: the one logit (n, 1)."""
    scores = editor.node("LogSoftmax", [logits], {"axis": 1})
    difference = editor.number(np.array([[-1.0], [1.0]]), dtype_of(logits), "odds")
    return scores, editor.node("MatMul", [scores, difference])


def split_column(editor: Editor, one: ir.Value, *, probability: bool) -> ir.Value:
    """Make (0, z) from a logit z (n, 1), or log(1 - p), log p from a probability."""
    dtype = dtype_of(one)
    if probability:
        rest = editor.node("Sub", [editor.number(1.0, dtype, "number"), one])
        return clamped_log(editor, editor.node("Concat", [rest, one], {"axis": 1}))
    pads = editor.number([0, 1, 0, 0], ir.DataType.INT64, "pads")
    return editor.node("Pad", [one, pads])

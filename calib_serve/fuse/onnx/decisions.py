"""Prediction sets, abstention and acts in standard operators, from calibrated probabilities (n, K)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Abstain, Artifact, PredictionSets
from calib_serve.fuse.decisions import NAMES, act_least, decided, lac_least, rank_offsets, rounded_up
from calib_serve.fuse.edges import rounded_down
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.probabilities import cast, reduce

__all__ = ["show_decisions"]

_BOOL, _INT = ir.DataType.BOOL, ir.DataType.INT64


def show_decisions(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> str:
    """Show what the artifact decides by ``probs``, float32 or float64, in outputs of its own; says so.

    ``own``: the type that confidences are returned in, by which is acted.
    """
    sets, abstain = artifact.sets, artifact.abstain
    made = (
        None if sets is None else _set(editor, probs, sets, artifact.classes),
        None if abstain is None else _abstain(editor, probs, abstain),
        _act(editor, probs, artifact, own) if "act" in decided(artifact) else None,
    )
    for name, value in zip(NAMES, made, strict=True):
        if value is not None:
            editor.add_output(value, name)
    return f"outputs {', '.join(decided(artifact))} by the calibrated probabilities"


def _set(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    if sets.score == "lac":
        return _by_probability(editor, probs, sets, classes)
    return _by_sum(editor, probs, sets, classes)


def _by_probability(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    dtype = probs.dtype or ir.DataType.FLOAT
    least = editor.number(lac_least(sets.threshold, dtype.numpy()), dtype, "least_of_set")
    likely = editor.node("GreaterOrEqual", [probs, least], dtype=_BOOL, shape=probs.shape)
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1}, dtype=_INT)
    ids = editor.number(np.arange(classes)[None], _INT, "ids")
    is_top = editor.node("Equal", [ids, top], dtype=_BOOL, shape=probs.shape)
    return editor.node("Or", [likely, is_top], dtype=_BOOL, shape=probs.shape)


def _by_sum(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    """Sorted, summed up, and put back."""
    dtype, shape = probs.dtype or ir.DataType.FLOAT, probs.shape
    size, axis = (editor.number(n, _INT, name) for n, name in (([classes], "classes"), (1, "axis")))
    ranked, order = editor.nodes("TopK", [probs, size], {"axis": 1}, [dtype, _INT], shape)
    order = _first_of_equals(editor, ranked, order, size=size, axis=axis, classes=classes)
    summed = editor.node("CumSum", [ranked, axis], shape=shape)
    offsets = editor.number(rank_offsets(sets, classes)[None], dtype, "offsets_of_ranks")
    scores = editor.node("Add", [summed, offsets], shape=shape)
    placed = editor.node("ScatterElements", [probs, order, scores], {"axis": 1}, shape=shape)
    exact = dtype == ir.DataType.DOUBLE
    most = editor.number(sets.threshold if exact else rounded_down(sets.threshold), dtype, "most_of_set")
    return editor.node("LessOrEqual", [placed, most], dtype=_BOOL, shape=shape)


def _first_of_equals(
    editor: Editor, ranked: ir.Value, order: ir.Value, *, size: ir.Value, axis: ir.Value, classes: int
) -> ir.Value:
    """The ``order`` of ``ranked`` (n, K) with the first class first where values are equal.

    ONNX says so of TopK, but not every runtime does it. The values are numbered, equal ones alike; number and
    class make a key, no two of which are equal.
    """
    shape, zero = ranked.shape, editor.number(0, _INT, "zero")
    earlier = editor.number(np.maximum(np.arange(classes) - 1, 0), _INT, "earlier")
    before = editor.node("Gather", [ranked, earlier], {"axis": 1}, shape=shape)
    falls = editor.node("Less", [ranked, before], dtype=_BOOL, shape=shape)
    steps = editor.node("Where", [falls, size, zero], dtype=_INT, shape=shape)
    keys = editor.node("Add", [editor.node("CumSum", [steps, axis], shape=shape), order], shape=shape)
    keys, _ = editor.nodes("TopK", [keys, size], {"axis": 1, "largest": 0}, [_INT, _INT], shape)
    return editor.node("Mod", [keys, size], shape=shape)


def _abstain(editor: Editor, probs: ir.Value, abstain: Abstain) -> ir.Value:
    dtype = probs.dtype or ir.DataType.FLOAT
    rows = None if probs.shape is None else ir.Shape((probs.shape[0],))
    top = reduce(editor, "ReduceMax", probs, keepdims=0)
    top.shape = rows
    least = editor.number(rounded_up(np.array(abstain.threshold), dtype.numpy()), dtype, "least_answered")
    answered = editor.node("GreaterOrEqual", [top, least], dtype=_BOOL, shape=rows)
    return editor.node("Not", [answered], dtype=_BOOL, shape=rows)  # also of NaN


def _act(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> ir.Value:
    """By the confidence as it is returned, which is what receipts carry and what is counted."""
    dtype = probs.dtype or ir.DataType.FLOAT
    rows = None if probs.shape is None else ir.Shape((probs.shape[0],))
    shown = cast(editor, cast(editor, probs, own), dtype)
    top = reduce(editor, "ReduceMax", shown, keepdims=0)
    top.shape = rows
    least = editor.number(act_least(artifact, dtype.numpy()), dtype, "least_acted_on")
    if least.shape is not None and len(least.shape):
        predicted = editor.node("ArgMax", [shown], {"axis": 1, "keepdims": 0}, dtype=_INT, shape=rows)
        least = editor.node("Gather", [least, predicted], dtype=dtype, shape=rows)
    return editor.node("GreaterOrEqual", [top, least], dtype=_BOOL, shape=rows)

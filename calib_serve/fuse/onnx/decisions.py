"""Prediction sets, abstention and acts in standard operators, from calibrated probabilities (n, K)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Abstain, Artifact, PredictionSets
from calib_serve.fuse.checks import rounded_down
from calib_serve.fuse.decisions import NAMES, act_least, decided, lac_least, rank_offsets, rounded_up
from calib_serve.fuse.onnx.edit import Editor, dtype_of
from calib_serve.fuse.onnx.probabilities import cast, reduce

__all__ = ["show_decisions"]

_INT = ir.DataType.INT64


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
    dtype = dtype_of(probs)
    least = editor.number(lac_least(sets.threshold, dtype.numpy()), dtype, "least_of_set")
    likely = editor.node("GreaterOrEqual", [probs, least])
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1})
    ids = editor.number(np.arange(classes)[None], _INT, "ids")
    is_top = editor.node("Equal", [ids, top])
    return editor.node("Or", [likely, is_top])


def _by_sum(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    """Sorted, summed up, and put back."""
    dtype = dtype_of(probs)
    size, axis = editor.number([classes], _INT, "classes"), editor.number(1, _INT, "axis")
    ranked, order = editor.nodes("TopK", [probs, size], {"axis": 1}, 2)
    order = _first_of_equals(editor, ranked, order, size=size, axis=axis, classes=classes)
    summed = editor.node("CumSum", [ranked, axis], {"exclusive": 1})
    offsets = editor.number(rank_offsets(sets, classes)[None], dtype, "offsets_of_ranks")
    scores = editor.node("Add", [summed, offsets])
    placed = editor.node("ScatterElements", [probs, order, scores], {"axis": 1})
    exact = dtype == ir.DataType.DOUBLE
    most = editor.number(sets.threshold if exact else rounded_down(sets.threshold), dtype, "most_of_set")
    return editor.node("LessOrEqual", [placed, most])


def _first_of_equals(
    editor: Editor, ranked: ir.Value, order: ir.Value, *, size: ir.Value, axis: ir.Value, classes: int
) -> ir.Value:
    """The ``order`` of ``ranked`` (n, K) with the first class first where values are equal.

    ONNX says so of TopK, but not every runtime does it. The values are numbered, equal ones alike; number and
    class make a key, no two of which are equal.
    """
    zero = editor.number(0, _INT, "zero")
    earlier = editor.number(np.maximum(np.arange(classes) - 1, 0), _INT, "earlier")
    before = editor.node("Gather", [ranked, earlier], {"axis": 1})
    falls = editor.node("Less", [ranked, before])
    steps = editor.node("Where", [falls, size, zero])
    keys = editor.node("Add", [editor.node("CumSum", [steps, axis]), order])
    keys, _ = editor.nodes("TopK", [keys, size], {"axis": 1, "largest": 0}, 2)
    return editor.node("Mod", [keys, size])


def _abstain(editor: Editor, probs: ir.Value, abstain: Abstain) -> ir.Value:
    dtype = dtype_of(probs)
    top = reduce(editor, "ReduceMax", probs, keepdims=0)
    least = editor.number(rounded_up(np.array(abstain.threshold), dtype.numpy()), dtype, "least_answered")
    answered = editor.node("GreaterOrEqual", [top, least])
    return editor.node("Not", [answered])  # also of NaN


def _act(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> ir.Value:
    """By the confidence as it is returned, which is what receipts carry and what is counted."""
    dtype = dtype_of(probs)
    shown = cast(editor, cast(editor, probs, own), dtype)
    top = reduce(editor, "ReduceMax", shown, keepdims=0)
    least = editor.number(act_least(artifact, dtype.numpy()), dtype, "least_acted_on")
    if least.shape:
        predicted = editor.node("ArgMax", [shown], {"axis": 1, "keepdims": 0})
        least = editor.node("Gather", [least, predicted])
    return editor.node("GreaterOrEqual", [top, least])

"""Prediction sets, abstention, acts and actions from calibrated probabilities, in standard operators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Abstain, Artifact, Choice, Contract, PredictionSets
from calib_serve.fuse._decisions import (
    NAMES,
    abstain_least,
    act_least,
    choice_least,
    decision_names,
    lac_least,
    rank_offsets,
    rounded_down,
)
from calib_serve.fuse.onnx._graph import Editor, dtype_of
from calib_serve.fuse.onnx._probabilities import cast, reduce

_INT = ir.DataType.INT64


def show_decisions(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> str:
    """Add an output for each decision of the artifact on ``probs``, float32 or float64; name them.

    ``own``: the type that confidences are returned in, by which is acted.
    """
    sets, contract, names = artifact.sets, artifact.contract, decision_names(artifact)
    of = _by_probability if sets is not None and sets.score == "lac" else _by_sum
    made = (
        None if sets is None else of(editor, probs, sets, artifact.classes),
        None if artifact.abstain is None else _abstain(editor, probs, artifact.abstain),
        None
        if contract is None or "act" not in names
        else _act(editor, probs, contract, artifact.classes, own),
        None if artifact.choice is None else _choose(editor, probs, artifact.choice),
    )
    for name, value in zip(NAMES, made, strict=True):
        if value is not None:
            editor.add_output(value, name)
    return f"outputs {', '.join(names)} by the calibrated probabilities"


def _by_probability(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    dtype = dtype_of(probs)
    least = editor.number(lac_least(sets.threshold, dtype.numpy()), dtype, "least_of_set")
    likely = _known(editor, "GreaterOrEqual", probs, least)
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1})
    ids = editor.number(np.arange(classes)[None], _INT, "ids")
    is_top = editor.node("Equal", [ids, top])
    return editor.node("Or", [likely, is_top])


def _by_sum(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    """Mark classes (n, K) whose score, the probabilities summed above them, is within the threshold."""
    dtype = dtype_of(probs)
    size, axis = editor.number([classes], _INT, "classes"), editor.number(1, _INT, "axis")
    ranked, order = editor.nodes("TopK", [probs, size], {"axis": 1}, 2)
    order = _first_of_equals(editor, ranked, order, size=size, axis=axis, classes=classes)
    # Without its own probability: a class is in the set if those above it do not reach the threshold.
    summed = editor.node("CumSum", [ranked, axis], {"exclusive": 1})
    offsets = editor.number(rank_offsets(sets, classes)[None], dtype, "offsets_of_ranks")
    scores = editor.node("Add", [summed, offsets])
    placed = editor.node("ScatterElements", [probs, order, scores], {"axis": 1})
    exact = dtype == ir.DataType.DOUBLE
    most = editor.number(sets.threshold if exact else rounded_down(sets.threshold), dtype, "most_of_set")
    return _known(editor, "LessOrEqual", placed, most)


def _first_of_equals(
    editor: Editor, ranked: ir.Value, order: ir.Value, *, size: ir.Value, axis: ir.Value, classes: int
) -> ir.Value:
    """Make ``order`` put the first class first where values of ``ranked`` (n, K) are equal.

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


def _abstain(editor: Editor, probs: ir.Value, rule: Abstain) -> ir.Value:
    dtype = dtype_of(probs)
    top = reduce(editor, "ReduceMax", probs, keepdims=0)
    least = editor.number(abstain_least(rule, dtype.numpy()), dtype, "least_answered")
    return editor.node("Not", [_known(editor, "GreaterOrEqual", top, least)])


def _act(editor: Editor, probs: ir.Value, contract: Contract, classes: int, own: ir.DataType) -> ir.Value:
    """Act by the returned confidence, which receipts carry and the watch counts."""
    dtype = dtype_of(probs)
    shown = cast(editor, cast(editor, probs, own), dtype)
    top = reduce(editor, "ReduceMax", shown, keepdims=0)
    least = editor.number(act_least(contract, classes, dtype.numpy()), dtype, "least_acted_on")
    if least.shape:
        predicted = editor.node("ArgMax", [shown], {"axis": 1, "keepdims": 0})
        least = editor.node("Gather", [least, predicted])
    return _known(editor, "GreaterOrEqual", top, least)


def _choose(editor: Editor, probs: ir.Value, choice: Choice) -> ir.Value:
    dtype, zero = dtype_of(probs), editor.number(0, _INT, "zero")
    if choice.threshold is None:
        costs = editor.number(choice.regrets, dtype, "costs")
        expected = editor.node("MatMul", [probs, costs])
        best = editor.node("ArgMin", [expected], {"axis": 1, "keepdims": 0})
    else:
        one = editor.node("Gather", [probs, editor.number(1, _INT, "one")], {"axis": 1})
        least = editor.number(choice_least(choice, dtype.numpy()), dtype, "least_chosen")
        best = cast(editor, editor.node("GreaterOrEqual", [one, least]), _INT)
    # Where scores are NaN all probabilities of the row are: no action, in any runtime.
    unknown = editor.node("IsNaN", [editor.node("Gather", [probs, zero], {"axis": 1})])
    return editor.node("Where", [unknown, editor.number(-1, _INT, "none"), best])


def _known(editor: Editor, comparison: str, value: ir.Value, number: ir.Value) -> ir.Value:
    """Compare ``value``; False where it is NaN, which OpenVINO takes for greater and for equal."""
    holds, unknown = editor.node(comparison, [value, number]), editor.node("IsNaN", [value])
    return editor.node("And", [holds, editor.node("Not", [unknown])])

"""The outputs of a fused graph: probabilities in the place of scores, and what was requested beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir

from calib_serve.artifact import Artifact
from calib_serve.core.options.fuse import Shown
from calib_serve.fuse._decisions import decision_names, inner_edges
from calib_serve.fuse.onnx._decisions import show_decisions
from calib_serve.fuse.onnx._graph import Editor, dtype_of, work_type
from calib_serve.fuse.onnx._probabilities import (
    add_softmax,
    cast,
    clamped_log,
    count_below,
    is_flat,
    log_odds,
    look_up,
    mix,
    of_each,
    reduce,
    widen,
)
from calib_serve.fuse.onnx._shapes import flat, split_column, unflat
from calib_serve.fuse.onnx._tail import DECISIONS, Tail, ignores_shift
from calib_serve.scores import LABELS, PROBABILITIES

ALL = ("logits", "probabilities", "confidence", "predicted", "bin")


def open_scores(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Add an activation to scores that the graph does not normalise, so that steps can act before it.

    Probabilities become their logarithm and a Softmax of it, those of labels their log-odds and a Sigmoid;
    log-probabilities get a LogSoftmax. None of it changes them.
    """
    old, name = tail.logits, tail.logits.name
    if tail.outputs == "probabilities":
        logits = clamped_log(editor, old)
        scores = add_softmax(editor, logits)
        what = f"{name!r} holds probabilities: their logarithm is calibrated (a floor, Log, Softmax added)"
    elif tail.outputs == "label_probabilities":
        logits = log_odds(editor, old)
        scores = editor.node("Sigmoid", [logits])
        what = f"{name!r} holds probabilities of labels: their log-odds are calibrated (Sigmoid added)"
    else:
        logits, scores = old, editor.node("LogSoftmax", [old], {"axis": -1})
        what = f"{name!r} holds log-probabilities: normalised again after calibration (LogSoftmax added)"
    tail = tail.replace_scores(editor, old, scores)
    activation = scores.producer()
    path = tail.path if activation is None else (activation, *tail.path)
    return Tail(logits, tail.output, path, activation, tail.outputs, tail.followers), what


def finish(editor: Editor, tail: Tail, artifact: Artifact, returns: Shown) -> tuple[Tail, str]:
    """Add the steps on probabilities, and the requested outputs.

    Nothing acts on the logits afterwards. Added probabilities are at least float32: a type of 16 bits holds
    no calibrated ones.
    """
    steps = [s for s in (artifact.mixture, artifact.table) if s is not None]
    if returns == "same" and not steps and not decision_names(artifact):
        return tail, ""
    own = dtype_of(tail.logits)
    bare = replace(tail, mask=(), activation=None) if steps and tail.mask else tail
    probs = _probabilities(editor, bare, artifact)
    done = [f"{s.kind.replace('_', ' ')} put in as standard operators" for s in steps]
    if steps and tail.mask:  # calibrate, then mask: the graph's own nodes share out what is left
        logits = cast(editor, _unbounded(editor, probs, tail), dtype_of(tail.logits))
        tail = tail.replace_logits(editor, logits)
        probs = _probabilities(editor, tail, artifact.only())
    elif steps:
        _show_followers(editor, tail, probs)
        scores = tail.logits if tail.activation is None else tail.activation.outputs[0]
        shown = probs if tail.outputs in PROBABILITIES else _unbounded(editor, probs, tail)
        tail = tail.replace_scores(editor, scores, cast(editor, shown, dtype_of(scores)))
        editor.remove_unused(scores)
    if returns == "probabilities":
        tail = _show(editor, tail, [probs], ["probabilities"])
        done.append("output 'probabilities'")
    elif returns == "all":
        logits = cast(editor, _unbounded(editor, probs, tail), own) if steps else tail.masked
        every = _all_of_labels if tail.outputs in LABELS else _all
        tail = _show(editor, tail, [logits, probs, *every(editor, probs, inner_edges(artifact))], list(ALL))
        done.append(f"outputs {', '.join(ALL)}")
    if decision_names(artifact):
        done.append(show_decisions(editor, probs, artifact, own if returns == "same" else dtype_of(probs)))
    return tail, "; ".join(done)


def _probabilities(editor: Editor, tail: Tail, artifact: Artifact) -> ir.Value:
    dtype, activation, table = work_type(dtype_of(tail.logits)), tail.activation, artifact.table
    same, logits = tail.logits.dtype == dtype, tail.masked
    if artifact.is_multilabel:
        if activation is not None and same:
            probs = activation.outputs[0]
        else:
            probs = editor.node("Sigmoid", [cast(editor, logits, dtype)])
        return probs if table is None else of_each(editor, probs, table.edges, table.values)
    if artifact.mixture is not None:
        probs = mix(editor, cast(editor, logits, dtype), artifact.mixture, artifact.classes)
    elif activation is not None and activation.op_type == "Softmax" and same and is_flat(tail.logits):
        probs = activation.outputs[0]
    else:
        logits = flat(editor, cast(editor, logits, dtype))
        logits = split_column(editor, logits, probability=False) if tail.one_column else logits
        probs = add_softmax(editor, logits)
    return probs if table is None else look_up(editor, probs, table, artifact.classes)


def _unbounded(editor: Editor, probs: ir.Value, tail: Tail) -> ir.Value:
    """Make unbounded scores from ``probs``: their logarithm, or the log-odds of labels."""
    return log_odds(editor, probs) if tail.outputs in LABELS else clamped_log(editor, probs)


def _show_followers(editor: Editor, tail: Tail, probs: ir.Value) -> None:
    """Connect readers of the logits to the steps' result: decisions to probabilities, others to their log."""
    bridges = [n.outputs[0] for n in tail.followers & editor.made]
    for value in (tail.logits, *bridges):
        for node in (n for n in tail.readers(value) if n.op_type in DECISIONS and ignores_shift(n)):
            one = cast(editor, probs, dtype_of(value)) if node.op_type == "Hardmax" else probs
            editor.move(value, unflat(editor, one, value.shape), [node])
    others = [n for n in tail.readers(tail.logits) if n not in tail.path]
    if others:
        shown = cast(editor, _unbounded(editor, probs, tail), dtype_of(tail.logits))
        editor.move(tail.logits, shown, others)


def _show(editor: Editor, tail: Tail, values: list[ir.Value], names: list[str]) -> Tail:
    shown = editor.replace_output(tail.output, values, names)
    editor.remove_unused(tail.output)
    return replace(tail, output=shown[0])


def _all(editor: Editor, probs: ir.Value, edges: Any) -> list[ir.Value]:
    """Make confidence, predicted class and bin, (n,)."""
    confidence = reduce(editor, "ReduceMax", probs, keepdims=0)
    predicted = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 0})
    number = count_below(editor, reduce(editor, "ReduceMax", probs, keepdims=1), edges[None], keepdims=0)
    return [confidence, predicted, number]


def _all_of_labels(editor: Editor, probs: ir.Value, edges: Any) -> list[ir.Value]:
    """Make confidence, decision (p above a half) and bin of each label, (n, L)."""
    dtype = dtype_of(probs)
    one, half = (editor.number(v, dtype, "number") for v in (1.0, 0.5))
    confidence = editor.node("Max", [probs, editor.node("Sub", [one, probs])])
    true = editor.node("Less", [half, probs])  # false of NaN, in any runtime
    predicted = cast(editor, true, ir.DataType.INT64)
    number = count_below(editor, widen(editor, confidence), edges[None, :, None], keepdims=0)
    return [confidence, predicted, number]

"""What the fused graph gives: the steps on probabilities, and the outputs that were asked for."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, Mixture, ProbTable
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor, work_type
from calib_serve.fuse.onnx.probabilities import cast, clamped_log, count_below, look_up, mix, reduce, softmax
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["ALL", "Outputs", "finish", "open_scores"]

Outputs = Literal["same", "probabilities", "all"]
ALL = ("logits", "probabilities", "confidence", "predicted", "bin")


def open_scores(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Put an activation behind scores that are said to have had one, so that the passes can act before it.

    Requires: probabilities, which become their logarithm and a Softmax of it; or log-probabilities,
    which get a LogSoftmax. Neither changes them.
    """
    old, name = tail.logits, tail.logits.name
    before = set(editor.made)
    if tail.meaning == "probabilities":
        logits = clamped_log(editor, old)
        scores = softmax(editor, logits)
        what = f"{name!r} holds probabilities: their logarithm is calibrated (Max, Log, Softmax added)"
    else:
        logits, scores = old, editor.node("LogSoftmax", [old], {"axis": -1}, shape=old.shape)
        what = f"{name!r} holds log-probabilities: normalised again after calibration (LogSoftmax added)"
    tail = tail.replace_scores(editor, old, scores, editor.made - before)
    activation = scores.producer()
    path = tail.path if activation is None else (activation, *tail.path)
    return Tail(logits, tail.output, path, activation, tail.meaning), what


def finish(editor: Editor, tail: Tail, artifact: Artifact, outputs: Outputs) -> list[str]:
    """Put in the steps on probabilities and set the graph's outputs; what was done, in words."""
    mixture = next((s for s in artifact.steps if isinstance(s, Mixture)), None)
    table = next((s for s in artifact.steps if isinstance(s, ProbTable)), None)
    stepped = [s for s in (mixture, table) if s is not None]
    if outputs == "same" and not stepped:
        return []
    if tail.meaning == "sigmoid":
        raise FuseError(
            "this graph ends in a Sigmoid a class, which has no class probabilities that sum to 1; "
            "use outputs='same' with logit maps only, or export logits"
        )
    before = set(editor.made)
    probs = _probabilities(editor, tail, mixture, table, artifact.classes)
    own = tail.logits.dtype or ir.DataType.FLOAT
    done = [f"{s.kind.replace('_', ' ')} put in as standard operators" for s in stepped]
    if table is not None:
        _decide_on(editor, tail, probs, editor.made - before)
    if outputs == "same":
        _same(editor, tail, probs, editor.made - before)
    elif outputs == "probabilities":
        _show(editor, tail, [cast(editor, probs, own)], ["probabilities"])
        done.append("output 'probabilities'")
    else:
        logits = cast(editor, clamped_log(editor, probs), own) if stepped else tail.logits
        bins = 15 if artifact.reference is None else len(artifact.reference)
        _show(editor, tail, [logits, *_all(editor, cast(editor, probs, own), bins)], list(ALL))
        done.append(f"outputs {', '.join(ALL)}")
    return done


def _probabilities(
    editor: Editor, tail: Tail, mixture: Mixture | None, table: ProbTable | None, classes: int
) -> ir.Value:
    dtype = work_type(tail.logits.dtype)
    activation = tail.activation
    if mixture is not None:
        probs = mix(editor, cast(editor, tail.logits, dtype), mixture, classes)
    elif activation is not None and activation.op_type == "Softmax" and tail.logits.dtype == dtype:
        probs = activation.outputs[0]
    else:
        probs = softmax(editor, cast(editor, tail.logits, dtype))
    return probs if table is None else look_up(editor, probs, table, classes)


def _same(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> None:
    """The chosen output as it was: its name, type and meaning."""
    scores = tail.logits if tail.activation is None else tail.activation.outputs[0]
    own = scores.dtype or ir.DataType.FLOAT
    known = set(editor.made)
    shown = probs if tail.meaning == "probabilities" else clamped_log(editor, probs)
    shown = cast(editor, shown, own)
    tail.replace_scores(editor, scores, shown, made | (editor.made - known))
    editor.remove_unused(scores)


def _decide_on(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> None:
    """Let an ArgMax elsewhere in the graph choose by the table, which may change the order of classes."""
    scores = (tail.logits, *(node.outputs[0] for node in tail.path))
    for value in scores:
        deciding = [n for n in tail.readers(value) if n.op_type in ("ArgMax", "Hardmax")]
        editor.move(value, probs, [n for n in deciding if n not in tail.path and n not in made])
    editor.graph.sort()


def _show(editor: Editor, tail: Tail, values: list[ir.Value], names: list[str]) -> None:
    old = tail.output
    editor.replace_output(old, values, names)
    editor.remove_unused(old)


def _all(editor: Editor, probs: ir.Value, bins: int) -> list[ir.Value]:
    rows = None if probs.shape is None else ir.Shape((probs.shape[0],))
    confidence = reduce(editor, "ReduceMax", probs, keepdims=0)
    predicted = editor.node(
        "ArgMax", [probs], {"axis": 1, "keepdims": 0}, dtype=ir.DataType.INT64, shape=rows
    )
    exact = cast(editor, reduce(editor, "ReduceMax", probs, keepdims=1), work_type(probs.dtype))
    number = count_below(editor, exact, np.linspace(0, 1, bins + 1)[None, 1:-1], keepdims=0)
    confidence.shape = number.shape = rows
    return [probs, confidence, predicted, number]

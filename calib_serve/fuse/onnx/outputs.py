"""The fused graph's outputs: the steps on probabilities, and the requested outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, Mixture, ProbTable
from calib_serve.errors import FuseError
from calib_serve.fuse.decisions import decided
from calib_serve.fuse.onnx.columns import flat, is_flat, two_columns, unflat
from calib_serve.fuse.onnx.decisions import show_decisions
from calib_serve.fuse.onnx.edit import Editor, dtype_of, require, work_type
from calib_serve.fuse.onnx.probabilities import (
    cast,
    clamped_log,
    count_below,
    log_odds,
    look_up,
    mix,
    of_each,
    reduce,
    softmax,
    widen,
)
from calib_serve.fuse.onnx.tail import DECISIONS, Tail, ignores_shift
from calib_serve.scores import LABELS, PROBABILITIES

__all__ = ["ALL", "Finish", "OpenScores", "Returns", "keep_raw_scores"]

Returns = Literal["same", "probabilities", "all"]
_OPENED = {"probabilities", "log_probs", "label_probabilities"}
ALL = ("logits", "probabilities", "confidence", "predicted", "bin")


def keep_raw_scores(editor: Editor, tail: Tail, artifact: Artifact) -> str:
    """Show the raw scores in one more output, "raw_" and the name of the calibrated one; says so.

    The passes then leave the logits as they are. Raises FuseError where the name is taken, or an input shift
    leaves no raw scores in the graph.
    """
    if artifact.input_shift is not None and not artifact.input_shift.is_nothing:
        raise FuseError(
            "the input shift acts before the whole model, so there are no raw scores to keep with --keep-raw "
            "(keep_raw=True); run the raw model beside the calibrated one"
        )
    name, value = f"raw_{tail.output.name}", tail.logits
    types = editor.model.meta["types"]
    if str(tail.output.name) in types:  # not of a tensor inside
        types[name] = types[str(tail.output.name)]
    for node in tail.path:
        value = editor.copy(node, [value, *(v for v in node.inputs[1:] if v is not None)])
    if not tail.path:
        value = editor.node("Identity", [value])
    editor.add_output(value, name)
    return f"the raw scores are output {name!r}"


@dataclass(frozen=True)
class OpenScores:
    """Add an activation to scores declared as normalised, so that the passes can act before it.

    Probabilities become their logarithm and a Softmax of it, those of labels their log-odds and a Sigmoid;
    log-probabilities get a LogSoftmax. None of it changes them.
    """

    def requires(self, tail: Tail) -> None:
        """Probabilities or log-probabilities that no activation of the graph makes."""
        bare = tail.activation is None and tail.outputs in _OPENED
        require(bare, f"{tail.outputs} were to get an activation")

    def ensures(self, tail: Tail) -> None:
        """An activation on the path."""
        tail.check()
        require(tail.activation in tail.path, "the scores have no activation")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail that begins before the new activation."""
        old, name = tail.logits, tail.logits.name
        if tail.outputs == "probabilities":
            logits = clamped_log(editor, old)
            scores = softmax(editor, logits)
            what = f"{name!r} holds probabilities: their logarithm is calibrated (Max, Log, Softmax added)"
        elif tail.outputs == "label_probabilities":
            logits = log_odds(editor, old)
            scores = editor.node("Sigmoid", [logits])
            what = f"{name!r} holds probabilities of labels: their log-odds are calibrated (Sigmoid added)"
        else:
            logits, scores = old, editor.node("LogSoftmax", [old], {"axis": -1})
            what = f"{name!r} holds log-probabilities: normalised again after calibration (LogSoftmax added)"
        tail = tail.replace_scores(editor, old, scores, ())
        activation = scores.producer()
        path = tail.path if activation is None else (activation, *tail.path)
        return Tail(logits, tail.output, path, activation, tail.outputs, tail.followers), what


@dataclass(frozen=True, eq=False)
class Finish:
    """The steps on probabilities, and the requested outputs."""

    artifact: Artifact
    returns: Returns

    def requires(self, tail: Tail) -> None:
        """Two columns of a binary model, where a step acts on both, or both are shown."""
        one = tail.one_column and (self.returns != "same" or bool(self._steps()))
        require(not one, "both classes were to be calibrated, and there is one column")

    def ensures(self, tail: Tail) -> None:
        """The requested outputs are the graph's."""
        graph = tail.output.graph
        shown = [] if graph is None else [v.name for v in graph.outputs]
        wanted: dict[Returns, tuple[str, ...]] = {"probabilities": ("probabilities",), "all": ALL}
        names = (*wanted.get(self.returns, ()), *decided(self.artifact))
        whole = all(name in shown for name in names)
        require(whole and tail.output.is_graph_output(), f"the outputs are {shown}")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail with the new outputs: nothing acts on the logits any more."""
        plain = self.returns == "same" and not self._steps()
        if plain and not decided(self.artifact):
            return tail, ""
        before, done, logits = set(editor.made), list[str](), tail.logits
        probs = _probabilities(editor, tail, self.artifact)
        if not plain:
            tail, done = self._finish(editor, tail, probs, editor.made - before)
        if decided(self.artifact):
            done.append(show_decisions(editor, probs, self.artifact, dtype_of(logits)))
        return tail, "; ".join(done)

    def _steps(self) -> list[Mixture | ProbTable]:
        return [s for s in (self.artifact.mixture, self.artifact.table) if s is not None]

    def _finish(
        self, editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]
    ) -> tuple[Tail, list[str]]:
        stepped, own = self._steps(), dtype_of(tail.logits)
        done = [f"{s.kind.replace('_', ' ')} put in as standard operators" for s in stepped]
        if stepped:
            _show_followers(editor, tail, probs, made)
            tail = _same(editor, tail, probs, made)
        if self.returns == "same":
            return tail, done
        if self.returns == "probabilities":
            tail = _show(editor, tail, [cast(editor, probs, own)], ["probabilities"])
            return tail, [*done, "output 'probabilities'"]
        logits = cast(editor, _unbounded(editor, probs, tail), own) if stepped else tail.logits
        bins = 15 if self.artifact.reference is None else len(self.artifact.reference)
        shown = cast(editor, probs, own)
        found = _all_of_labels(editor, shown, bins) if tail.outputs in LABELS else _all(editor, shown, bins)
        tail = _show(editor, tail, [logits, shown, *found], list(ALL))
        return tail, [*done, f"outputs {', '.join(ALL)}"]


def _probabilities(editor: Editor, tail: Tail, artifact: Artifact) -> ir.Value:
    dtype = work_type(tail.logits.dtype)
    activation = tail.activation
    if artifact.is_multilabel:
        return _label_probabilities(editor, tail, artifact)
    if artifact.mixture is not None:
        probs = mix(editor, cast(editor, tail.logits, dtype), artifact.mixture, artifact.classes)
    elif (
        activation is not None
        and activation.op_type == "Softmax"
        and is_flat(tail.logits)
        and tail.logits.dtype == dtype
    ):
        probs = activation.outputs[0]
    else:
        probs = softmax(editor, _pair(editor, flat(editor, cast(editor, tail.logits, dtype)), tail))
    table = artifact.table
    return probs if table is None else look_up(editor, probs, table, artifact.classes)


def _pair(editor: Editor, logits: ir.Value, tail: Tail) -> ir.Value:
    """Both logits of a binary model's one."""
    if not tail.one_column:
        return logits
    return two_columns(editor, logits, probability=False)


def _label_probabilities(editor: Editor, tail: Tail, artifact: Artifact) -> ir.Value:
    dtype = work_type(tail.logits.dtype)
    if tail.activation is not None and tail.logits.dtype == dtype:
        probs = tail.activation.outputs[0]
    else:
        probs = editor.node("Sigmoid", [cast(editor, tail.logits, dtype)])
    return (
        probs
        if artifact.table is None
        else of_each(editor, probs, artifact.table.edges, artifact.table.values)
    )


def _unbounded(editor: Editor, probs: ir.Value, tail: Tail) -> ir.Value:
    """Scores of which ``probs`` are made: their logarithm; their log-odds, of labels."""
    return log_odds(editor, probs) if tail.outputs in LABELS else clamped_log(editor, probs)


def _same(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> Tail:
    """Keep the chosen output's name, type and meaning."""
    scores = tail.logits if tail.activation is None else tail.activation.outputs[0]
    shown = probs if tail.outputs in PROBABILITIES else _unbounded(editor, probs, tail)
    shown = cast(editor, shown, dtype_of(scores))
    tail = tail.replace_scores(editor, scores, shown, made)
    editor.remove_unused(scores)
    return tail


def _show_followers(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> None:
    """Make what reads the logits read the steps' result: decisions the probabilities, others their log."""
    bridges = [n.outputs[0] for n in tail.followers & editor.made if n.op_type != "LogSoftmax"]
    for value in (tail.logits, *bridges):
        reading = [n for n in tail.readers(value) if n not in tail.path and n not in made]
        for node in (n for n in reading if n.op_type in DECISIONS and ignores_shift(n)):
            one = cast(editor, probs, dtype_of(value)) if node.op_type == "Hardmax" else probs
            editor.move(value, unflat(editor, one, value.shape), [node])
    others = [n for n in tail.readers(tail.logits) if n not in tail.path and n not in made]
    if others:
        shown = cast(editor, _unbounded(editor, probs, tail), dtype_of(tail.logits))
        editor.move(tail.logits, shown, others)


def _show(editor: Editor, tail: Tail, values: list[ir.Value], names: list[str]) -> Tail:
    shown = editor.replace_output(tail.output, values, names)
    editor.remove_unused(tail.output)
    return replace(tail, output=shown[0])


def _all(editor: Editor, probs: ir.Value, bins: int) -> list[ir.Value]:
    """Confidence, predicted class and bin, (n,)."""
    confidence = reduce(editor, "ReduceMax", probs, keepdims=0)
    predicted = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 0})
    exact = cast(editor, reduce(editor, "ReduceMax", probs, keepdims=1), work_type(probs.dtype))
    number = count_below(editor, exact, np.linspace(0, 1, bins + 1)[None, 1:-1], keepdims=0)
    return [confidence, predicted, number]


def _all_of_labels(editor: Editor, probs: ir.Value, bins: int) -> list[ir.Value]:
    """Of each label's decision, whether p is above a half: its confidence, itself, and its bin; (n, L)."""
    dtype = dtype_of(probs)
    one, half = (editor.number(v, dtype, "number") for v in (1.0, 0.5))
    confidence = editor.node("Max", [probs, editor.node("Sub", [one, probs])])
    true = editor.node("Greater", [probs, half])
    predicted = cast(editor, true, ir.DataType.INT64)
    exact = widen(editor, cast(editor, confidence, work_type(dtype)), 1)
    number = count_below(editor, exact, np.linspace(0, 1, bins + 1)[None, 1:-1, None], keepdims=0)
    return [confidence, predicted, number]

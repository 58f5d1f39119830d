"""The fused graph's outputs: the steps on probabilities, and the requested outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, Mixture, ProbTable
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor, require, work_type
from calib_serve.fuse.onnx.probabilities import cast, clamped_log, count_below, look_up, mix, reduce, softmax
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["ALL", "Finish", "OpenScores", "Returns"]

Returns = Literal["same", "probabilities", "all"]
ALL = ("logits", "probabilities", "confidence", "predicted", "bin")


@dataclass(frozen=True)
class OpenScores:
    """Add an activation to scores declared as normalised, so that the passes can act before it.

    Probabilities become their logarithm and a Softmax of it; log-probabilities get a LogSoftmax.
    Neither changes them.
    """

    def requires(self, tail: Tail) -> None:
        """Probabilities or log-probabilities that no activation of the graph makes."""
        bare = tail.activation is None and tail.outputs in ("probabilities", "log_probs")
        require(bare, f"{tail.outputs} were to get an activation")

    def ensures(self, tail: Tail) -> None:
        """An activation on the path."""
        tail.check()
        require(tail.normalised and tail.activation in tail.path, "the scores have no activation")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail that begins before the new activation."""
        old, name = tail.logits, tail.logits.name
        before = set(editor.made)
        if tail.outputs == "probabilities":
            logits = clamped_log(editor, old)
            scores = softmax(editor, logits)
            what = f"{name!r} holds probabilities: their logarithm is calibrated (Max, Log, Softmax added)"
        else:
            logits, scores = old, editor.node("LogSoftmax", [old], {"axis": -1}, shape=old.shape)
            what = f"{name!r} holds log-probabilities: normalised again after calibration (LogSoftmax added)"
        tail = tail.replace_scores(editor, old, scores, editor.made - before)
        activation = scores.producer()
        path = tail.path if activation is None else (activation, *tail.path)
        return Tail(logits, tail.output, path, activation, tail.outputs), what


@dataclass(frozen=True, eq=False)
class Finish:
    """The steps on probabilities, and the requested outputs."""

    artifact: Artifact
    returns: Returns

    def requires(self, tail: Tail) -> None:
        """Class probabilities that sum to 1, where any are needed."""
        if tail.outputs == "sigmoid" and (self.returns != "same" or self._steps()):
            raise FuseError(
                "this graph ends in a Sigmoid a class, which has no class probabilities that sum to 1; "
                "use returns='same' with logit maps only, or export logits"
            )

    def ensures(self, tail: Tail) -> None:
        """The requested outputs are the graph's."""
        graph = tail.output.graph
        shown = [] if graph is None else [v.name for v in graph.outputs]
        wanted: dict[Returns, tuple[str, ...]] = {"probabilities": ("probabilities",), "all": ALL}
        whole = all(name in shown for name in wanted.get(self.returns, ()))
        require(whole and tail.output.is_graph_output(), f"the outputs are {shown}")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail with the new outputs: nothing acts on the logits any more."""
        tail, done = self._finish(editor, tail)
        return tail, "; ".join(done)

    def _steps(self) -> list[Mixture | ProbTable]:
        return [s for s in (self.artifact.mixture, self.artifact.table) if s is not None]

    def _finish(self, editor: Editor, tail: Tail) -> tuple[Tail, list[str]]:
        stepped = self._steps()
        if self.returns == "same" and not stepped:
            return tail, []
        before = set(editor.made)
        probs = _probabilities(editor, tail, self.artifact)
        own = tail.logits.dtype or ir.DataType.FLOAT
        done = [f"{s.kind.replace('_', ' ')} put in as standard operators" for s in stepped]
        if self.artifact.table is not None:
            _decide_on(editor, tail, probs, editor.made - before)
        if self.returns == "same":
            return _same(editor, tail, probs, editor.made - before), done
        if self.returns == "probabilities":
            tail = _show(editor, tail, [cast(editor, probs, own)], ["probabilities"])
            return tail, [*done, "output 'probabilities'"]
        logits = cast(editor, clamped_log(editor, probs), own) if stepped else tail.logits
        bins = 15 if self.artifact.reference is None else len(self.artifact.reference)
        tail = _show(editor, tail, [logits, *_all(editor, cast(editor, probs, own), bins)], list(ALL))
        return tail, [*done, f"outputs {', '.join(ALL)}"]


def _probabilities(editor: Editor, tail: Tail, artifact: Artifact) -> ir.Value:
    dtype = work_type(tail.logits.dtype)
    activation = tail.activation
    if artifact.mixture is not None:
        probs = mix(editor, cast(editor, tail.logits, dtype), artifact.mixture, artifact.classes)
    elif activation is not None and activation.op_type == "Softmax" and tail.logits.dtype == dtype:
        probs = activation.outputs[0]
    else:
        probs = softmax(editor, cast(editor, tail.logits, dtype))
    table = artifact.table
    return probs if table is None else look_up(editor, probs, table, artifact.classes)


def _same(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> Tail:
    """Keep the chosen output's name, type and meaning."""
    scores = tail.logits if tail.activation is None else tail.activation.outputs[0]
    own = scores.dtype or ir.DataType.FLOAT
    known = set(editor.made)
    shown = probs if tail.outputs == "probabilities" else clamped_log(editor, probs)
    shown = cast(editor, shown, own)
    tail = tail.replace_scores(editor, scores, shown, made | (editor.made - known))
    editor.remove_unused(scores)
    return tail


def _decide_on(editor: Editor, tail: Tail, probs: ir.Value, made: set[ir.Node]) -> None:
    """Make other ArgMax nodes read the table's result, which may change the order of classes."""
    scores = (tail.logits, *(node.outputs[0] for node in tail.path))
    for value in scores:
        deciding = [n for n in tail.readers(value) if n.op_type in ("ArgMax", "Hardmax")]
        editor.move(value, probs, [n for n in deciding if n not in tail.path and n not in made])
    editor.graph.sort()


def _show(editor: Editor, tail: Tail, values: list[ir.Value], names: list[str]) -> Tail:
    shown = editor.replace_output(tail.output, values, names)
    editor.remove_unused(tail.output)
    return replace(tail, output=shown[0])


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

"""A binary model's single score made two logits (0, z), for steps that act on both classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx.edit import Editor, dtype_of, require
from calib_serve.fuse.onnx.probabilities import clamped_log, softmax
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["WidenColumn", "two_columns"]


@dataclass(frozen=True)
class WidenColumn:
    """Two columns and a softmax before the output, which gets its one column back behind it.

    A Sigmoid becomes the Softmax of (0, z), of which class 1 is shown; a bare logit the difference of two
    log-probabilities; a bare probability goes through its logarithm.
    """

    def requires(self, tail: Tail) -> None:
        """One column."""
        require(tail.one_column, f"{tail.outputs} were to become two columns")

    def ensures(self, tail: Tail) -> None:
        """A softmax on the path."""
        tail.check()
        require(tail.normalised, "the scores have no softmax")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail that begins with two logits."""
        old, before = tail.logits, set(editor.made)
        bare = tail.activation is None
        logits = two_columns(editor, old, probability=bare and tail.outputs == "probability")
        if tail.outputs == "probability":
            scores = softmax(editor, logits)
            column = editor.number([1], ir.DataType.INT64, "column")
            one = editor.node("Gather", [scores, column], {"axis": 1})
        else:
            scores = editor.node("LogSoftmax", [logits], {"axis": 1})
            difference = editor.number(np.array([[-1.0], [1.0]]), dtype_of(logits), "odds")
            one = editor.node("MatMul", [scores, difference])
        made = editor.made - before
        replaced = old if tail.activation is None else tail.activation.outputs[0]
        rest = tuple(node for node in tail.path if node is not tail.activation)
        tail = tail.replace_scores(editor, replaced, one, made)
        editor.remove_unused(replaced)
        nodes = tuple(node for value in (scores, one) if (node := value.producer()) is not None)
        tail = Tail(logits, tail.output, (*nodes, *rest), nodes[0], tail.outputs)
        return tail, "one score a sample made two, as the calibration acts on both classes"


def two_columns(editor: Editor, one: ir.Value, *, probability: bool) -> ir.Value:
    """(0, z) of a logit z (n, 1); log(1 - p), log p of a probability."""
    dtype = dtype_of(one)
    if probability:
        rest = editor.node("Sub", [editor.number(1.0, dtype, "number"), one])
        return clamped_log(editor, editor.node("Concat", [rest, one], {"axis": 1}))
    pads = editor.number([0, 1, 0, 0], ir.DataType.INT64, "pads")
    return editor.node("Pad", [one, pads])

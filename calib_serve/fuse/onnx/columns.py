"""Scores of other shapes made (n, K) for the passes.

(n, K, 1, 1) of fully convolutional classifiers is flattened; a binary model's one score becomes two logits
(0, z) where steps act on both classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx.edit import Editor, dtype_of, require
from calib_serve.fuse.onnx.probabilities import clamped_log, softmax
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["FlattenScores", "WidenColumn", "flat", "is_flat", "two_columns"]


def is_flat(value: ir.Value) -> bool:
    """Whether a value is known to be (n, K)."""
    return value.shape is not None and len(value.shape) == 2


def flat(editor: Editor, value: ir.Value) -> ir.Value:
    """A value (n, K, 1, ...) as (n, K); unchanged where it is that."""
    if is_flat(value):
        return value
    assert value.shape is not None
    return editor.node("Flatten", [value], {"axis": 1})


@dataclass(frozen=True)
class FlattenScores:
    """A Flatten before the activation and an Unsqueeze after it: other readers see the same values."""

    def requires(self, tail: Tail) -> None:
        """Logits (n, K, 1, ...)."""
        shape = tail.logits.shape
        require(shape is not None and all(size == 1 for size in shape[2:]), "the logits cannot be flattened")

    def ensures(self, tail: Tail) -> None:
        """Logits (n, K)."""
        tail.check()
        require(is_flat(tail.logits), "the logits are not flat")

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail between the Flatten and the Unsqueeze."""
        wide = tail.logits.shape
        assert wide is not None
        extra = list(range(2, len(wide)))
        narrow = flat(editor, tail.logits)
        if tail.activation is None:
            scores, old = narrow, tail.logits
        else:
            tail.activation.replace_input_with(0, narrow)
            scores = old = tail.activation.outputs[0]
            scores.shape = narrow.shape
        readers = tail.readers(old)
        axes = editor.number(extra, ir.DataType.INT64, "axes")
        back = editor.node("Unsqueeze", [scores, axes])
        editor.move(old, back, readers)
        output = tail.output
        if old is output:
            editor.replace_output(old, [back], [str(old.name)])
            output = back
        node = back.producer()
        rest = tuple(n for n in tail.path if n is not tail.activation)
        head = () if tail.activation is None else (tail.activation,)
        path = (*head, *(() if node is None else (node,)), *rest)
        tail = replace(tail, logits=narrow, output=output, path=path)
        return tail, "scores of more than two dimensions flattened (Flatten, Unsqueeze added)"


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

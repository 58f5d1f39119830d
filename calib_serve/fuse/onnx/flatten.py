"""Scores of shape (n, K, 1, 1), as of fully convolutional classifiers, made (n, K) for the passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from calib_serve.fuse.onnx.edit import Editor, require
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["FlattenScores", "flat", "is_flat"]


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

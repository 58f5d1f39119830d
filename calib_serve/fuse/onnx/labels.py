"""Labels that the graph returns beside its scores: where a calibration may change them, they follow."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from calib_serve.artifact import Artifact
from calib_serve.fuse.onnx.edit import FLOATS, Editor, attribute, constant, describe, users
from calib_serve.fuse.onnx.tail import Tail

__all__ = ["FollowLabels"]

_CLASSIFIERS = frozenset({"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"})
_NAMES = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
_DECISIONS = frozenset({"ArgMax", "Hardmax", "TopK"})
_COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

_ORDERED = frozenset(
    {"Identity", "Cast", "Exp", "Log", "Softmax", "LogSoftmax", "Sigmoid", "Normalizer", "Div", "Sub", "Max"}
)
"""Operators by which exporters make probabilities of scores: the largest stays the largest."""

_SELECTING = frozenset({"Gather", "GatherElements", "ArrayFeatureExtractor"})
"""Operators between a decision and the label that is returned, which is at the place that was decided."""

_NAMING = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Not", "Where", "LabelEncoder"}
)
"""Others between a decision and the label."""


@dataclass(frozen=True, eq=False)
class FollowLabels:
    """Make labels that were decided from ``raw``, the scores before the calibration, follow its result.

    A threshold is left, as its number belongs to the uncalibrated scores; what is left is said.
    """

    artifact: Artifact
    raw: ir.Value

    def requires(self, _: Tail) -> None:
        """Nothing: a graph may return no label."""

    def ensures(self, _: Tail) -> None:
        """Nothing: the scores are as they were."""

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """Labels by an ArgMax of the calibrated scores; a warning for those that stay."""
        scores, kin = _calibrated(editor, tail), _kin(self.raw)
        moved: list[str] = []
        if scores is not None and not self._keeps_order():
            moved = [
                *_rename(editor, kin[-1], scores, self.artifact.classes),
                *(d for v in kin for d in _decide(editor, v, scores)),
            ]
            editor.graph.sort()
        done = [f"labels by {', '.join(moved)} follow the calibrated scores"] if moved else []
        return tail, "; ".join([*done, *self._left(editor, tail, scores, kin)])

    def _keeps_order(self) -> bool:
        """Whether the most likely class stays the same: temperatures, and mixtures of them."""
        maps = all(step.is_scalar for step in self.artifact.logit_maps)
        return maps and self.artifact.table is None and self.artifact.head is None

    def _keeps_sides(self, comparison: ir.Node) -> bool:
        """Whether everything stays on its side: of 0, or of one half, where there are no more than two."""
        numbers = [n for v in comparison.inputs if (n := constant(v)) is not None]
        if len(numbers) != 1 or not self._keeps_order():
            return False
        # Of more classes, a temperature moves the likeliest across a half.
        two = self.artifact.classes == 2 or self.artifact.is_multilabel
        return bool(((numbers[0] == 0) | ((numbers[0] == 0.5) & two)).all())

    def _left(self, editor: Editor, tail: Tail, scores: ir.Value | None, kin: list[ir.Value]) -> list[str]:
        """A warning for each output that is a label of other scores than the calibrated ones."""
        ours = {tail.output, *([] if scores is None else _kin(scores))}
        if self.artifact.table is None:
            ours |= {tail.logits, *(v for n in (*tail.path, *editor.made) for v in n.outputs)}
        warnings = []
        for output in editor.graph.outputs:
            node = None if output in ours else _decision(output)
            if node is None or any(v in ours for v in node.inputs):
                continue
            if node.op_type in _COMPARISONS:
                read = [v for v in node.inputs if v is not None and not set(_kin(v)).isdisjoint(kin)]
                if not read or self._keeps_sides(node):
                    continue
            elif self._keeps_order() or not (
                node.op_type in _CLASSIFIERS or self._of_classes(node.inputs[0])
            ):
                continue
            warnings.append(
                f"warning: the output {output.name!r} is decided by {describe(node)} from uncalibrated "
                "scores, and may contradict the calibrated ones"
            )
        return warnings

    def _of_classes(self, value: ir.Value | None) -> bool:
        """Whether a decision may be between the classes, as far as shapes tell."""
        shape = None if value is None else value.shape
        if shape is None:
            return True
        if len(shape) < 2 or any(size != 1 for size in shape[2:]):
            return False
        return not isinstance(shape[1], int) or shape[1] == self.artifact.classes


def _kin(value: ir.Value) -> list[ir.Value]:
    """The scores and what they were made of, class by class, in an order that is the same."""
    found = [value]
    while (node := value.producer()) is not None and node.op_type in _ORDERED and node.inputs[0] is not None:
        value = node.inputs[0]
        found.append(value)
    return found


def _calibrated(editor: Editor, tail: Tail) -> ir.Value | None:
    """The calibrated scores (n, K) as a tensor, else None."""
    value, kin = tail.output, set(_kin(tail.output))
    # Of logits that are shown beside their probabilities, by which classes may tie.
    value = next(
        (v for v in editor.graph.outputs if v.name == "probabilities" and not kin.isdisjoint(_kin(v))), value
    )
    node = value.producer()
    if node is not None and node.op_type == "ZipMap" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value if _may_be_whole(tail.logits) and _may_be_whole(value) and value.dtype in FLOATS else None


def _may_be_whole(value: ir.Value) -> bool:
    """Whether a value may hold a score of every class, (n, K)."""
    return value.shape is None or (len(value.shape) == 2 and value.shape[1] != 1)


def _rename(editor: Editor, value: ir.Value, scores: ir.Value, classes: int) -> list[str]:
    """Decide anew the label that a classifier operator returns beside its scores ``value``."""
    node = value.producer()
    if node is None or node.domain != "ai.onnx.ml" or node.op_type not in _CLASSIFIERS:
        return []
    label, what = node.outputs[0], describe(node)
    names = next((list(v) for key in _NAMES if (v := attribute(node, key, ()))), [])
    if value is label or len(names) != classes or not (label.uses() or label.is_graph_output()):
        return []
    chosen = editor.node("ArgMax", [scores], {"axis": 1, "keepdims": 0})
    new = editor.node("Gather", [editor.names(names, "labels"), chosen], {"axis": 0})
    editor.move(label, new, users(label))
    if label.is_graph_output():
        editor.replace_output(label, [new], [str(label.name)])
    return [what]


def _decide(editor: Editor, value: ir.Value, scores: ir.Value) -> list[str]:
    """Let each ArgMax that still reads the uncalibrated ``value`` read the calibrated ``scores``."""
    if value is scores:
        return []
    deciding = [
        n for n in users(value) if n.op_type == "ArgMax" and n.domain == "" and n.graph is editor.graph
    ]
    editor.move(value, scores, deciding)
    return [describe(n) for n in deciding]


def _decision(output: ir.Value) -> ir.Node | None:
    """The node that decides a label, through those that name and form it."""
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in _DECISIONS | _COMPARISONS:
            return node
        if node.op_type in _CLASSIFIERS:
            return node if value is node.outputs[0] else None
        if node.op_type not in _NAMING | _SELECTING:
            return None
        value = node.inputs[1 if node.op_type in _SELECTING else 0]
    return None

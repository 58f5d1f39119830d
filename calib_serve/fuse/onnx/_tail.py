"""The tail of a graph: the logits to calibrate, the path from them to the output, and their kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.fuse._decisions import has_logits
from calib_serve.fuse._kinds import Change, change_to_fitted, check_multilabel
from calib_serve.fuse.onnx._graph import (
    FLOATS,
    Editor,
    attribute,
    constant,
    describe,
    require,
    users,
)
from calib_serve.fuse.onnx._masks import find_mask
from calib_serve.scores import LABELS, MADE, ONE_COLUMN, GraphOutput, MadeBy, Outputs, choose_scores, exact

_SCORERS = {"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", "TreeEnsemble", "Normalizer"}
"""Operators of scikit-learn exports that return probabilities and do not expose their logits."""

DECISIONS = frozenset({"ArgMax", "Hardmax", "TopK"})
"""Operators that choose by the order of scores."""

_SHIFTED = frozenset({"Softmax", "LogSoftmax"})
"""Operators that a constant added to all logits of a row does not change."""

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep all scores in their order."""

VIEWS = _RESHAPES | {"Cast", "Transpose"}

_CHANGES: tuple[Change, ...] = ("normalise",)
_OF_COLUMNS: dict[Outputs, Outputs] = {"logit": "logits", "probability": "probabilities"}


@dataclass(frozen=True, eq=False)
class Tail:
    """``logits`` -> activation (if any) -> ``path`` -> ``output``, one of the graph's outputs.

    ``path`` are the nodes from the logits to the output, the activation among them; ``outputs``
    says what the output holds. ``one_column``: of a binary model, (n, 1). ``followers`` are the other nodes,
    of the graph or of a body inside it, that read what the path holds and read it calibrated afterwards.
    ``mask`` are the first nodes of the path where they mask classes.
    """

    logits: ir.Value
    output: ir.Value
    path: tuple[ir.Node, ...]
    activation: ir.Node | None
    outputs: Outputs
    followers: frozenset[ir.Node] = frozenset()
    mask: tuple[ir.Node, ...] = ()

    @property
    def masked(self) -> ir.Value:
        """The logits behind the mask, if there is any."""
        return self.mask[-1].outputs[0] if self.mask else self.logits

    @property
    def normalised(self) -> bool:
        """Whether a softmax follows the logits: a constant added to all of them has no effect."""
        return self.activation is not None and self.activation.op_type != "Sigmoid"

    @property
    def one_column(self) -> bool:
        """Whether the logits are (n, 1), of a binary model."""
        return self.outputs in ONE_COLUMN and not self.normalised

    def check(self) -> None:
        """Check that the path alone leads from the logits to an output: each pass leaves it so."""
        value = self.logits
        for node in self.path:
            require(value in node.inputs, "the way out is broken")
            value = node.outputs[0]
        require(value is self.output and value.is_graph_output(), "the output is another")
        require(self.activation is None or self.activation in self.path, "the activation is another")

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that must read the calibrated ``value``: the path, and the followers."""
        return [n for n in users(value) if n in self.path or n in self.followers]

    def strangers(self, value: ir.Value) -> list[str]:
        """The names of other readers of ``value``, which must not see a change."""
        ours = self.readers(value)
        others = [describe(n) for n in users(value) if n not in ours]
        return others + ([f"the graph output {value.name!r}"] if self.shows_raw(value) else [])

    def shows_raw(self, value: ir.Value) -> bool:
        """Whether ``value`` holds logits that the graph shows beside the scores computed from them."""
        return value is self.logits and self.activation is not None and value.is_graph_output()

    def replace_logits(self, editor: Editor, new: ir.Value) -> Tail:
        """Replace the logits by calibrated ones."""
        return replace(self.replace_scores(editor, self.logits, new), logits=new)

    def replace_scores(self, editor: Editor, old: ir.Value, new: ir.Value) -> Tail:
        """Replace ``old``, a value on the path, by ``new``; only the nodes of ``new`` still read ``old``."""
        editor.move(old, new, self.readers(old))
        if not old.is_graph_output() or self.shows_raw(old):
            return self
        (shown,) = editor.replace_output(old, [new], [str(old.name)])
        return replace(self, output=shown) if old is self.output else self


def class_axis(shape: ir.Shape) -> int | None:
    """Find the axis of the classes in the shape of scores; None where several may be.

    It is the only one behind the batch that is not of size 1, or else the first; of scores (n,) there is
    none, which counts as 1.
    """
    wide = [axis for axis, size in enumerate(shape) if axis and size != 1]
    return (wide or [1])[0] if len(shape) and len(wide) < 2 else None


def find_tail(editor: Editor, *, output: str | None, outputs: Outputs | None, artifact: Artifact) -> Tail:
    """Find the logits behind the chosen output, and the nodes that follow them."""
    classes = artifact.classes
    chosen = _choose(editor.graph, output, artifact)
    path: list[ir.Node] = []
    value = chosen
    # Backwards from the output, through what moves scores without changing them.
    while (node := value.producer()) is not None and _passes(node):
        path.insert(0, node)
        value = node.inputs[0]  # type: ignore[assignment]  # both made sure
    activation = None
    if node is not None and node.domain == "" and node.op_type in MADE:
        activation = node
        path.insert(0, node)
        value = node.inputs[0]  # type: ignore[assignment]
        _check_axis(node, value)
    elif node is not None and node.domain == "ai.onnx.ml" and node.op_type in _SCORERS:
        outputs = outputs or "probabilities"
        if value.dtype is None:  # onnx infers nothing for these operators; their scores are float32 (n, K)
            value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape((None, classes))
    behind = 0
    for i, one in enumerate(path, 1):
        # Without an activation, the scores are those behind the last DequantizeLinear or reshape of the path.
        if activation is None and one.op_type in {"DequantizeLinear", *_RESHAPES} - {"Identity"}:
            value, behind = one.outputs[0], i
    columns = _columns(value, classes, chosen)
    op: Any = "" if activation is None else activation.op_type
    kind = _kind_of(op, columns, artifact, outputs, str(chosen.name))
    mask: tuple[ir.Node, ...] = ()
    if columns != 1 and (activation is not None or kind in ("logits", "label_logits")):
        value, mask = find_mask(value)
    tail = Tail(value, chosen, (*mask, *path[behind:]), activation, kind, mask=mask)
    return replace(tail, followers=_followers(tail, artifact))


def _followers(tail: Tail, artifact: Artifact) -> frozenset[ir.Node]:
    """Find the nodes off the path that read the scores and can read calibrated scores of the same kind."""
    # Behind a table or mixture there are no calibrated logits: who reads logits may follow by their order
    # alone.
    found = {n for node in tail.path for v in node.outputs for n in users(v)}
    for node in users(tail.logits):
        # What only shows the raw logits as an output stays.
        made = node.outputs[0]
        shows = node.op_type in VIEWS and any(v.is_graph_output() for v in (made, *views(made)))
        follows = has_logits(artifact) or not tail.normalised or ignores_shift(node)
        if tail.activation is None or (follows and not shows):
            found.add(node)
    return frozenset(found.difference(tail.path))


def ignores_shift(node: ir.Node) -> bool:
    """Whether a node ignores a constant added to all logits; a TopK only if its values are not read."""
    if node.op_type == "TopK" and (node.outputs[0].uses() or node.outputs[0].is_graph_output()):
        return False
    return node.domain == "" and node.op_type in DECISIONS | _SHIFTED


def views(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that repeat ``value``, perhaps in another shape or type."""
    for node in users(value):
        if node.op_type in VIEWS:
            yield node.outputs[0]
            yield from views(node.outputs[0])


def _choose(graph: ir.Graph, name: str | None, artifact: Artifact) -> ir.Value:
    """Find the output that holds the scores, or the named tensor inside, which becomes an output."""
    inside = {str(v.name): v for node in graph for v in node.outputs}
    made = {one: node.op_type for one, v in inside.items() if (node := v.producer()) is not None}
    column, declared = artifact.model.outputs in ONE_COLUMN, [*map(_declared, graph.outputs)]
    value = inside[choose_scores(declared, name, made, classes=artifact.classes, column=column)]
    if not value.is_graph_output():
        graph.outputs.append(value)
    return value


def _declared(value: ir.Value) -> GraphOutput:
    """An output as onnxruntime declares it; one of unknown type, as of a ZipMap, is taken for maps."""
    kind = "seq(map(string,tensor(float)))" if value.dtype is None else f"tensor({value.dtype.name.lower()})"
    shape = ("any", "any") if value.shape is None else value.shape
    sizes = [size if isinstance(size, int) else str(size) for size in shape]
    return GraphOutput(str(value.name), kind, sizes)


def _passes(node: ir.Node) -> bool:
    """Whether a node passes values on, class by class, as they are or quantised."""
    value = node.inputs[0] if node.inputs else None
    if value is None:
        return False
    maker, op = value.producer(), node.op_type
    if node.domain == "ai.onnx.ml":
        return op == "ZipMap"
    if node.domain in ("", "com.microsoft") and op in ("QuantizeLinear", "DequantizeLinear"):
        quantized = maker is not None and maker.op_type == "QuantizeLinear" and maker.domain == node.domain
        return op == "QuantizeLinear" or quantized
    if node.domain != "":
        return False
    if op == "Cast":
        scores = value.dtype in FLOATS or (maker is not None and maker.op_type in _SCORERS)
        return scores and node.outputs[0].dtype in FLOATS
    return op in _RESHAPES or (op == "Mul" and _is_times_one(node))


def _is_times_one(node: ir.Node) -> bool:
    """Whether a node multiplies by 1: LightGBM's converter names its probabilities so."""
    factor = None if node.inputs[0] is node.inputs[1] else constant(node.inputs[1])
    return factor is not None and factor.size == 1 and factor.ndim <= 2 and bool(factor == 1)


def _check_axis(node: ir.Node, value: ir.Value) -> None:
    rank = None if value.shape is None else len(value.shape)
    axis = attribute(node, "axis", -1)
    if node.op_type == "Sigmoid" or (rank is None and axis in (1, -1)):
        return
    if value.shape is not None and rank != 1 and axis % len(value.shape) == class_axis(value.shape):
        return
    raise FuseError(
        f"{describe(node)} works on axis {axis} of {rank}, not over the classes of (n, K) logits; name "
        "another output: --output-name (output_name=)"
    )


def _columns(value: ir.Value, classes: int, output: ir.Value) -> int | None:
    """How many columns the scores have, None if unknown; FuseError where they are not (n, K)."""
    if value.dtype not in FLOATS:
        raise FuseError(
            f"the scores {value.name!r} are {value.dtype or 'of unknown type'}, not floating point; name "
            "another output: --output-name (output_name=)"
        )
    if value.shape is None:
        raise FuseError(
            f"the shape of {value.name!r} is not known, and no run on generated inputs tells that it is (n, "
            "K); give inputs to run on: --inputs (inputs=)"
        )
    axis = class_axis(value.shape)
    if axis is None or (len(value.shape) == 1 and classes != 2):
        raise FuseError(
            f"the scores {value.name!r} behind output {output.name!r} have shape {value.shape}, not (n, K); "
            "name the tensor that holds one row of scores a sample: --output-name (output_name=)"
        )
    columns = 1 if len(value.shape) == 1 else value.shape[axis]
    if not isinstance(columns, int):
        return None
    if columns != classes and (columns, classes) != (1, 2):
        raise FuseError(
            f"the artifact is for {classes} classes, but {value.name!r} has {columns}; "
            "fit one for this model or name another output: --output-name (output_name=)"
        )
    return columns


def _kind_of(
    activation: MadeBy, columns: int | None, artifact: Artifact, told: Outputs | None, output: str
) -> Outputs:
    """The kind of ``output``: by its ``activation``, else as told, else as the artifact was fitted.

    ``columns`` a sample, None where unknown. Raises FuseError where these do not go together.
    """
    made = MADE[activation][0] if activation else None
    if activation == "Sigmoid":
        made = "label_probabilities" if artifact.is_multilabel else made
        if made == "probability" and (artifact.classes != 2 or columns not in (None, 1)):
            raise FuseError(
                f"the output {output!r} is made by a Sigmoid a class: any number of labels may be true, and "
                "the artifact is for one class of several; fit it with: calib-serve fit FILE "
                "--outputs label_probabilities"
            )
    # The graph's own activation outweighs the option.
    if made is not None and told is not None and exact(told, columns or 2) != made:
        raise FuseError(
            f"the output {output!r} is made by a {activation}: it holds {made}, not {told}; leave out "
            "--outputs (outputs=)"
        )
    kind = made or told or artifact.model.outputs or "logits"
    # One column is of a binary model, whatever it was called.
    if columns == 1:
        kind = exact(kind, 1)
    elif made is None:
        kind = _OF_COLUMNS.get(kind, kind)
    check_multilabel(artifact, kind, f"the output {output!r} holds {kind}")
    return kind


def adapt_artifact(artifact: Artifact, kind: Outputs, *, activated: bool, one_column: bool) -> Artifact:
    """The artifact as it acts on the graph's logits; FuseError where it was fitted on another kind.

    A fit sees a model that ends in a softmax through its log-probabilities; the graph has logits before it.
    ``activated``: an activation of the graph makes ``kind`` of its logits.
    """
    if artifact.head is not None:  # it makes the logits anew, those that were fitted
        return artifact
    seen: Outputs = kind
    if activated and kind not in LABELS:
        seen = "logit" if one_column else "logits"
    held = "one logit a sample" if seen == "logit" else kind
    change = change_to_fitted(artifact, seen, f"the graph has {held}", shown=kind, can=_CHANGES)
    if change == "none":
        return artifact
    first = artifact.maps[0]
    steps = tuple(
        replace(s, on="log_probs") if s is first and isinstance(s, LogitMap) else s for s in artifact.steps
    )
    return replace(artifact, steps=steps)


def of_one_column(artifact: Artifact) -> LogitMap | None:
    """Merge the logit maps into one on the single logit z, for (0, z); None where they are not linear."""
    if artifact.source_maps is not None:
        return None
    if any(m.on == "log_probs" and (m.weight.ndim or m.least is not None) for m in artifact.logit_maps):
        return None
    points = np.array([[0.0, 0.0], [0.0, 1.0]])
    for step in artifact.logit_maps:
        points = replace(step, on="logits")(points)
    at_zero, at_one = points[:, 1] - points[:, 0]
    return LogitMap(np.array([at_one - at_zero]), np.array([at_zero]) if at_zero else None)

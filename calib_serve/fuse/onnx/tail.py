"""The tail of a graph: the logits to calibrate, the path from them to the output, and what they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.checks import UNKNOWN
from calib_serve.fuse.onnx.edit import FLOATS, Editor, attribute, constant, describe, require, users
from calib_serve.scores import LABELS, ONE_COLUMN, Outputs, exact

__all__ = ["NORMALISED", "Tail", "as_fitted", "find_tail", "kind_of", "of_one_column"]

_ACTIVATIONS = {"Softmax", "LogSoftmax", "Sigmoid"}
_SCORERS = {"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", "TreeEnsemble", "Normalizer"}
"""Operators of scikit-learn exports that return probabilities and do not expose their logits."""

_DECISIONS = {"ArgMax", "Hardmax", "TopK"}
"""Decisions from the scores: they must follow the calibrated ones."""


@dataclass(frozen=True, eq=False)
class Tail:
    """``logits`` -> activation (if any) -> ``path`` -> ``output``, one of the graph's outputs.

    ``path`` are the nodes from the logits to the output, the activation among them; ``outputs``
    says what the output holds. ``one_column``: of a binary model, (n, 1).
    """

    logits: ir.Value
    output: ir.Value
    path: tuple[ir.Node, ...]
    activation: ir.Node | None
    outputs: Outputs

    @property
    def normalised(self) -> bool:
        """Whether a softmax follows the logits: a constant added to all of them has no effect."""
        return self.activation is not None and self.activation.op_type != "Sigmoid"

    @property
    def one_column(self) -> bool:
        """Whether its logits are (n, 1), of a binary model."""
        return self.outputs in ONE_COLUMN and not self.normalised

    def check(self) -> None:
        """The invariant of all passes: the path alone leads from the logits to an output of the graph."""
        value = self.logits
        for node in self.path:
            require(value in node.inputs, "the way out is broken")
            value = node.outputs[0]
        require(value is self.output and value.is_graph_output(), "the output is another")
        require(self.activation is None or self.activation in self.path, "the activation is another")

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that must read the calibrated ``value``: the path, and decisions."""
        return [n for n in users(value) if n in self.path or (n.domain == "" and n.op_type in _DECISIONS)]

    def strangers(self, value: ir.Value) -> list[str]:
        """Names of other readers of ``value``, which must not see a change."""
        ours = self.readers(value)
        others = [describe(n) for n in users(value) if n not in ours]
        shown = value.is_graph_output() and value is not self.output
        return others + ([f"the graph output {value.name!r}"] if shown else [])

    def replace_logits(self, editor: Editor, new: ir.Value) -> Tail:
        """Replace the logits by calibrated ones; only the new value's own nodes still read the old."""
        old = self.logits
        editor.move(old, new, self.readers(old))
        if old is self.output:
            editor.replace_output(old, [new], [str(old.name)])
            return replace(self, logits=new, output=new)
        return replace(self, logits=new)

    def replace_scores(self, editor: Editor, old: ir.Value, new: ir.Value, keep: Collection[ir.Node]) -> Tail:
        """Replace ``old``, a value on the path, by ``new``, except for the nodes in ``keep``."""
        editor.move(old, new, [n for n in self.readers(old) if n not in keep])
        if old is self.output:
            editor.replace_output(old, [new], [str(old.name)])
            return replace(self, output=new)
        return self


def find_tail(editor: Editor, *, output: str | None, outputs: Outputs | None, artifact: Artifact) -> Tail:
    """Find the logits behind the chosen output, and make the path private to it."""
    classes = artifact.classes
    chosen = _choose(editor.graph, output, classes)
    path: list[ir.Node] = []
    value = chosen
    while (node := value.producer()) is not None and (_passes(node) or _is_quantizer(node)):
        path.insert(0, node)
        value = node.inputs[0]  # type: ignore[assignment]  # both made sure
    activation = None
    if node is not None and node.domain == "" and node.op_type in _ACTIVATIONS:
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
        # Quantised scores that are no activation's are as they are dequantised.
        if activation is None and one.op_type == "DequantizeLinear":
            value, behind = one.outputs[0], i
    _check_quantized(value, outputs)
    columns = _columns(value, classes, chosen)
    op = None if activation is None else activation.op_type
    kind = kind_of(op, columns, artifact, outputs, str(chosen.name))
    tail = Tail(value, chosen, tuple(path[behind:]), activation, kind)
    return _private(editor, tail)


def _choose(graph: ir.Graph, name: str | None, classes: int) -> ir.Value:
    names = [v.name for v in graph.outputs]
    if name is not None:
        if name not in names:
            raise FuseError(
                f"the graph has no output {name!r}; --output-name (output_name=) is one of {names}"
            )
        return graph.outputs[names.index(name)]
    scores = [v for v in graph.outputs if _may_hold_scores(v, classes)]
    if len(scores) == 1:
        return scores[0]
    if not scores:
        raise FuseError(
            f"no output of the graph can hold scores of {classes} classes, (n, {classes}); it has "
            + ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in graph.outputs)
            + "; fit an artifact on this model's scores, or export them as an output"
        )
    raise FuseError(
        f"several outputs may hold the scores: {[v.name for v in scores]}; name one: --output-name "
        "(output_name=)"
    )


def _may_hold_scores(value: ir.Value, classes: int) -> bool:
    """As far as its type and shape tell; a map a row, of a ZipMap, has none."""
    if value.dtype is not None and value.dtype not in FLOATS:
        return False
    if value.shape is None:
        return True
    dims = list(value.shape)
    while len(dims) > 2 and dims[-1] == 1:
        dims.pop()
    wide = dims[-1] if dims else None
    return len(dims) == 2 and (not isinstance(wide, int) or wide == classes or (classes == 2 and wide == 1))


def _passes(node: ir.Node) -> bool:
    """Whether a node passes values on, class by class."""
    value = _first(node)
    if value is None:
        return False
    if node.domain == "ai.onnx.ml":
        return node.op_type == "ZipMap"
    if node.domain != "":
        return False
    if node.op_type == "Cast":
        maker = value.producer()
        scores = value.dtype in FLOATS or (maker is not None and maker.op_type in _SCORERS)
        return scores and node.outputs[0].dtype in FLOATS
    return node.op_type == "Identity" or _is_times_one(node)


def _is_quantizer(node: ir.Node) -> bool:
    """A QuantizeLinear, or a DequantizeLinear behind one."""
    value = _first(node)
    if node.domain not in ("", "com.microsoft") or value is None:
        return False
    maker = value.producer()
    pair = maker is not None and maker.op_type == "QuantizeLinear" and maker.domain == node.domain
    return node.op_type == "QuantizeLinear" or (node.op_type == "DequantizeLinear" and pair)


def _is_times_one(node: ir.Node) -> bool:
    """A product with the constant 1: how LightGBM's converter names its probabilities."""
    square = node.inputs[0] is node.inputs[-1]
    factor = constant(node.inputs[1]) if node.op_type == "Mul" and not square else None
    return factor is not None and factor.size == 1 and factor.ndim <= 2 and bool(factor == 1)


def _first(node: ir.Node) -> ir.Value | None:
    """What a node reads first, if anything."""
    return node.inputs[0] if node.inputs else None


def _check_axis(node: ir.Node, value: ir.Value) -> None:
    rank = None if value.shape is None else len(value.shape)
    axis = attribute(node, "axis", -1)
    if node.op_type == "Sigmoid" or axis == 1 or (axis == -1 and rank in (None, 2)):
        return  # axis 1 is right for (n, K, 1, 1) too
    raise FuseError(
        f"{describe(node)} works on axis {axis} of {rank}, not over the classes of (n, K) logits; name "
        "another output: --output-name (output_name=)"
    )


def _check_quantized(value: ir.Value, outputs: Outputs | None) -> None:
    """Probabilities in 256 steps sum to 1 so badly that their values do not tell what they are."""
    node = value.producer()
    first = None if node is None else _first(node)
    maker = None if first is None else first.producer()
    if outputs is None and maker is not None and maker.op_type in ("QLinearSoftmax", "QLinearSigmoid"):
        raise FuseError(
            f"{describe(maker)} gives probabilities in 256 steps: quantise in the QDQ format, or leave it "
            "out of the quantisation; or say --outputs probabilities (outputs=)"
        )


def _columns(value: ir.Value, classes: int, output: ir.Value) -> int | None:
    """How many columns the scores have, None where unknown; FuseError where they are not (n, K)."""
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
    dims = list(value.shape)
    if len(dims) < 2 or any(d != 1 for d in dims[2:]):
        raise FuseError(
            f"the scores {value.name!r} behind output {output.name!r} have shape {value.shape}, not (n, K); "
            "name another output, --output-name (output_name=), or export the model with a Flatten before "
            "them"
        )
    columns = dims[1]
    if not isinstance(columns, int):
        return None
    if columns != classes and (columns, classes) != (1, 2):
        raise FuseError(
            f"the artifact is for {classes} classes, but {value.name!r} has {columns}; "
            "fit one for this model or name another output: --output-name (output_name=)"
        )
    return columns


def _private(editor: Editor, tail: Tail) -> Tail:
    """Copy the nodes of the path that others use too, so that only the chosen output is calibrated."""
    shared = [v for n in tail.path for v in n.outputs if tail.strangers(v)]
    if not shared:
        return tail
    renamed: dict[ir.Value | None, ir.Value] = {}
    copies: list[ir.Node] = []
    for node in tail.path:
        value = node.outputs[0]
        new = editor.copy(node, [renamed.get(v, v) for v in node.inputs])
        renamed[value] = new
        made = new.producer()
        if made is not None:
            copies.append(made)
        editor.move(value, new, [n for n in tail.readers(value) if n not in tail.path])
    output = renamed.get(tail.output, tail.output)
    if output is not tail.output:
        editor.replace_output(tail.output, [output], [str(tail.output.name)])
    activation = None if tail.activation is None else copies[tail.path.index(tail.activation)]
    return replace(tail, output=output, path=tuple(copies), activation=activation)


NORMALISED: tuple[Outputs, ...] = ("log_probs", "probabilities", "probability")
"""Fitted on these, a model is seen through its log-probabilities."""

_MADE: dict[str, Outputs] = {"Softmax": "probabilities", "LogSoftmax": "log_probs"}
_OF_COLUMNS: dict[Outputs, Outputs] = {"logit": "logits", "probability": "probabilities"}


def kind_of(
    activation: str | None, columns: int | None, artifact: Artifact, told: Outputs | None, output: str
) -> Outputs:
    """What ``output`` holds: shown by its ``activation``, else as told, else as the artifact was fitted.

    ``columns`` a sample, None where unknown. Raises FuseError where these do not go together.
    """
    made = None if activation is None else _MADE.get(activation)
    if activation == "Sigmoid":
        made = "label_probabilities" if artifact.is_multilabel else "probability"
        if made == "probability" and (artifact.classes != 2 or columns not in (None, 1)):
            raise FuseError(
                f"the output {output!r} is made by a Sigmoid a class: any number of labels may be true, and "
                "the artifact is for one class of several; fit it with: calib-serve fit --logits FILE "
                "--outputs label_probabilities"
            )
    if made is not None and told is not None and exact(told, columns or 2) != made:
        raise FuseError(
            f"the output {output!r} is made by a {activation}: it holds {made}, not {told}; leave out "
            "--outputs (outputs=)"
        )
    kind = made or told or artifact.model.outputs or "logits"
    if columns == 1:
        kind = exact(kind, 1)
    elif made is None:
        kind = _OF_COLUMNS.get(kind, kind)
    if (kind in LABELS) != artifact.is_multilabel:
        these, those = ("labels", "classes") if kind in LABELS else ("classes", "labels")
        raise FuseError(
            f"the output {output!r} holds {kind}, scores of {these}, and the artifact is for {those}; say "
            "with --outputs (outputs=) what it holds, or fit on this model's scores"
        )
    return kind


def as_fitted(artifact: Artifact, kind: Outputs, *, activated: bool, one_column: bool) -> Artifact:
    """The artifact as it acts on the graph's logits; FuseError where these are not what it was fitted on.

    A fit sees a model that ends in a softmax through its log-probabilities; the graph has logits before it.
    ``activated``: an activation of the graph makes ``kind`` of its logits. Only where it matters: a
    temperature makes the same of both.
    """
    if not artifact.depends_on_kind or artifact.is_multilabel or artifact.head is not None:
        return artifact
    fitted = artifact.model.outputs
    if fitted is None:
        raise FuseError(UNKNOWN)
    has_logits = activated or kind in ("logits", "logit")
    if fitted in NORMALISED:
        bare = not activated and kind in NORMALISED  # its logits are log-probabilities already
        return artifact if bare else _on_log_probs(artifact)
    if has_logits and one_column == (fitted == "logit"):
        return artifact
    held = "one logit a sample" if one_column and has_logits else kind
    raise FuseError(
        f"the artifact was fitted on {fitted}, and the graph has {held}: what its scale for each class makes "
        f"of them differs; fit it on what this graph returns (calib-serve fit --outputs {kind}), or export "
        f"{fitted}"
    )


def of_one_column(artifact: Artifact) -> LogitMap | None:
    """The logit maps as one on the single logit z, for (0, z); None where they are not linear in it."""
    if any(m.on == "log_probs" and (m.weight.ndim or m.least is not None) for m in artifact.logit_maps):
        return None
    points = np.array([[0.0, 0.0], [0.0, 1.0]])
    for step in artifact.logit_maps:
        points = replace(step, on="logits")(points)
    at_zero, at_one = points[:, 1] - points[:, 0]
    return LogitMap(np.array([at_one - at_zero]), np.array([at_zero]) if at_zero else None)


def _on_log_probs(artifact: Artifact) -> Artifact:
    first = artifact.logit_maps[0]
    steps = tuple(replace(s, on="log_probs") if s is first else s for s in artifact.steps)
    return replace(artifact, steps=steps)

"""The tail of a graph: the logits to calibrate, the path from them to the output, and their kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.fuse._decisions import has_logits
from calib_serve.fuse._kinds import change_to_fitted, check_multilabel
from calib_serve.fuse.onnx._graph import FLOATS, Editor, attribute, constant, describe, require, users
from calib_serve.scores import LABELS, ONE_COLUMN, Outputs, exact

_ACTIVATIONS = {"Softmax", "LogSoftmax", "Sigmoid"}
_SCORERS = {"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", "TreeEnsemble", "Normalizer"}
"""Operators of scikit-learn exports that return probabilities and do not expose their logits."""

DECISIONS = frozenset({"ArgMax", "Hardmax", "TopK"})
"""Operators that choose by the order of scores."""

_SHIFTED = frozenset({"Softmax", "LogSoftmax"})
"""Operators that a constant added to all logits of a row does not change."""

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep all scores in their order."""

VIEWS = _RESHAPES | {"Cast", "Transpose"}
_SELECTIONS = frozenset({"ReduceMax", "Gather", "Slice"})

_LAYERS = {"Gemm", "MatMul", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "If", "Loop", "Scan"}
_LAYERS |= {"MatMulInteger", "QLinearMatMul", "QLinearConv", "ConvInteger"}

_MADE: dict[str, Outputs] = {"Softmax": "probabilities", "LogSoftmax": "log_probs"}
_OF_COLUMNS: dict[Outputs, Outputs] = {"logit": "logits", "probability": "probabilities"}


@dataclass(frozen=True, eq=False)
class Tail:
    """``logits`` -> activation (if any) -> ``path`` -> ``output``, one of the graph's outputs.

    ``path`` are the nodes from the logits to the output, the activation among them; ``outputs``
    says what the output holds. ``one_column``: of a binary model, (n, 1). ``followers`` are the other nodes,
    of the graph or of a body inside it, that read what the path holds and read it calibrated afterwards.
    """

    logits: ir.Value
    output: ir.Value
    path: tuple[ir.Node, ...]
    activation: ir.Node | None
    outputs: Outputs
    followers: frozenset[ir.Node] = frozenset()

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
        # Without an activation, the scores are those behind the last DequantizeLinear or reshape of the path.
        if activation is None and one.op_type in {"DequantizeLinear", *_RESHAPES} - {"Identity"}:
            value, behind = one.outputs[0], i
    _check_quantized(value, outputs)
    columns = _columns(value, classes, chosen)
    op = None if activation is None else activation.op_type
    kind = _kind_of(op, columns, artifact, outputs, str(chosen.name))
    tail = Tail(value, chosen, tuple(path[behind:]), activation, kind)
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
    """Find the output that holds the scores; where none does, a tensor inside, which becomes an output."""
    classes = artifact.classes
    names = [v.name for v in graph.outputs]
    if name in names:
        return _whole(graph, graph.outputs[names.index(name)], artifact)
    if name is not None:
        inside = [v for node in graph for v in node.outputs if v.name == name]
        if not inside:
            raise FuseError(
                f"the graph has no output {name!r}; --output-name (output_name=) is one of {names}, or a "
                "tensor inside"
            )
        return _shown(graph, inside[0])
    scores = [v for v in graph.outputs if _may_hold_scores(v, classes)]
    # Shapes decide only where one output fits: a guess would calibrate something else in silence.
    if len(scores) == 1:
        return _whole(graph, scores[0], artifact)
    if not scores:
        made = _activations(graph.outputs, classes)
        odd = [v for v in graph.outputs if _may_hold_odd_scores(v, classes)]
        # An artifact of one column is of what the output shows, whichever class that is.
        alone = not made or artifact.model.outputs in ONE_COLUMN
        odd = [v for v in odd if _maker(v) in made] or (odd if alone else [])
        if len(odd) == 1:
            return odd[0]
        if len(made) == 1:
            return _shown(graph, made[0].outputs[0])
        raise FuseError(
            f"no output of the graph can hold scores of {classes} classes, (n, {classes}); it has "
            + ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in graph.outputs)
            + "; name the tensor inside that holds them, --output-name (output_name=)"
            + (f", one of {[n.outputs[0].name for n in made]}" if made else "")
            + ", or fit an artifact on this model's scores"
        )
    raise FuseError(
        f"several outputs may hold the scores: {[v.name for v in scores]}; name one: --output-name "
        "(output_name=)"
    )


def _whole(graph: ir.Graph, value: ir.Value, artifact: Artifact) -> ir.Value:
    """The chosen output; where it holds only selected scores, the scores that it selects from."""
    made = _activations([value], artifact.classes)
    op = None if (maker := _maker(value)) is None else maker.op_type
    column = artifact.model.outputs in ONE_COLUMN
    # An output of the largest few scores cannot be calibrated; the scores that it selects from can.
    fewer = op in _SELECTIONS and not column and _columns_of(value) != artifact.classes
    return _shown(graph, made[0].outputs[0]) if len(made) == 1 and (op == "TopK" or fewer) else value


def _shown(graph: ir.Graph, value: ir.Value) -> ir.Value:
    if not value.is_graph_output():
        graph.outputs.append(value)
    return value


def _maker(value: ir.Value) -> ir.Node | None:
    """Find the node that computes a value, behind nodes that pass it on."""
    node = value.producer()
    while node is not None and _passes(node):
        node = None if (below := _first(node)) is None else below.producer()
    return node


def _columns_of(value: ir.Value) -> int | str | None:
    """The number of scores a sample in a value, as far as its shape tells."""
    if value.shape is None or (axis := class_axis(value.shape)) is None:
        return None
    size = 1 if len(value.shape) == 1 else value.shape[axis]
    return size if isinstance(size, int) else str(size)


def _activations(outputs: Collection[ir.Value], classes: int) -> list[ir.Node]:
    """List the activations over ``classes``, behind the last layer, that lead to these outputs."""
    found: dict[ir.Node, None] = {}
    seen, todo = set[ir.Node](), [n for v in outputs if (n := v.producer()) is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        activates = node.domain == "" and node.op_type in _ACTIVATIONS
        if activates and _may_hold_odd_scores(node.outputs[0], classes):
            found[node] = None
        elif not is_layer(node):
            todo += [n for v in node.inputs if v is not None and (n := v.producer()) is not None]
    return list(found)


def is_layer(node: ir.Node) -> bool:
    """Whether a node makes scores of features, as far as its operator tells."""
    quantizes = node.op_type in ("Normalizer", "QuantizeLinear", "DequantizeLinear", "ZipMap")
    return node.op_type in _LAYERS or (node.domain != "" and not quantizes)


def _may_hold_scores(value: ir.Value, classes: int) -> bool:
    """Whether type and shape allow scores (n, K); the maps of a ZipMap, one a row, have no shape."""
    if value.dtype is not None and value.dtype not in FLOATS:
        return False
    node = value.producer()
    if node is not None and node.op_type == "TopK":
        return False
    if value.shape is None:
        return True
    dims = list(value.shape)
    while len(dims) > 2 and dims[-1] == 1:
        dims.pop()
    wide = dims[-1] if dims else None
    return len(dims) == 2 and (not isinstance(wide, int) or wide == classes or (classes == 2 and wide == 1))


def _may_hold_odd_scores(value: ir.Value, classes: int) -> bool:
    """Whether a value of another shape than (n, K) may hold scores: (n,), (n, 1, K), (n, 1, 1, K)."""
    size = _columns_of(value)
    if value.dtype not in FLOATS or size is None:
        return False
    return isinstance(size, str) or size == classes or (classes, size) == (2, 1)


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
    return node.op_type in _RESHAPES or _is_times_one(node)


def _is_quantizer(node: ir.Node) -> bool:
    """Whether a node is a QuantizeLinear, or a DequantizeLinear behind one."""
    value = _first(node)
    if node.domain not in ("", "com.microsoft") or value is None:
        return False
    maker = value.producer()
    pair = maker is not None and maker.op_type == "QuantizeLinear" and maker.domain == node.domain
    return node.op_type == "QuantizeLinear" or (node.op_type == "DequantizeLinear" and pair)


def _is_times_one(node: ir.Node) -> bool:
    """Whether a node multiplies by 1: LightGBM's converter names its probabilities so."""
    square = node.inputs[0] is node.inputs[-1]
    factor = constant(node.inputs[1]) if node.op_type == "Mul" and not square else None
    return factor is not None and factor.size == 1 and factor.ndim <= 2 and bool(factor == 1)


def _first(node: ir.Node) -> ir.Value | None:
    """The first input of a node, if any."""
    return node.inputs[0] if node.inputs else None


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


def _check_quantized(value: ir.Value, outputs: Outputs | None) -> None:
    """Raise FuseError for probabilities in 256 steps, whose sums do not reveal their kind."""
    node = value.producer()
    first = None if node is None else _first(node)
    maker = None if first is None else first.producer()
    if outputs is None and maker is not None and maker.op_type in ("QLinearSoftmax", "QLinearSigmoid"):
        raise FuseError(
            f"{describe(maker)} gives probabilities in 256 steps: quantise in the QDQ format, or leave it "
            "out of the quantisation; or say --outputs probabilities (outputs=)"
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
    activation: str | None, columns: int | None, artifact: Artifact, told: Outputs | None, output: str
) -> Outputs:
    """The kind of ``output``: by its ``activation``, else as told, else as the artifact was fitted.

    ``columns`` a sample, None where unknown. Raises FuseError where these do not go together.
    """
    made = None if activation is None else _MADE.get(activation)
    if activation == "Sigmoid":
        made = "label_probabilities" if artifact.is_multilabel else "probability"
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
    what = f"the graph has {held}"
    if change_to_fitted(artifact, seen, what, shown=kind, can=("normalise",)) == "none":
        return artifact
    first = artifact.logit_maps[0]
    steps = tuple(replace(s, on="log_probs") if s is first else s for s in artifact.steps)
    return replace(artifact, steps=steps)


def of_one_column(artifact: Artifact) -> LogitMap | None:
    """Merge the logit maps into one on the single logit z, for (0, z); None where they are not linear."""
    if any(m.on == "log_probs" and (m.weight.ndim or m.least is not None) for m in artifact.logit_maps):
        return None
    points = np.array([[0.0, 0.0], [0.0, 1.0]])
    for step in artifact.logit_maps:
        points = replace(step, on="logits")(points)
    at_zero, at_one = points[:, 1] - points[:, 0]
    return LogitMap(np.array([at_one - at_zero]), np.array([at_zero]) if at_zero else None)

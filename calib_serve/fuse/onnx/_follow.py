"""The status of every output of a fused graph: calibrated, following the calibration, or left raw.

An output is followed through any operator, and through the bodies of If, Loop and Scan. What reads the scores
reads calibrated ones after fusing (``Tail.followers``); what reads the values that the scores were made of
cannot, but for labels: these are decided anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from calib_serve.artifact import Artifact
from calib_serve.fuse._decisions import has_logits
from calib_serve.fuse.onnx._graph import FLOATS, Editor, attribute, constant, describe, is_layer, users
from calib_serve.fuse.onnx._tail import DECISIONS, Tail, ignores_shift, views

Status = Literal["calibrated", "follows", "left raw", "independent"]

_CLASSIFIERS = frozenset({"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"})
_NAMES = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
_COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

_ORDERED = frozenset(
    {"Identity", "Cast", "Exp", "Log", "Softmax", "LogSoftmax", "Sigmoid", "Normalizer", "Div", "Sub", "Max"}
)
"""Operators by which exporters make probabilities of scores: the largest stays the largest."""


@dataclass(frozen=True)
class OutputStatus:
    """The status of an output: calibrated, following, left raw or independent, and the reason."""

    name: str
    status: Status
    reason: str


@dataclass(frozen=True, eq=False)
class Sources:
    """The raw scores of a graph before it is edited, and the values behind the last layer that led to them.

    ``used``: the reading node, the place and the name of every input that follows. ``twins`` have the numbers
    of the scores by a computation of their own. ``before`` holds results
    of nodes behind the last layer, with their ``names`` in the file, ``kin`` those that have the order of the
    scores.
    """

    used: tuple[tuple[ir.Node, int, str], ...] = ()
    before: frozenset[ir.Value] = frozenset()
    kin: tuple[ir.Value, ...] = ()
    names: frozenset[str] = frozenset()
    twins: frozenset[ir.Value] = frozenset()


def find_sources(tail: Tail) -> Sources:
    """Find the values that the scores of ``tail`` are computed from, and the readers that follow them."""
    scores = {tail.logits, *(v for n in tail.path for v in n.outputs)}
    used = [
        (node, place, str(v.name))
        for node in tail.followers
        for place, v in enumerate(node.inputs)
        if v is not None and v in scores
    ]
    before, todo = set[ir.Value](), [tail.logits]
    while todo:
        value = todo.pop()
        node = value.producer()
        # Of integers, those that are dequantised are scores too.
        dequantized = any(reader.op_type == "DequantizeLinear" for reader in users(value))
        is_score = value.dtype is None or value.dtype in FLOATS or dequantized
        if value in before or node is None or not is_score:
            continue
        if constant(value) is None:
            # Whatever comes out of one operator that cannot be looked into may be made of the scores.
            closed = node.op_type in _CLASSIFIERS or node.domain not in ("", "ai.onnx.ml")
            before |= {value, *(node.outputs if closed else ())}
            # Back to the last layer and no further: what is before it are features, no scores.
            todo += inside(value) if is_layer(node) else reads(node)
    names = frozenset(str(v.name) for v in before if v.graph is tail.logits.graph)
    return Sources(tuple(used), frozenset(before), tuple(_kin(tail.logits)), names)


def reads(node: ir.Node) -> list[ir.Value]:
    """Every value that a node reads, in its bodies too; none where it asks for their size alone."""
    if _asks_size(node):
        return []
    found = [v for v in node.inputs if v is not None]
    for body in _bodies(node):
        found += [v for inner in body for v in reads(inner)] + list(body.outputs)
    return found


def _asks_size(node: ir.Node) -> bool:
    return node.op_type in ("Shape", "Size") and node.domain == ""


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [one.value for one in node.attributes.values() if one.type == ir.AttributeType.GRAPH]


def inside(value: ir.Value) -> list[ir.Value]:
    """List the results of an operator's bodies that ``value``, a result of an If, Loop or Scan, shows."""
    node = value.producer()
    if node is None:
        return []
    # The body of a Loop returns its condition first.
    place = node.outputs.index(value) + (node.op_type == "Loop")
    return [body.outputs[place] for body in _bodies(node)]


def follow_labels(editor: Editor, tail: Tail, artifact: Artifact, raw: Tail) -> str:
    """Decide labels by the calibrated scores where the graph decides them by the raw ones; name them.

    An ArgMax of the calibrated scores does, where the order of the classes may change.
    """
    moved, scores = list[str](), _calibrated(editor, tail)
    kin = _kin(raw.logits)
    if scores is not None and not keeps_order(artifact):
        moved = [d for v in kin for d in _rename(editor, v, scores, artifact.classes)]
        moved += [d for v in kin for d in _redirect_argmax(editor, v, scores)]
    # A moved node may stand before the node that it now reads.
    if moved or raw.followers:
        editor.graph.sort()
    return f"labels by {', '.join(moved)} follow the calibrated scores" if moved else ""


def keeps_order(artifact: Artifact) -> bool:
    """Whether the most likely class stays the same: after temperatures, and mixtures of them."""
    # A table may tie classes or swap them, and a head is another model.
    maps = all(step.is_scalar for step in artifact.maps)
    return maps and artifact.table is None and artifact.head is None


def _kin(value: ir.Value) -> list[ir.Value]:
    """List the scores and the values before them that have the same order of classes."""
    # Softmax, a division by their sum and their like keep the largest the largest.
    found = [value]
    while (node := value.producer()) is not None and node.op_type in _ORDERED and node.inputs[0] is not None:
        value = node.inputs[0]
        found.append(value)
    return found + [one for inner in inside(value) for one in _kin(inner)]


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
    return value if _may_be_whole(value) and value.dtype in FLOATS else None


def _may_be_whole(value: ir.Value) -> bool:
    """Whether a value may hold a score of every class, (n, K)."""
    return value.shape is None or (len(value.shape) == 2 and value.shape[1] != 1)


def _rename(editor: Editor, value: ir.Value, scores: ir.Value, classes: int) -> list[str]:
    """Decide the label that a classifier operator returns by the calibrated ``scores``, not its own."""
    node = value.producer()
    ours = node is not None and node.domain == "ai.onnx.ml" and node.op_type in _CLASSIFIERS
    if node is None or not ours or node.graph is not editor.graph:
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


def _redirect_argmax(editor: Editor, value: ir.Value, scores: ir.Value) -> list[str]:
    """Let each ArgMax that still reads the uncalibrated ``value`` read the calibrated ``scores``."""
    # A decision on pooled scores (n, K, 1, 1) has another shape than one on the (n, K) behind them.
    if value is scores or not _may_be_whole(value):
        return []
    deciding = [
        n
        for n in users(value)
        if n.op_type == "ArgMax"
        and n.domain == ""
        and n.graph is editor.graph
        # A mask decided from the scores and applied before them would depend on itself.
        and not reaches(scores, {str(n.outputs[0].name)})
    ]
    editor.move(value, scores, deciding)
    return [describe(n) for n in deciding]


def reaches(value: ir.Value, names: Collection[str]) -> bool:
    """Whether a value has one of these names, or is computed from a value that has."""
    seen, todo = set[ir.Value](), [value]
    while todo:
        one = todo.pop()
        if one.name in names:
            return True
        node = one.producer()
        if one not in seen and node is not None:
            todo += reads(node)
        seen.add(one)
    return False


def judge_outputs(
    editor: Editor,
    artifact: Artifact,
    sources: Sources,
    raw: Tail,
    tail: Tail,
    *,
    own: dict[str, str],
    shifted: str | None,
) -> tuple[OutputStatus, ...]:
    """Judge each output of the fused graph, given the tail before and the tail after fusing.

    ``own`` gives the reason of each output that fusing made or chose, ``shifted`` the input whose shift moves
    all that is computed.
    """
    # Folded into the layer that makes them, the same value holds calibrated scores now.
    in_place = tail.logits is raw.logits and has_logits(artifact)
    seeds = {*sources.twins, *(() if in_place else (raw.logits, *sources.before))}
    walk = _Walk(editor, artifact, sources, tail, seeds)
    # A head in nodes of its own makes logits of features: no raw score is on the way to these.
    walk.made |= {tail.logits} - walk.seeds
    walk.moved |= {v for v in editor.graph.inputs if v.name == shifted}
    for node in editor.graph:
        walk.step(node)
    return tuple(_judge(v, walk, raw, own) for v in editor.graph.outputs)


def _judge(value: ir.Value, walk: _Walk, raw: Tail, own: dict[str, str]) -> OutputStatus:
    name = str(value.name)
    if name in own:
        return OutputStatus(name, "calibrated", own[name])
    if value in walk.raw:
        return OutputStatus(name, "left raw", _why(value, walk.raw[value], raw, walk))
    if value in walk.made:
        compared = "; a threshold on the way is now on calibrated scores" if value in walk.compared else ""
        return OutputStatus(name, "follows", f"made of calibrated scores{compared}")
    if value in walk.moved:
        return OutputStatus(name, "follows", "computed from the shifted input")
    return OutputStatus(name, "independent", "independent of the scores")


def _why(value: ir.Value, source: ir.Value, raw: Tail, walk: _Walk) -> str:
    step = "mixture" if walk.artifact.table is None else "table"
    if source is not raw.logits:
        anew, before = "the scores by a computation of its own", "before the scores that are calibrated"
        return f"it is made of {source.name!r}, which is {anew if source in walk.twins else before}"
    if raw.shows_raw(value) or value in views(source):
        return (
            f"it shows {source.name!r} as it was before the calibration; name it with --output-name "
            "(output_name=) to calibrate it and what is made of it"
        )
    if raw.normalised and not has_logits(walk.artifact):
        return f"it is made of the logits {source.name!r}, and behind a {step} there are no calibrated ones"
    return f"it is made of {source.name!r} by what shows it as it was before the calibration"


class _Walk:
    """A walk through a fused graph in the order of its nodes, which marks values from raw scores.

    ``raw`` gives the value that each raw one is made of; ``made`` are of calibrated scores, ``moved`` of the
    shifted input; ``compared`` are made by a threshold.
    """

    def __init__(
        self, editor: Editor, artifact: Artifact, sources: Sources, tail: Tail, seeds: set[ir.Value]
    ) -> None:
        self.artifact, self.twins, self.seeds = artifact, sources.twins, seeds
        self.kin = {*sources.kin, *sources.twins}
        self.ours = editor.made | set(tail.path)
        self.raw: dict[ir.Value, ir.Value] = {v: v for v in seeds if v.is_graph_input()}
        self.made, self.compared, self.moved = set[ir.Value](), set[ir.Value](), set[ir.Value]()

    def step(self, node: ir.Node) -> None:
        """Mark the results of ``node`` by the values that it reads, in its bodies too."""
        if _asks_size(node):  # which no calibration changes
            return
        for body in _bodies(node):
            self._enter(node, body)
        for value in node.outputs:
            self._mark(node, value, [*inside(value), *(v for v in node.inputs if v is not None)])

    def _enter(self, node: ir.Node, body: ir.Graph) -> None:
        """Mark the values of a body; of a Loop or Scan, what it carries until nothing more changes."""
        states = len(body.inputs) - attribute(node, "num_scan_inputs", 0)
        carried = body.inputs[1:] if node.op_type == "Loop" else body.inputs[:states]
        pairs = list(zip(node.inputs, body.inputs, strict=False))
        for _ in range(1 + len(body.inputs)):
            for outer, inner in pairs:
                for marked in (self.made, self.compared, self.moved):
                    marked.update({inner} if outer in marked else ())
                if outer in self.raw:
                    self.raw[inner] = self.raw[outer]
            for one in body:
                self.step(one)
            pairs = list(zip(body.outputs, carried, strict=False))

    def _mark(self, node: ir.Node, value: ir.Value, inputs: list[ir.Value]) -> None:
        source = next((self.raw[v] for v in inputs if v in self.raw), None)
        calibrated = any(v in self.made for v in inputs)
        # A table compares too, and comparisons before the scores do not concern them.
        threshold = node.op_type in _COMPARISONS and calibrated and node not in self.ours
        if threshold or any(v in self.compared for v in inputs):
            self.compared.add(value)
        if any(v in self.moved for v in inputs):
            self.moved.add(value)
        # A decision by order alone is the same of raw scores and of calibrated ones.
        if node in self.ours or (source is not None and self._stays(node)):
            if source is not None or calibrated:
                self.made.add(value)
        elif value in self.seeds:
            # A classifier operator decides its label inside, where no edit reaches; its order may be enough.
            label = node.op_type in _CLASSIFIERS and value is node.outputs[0]
            if label and keeps_order(self.artifact):
                self.made.add(value)
            else:
                self.raw[value] = value
        elif source is not None:
            self.raw[value] = source
        elif calibrated:
            self.made.add(value)

    def _stays(self, node: ir.Node) -> bool:
        """Whether a decision on raw scores equals the one on calibrated scores, by order or by sign."""
        raw = [v for v in node.inputs if v in self.raw]
        if not keeps_order(self.artifact) or node.domain != "" or any(v not in self.kin for v in raw):
            return False
        if node.op_type in DECISIONS:
            return ignores_shift(node)
        # A temperature leaves a logit's sign, and moves it across any other number; a mixture has no logits.
        numbers = [n for v in node.inputs if (n := constant(v)) is not None]
        compares = node.op_type in _COMPARISONS and has_logits(self.artifact)
        return compares and len(numbers) == 1 and not numbers[0].any()

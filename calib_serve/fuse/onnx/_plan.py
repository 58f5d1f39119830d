"""The plan of a fusion: made once, executed by passes, and the basis of the parity check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx._follow import FollowLabels, Sources, find_sources
from calib_serve.fuse.onnx._graph import FLOATS, Editor
from calib_serve.fuse.onnx._input_shift import Normalization, ShiftInput, shifted_input
from calib_serve.fuse.onnx._layers import KeepPrecision, MapLogits, ReplaceHead, find_features
from calib_serve.fuse.onnx._probabilities import (
    Finish,
    FlattenScores,
    OpenScores,
    Returns,
    WidenColumn,
    is_flat,
)
from calib_serve.fuse.onnx._tail import Tail, as_fitted, find_tail, of_one_column
from calib_serve.options.fuse import OnnxOptions
from calib_serve.scores import PROBABILITIES, Outputs


class Pass(Protocol):
    """One edit of a graph, with pre- and postconditions that are checked."""

    def requires(self, tail: Tail) -> None:
        """FuseError where the pass cannot act on this tail."""
        ...

    def ensures(self, tail: Tail) -> None:
        """FuseError where the pass did not leave what it promises."""
        ...

    def call(self, editor: Editor, tail: Tail) -> tuple[Tail, str]:
        """The tail after the edit, and a description of it."""
        ...


@dataclass(frozen=True, eq=False)
class Plan:
    """The passes on ``tail``, in order, and what they are measured against.

    ``source`` names the raw graph's tensor that the calibration starts from: features for an artifact with a
    Head, else the scores: logits where ``activation`` makes ``outputs`` of them, else ``outputs`` themselves,
    as somebody ``told``, or not. ``artifact`` is as it was fitted, ``output`` and ``shifted`` name the output
    that was chosen and the input that is shifted, ``dtype`` is the narrowest type. ``sources`` are the raw
    scores and their readers. ``hidden``: the chosen output is a tensor inside, which the graph shows only
    until it is measured.
    """

    artifact: Artifact
    tail: Tail
    passes: tuple[Pass, ...]
    source: str
    outputs: Outputs
    told: bool
    activation: str | None
    dtype: ir.DataType
    returns: Returns
    output: str
    shifted: str | None
    normalization: Normalization | None
    sources: Sources = field(default_factory=Sources)
    hidden: bool = False

    @property
    def shows_logits(self) -> bool:
        """Whether the chosen output holds logits, of classes or labels, or log-probabilities."""
        return self.returns == "same" and self.outputs not in PROBABILITIES

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """One sample's shape by input, where known from the shift: the graph may leave it free."""
        shift = self.artifact.input_shift
        return {} if shift is None or self.shifted is None else {self.shifted: shift.delta.shape}


def make_plan(editor: Editor, artifact: Artifact, asked: OnnxOptions) -> Plan:
    """Where each step goes in this graph; raises FuseError where one has no place."""
    known, normalization = set(editor.graph.outputs), Normalization.of(asked.normalization)
    tail = find_tail(editor, output=asked.output_name, outputs=asked.outputs, artifact=artifact)
    acting = as_fitted(
        artifact, tail.outputs, activated=tail.activation is not None, one_column=tail.one_column
    )
    source, passes, sources = tail.logits, list[Pass](), find_sources(tail)
    if any(node.op_type == "QuantizeLinear" for node in tail.path):
        passes.append(KeepPrecision())
    bare = tail.activation is None and tail.outputs not in ("logits", "label_logits")
    if not is_flat(tail.logits) and (bare or not _keeps_shape(acting, tail, asked.returns)):
        passes.append(FlattenScores())
    maps: tuple[LogitMap, ...] = acting.logit_maps
    if tail.one_column:
        alone = None if _needs_both(acting, tail, asked.returns) else of_one_column(acting)
        if alone is None:
            passes.append(WidenColumn())
        else:
            maps = (alone,)
    elif bare:
        passes.append(OpenScores())
    if artifact.head is not None:
        if tail.activation is None and tail.outputs in PROBABILITIES:
            raise FuseError(
                f"{source.name!r} holds probabilities that no Softmax makes, and a new head needs the layer "
                "before them: export logits, or name their output: --output-name (output_name=)"
            )
        source = find_features(editor, tail, artifact.head, asked.features)
        passes.append(ReplaceHead(artifact.head, source))
    passes += [MapLogits(step) for step in maps]
    passes += [Finish(artifact, asked.returns), FollowLabels(artifact, tail)]
    shift, shifted = artifact.input_shift, None
    if shift is not None or normalization is not None:
        value = shifted_input(editor, None if shift is None else shift.delta.shape, asked.input_name)
        shifted = str(value.name)
        # Last: the passes above look for features and layers in the original graph.
        passes.append(ShiftInput(value, shift, normalization))
    return Plan(
        artifact=artifact,
        tail=tail,
        passes=tuple(passes),
        source=str(source.name),
        outputs=tail.outputs,
        told=asked.outputs is not None,
        activation=None if tail.activation is None else tail.activation.op_type,
        dtype=_narrowest(editor.graph),
        returns=asked.returns,
        output=str(tail.output.name),
        shifted=shifted,
        normalization=normalization,
        sources=sources,
        hidden=tail.output not in known,
    )


def carry_out(editor: Editor, plan: Plan) -> tuple[tuple[str, ...], Tail]:
    """Run the passes; returns descriptions of the edits, and the tail after them."""
    tail, done = plan.tail, []
    for one in plan.passes:
        one.requires(tail)
        tail, what = one.call(editor, tail)
        one.ensures(tail)
        done.append(what)
    return tuple(what for what in done if what), tail


def _needs_both(artifact: Artifact, tail: Tail, returns: Returns) -> bool:
    """Whether anything but a linear map is to act on a binary model's one score, or is to be shown."""
    bare_probability = tail.activation is None and tail.outputs == "probability"
    stepped = artifact.mixture is not None or artifact.table is not None
    return returns != "same" or bare_probability or stepped


def _keeps_shape(artifact: Artifact, tail: Tail, returns: Returns) -> bool:
    """Whether only a scalar acts on the scores of several classes: then their shape does not matter."""
    maps = all(m.is_scalar and (m.on == "logits" or tail.normalised) for m in artifact.logit_maps)
    stepped = artifact.head is not None or artifact.mixture is not None or artifact.table is not None
    return returns == "same" and maps and not stepped and not tail.one_column


def _narrowest(graph: ir.Graph) -> ir.DataType:
    """The floating type that rounds most, anywhere in the graph: it limits the parity."""
    found = {v.dtype for node in graph for v in node.outputs}
    return next((d for d in FLOATS if d in found), ir.DataType.FLOAT)

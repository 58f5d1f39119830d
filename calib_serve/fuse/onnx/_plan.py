"""The plan of a fusion: its passes, in order, and the reference that parity is measured against.

A pass edits the graph in one place and returns the tail after it. After each, the path from the logits to the
output is checked; what the passes made of the numbers is for the parity to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.core.options.fuse import OnnxOptions, Shown
from calib_serve.fuse._decisions import has_logits
from calib_serve.fuse._parity import ROUNDING
from calib_serve.fuse.onnx._follow import Sources, find_sources, follow_labels
from calib_serve.fuse.onnx._graph import FLOATS, Editor, describe
from calib_serve.fuse.onnx._input_shift import shift_input, shifted_input
from calib_serve.fuse.onnx._layers import find_features, map_by_source, map_logits, replace_head
from calib_serve.fuse.onnx._masks import FAR, hides_mask, inputs_of, masked_probabilities
from calib_serve.fuse.onnx._outputs import finish, open_scores
from calib_serve.fuse.onnx._probabilities import is_flat
from calib_serve.fuse.onnx._quantized import keep_precision
from calib_serve.fuse.onnx._shapes import flatten_scores, widen_column
from calib_serve.fuse.onnx._tail import Tail, adapt_artifact, find_tail, of_one_column
from calib_serve.scores import LEAST, PROBABILITIES, Outputs

Pass = Callable[[Editor, Tail], tuple[Tail, str]]
"""Edits a graph; returns the tail after the edit, and a description of it."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The passes on ``tail``, in order, and the reference for their parity.

    ``source`` names the raw graph's tensor that the calibration starts from: features for an artifact with a
    Head, else the ``scores``: logits where ``activation`` makes ``outputs`` of them, else ``outputs``
    themselves, as somebody ``told``, or not. ``artifact`` is as it was fitted, ``output`` names the output
    that was chosen, ``shifted`` the input that is shifted, ``by`` that of the sources, ``dtype`` is the
    narrowest type, and ``rounding`` its name and that of the last node that computes in it. ``sources`` are
    the raw scores and their readers. ``masked`` names the raw logits before and behind a mask, if there is
    one, and ``mask_inputs`` the inputs that it alone is made of. ``hidden``: the chosen output is a tensor
    inside, which the graph shows only until it is measured. ``custom_ops``: the library of its own operators.
    """

    artifact: Artifact
    tail: Tail
    passes: tuple[Pass, ...]
    source: str
    scores: str
    outputs: Outputs
    told: bool
    activation: str | None
    dtype: ir.DataType
    rounding: str
    returns: Shown
    output: str
    masked: tuple[str, str] | None
    mask_inputs: frozenset[str]
    shifted: str | None
    sources: Sources
    hidden: bool
    custom_ops: str | Path | None = None
    by: str | None = None

    @property
    def near(self) -> float:
        """The difference that rounding allows for logits of size 1."""
        return ROUNDING[str(self.dtype.numpy())]

    @property
    def shows_logits(self) -> bool:
        """Whether the chosen output holds logits, of classes or labels, or log-probabilities."""
        return self.returns == "same" and self.outputs not in PROBABILITIES

    @property
    def shown(self) -> str:
        """The name of the output that parity compares."""
        return self.output if self.returns == "same" else "probabilities"


def make_plan(editor: Editor, artifact: Artifact, asked: OnnxOptions) -> Plan:
    """Plan a place for each step in this graph; FuseError where a step has none."""
    known = set(editor.graph.outputs)
    tail = find_tail(editor, output=asked.output_name, outputs=asked.outputs, artifact=artifact)
    acting = adapt_artifact(
        artifact, tail.outputs, activated=tail.activation is not None, one_column=tail.one_column
    )
    source, passes, sources = tail.logits, list[Pass](), find_sources(tail)
    if any(node.op_type == "QuantizeLinear" for node in tail.path):
        passes.append(keep_precision)
    # Maps act before an activation; bare probabilities get one from a pass.
    bare = tail.activation is None and tail.outputs not in ("logits", "label_logits")
    _check_mask(tail, acting)
    if not is_flat(tail.logits) and (bare or not _keeps_shape(acting, tail, asked.returns)):
        passes.append(flatten_scores)
    maps = acting.maps
    if tail.normalised and reads_least(artifact):
        maps = (replace(acting.logit_maps[0], least=LEAST), *maps[1:])
    if tail.one_column:
        # A linear map of two logits is one of their difference: then the one column stays as it is.
        bare_probability = bare and tail.outputs == "probability"
        both = asked.returns != "same" or bare_probability or not has_logits(acting)
        alone = None if both else of_one_column(acting)
        if alone is None:
            passes.append(widen_column)
        else:
            maps = (alone,)
    elif bare:
        passes.append(open_scores)
    if artifact.head is not None:
        if tail.activation is None and tail.outputs in PROBABILITIES:
            raise FuseError(
                f"{source.name!r} holds probabilities that no Softmax makes, and a new head needs the layer "
                "before them: export logits, or name their output: --output-name (output_name=)"
            )
        source = find_features(tail, artifact.head)
        passes.append(partial(replace_head, head=artifact.head, features=source))
    passes += [
        partial(map_logits, step=one) if isinstance(one, LogitMap) else partial(map_by_source, step=one)
        for one in maps
    ]
    shift = artifact.input_shift
    types = {v.dtype: node for node in editor.graph for v in node.outputs}
    # The floating type that rounds most, anywhere in the graph, limits the parity.
    dtype = next((d for d in FLOATS if d in types), ir.DataType.FLOAT)
    return Plan(
        artifact=artifact,
        tail=tail,
        passes=tuple(passes),
        source=str(source.name),
        scores=str(tail.logits.name),
        outputs=tail.outputs,
        told=asked.outputs is not None,
        activation=None if tail.activation is None else tail.activation.op_type,
        dtype=dtype,
        rounding=dtype.name + (f" of {describe(types[dtype])}" if dtype in types else ""),
        returns=asked.returns,
        output=str(tail.output.name),
        masked=(str(tail.logits.name), str(tail.masked.name)) if tail.mask else None,
        mask_inputs=frozenset(inputs_of(tail.masked) - inputs_of(tail.logits) if tail.mask else ()),
        shifted=None if shift is None else str(shifted_input(editor.graph, shift.delta.shape).name),
        by=None if artifact.source_maps is None else artifact.source_maps.by,
        sources=sources,
        hidden=tail.output not in known,
        custom_ops=asked.custom_ops,
    )


def carry_out(editor: Editor, plan: Plan) -> tuple[tuple[str, ...], Tail]:
    """Run the passes; return descriptions of the edits, and the new tail.

    Raises FuseError where a pass leaves no path from the logits to the output.
    """
    tail, done = plan.tail, list[str]()
    for one in plan.passes:
        tail, what = one(editor, tail)
        tail.check()
        done.append(what)
    # Behind all maps: tables and mixtures act on the probabilities that these make.
    tail, what = finish(editor, tail, plan.artifact, plan.returns)
    done += [what, follow_labels(editor, tail, plan.artifact, plan.tail)]
    if (shift := plan.artifact.input_shift) is not None:
        # Last: the passes above look for features and layers in the original graph.
        done.append(shift_input(editor, shift))
    return tuple(what for what in done if what), tail


def _check_mask(tail: Tail, artifact: Artifact) -> None:
    """Raise FuseError where classes are masked, and steps that read all of them have no place before it."""
    maps = artifact.maps
    alone = has_logits(artifact) and all(m.weight.ndim < 2 and (m.weight > 0).all() for m in maps)
    before = None if tail.activation is not None else masked_probabilities(tail.logits)
    if before is not None and tail.outputs in PROBABILITIES:
        raise FuseError(
            f"the graph masks probabilities, {before.name!r}, on their way to {tail.output.name!r}: a "
            f"calibration must act before a mask; name them, --output-name {before.name} (output_name=), and "
            "what follows is made of calibrated ones"
        )
    if tail.mask and not is_flat(tail.logits):
        why = f"{tail.logits.name!r} is not known to be (n, K)"
    elif not tail.mask and not alone and hides_mask(tail.logits):
        why = f"the logits before that cannot be told from {tail.logits.name!r}"
    else:
        return
    raise FuseError(
        f"the graph masks classes by numbers of -{FAR:g} and less, and {why}: a calibration must act before "
        "a mask; name the logits before it, --output-name (output_name=), or fit one temperature"
    )


def reads_least(artifact: Artifact) -> bool:
    """Whether probabilities of 0 count as the least, as in the fit: for more than a temperature."""
    first = next(iter(artifact.maps), None)
    fitted = artifact.model.outputs
    if not isinstance(first, LogitMap) or fitted not in PROBABILITIES or artifact.is_multilabel:
        return False
    of_logs = first.on == "log_probs" or not first.ignores_shift
    return of_logs and first.weight.ndim > 0 and first.least is None and artifact.head is None


def _keeps_shape(artifact: Artifact, tail: Tail, returns: Shown) -> bool:
    """Whether only a scalar acts on scores of several classes: their shape is then free."""
    maps = all(m.is_scalar and (m.on == "logits" or tail.normalised) for m in artifact.maps)
    alone = artifact.head is None and has_logits(artifact)
    return returns == "same" and maps and alone and not tail.one_column

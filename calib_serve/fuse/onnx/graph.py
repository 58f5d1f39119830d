"""A calibrated ONNX file: the artifact's steps inside the graph, at no node where that is exact."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.files import MARK, pending, read, sha256, write
from calib_serve.fuse.onnx.flatten import flatten_scores, is_flat
from calib_serve.fuse.onnx.head import find_features, replace_head
from calib_serve.fuse.onnx.input_shift import Normalization, shift_input, shifted_input
from calib_serve.fuse.onnx.logit_map import map_logits
from calib_serve.fuse.onnx.outputs import Outputs, finish, open_scores
from calib_serve.fuse.onnx.parity import TOLERANCE, generate, measure
from calib_serve.fuse.onnx.reference import Plan
from calib_serve.fuse.onnx.tail import Meaning, Tail, find_tail

__all__ = ["FuseReport", "Normalization", "fuse_onnx"]


@dataclass(frozen=True)
class FuseReport:
    """What was done to the graph, and how far it is from the calibration in numpy.

    ``done`` says step by step where it went. ``max_abs_diff`` is of probabilities, over ``samples``
    inputs; ``tolerance`` is what rounding in the model's own type allows.
    """

    done: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    outputs: tuple[str, ...]
    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    engine: str
    model: str
    artifact: str

    @property
    def folded(self) -> tuple[str, ...]:
        """The steps that took no node of their own."""
        return tuple(what for what in self.done if "folded" in what or "head put into" in what)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "folded": list(self.folded)}


@dataclass(frozen=True)
class _Choices:
    outputs: Outputs
    output: str | None
    meaning: Meaning | None
    input: str | None
    features: str | None
    normalization: Normalization | None


def fuse_onnx(
    model_path: str | Path,
    artifact: Artifact,
    out_path: str | Path,
    *,
    outputs: Outputs = "same",
    output: str | None = None,
    meaning: Meaning | None = None,
    input: str | None = None,  # the graph's word
    features: str | None = None,
    normalization: Normalization | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    samples: int = 8,
    force: bool = False,
) -> FuseReport:
    """Write ``model_path`` with the artifact inside to ``out_path``, whole or not at all.

    ``outputs``: "same" keeps names, shapes and meaning; "probabilities" puts (n, K) probabilities in
    the place of the scores; "all" puts logits, probabilities, confidence, predicted and bin there.
    ``output`` names the scores where the graph has several outputs that may hold them, ``meaning``
    what they are where no Softmax tells, ``input`` the input that is shifted, ``features`` the
    tensor a new head reads. ``normalization`` goes into the graph, before the shift. Parity is
    measured on ``inputs``, or on ``samples`` generated ones.

    Raises ModelError for a file that is not a sound model, FuseError where a step cannot be put in,
    the artifact was fitted for another model (unless ``force``), or parity does not hold.
    """
    if outputs not in ("same", "probabilities", "all"):
        raise InputError(f"outputs must be 'same', 'probabilities' or 'all', got {outputs!r}")
    source, out = Path(model_path), Path(out_path)
    choices = _Choices(outputs, output, meaning, input, features, normalization)
    model = read(source)
    fingerprint = sha256(source)
    _check_owner(artifact, fingerprint, source, force)
    nodes_before = len(model.graph)
    done, plan = _edit(model, artifact, choices)
    feeds = dict(inputs or generate(model.graph, samples=samples, shapes=_known_shapes(artifact, plan)))
    model.metadata_props[MARK] = artifact.fingerprint
    model.metadata_props["calib_serve.method"] = artifact.method
    model.metadata_props["calib_serve.model"] = fingerprint
    with pending(out) as partial:
        write(model, partial, source=source, out=out)
        probe = partial.with_name(f"{partial.name}.{secrets.token_hex(2)}.raw")
        try:
            quantized = _write_probe(source, probe, out, plan.source)
            parity = measure(probe, partial, plan, feeds, quantized=quantized)
        finally:
            probe.unlink(missing_ok=True)
    return FuseReport(
        tuple(d for d in done if d),
        nodes_before,
        len(model.graph),
        tuple(str(v.name) for v in model.graph.outputs),
        parity.max_abs_diff,
        parity.tolerance,
        parity.samples,
        parity.near_edge,
        parity.engine,
        fingerprint,
        artifact.fingerprint,
    )


def _check_owner(artifact: Artifact, fingerprint: str, source: Path, force: bool) -> None:
    claimed = artifact.model.get("sha256") or artifact.model.get("fingerprint")
    if claimed and claimed != fingerprint and not force:
        raise FuseError(
            f"the artifact was fitted for model {str(claimed)[:12]}, {source} is {fingerprint[:12]}; "
            "fit it for this model, or force where this is another export of the same one"
        )


def _edit(model: ir.Model, artifact: Artifact, choices: _Choices) -> tuple[list[str], Plan]:
    """All passes in the order the steps act; what was done, and how to check it."""
    editor = Editor(model)
    tail = find_tail(editor, output=choices.output, meaning=choices.meaning, classes=artifact.classes)
    plan = _plan(editor, tail, artifact, choices)
    done = []
    if not is_flat(tail.logits) and not _keeps_shape(artifact, choices):
        tail = flatten_scores(editor, tail)
        done.append("scores of more than two dimensions flattened (Flatten, Unsqueeze added)")
    if tail.activation is None and tail.meaning in ("probabilities", "log_probs"):
        tail, what = open_scores(editor, tail)
        done.append(what)
    if artifact.head is not None:
        features = find_features(editor, tail, artifact.head, choices.features)
        tail, what = replace_head(editor, tail, artifact.head, features)
        done.append(what)
    for i, step in enumerate(s for s in artifact.steps if isinstance(s, LogitMap)):
        first = plan.on_log_probs and i == 0
        tail, what = map_logits(editor, tail, replace(step, on="log_probs") if first else step)
        done.append(what)
    done += finish(editor, tail, artifact, choices.outputs)
    # Last: the passes above look for features and layers by what the graph was.
    if plan.shifted is not None:
        what = shift_input(
            editor, artifact.input_shift, name=plan.shifted, normalization=choices.normalization
        )
        done.insert(0, what)
    return done, plan


def _known_shapes(artifact: Artifact, plan: Plan) -> dict[str, tuple[int, ...]]:
    """One sample's shape by input, where the shift tells: the graph may leave it free."""
    shift = artifact.input_shift
    return {} if shift is None or plan.shifted is None else {plan.shifted: shift.delta.shape}


def _keeps_shape(artifact: Artifact, choices: _Choices) -> bool:
    """Whether a single number is all that meets the scores: then their shape does not matter."""
    scalars = [
        isinstance(s, LogitMap) and s.weight.ndim == 0 and s.bias is None for s in artifact.output_steps
    ]
    return choices.outputs == "same" and artifact.head is None and all(scalars)


def _narrowest(graph: ir.Graph) -> ir.DataType:
    """The floating type that rounds most, anywhere in the graph: what parity can be expected in."""
    found = {v.dtype for node in graph for v in node.outputs}
    return next((d for d in TOLERANCE if d in found), ir.DataType.FLOAT)


def _plan(editor: Editor, tail: Tail, artifact: Artifact, choices: _Choices) -> Plan:
    opened = tail.meaning == "probabilities" and tail.activation is None
    if opened and artifact.head is not None:
        raise FuseError(f"{tail.logits.name!r} holds probabilities; a new head needs the layer before them")
    source = tail.logits
    if artifact.head is not None:
        source = find_features(editor, tail, artifact.head, choices.features)
    shift = artifact.input_shift
    shifted = None
    if shift is not None or choices.normalization is not None:
        shifted = shifted_input(editor, None if shift is None else shift.delta.shape, choices.input).name
    return Plan(
        artifact,
        str(source.name),
        tail.meaning,
        opened,
        _narrowest(editor.graph),
        choices.outputs,
        str(tail.output.name),
        shifted,
        choices.normalization,
        # A fitter sees a model that ends in a softmax through its log-probabilities.
        on_log_probs=artifact.head is None
        and tail.activation is not None
        and tail.meaning in ("probabilities", "log_probs")
        and artifact.model.get("outputs") in ("probabilities", "log_probabilities"),
    )


def _write_probe(source: Path, probe: Path, out: Path, wanted: str) -> bool:
    """The raw graph with one more output; whether it quantises."""
    model = read(source)
    graph = model.graph
    if wanted not in [v.name for v in graph.outputs]:
        values = [v for node in graph for v in node.outputs] + list(graph.inputs)
        graph.outputs.append(next(v for v in values if v.name == wanted))
    write(model, probe, source=source, out=out, strict=False)
    return any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in graph)

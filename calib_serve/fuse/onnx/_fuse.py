"""A calibrated ONNX file: the artifact's steps inside the graph, without new nodes where that is exact."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Choice
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import sha256, sha256_with
from calib_serve.core.options.base import changed
from calib_serve.core.options.fuse import OnnxOptions
from calib_serve.core.packages import operators_library
from calib_serve.fuse._decisions import decision_names, with_decisions
from calib_serve.fuse._parity import Parity, check_class_order, check_examples, read_inputs
from calib_serve.fuse.onnx._agreement import RawRun, possible_twins
from calib_serve.fuse.onnx._files import data_files, pending, read, write
from calib_serve.fuse.onnx._follow import OutputStatus, judge_outputs, reaches
from calib_serve.fuse.onnx._graph import Editor, require
from calib_serve.fuse.onnx._outputs import ALL
from calib_serve.fuse.onnx._parity import (
    ORT,
    REPORT,
    batch_of,
    check_repairs,
    equal,
    fitting,
    generate,
    measure,
    measure_in,
    raw_logits,
    read_fused,
    run_raw,
)
from calib_serve.fuse.onnx._places import find_places, flatten_places, restore_places
from calib_serve.fuse.onnx._plan import Plan, carry_out, make_plan
from calib_serve.fuse.onnx._raw_scores import prepare
from calib_serve.fuse.onnx._tail import Tail
from calib_serve.fuse.proof import PROOF, UNPROVEN, Against, required_proof
from calib_serve.scores import GraphReader, Places, check_outputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import OnnxKeywords

_MARK = "calib_serve.fingerprint"
"""The metadata key of the artifacts' fingerprints, with commas between them; it marks a calibrated model."""

_MODEL = "calib_serve.model"
"""That of the original file's sha256."""

_ACTIONS = "calib_serve.actions"
"""That of the names, a list in JSON, which the ids of ``decision`` stand for."""

_TOUCHED = "calib_serve.outputs"
"""That of the outputs, in JSON, that depend on calibrated scores."""


@dataclass(frozen=True)
class FuseReport(Parity):
    """The edits of a graph, and its parity with the calibration in numpy.

    Args:
        max_abs_diff: Largest difference of a probability.
        tolerance: Largest difference that rounding in the model's own type allows.
        samples: Number of inputs that were compared.
        near_edge: Number of inputs that are left out, near a table's edge.
        near_threshold: Number of decisions that are left out, near their threshold.
        engine: Runtime of the models.
        device: Device that it used.
        proof: What proves that the model gives the scores that were fitted, or "unproven".
        done: Where each step went, a line each.
        statuses: Of each output, whether it is calibrated, follows, is raw or independent.
        followers: Number of outputs that follow and were compared with the raw graph run on calibrated
            scores.
        nodes_before: Number of nodes of the graph before.
        nodes_after: Number of its nodes after.
        outputs: Names of its outputs.
        model: SHA-256 of the original file.
        artifact: Fingerprint of the artifact.
        runtimes: Parity in each other runtime.
    """

    proof: str
    done: tuple[str, ...]
    statuses: tuple[OutputStatus, ...]
    followers: int
    nodes_before: int
    nodes_after: int
    outputs: tuple[str, ...]
    model: str
    artifact: str
    runtimes: tuple[Parity, ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """List headings, which may be empty, and texts, for display."""
        follow = [("", f"{self.followers} outputs that follow agree")] if self.followers else []
        return [
            ("proof", self.proof),
            *(("", what) for what in self.done),
            ("nodes", f"{self.nodes_before} -> {self.nodes_after}"),
            *((f"output {one.name}", f"{one.status}: {one.reason}") for one in self.statuses),
            *super().rows(),
            *(row for one in self.runtimes for row in one.rows()),
            *follow,
        ]


def fuse_onnx(
    model_path: str | Path,
    artifact: Artifact,
    out_path: str | Path,
    options: OnnxOptions | None = None,
    **keywords: Unpack[OnnxKeywords],
) -> FuseReport:
    """Write an ONNX model with the artifact inside, atomically, once it agrees with the calibration in numpy.

    ``returns``: "same" keeps names, shapes and meaning; "probabilities" puts (n, K) probabilities in the
    place of the scores; "all" puts logits, probabilities, confidence, predicted and bin there. Decisions go
    into outputs of their own, behind all others: "set", bool (n, K), whether each class is in the prediction
    set, "abstain", bool (n,), "act", bool (n,), whether the contract lets a prediction be acted on, by its
    confidence as it is returned, and "decision", int64 (n,), the id of the action. Every other output that is
    made of the scores follows; the report says of each what it is. ``output_name`` may also be a tensor
    inside, or another head's output of a graph that holds an artifact already.

    Args:
        model_path: The model, .onnx.
        artifact: The calibration that was fitted on this model's scores.
        out_path: The file to write.
        options: An ``OnnxOptions``; keywords replace its fields.
        **keywords: Fields of ``OnnxOptions``: ``against``, ``custom_ops``, ``decisions``, ``inputs``,
            ``output_name``, ``outputs``, ``returns``, ``runtime``, ``unproven``.

    Raises:
        ModelError: For an invalid model file, a device that is not there, or several outputs or none that may
            hold the scores.
        FuseError: Where a step cannot be put in, nothing proves that the model gives the scores that were
            fitted (unless ``unproven``), or parity does not hold.
    """
    asked = changed(options or OnnxOptions(), keywords, fuse_onnx)
    check_outputs(asked.outputs)
    fuse = _fuse if artifact.model.class_axis is None else _fuse_places
    return fuse(Path(model_path), artifact, Path(out_path), asked)


def _fuse(
    source: Path, artifact: Artifact, out: Path, asked: OnnxOptions, proof: Against | str | None = None
) -> FuseReport:
    """Fuse into a graph whose scores are (n, K), see ``fuse_onnx``; ``proof``: of the file it was made of."""
    model = read(source)
    # A second artifact on the same scores would calibrate what is calibrated already.
    touched = _touched(model, source, asked.output_name)
    # A graph with an artifact on another head keeps the original file's hash, which artifacts know.
    hashed = model.metadata_props.get(_MODEL) or sha256(source)
    # Metadata survive tools that change weights, so the hash that they hold proves nothing.
    if proof is None:
        digest = partial(sha256_with, source, data_files(model))
        proof = required_proof(artifact, digest, source, asked, asked.inputs)
    check_examples(artifact)
    acting, left = with_decisions(artifact, wanted=asked.decisions, option="--no-decisions")
    asked = replace(asked, custom_ops=operators_library(asked.custom_ops, model.graph.opset_imports))
    nodes_before, editor = len(model.graph), Editor(model)
    if isinstance(proof, Against):
        proof = fitting(model.graph, proof)
        given = proof.rows(slice(batch_of(model.graph, proof.inputs)))
    else:
        given = read_inputs(asked.inputs)
    # Before the plan, which looks for the places of steps by shapes.
    _learn_shapes(model, artifact, given, asked.custom_ops)
    plan = make_plan(editor, acting, asked)
    scored = GraphReader(onnx.load(source, load_external_data=False))
    named = scored.class_names(plan.output, artifact.classes)
    check_class_order(artifact, named, source, proven=proof != UNPROVEN)
    others = possible_twins(editor.graph, plan)
    edits, tail = carry_out(editor, plan)
    feeds = _feeds(model, plan, given)
    # Renamed to its place once it is proved: nobody ever reads half of it, or a wrong one.
    with pending(out) as made:
        probe = made.with_suffix(f"{made.suffix}.raw")
        try:
            write(model, made, out=out)
            _write_probe(source, probe, out, {plan.source, plan.scores, *(plan.masked or ()), *others})
            if isinstance(proof, Against):
                batch = batch_of(model.graph, proof.inputs)
                proof = proof.prove(raw_logits(probe, plan, plan.scores, proof, batch), source)
            parity = measure(probe, made, plan, feeds, made_up=not given)
            parities, told = measure_in(asked.runtime, probe, made, plan, feeds, made_up=not given)
            if model.meta["repairs"]:
                check_repairs(source, probe, plan, feeds)
            statuses, followers, warnings = _judge(
                editor, plan, tail, others=others, feeds=feeds, files=(probe, made, out)
            )
            changed_outputs = [*touched, *(s.name for s in statuses if s.status != "independent")]
            _mark(model, artifact, hashed, changed_outputs, proof, choice=acting.choice)
            # A tensor inside was shown to be measured; its readers are outputs that stay as they were.
            if plan.hidden and asked.returns == "same":
                model.graph.outputs.remove(next(v for v in model.graph.outputs if v.name == plan.output))
                statuses = tuple(s for s in statuses if s.name != plan.output)
            # Marked with what the runs showed.
            write(model, made, out=out)
        finally:
            probe.unlink(missing_ok=True)
    return FuseReport(
        done=(*model.meta["repairs"], *edits, *left, *warnings, *told),
        runtimes=parities,
        proof=proof,
        statuses=statuses,
        followers=followers,
        nodes_before=nodes_before,
        nodes_after=len(model.graph),
        outputs=tuple(str(v.name) for v in model.graph.outputs),
        **vars(parity),
        model=hashed,
        artifact=artifact.fingerprint,
    )


def _fuse_places(source: Path, artifact: Artifact, out: Path, asked: OnnxOptions) -> FuseReport:
    """Fuse into a graph whose scores have the artifact's class axis, or into one of rows (n, K) after all.

    The graph is written once more with its scores as rows, one a place; the steps are put into that and
    proved there; then its outputs get the places' shape back. Both changes of shape are proved by equality.
    """
    model = read(source)
    nodes, shown = len(model.graph), [str(v.name) for v in model.graph.outputs]
    scores = find_places(model.graph, artifact, asked.output_name)
    if scores is None:
        return _fuse(source, artifact, out, asked)
    if artifact.model_steps:
        raise FuseError("the artifact changes the model itself, which is not supported for tokens or pixels")
    data = data_files(model)
    proof = required_proof(artifact, lambda: sha256_with(source, data), source, asked, asked.inputs)
    if isinstance(proof, Against):
        raise FuseError(
            "scores of tokens or pixels are not compared by rows of a file yet: fit on the model itself "
            "(calib-serve fit --model), or say --unproven (unproven=True)"
        )
    feeds = read_inputs(asked.inputs) or generate(model.graph)
    with pending(out) as partial:
        flat, rows = (partial.with_name(f"{partial.name}.{what}") for what in ("flat", "rows"))
        try:
            flatten_places(Editor(model), scores)
            model.metadata_props.setdefault(_MODEL, sha256(source))
            write(model, flat, out=out)
            report = _fuse(flat, artifact, rows, replace(asked, output_name=scores.name), proof)
            fused = read(rows)
            own = [n for n in report.outputs if n == scores.name or n not in shown]
            restore_places(Editor(fused), scores, own)
            fused.meta["types"] |= model.meta["types"]  # names of free sizes as they were
            write(fused, partial, out=out)
            (raw,), (made,) = (
                run_raw(path, feeds, [scores.name], asked.custom_ops) for path in (source, flat)
            )
            places = Places.of(raw.shape, made.shape[1], axis=scores.axis)
            require(np.array_equal(places.rows(raw), made), "the rows are not the scores")
            for runtime in (ORT, *asked.runtime):
                both = (
                    run_raw(path, feeds, report.outputs, asked.custom_ops, runtime)
                    for path in (rows, partial)
                )
                for name, one, other in zip(report.outputs, *both, strict=True):
                    wanted = places.restored(one) if name in own else one
                    require(np.array_equal(wanted, other), f"{name!r} has other places in {runtime}")
        finally:
            flat.unlink(missing_ok=True)
            rows.unlink(missing_ok=True)
    said = f"{scores.name!r} has its classes on axis {scores.axis}: each place is calibrated as a row"
    return replace(report, done=(said, *report.done), nodes_before=nodes, nodes_after=len(fused.graph))


def _feeds(model: ir.Model, plan: Plan, given: dict[str, Any]) -> dict[str, Any]:
    """The inputs that parity is measured on: those that are ``given``, else made-up ones; sources in turn."""
    # The shift tells one sample's shape where the graph leaves it free.
    shift = plan.artifact.input_shift
    sizes = {} if shift is None else {str(plan.shifted): shift.delta.shape}
    feeds = given or generate(model.graph, by=plan.by, shapes=sizes, masks=plan.mask_inputs)
    if plan.by is None:
        return feeds
    rows = max(len(one) for one in feeds.values() if np.ndim(one))
    return {**feeds, plan.by: np.array(plan.artifact.rounds(rows)[0], object)}


def _judge(
    editor: Editor,
    plan: Plan,
    tail: Tail,
    *,
    others: Mapping[str, ir.Value],
    feeds: Mapping[str, NDArray[Any]],
    files: tuple[Path, Path, Path],
) -> tuple[tuple[OutputStatus, ...], int, list[str]]:
    """Judge each output by the graph and by runs; return statuses, how many followers agree, and warnings.

    ``files`` hold the raw graph and the fused one; the third is where that will be.
    """
    probe, fused, out = files
    raw = RawRun.of(plan, probe, feeds)
    twins = frozenset(v for name, v in others.items() if raw.shows_scores(raw.results.get(name)))
    found = judge_outputs(
        editor,
        plan.artifact,
        replace(plan.sources, twins=twins),
        plan.tail,
        tail,
        own=_own(plan),
        shifted=plan.shifted,
    )
    statuses = tuple(map(raw.judge, found))
    raw_ones = [s for s in statuses if s.status == "left raw"]
    warnings = [f"warning: the output {s.name!r} is left raw: {s.reason}" for s in raw_ones]
    names = [s.name for s in statuses if s.status == "follows" and s.name in raw.results]
    if not names:
        return statuses, 0, warnings
    own = (plan.shown, *decision_names(plan.artifact))
    results = run_raw(fused, feeds, [*own, *names], plan.custom_ops)
    shown = dict(zip(names, results[len(own) :], strict=True))
    proved = _check_followers(editor.model, plan, shown, feeds, probe=probe, out=out)
    _, probs, _ = read_fused(results[: len(own)], len(raw.logits), plan)
    return statuses, len(proved), [*warnings, *raw.check(shown, probs, proved)]


def _touched(model: ir.Model, source: Path, output_name: str | None) -> list[str]:
    """List outputs that an artifact calibrated before; FuseError where the chosen output may be one."""
    if _MARK not in model.metadata_props:
        return []
    known = json.loads(model.metadata_props.get(_TOUCHED, "null"))
    free = [v.name for v in model.graph.outputs if known is not None and v.name not in known]
    if output_name not in free:
        others = f", or name an output of other scores, --output-name (output_name=): {free}" if free else ""
        mark = model.metadata_props[_MARK][:12]
        raise FuseError(f"{source} is calibrated already ({mark}); fuse into the original{others}")
    return list(known)


def _mark(
    model: ir.Model,
    artifact: Artifact,
    hashed: str,
    touched: Sequence[str],
    proof: str,
    *,
    choice: Choice | None,
) -> None:
    """Append the artifact to the metadata, behind any that was fused before."""
    if choice is not None:
        model.metadata_props[_ACTIONS] = json.dumps(choice.actions)
    # Appended: a graph may hold an artifact for each of its heads.
    added = {_MARK: artifact.fingerprint, "calib_serve.method": artifact.method, PROOF: proof}
    for key, value in added.items():
        before = model.metadata_props.get(key)
        model.metadata_props[key] = value if before is None else f"{before},{value}"
    model.metadata_props[_MODEL] = hashed
    model.metadata_props[_TOUCHED] = json.dumps(list(dict.fromkeys(touched)))


def _own(plan: Plan) -> dict[str, str]:
    """Map the outputs that were chosen or added to their content."""
    shown = {"same": (plan.output,), "probabilities": ("probabilities",), "all": ALL}[plan.returns]
    own = dict.fromkeys(shown, "by the artifact")
    return own | dict.fromkeys(decision_names(plan.artifact), "decided by the calibrated probabilities")


def _check_followers(
    model: ir.Model,
    plan: Plan,
    shown: Mapping[str, Any],
    feeds: Mapping[str, NDArray[Any]],
    *,
    probe: Path,
    out: Path,
) -> list[str]:
    """Compare outputs of the fused graph, ``shown``, with the raw one on calibrated numbers for its scores.

    Returns the names of those that agree. Labels that are decided anew are none of them: the raw graph
    decides these before the scores.
    """
    # The raw graph is cut where followers read: it then computes them from calibrated numbers.
    used = {name: new for node, place, name in plan.sources.used if (new := node.inputs[place])}
    if not used:
        return []
    graph, outputs = model.graph, list(model.graph.outputs)
    values = dict.fromkeys(used.values())
    try:
        graph.outputs.extend(v for v in values if v not in outputs)
        write(model, probe, out=out, strict=False)
    finally:
        graph.outputs[:] = outputs
    run = partial(run_raw, probe, custom_ops=plan.custom_ops)
    found = dict(zip(values, run(feeds, [str(v.name) for v in values]), strict=True))
    raw = read(model.meta["source"])
    cut = {}
    for value in [*raw.graph.inputs, *(v for node in raw.graph for v in node.outputs)]:
        if str(value.name) in used:
            numbers = found[used[str(value.name)]]
            kind = ir.TensorType(ir.DataType.from_numpy(numbers.dtype))
            new = ir.Value(name=f"calib_serve.of.{value.name}", type=kind)
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, new)
            raw.graph.inputs.append(new)
            cut[str(new.name)] = numbers
    made = [v for v in raw.graph.outputs if v.name in shown and reaches(v, cut)]
    names = [str(v.name) for v in made if not reaches(v, plan.sources.names)]
    if not names:
        return []
    write(raw, probe, out=out, strict=False)
    wanted = run({**prepare(feeds, plan), **cut}, names)
    for name, old in zip(names, wanted, strict=True):
        if not equal(old, shown[name], plan.near):
            raise FuseError(f"the output {name!r} does not follow the calibrated scores; {REPORT}")
    return names


def _learn_shapes(
    model: ir.Model,
    artifact: Artifact,
    given: Mapping[str, NDArray[Any]],
    custom_ops: str | Path | None,
) -> None:
    """Run the raw graph to learn the shapes of its scores where inference fails; keep them if it fails.

    A matrix gets the type and columns that it had, with rows free. Of other shapes one run does not tell
    which sizes are fixed.
    """
    values = _unknown(model.graph)
    if not values:
        return
    names = [str(v.name) for v in values]
    shift = None if artifact.input_shift is None else artifact.input_shift.delta.shape
    sizes = {
        str(v.name): shift
        for v in model.graph.inputs
        if shift is not None and v.shape is not None and len(v.shape) == len(shift) + 1
    }
    with tempfile.TemporaryDirectory() as folder, suppress(FuseError, ModelError, OSError):
        probe = Path(folder, "raw.onnx")
        _write_probe(model.meta["source"], probe, probe, names)
        found = run_raw(probe, given or generate(model.graph, shapes=sizes), names, custom_ops)
        for value, result in zip(values, found, strict=True):
            matrix = isinstance(result, np.ndarray) and result.ndim == 2
            if matrix and np.issubdtype(result.dtype, np.number):
                value.dtype = ir.DataType.from_numpy(result.dtype)
                value.shape = ir.Shape((None, result.shape[1]))


def _write_probe(source: Path, probe: Path, out: Path, wanted: Collection[str]) -> None:
    """Write the raw graph with more outputs."""
    model = read(source)
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    shown = {v.name for v in graph.outputs}
    graph.outputs.extend(values[name] for name in wanted if name not in shown)
    write(model, probe, out=out, strict=False)


def _unknown(graph: ir.Graph) -> list[ir.Value]:
    """List tensors near the outputs whose type or shape inference does not know."""
    edge = dict.fromkeys(graph.outputs)
    near = dict(edge)
    # Far enough for a reshape, an activation, a bias and a product; a whole graph would be slow.
    for _ in range(6):
        nodes = [node for v in edge if (node := v.producer()) is not None]
        edge = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
        near.update(edge)
    made = [(v, v.producer()) for v in near]
    return [v for v, node in made if node is not None and (v.dtype is None or v.shape is None)]

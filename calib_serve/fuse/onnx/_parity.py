"""Parity of an ONNX fusion: the fused graph against the raw one calibrated in numpy, on the same inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse._decisions import decision_names, has_logits
from calib_serve.fuse._kinds import as_probs, check_numbers
from calib_serve.fuse._parity import CLOSE, ROUNDING, Expected, Parity, expect, size_of
from calib_serve.fuse.onnx._graph import attribute
from calib_serve.fuse.onnx._masks import FAR
from calib_serve.fuse.onnx._plan import Plan
from calib_serve.fuse.onnx._raw_scores import class_logits, logits_of, prepare
from calib_serve.fuse.onnx._runtimes import Runner, one_line, open_in
from calib_serve.fuse.proof import BATCH, Against, gaps_of
from calib_serve.models import open_session, stopped_after
from calib_serve.scores import ONE_COLUMN, GraphReader, Outputs, refuse_varying

ORT, CUDA = "onnxruntime", "cuda"

PATIENCE = 120.0
"""Seconds that a graph may take for its few inputs, before it is stopped."""

REPORT = "nothing was written: give typical inputs to measure with, --inputs (inputs=), or report this graph"
_INPUTS = "give inputs that fit the model: --inputs (inputs=)"
_LIBRARY = "name the library of its own operators: --custom-ops (custom_ops=)"


def generate(
    graph: ir.Graph,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    masks: Collection[str] = (),
    by: str | None = None,
) -> dict[str, NDArray[Any]]:
    """Make inputs that fit the graph: normal floats, integers 0 or 1, true; ``masks`` of 0 and 1 by chance.

    ``shapes`` hold the shape of one sample by input, where it is known from elsewhere. ``by``: an input that
    gets none.
    """
    # The same numbers each time, so that a refusal can be looked into.
    rng = np.random.default_rng(0)
    known = shapes or {}
    inputs = [v for v in graph.inputs if not v.is_initializer() and v.name != by]
    try:
        made = {str(v.name): _numbers(v, known.get(str(v.name)), rng) for v in inputs}
        chance = {
            name: rng.integers(0, 2, made[name].shape).astype(made[name].dtype) for name in sorted(masks)
        }
        return made | chance
    except MemoryError as error:
        raise FuseError(f"no inputs fit the memory: {error}; give some, --inputs (inputs=)") from error


def _numbers(value: ir.Value, shape: Sequence[int] | None, rng: np.random.Generator) -> NDArray[Any]:
    dtype = value.dtype
    is_bool = dtype == ir.DataType.BOOL
    numeric = dtype is not None and (dtype.is_floating_point() or dtype.is_integer() or is_bool)
    if dtype is None or value.shape is None or not numeric:
        raise FuseError(
            f"no numbers can be made for input {value.name!r}, {dtype} {value.shape}; "
            "give inputs to measure parity with: --inputs (inputs=)"
        )
    size = 8  # where it is free, that of the batch too
    free = [size, *([size] * len(value.shape) if shape is None else shape)]
    # A size that the graph states is kept, whatever is known from elsewhere.
    dims = [d if isinstance(d, int) else f for d, f in zip(value.shape, free, strict=False)]
    if dtype.is_floating_point():
        return rng.standard_normal(dims).astype(dtype.numpy())
    return np.ones(dims, bool) if is_bool else rng.integers(0, 2, dims).astype(dtype.numpy())


def measure(
    probe: Path,
    fused: Path,
    plan: Plan,
    feeds: Mapping[str, NDArray[Any]],
    *,
    made_up: bool = False,
    runtime: str = ORT,
) -> Parity:
    """Run both graphs in ``runtime`` and compare; raises FuseError where they differ by more than rounding.

    ``probe`` is the raw graph with ``plan.source`` among its outputs; ``made_up``: nobody gave the inputs.
    """
    # Both as they are written, not optimised: a runtime that fuses them differently would hide a wrong edit.
    run, engine = _runner(probe, plan.custom_ops, runtime)
    run_fused, engine_fused = _runner(fused, plan.custom_ops, runtime)
    wanted = [plan.source, *(plan.masked or ())]
    found = run(prepare(feeds, plan), wanted)
    raw, *masked = (_rows(one, name) for one, name in zip(found, wanted, strict=True))
    _check_raw(raw, plan)
    reader = GraphReader(onnx.load(probe, load_external_data=False))
    again = _rows(run(prepare(feeds, plan), [plan.source])[0], plan.source)
    refuse_varying([raw, again], reader.varying(plan.source), reader.of_batch(plan.source))
    names = (plan.shown, *decision_names(plan.artifact))
    engines = engine if engine == engine_fused else f"{engine}, {engine_fused}"
    device = CUDA if runtime == CUDA else "cpu"
    found_parities = []
    for sources in plan.artifact.rounds(len(raw)):
        expected = expect(plan.artifact, logits_of(raw, plan), plan.near, sources)
        allowed = _allowed(*masked) if masked else np.ones(expected.probs.shape, np.bool_)
        report = _report(expected, plan, made_up=made_up)
        if masked:
            expected = _masked(expected, allowed)
        fed = feeds if sources is None else {**feeds, str(plan.by): np.array(sources, object)}
        actual, probs, decisions = read_fused(run_fused(fed, names), len(raw), plan)
        found_parities.append(expected.prove(probs, decisions, report, engine=engines, device=device))
        if plan.shows_logits and has_logits(plan.artifact):
            expected.prove_logits(actual, plan.outputs, REPORT, allowed)
    return max(found_parities, key=lambda parity: parity.max_abs_diff)


def measure_in(
    runtimes: Sequence[str],
    probe: Path,
    fused: Path,
    plan: Plan,
    feeds: Mapping[str, NDArray[Any]],
    *,
    made_up: bool,
) -> tuple[tuple[Parity, ...], list[str]]:
    """Prove the fused graph in other runtimes, see ``measure``; also warnings of outputs that differ there.

    Raises FuseError where their raw scores are not those of onnxruntime, as of ``Against.prove``.
    """
    parities, told = [], []
    for runtime in runtimes:
        try:
            parities.append(measure(probe, fused, plan, feeds, made_up=made_up, runtime=runtime))
        except FuseError as error:
            raise FuseError(f"in {runtime}: {error}") from error
        ready, both = prepare(feeds, plan), (ORT, runtime)
        raw = [run_raw(probe, ready, [plan.scores], plan.custom_ops, one)[0] for one in both]
        gaps = gaps_of(plan.artifact, *(class_logits(_rows(one, plan.scores), plan) for one in raw))
        if not (gaps <= CLOSE).all():
            raise FuseError(
                f"{runtime} gives other raw scores than onnxruntime: {(~(gaps <= CLOSE)).sum()} of "
                f"{len(gaps)} rows differ by more than {CLOSE:g} of a probability, one by {gaps.max():.2g}; "
                "serve the graph in onnxruntime, or fit on the scores of that runtime"
            )
        told += _differences(runtime, fused, plan, feeds)
    return tuple(parities), told


def _differences(runtime: str, fused: Path, plan: Plan, feeds: Mapping[str, NDArray[Any]]) -> list[str]:
    """A warning of outputs that differ from onnxruntime's on the inputs, and one where an input is NaN."""
    names = [v.name for v in onnx.load(fused, load_external_data=False).graph.output]
    broken, told = {name: _broken(array) for name, array in feeds.items()}, []
    runs = [_runner(fused, plan.custom_ops, one)[0] for one in (ORT, runtime)]
    for where, given, rows in (("", feeds, slice(None)), (" where an input is NaN", broken, slice(1))):
        if where and all(given[name] is feeds[name] for name in feeds):
            continue
        try:
            found = [run(given, names) for run in runs]
        except FuseError:
            if not where:
                raise
            told.append(f"warning: {runtime} is not compared{where}, at which the graph stops")
            continue
        apart = {name: _apart(a, b, rows) for name, a, b in zip(names, *found, strict=True)}
        if any(apart.values()):
            which = ", ".join(f"{name!r} in {rows} rows" for name, rows in apart.items() if rows)
            told.append(f"warning: {runtime} differs from onnxruntime{where}: {which}")
    return told


def _apart(one: Any, other: Any, rows: slice) -> int:
    """The number of rows that differ by more than ``CLOSE``; of what has no rows, 1 or 0."""
    if not np.ndim(one) or not np.ndim(other):
        return int(not equal(one, other, CLOSE))
    one, other = one[rows], other[rows]
    same = len(one) == len(other)
    return sum(not (same and equal(a, b, CLOSE)) for a, b in zip_longest(one, other))


def _broken(array: NDArray[Any]) -> NDArray[Any]:
    """Floats with NaN in their first row; others as they are."""
    if array.dtype.kind != "f" or not array.ndim:
        return array
    array = array.copy()
    array[:1] = np.nan
    return array


def _report(expected: Expected, plan: Plan, *, made_up: bool) -> str:
    """What to do where the graphs differ: of a type that rounds by more than is allowed, which one it is.

    Raises FuseError where made-up inputs give logits so large that probabilities prove nothing.
    """
    rounded = f"logits of up to {expected.scale:.3g}, which {plan.rounding} rounds"
    if made_up and expected.scale * min(plan.near, ROUNDING["float32"]) > CLOSE:
        raise FuseError(
            f"made-up inputs give {rounded} by more than {CLOSE:g} of a probability, and prove nothing; give "
            "typical inputs to measure with: --inputs (inputs=)"
        )
    if expected.scale * plan.near <= CLOSE:
        return REPORT
    return f"there are {rounded}: export the model in float32, or that part of it; {REPORT}"


def run_raw(
    path: Path,
    feeds: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    custom_ops: str | Path | None = None,
    runtime: str = ORT,
) -> list[Any]:
    """Run a graph and return its outputs; FuseError where it does not run on the inputs."""
    run, _ = _runner(path, custom_ops, runtime)
    return run(feeds, outputs)


def fitting(graph: ir.Graph, against: Against) -> Against:
    """The rows as the graph takes them: by the names of its inputs, floats in its own type."""
    inputs = {str(v.name): v.dtype for v in graph.inputs if not v.is_initializer()}
    against = against.taking(inputs)
    feeds = dict(against.inputs)
    for name, array in feeds.items():
        dtype = inputs[name]
        if dtype is not None and dtype.is_floating_point() and array.dtype.kind in "fiu":
            feeds[name] = array.astype(dtype.numpy())
    return replace(against, inputs=feeds)


def batch_of(graph: ir.Graph, names: Collection[str]) -> int:
    """The rows that a graph takes at once: ``BATCH`` unless an input's batch is fixed."""
    shapes = [v.shape for v in graph.inputs if v.name in names and v.shape is not None]
    return min((shape[0] for shape in shapes if len(shape) and isinstance(shape[0], int)), default=BATCH)


def raw_logits(path: Path, plan: Plan, name: str, against: Against, batch: int) -> AnyFloats:
    """The logits (n, K) of the raw graph, at ``name``, for the rows to compare it with."""
    run, _ = _runner(path, plan.custom_ops)

    def logits(rows: dict[str, NDArray[Any]]) -> AnyFloats:
        scores = _rows(run(prepare(rows, plan, shift=False), [name])[0], name)
        if plan.activation is None:  # else it proves the kind
            check_numbers(scores, plan.outputs, repr(name), told=plan.told)
        return class_logits(scores, plan)

    return against.batches(batch, logits)


def check_repairs(source: Path, probe: Path, plan: Plan, feeds: Mapping[str, NDArray[Any]]) -> None:
    """Raise FuseError where the repaired raw graph does not return what the original file does."""
    names = [v.name for v in onnx.load(source, load_external_data=False).graph.output]
    ready, near = prepare(feeds, plan), plan.near
    old, new = (run_raw(path, ready, names, plan.custom_ops) for path in (source, probe))
    if plan.activation is not None:  # which in parts, such as exp(z - logsumexp(z)), rounds by the size of z
        z = _rows(run_raw(probe, ready, [plan.scores], plan.custom_ops)[0], plan.scores)
        near = max(near, min(near * size_of(z, labels=plan.artifact.is_multilabel), CLOSE))
    for name, before, after in zip(names, old, new, strict=True):
        if not equal(before, after, near):
            raise FuseError(
                f"the model's operators cannot be brought up to date: then {name!r} differs; export it again "
                "with a newer opset (opset_version=, target_opset=)"
            )


def equal(old: Any, new: Any, near: float) -> bool:
    """Whether two results of a run are equal up to ``near``; arrays, or containers of arrays."""
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(equal(a, b, near) for a, b in zip(old, new, strict=True))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(equal(old[key], new[key], near) for key in old)
    a, b = np.asarray(new), np.asarray(old)  # what is near is a share of what the file gives
    if a.shape != b.shape or a.dtype.kind in ("O", "U", "S"):
        return bool(np.array_equal(a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.allclose(a, b, rtol=near, atol=near, equal_nan=True))


def read_fused(found: Sequence[Any], samples: int, plan: Plan) -> tuple[AnyFloats, AnyFloats, dict[str, Any]]:
    """Read the outputs of a fused graph: its scores, their probabilities (n, K), and its decisions."""
    kind: Outputs = plan.outputs if plan.returns == "same" else "probabilities"
    keys = _keys(plan) if isinstance(found[0], list) else None
    shown, wanted = (
        _rows(found[0], plan.shown, keys),
        (samples, 1 if kind in ONE_COLUMN else plan.artifact.classes),
    )
    if shown.size != samples * wanted[1]:
        raise FuseError(f"the fused graph gives {shown.shape}, not {wanted}; {REPORT}")
    shown = shown.reshape(wanted)  # a batch of one row may be shown without its axis
    return shown, as_probs(shown, kind), dict(zip(decision_names(plan.artifact), found[1:], strict=True))


def _allowed(before: AnyFloats, behind: AnyFloats) -> NDArray[np.bool_]:
    """The classes (n, K) that a mask leaves as they are, by the logits before and behind it.

    Raises FuseError where it does anything but leave a logit to the last bit, or put it out of reach.
    """
    same = before == behind
    if not (same | (behind <= before - FAR)).all():
        raise FuseError(
            "what follows the logits looks like a mask and is none: some change, and stay within reach; "
            f"{_INPUTS}, or name the logits behind it, --output-name (output_name=)"
        )
    return np.asarray(same)


def _masked(expected: Expected, allowed: NDArray[np.bool_]) -> Expected:
    """Mask what was calibrated: 0 for the other classes, whose probability those that are left share."""
    probs = np.where(allowed, expected.probs, 0.0)
    if not expected.artifact.is_multilabel:
        with np.errstate(invalid="ignore"):  # of rows without any class, which prove nothing
            probs = probs / probs.sum(axis=1, keepdims=True)
    return replace(expected, probs=probs, sure=expected.sure & allowed.any(axis=1))


def _keys(plan: Plan) -> Sequence[Any]:
    """The keys of the maps that the plan's output shows, in the order of its scores."""
    (node,) = (node for node in plan.tail.path if node.op_type == "ZipMap")
    names: Sequence[Any] = attribute(node, "classlabels_strings", ())
    return names or attribute(node, "classlabels_int64s", ())


def _rows(found: Any, name: str, keys: Sequence[Any] | None = None) -> NDArray[np.float64]:
    """Scores (n, d) of a run, without its further axes of size 1; maps in the order of their ``keys``."""
    if isinstance(found, list):  # of a ZipMap, the one operator on the way out that gives no tensor
        # A runtime sorts the maps by their keys, which need not be the order of the scores.
        found = [[row[key] for key in keys or row] for row in found]
    scores = np.asarray(found).astype(np.float64)
    if not scores.size or not scores.ndim:
        raise FuseError(f"{name!r} gives no rows to measure parity on, {scores.shape}; {_INPUTS}")
    return scores.reshape(len(scores), -1)


def _check_raw(raw: NDArray[np.float64], plan: Plan) -> None:
    """Raise FuseError where a free size does not suit the artifact, or where numbers are NaN."""
    head, classes = plan.artifact.head, plan.artifact.classes
    # Free sizes pass the plan, and are only seen when the graph runs.
    wide = {head.weights[0].shape[1]} if head is not None else {classes, 1 if classes == 2 else classes}
    if raw.shape[1] not in wide:
        raise FuseError(
            f"the artifact needs {plan.source!r} as (n, {max(wide)}), but it gives {raw.shape}; fit one for "
            "this model, or name another tensor: --output-name (output_name=)"
        )
    if np.isnan(raw).any():
        raise FuseError(f"{plan.source!r} is NaN on the inputs that parity is measured on; {_INPUTS}")


def _runner(path: Path, custom_ops: str | Path | None = None, runtime: str = ORT) -> tuple[Runner, str]:
    """Open onnxruntime without its optimiser; on a CPU also onnx's reference, for types new to it."""
    if runtime not in (ORT, CUDA):
        return open_in(runtime, path), runtime
    # TF32 rounds to 10 bits, which would hide a wrong edit.
    where: dict[str, Any] = {"device": "cuda", "options": {"use_tf32": 0}} if runtime == CUDA else {}
    try:
        session = open_session(path, threads=1, optimize=False, custom_ops=custom_ops, **where)
    except ModelError as error:
        if runtime == CUDA:
            raise
        return _reference(path, error), "onnx.reference"

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        try:
            with stopped_after(PATIENCE) as options:
                return list(session.run(list(outputs), dict(feeds), options))
        except Exception as error:
            raise FuseError(
                f"onnxruntime cannot run the model to measure parity: {one_line(error)}; {_INPUTS}"
            ) from error

    return run, ORT


def _reference(path: Path, cause: ModelError) -> Runner:
    def failed(error: FuseError, what: str) -> FuseError:
        return FuseError(f"parity cannot be measured: {one_line(cause)}; {one_line(error)}; {what}")

    try:
        opened = open_in("onnx.reference", path)
    except FuseError as error:
        raise failed(error, _LIBRARY if "not a registered function" in str(cause) else _INPUTS) from error

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        try:
            return opened(feeds, outputs)
        except FuseError as error:
            raise failed(error, _INPUTS) from error

    return run

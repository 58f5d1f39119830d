"""Parity of an ONNX fusion: the fused graph against the raw one calibrated in numpy, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse._decisions import decision_names, has_logits
from calib_serve.fuse._parity import Expected, Parity, expect, prove_own_scores
from calib_serve.fuse.onnx._plan import Plan
from calib_serve.fuse.onnx._raw_scores import (
    class_logits,
    logits_of,
    prepare,
    scores_of,
    sees_log_probs,
    steps_alone,
)
from calib_serve.fuse.sessions import open_session, stopped_after
from calib_serve.scores import ONE_COLUMN, log_softmax, to_probs

Runner = Callable[[Mapping[str, NDArray[Any]], Sequence[str]], list[Any]]

TOLERANCE = {
    ir.DataType.BFLOAT16: 5e-2,
    ir.DataType.FLOAT16: 1e-2,
    ir.DataType.FLOAT: 1e-5,
    ir.DataType.DOUBLE: 1e-9,
}
"""Largest difference for logits of size 1, narrowest type first; rounding grows with their size."""

PATIENCE = 120.0
"""Seconds that a graph may take for its few inputs, before it is stopped."""

REPORT = "nothing was written: give typical inputs to measure with, --inputs (inputs=), or report this graph"
_INPUTS = "give inputs that fit the model: --inputs (inputs=)"


def generate(
    graph: ir.Graph, *, samples: int, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, NDArray[Any]]:
    """Make inputs that fit the graph: normal floats, integers 0 or 1, true.

    ``shapes`` hold the shape of one sample by input, where it is known from elsewhere. The batch is
    ``samples`` where it is free, and other unknown sizes are 8.
    """
    # The same numbers each time, so that a refusal can be looked into.
    rng = np.random.default_rng(0)
    known = shapes or {}
    inputs = [v for v in graph.inputs if not v.is_initializer()]
    try:
        return {str(v.name): _numbers(v, samples, known.get(str(v.name)), rng) for v in inputs}
    except MemoryError as error:
        raise FuseError(
            f"no {samples} inputs fit the memory: {error}; make fewer, --samples (samples=), or give some, "
            "--inputs (inputs=)"
        ) from error


def _numbers(
    value: ir.Value, samples: int, shape: Sequence[int] | None, rng: np.random.Generator
) -> NDArray[Any]:
    dtype = value.dtype
    is_bool = dtype == ir.DataType.BOOL
    numeric = dtype is not None and (dtype.is_floating_point() or dtype.is_integer() or is_bool)
    if dtype is None or value.shape is None or not numeric:
        raise FuseError(
            f"no numbers can be made for input {value.name!r}, {dtype} {value.shape}; "
            "give inputs to measure parity with: --inputs (inputs=)"
        )
    free = [samples, *([8] * len(value.shape) if shape is None else shape)]
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
    opset: int,
    quantized: bool,
    device: str = "cpu",
) -> Parity:
    """Run both graphs on ``device`` and compare; raises FuseError where they differ by more than rounding.

    ``probe`` is the raw graph with ``plan.source`` among its outputs.
    """
    # Both as they are written, not optimised: a runtime that fuses them differently would hide a wrong edit.
    run, engine = _runner(probe, device)
    run_fused, engine_fused = _runner(fused, device)
    raw = _rows(run(prepare(feeds, plan), [plan.source])[0], plan.source)
    _check_raw(raw, plan)
    # Where a graph quantises, a shift of one ulp may become one quantum.
    ratio = 0.05 if quantized else TOLERANCE[plan.dtype]
    expected = expect(plan.artifact, logits_of(raw, plan), ratio)
    names = (plan.shown, *decision_names(plan.artifact))
    actual, probs, decisions = _read(run_fused(feeds, names), len(raw), plan)
    engines = engine if engine == engine_fused else f"{engine}, {engine_fused}"
    own = _prove_own_scores(plan, opset)
    parity = expected.prove(probs, decisions, REPORT, own=own, engine=engines, device=device)
    _check_logits(actual, expected, plan)
    return parity


def _prove_own_scores(plan: Plan, opset: int) -> tuple[int, float]:
    """Prove the fit's own scores in a graph of the plan's activation and the artifact's output steps."""
    examples, near = plan.artifact.examples, TOLERANCE[ir.DataType.FLOAT]
    if examples is None:
        return 0, 0.0
    if sees_log_probs(plan.artifact):
        # A narrow type's probabilities do not quite sum to 1; those of the graph's own softmax do.
        z = np.asarray(examples.logits, np.float64)
        near += min(float(np.abs(z - log_softmax(z)).max()), TOLERANCE[ir.DataType.FLOAT16])
    model, own = steps_alone(plan.artifact, plan, opset)
    session = open_session(ir.to_proto(model).SerializeToString(), optimize=False)

    def run(logits: NDArray[np.float64]) -> tuple[AnyFloats, dict[str, Any]]:
        names = (own.shown, *decision_names(own.artifact))
        _, probs, decisions = _read(session.run(names, {"scores": scores_of(logits, own)}), len(logits), own)
        return probs, decisions

    return prove_own_scores(own.artifact, near, run, REPORT)


def run_raw(path: Path, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
    """Run a graph and return its outputs; FuseError where it does not run on the inputs."""
    run, _ = _runner(path)
    return run(feeds, outputs)


def response_of(path: Path, plan: Plan, name: str, inputs: NDArray[np.float32]) -> AnyFloats | None:
    """The logits (n, K) of the raw graph for inputs (n, ...), row by row, at ``name``.

    None where it takes other inputs, or several.
    """
    known = onnx.load(path, load_external_data=False).graph
    held = {one.name for one in known.initializer}
    takes = [one for one in known.input if one.name not in held]
    if len(takes) != 1:
        return None
    kind = takes[0].type.tensor_type
    dtype, sizes = ir.DataType(kind.elem_type), kind.shape.dim
    # Onnxruntime accepts any array for an input of no dimension. An unstated shape may be (n, ...).
    if not dtype.is_floating_point() or (kind.HasField("shape") and not sizes):
        return None
    rows = max(sizes[0].dim_value, 1) if sizes else 1
    found = []
    for row in inputs:  # a batch may be fixed
        feeds = {takes[0].name: np.repeat(row[None], rows, axis=0).astype(dtype.numpy())}
        try:
            found.append(_rows(run_raw(path, feeds, [name])[0], name)[:1])
        except (FuseError, ModelError):
            return None
    return class_logits(np.concatenate(found), plan)


def check_repairs(source: Path, probe: Path, plan: Plan, feeds: Mapping[str, NDArray[Any]]) -> None:
    """Raise FuseError where the repaired raw graph does not return what the original file does."""
    names = [v.name for v in onnx.load(source, load_external_data=False).graph.output]
    ready = prepare(feeds, plan)
    both = (run_raw(path, ready, names) for path in (source, probe))
    for name, old, new in zip(names, *both, strict=True):
        if not equal(old, new, TOLERANCE[plan.dtype]):
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


def _read(found: Sequence[Any], samples: int, plan: Plan) -> tuple[AnyFloats, AnyFloats, dict[str, Any]]:
    """Read the outputs of a fused graph: its scores, their probabilities (n, K), and its decisions."""
    one = plan.returns == "same" and plan.outputs in ONE_COLUMN
    shown, wanted = _rows(found[0], plan.shown), (samples, 1 if one else plan.artifact.classes)
    if shown.size != samples * wanted[1]:
        raise FuseError(f"the fused graph gives {shown.shape}, not {wanted}; {REPORT}")
    shown = shown.reshape(wanted)  # a batch of one row may be shown without its axis
    probs = shown
    if plan.shows_logits:
        probs = to_probs(shown, plan.outputs)
    elif one:
        probs = np.concatenate([1 - shown, shown], axis=1)
    return shown, probs, dict(zip(decision_names(plan.artifact), found[1:], strict=True))


def _check_logits(actual: AnyFloats, expected: Expected, plan: Plan) -> None:
    """Compare shown logits, as probabilities do not reveal a constant added to all logits of a row."""
    if not plan.shows_logits or not has_logits(plan.artifact):
        return
    logits = expected.logits
    if plan.outputs == "log_probs":
        logits = log_softmax(logits)
    elif plan.outputs in ONE_COLUMN:
        logits = logits[:, 1:] - logits[:, :1]
    # Of masked logits, beyond the scale, relative to their size.
    with np.errstate(invalid="ignore"):  # of two that are infinite, which are the same
        shares = np.abs(actual - logits) / np.maximum(np.abs(logits) / expected.scale, 1.0)
    apart = float(np.where(actual == logits, 0.0, shares).max())
    if not apart <= expected.tolerance:
        raise FuseError(f"logits differ by {apart:.3g}, rounding allows {expected.tolerance:.3g}; {REPORT}")


def one_line(error: Exception) -> str:
    """An error's message in one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def _rows(found: Any, name: str) -> NDArray[np.float64]:
    """Scores (n, d) of a run, without its further axes of size 1."""
    if isinstance(found, list):  # of a ZipMap, the one operator on the way out that gives no tensor
        found = [list(row.values()) for row in found]
    scores = np.asarray(found).astype(np.float64)
    if not scores.size or not scores.ndim:
        raise FuseError(f"{name!r} gives no rows to measure parity on, {scores.shape}; {_INPUTS}")
    return scores.reshape(len(scores), -1)


def _check_raw(raw: NDArray[np.float64], plan: Plan) -> None:
    """Raise FuseError where a free size does not suit the artifact, or where numbers are NaN."""
    head, classes = plan.artifact.head, plan.artifact.classes
    # Free sizes pass the plan, and are only seen when the graph runs.
    wide = {head.weights[0].shape[1]} if head is not None else {classes, 1 if classes == 2 else classes}
    flag = "--output-name (output_name=)" if head is None else "--features NAME"
    if raw.shape[1] not in wide:
        raise FuseError(
            f"the artifact needs {plan.source!r} as (n, {max(wide)}), but it gives {raw.shape}; fit one for "
            f"this model, or name another tensor: {flag}"
        )
    if np.isnan(raw).any():
        raise FuseError(f"{plan.source!r} is NaN on the inputs that parity is measured on; {_INPUTS}")


def _runner(path: Path, device: str = "cpu") -> tuple[Runner, str]:
    """Open onnxruntime without its optimiser; on a CPU also onnx's reference, for types new to it."""
    # TF32 rounds to 10 bits, which would hide a wrong edit.
    options = {"use_tf32": 0} if device.startswith("cuda") else None
    try:
        session = open_session(path, device=device, threads=1, optimize=False, options=options)
    except ModelError as error:
        if device != "cpu":
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

    return run, "onnxruntime"


def _reference(path: Path, cause: ModelError) -> Runner:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  # slow to import, seldom needed

    try:
        evaluator = ReferenceEvaluator(onnx.load(path))
    except Exception as error:
        raise FuseError(
            f"parity cannot be measured: {one_line(cause)}; onnx.reference: {one_line(error)}; {_INPUTS}"
        ) from error

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        try:
            return list(evaluator.run(list(outputs), dict(feeds)))
        except Exception as error:
            raise FuseError(
                f"parity cannot be measured: {one_line(cause)}; onnx.reference: {one_line(error)}; {_INPUTS}"
            ) from error

    return run

"""The check of a fusion: the fused graph against the raw one calibrated in numpy, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.errors import FuseError, ModelError
from calib_serve.fuse.onnx.plan import Plan
from calib_serve.fuse.onnx.reference import Expected, expect, prepare
from calib_serve.fuse.sessions import open_session, stopped_after
from calib_serve.metrics import softmax

__all__ = ["TOLERANCE", "Parity", "generate", "measure"]

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

_QUANTIZED = 0.05
"""Where a graph quantises, a shift of one ulp may become one quantum."""


@dataclass(frozen=True)
class Parity:
    """``max_abs_diff`` of probabilities over ``samples`` inputs, with what rounding allows.

    ``near_edge`` samples had a probability within rounding of a table's edge, where either bin is
    right; they are left out. ``engine`` is what ran the graphs.
    """

    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    engine: str


def generate(
    graph: ir.Graph, *, samples: int, shapes: Mapping[str, Sequence[int]] | None = None, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Inputs that fit the graph: normal floats, integers 0 or 1, true.

    ``shapes`` hold the shape of one sample by input, where it is known from elsewhere. The batch is
    ``samples`` where it is free, and other unknown sizes are 8.
    """
    rng = np.random.default_rng(seed)
    known = shapes or {}
    inputs = [v for v in graph.inputs if not v.is_initializer()]
    return {str(v.name): _numbers(v, samples, known.get(str(v.name)), rng) for v in inputs}


def _numbers(
    value: ir.Value, samples: int, shape: Sequence[int] | None, rng: np.random.Generator
) -> NDArray[Any]:
    dtype = value.dtype
    countable = dtype is not None and (
        dtype.is_floating_point() or dtype.is_integer() or dtype == ir.DataType.BOOL
    )
    if dtype is None or value.shape is None or not countable:
        raise FuseError(
            f"no numbers can be made for input {value.name!r}, {dtype} {value.shape}; "
            "give inputs to measure parity with"
        )
    free = [samples, *([8] * len(value.shape) if shape is None else shape)]
    dims = [d if isinstance(d, int) else f for d, f in zip(value.shape, free, strict=False)]
    if dtype.is_floating_point():
        return rng.standard_normal(dims).astype(dtype.numpy())
    return (
        np.ones(dims, bool) if dtype == ir.DataType.BOOL else rng.integers(0, 2, dims).astype(dtype.numpy())
    )


def measure(
    probe: Path, fused: Path, plan: Plan, feeds: Mapping[str, NDArray[Any]], *, quantized: bool
) -> Parity:
    """Run both graphs and compare; raises FuseError where they differ by more than rounding.

    ``probe`` is the raw graph with ``plan.source`` among its outputs.
    """
    run, engine = _runner(probe)
    run_fused, engine_fused = _runner(fused)
    raw = _rows(run(prepare(feeds, plan), [plan.source])[0])
    near = _QUANTIZED if quantized else TOLERANCE[plan.dtype]
    expected = expect(raw, plan, near)
    name = plan.output if plan.returns == "same" else "probabilities"
    actual = _rows(run_fused(feeds, [name])[0])
    worst = _compare(actual, expected, plan, near * expected.scale)
    engines = engine if engine == engine_fused else f"{engine}, {engine_fused}"
    return Parity(worst, near * expected.scale, len(raw), int((~expected.sure).sum()), engines)


def _compare(actual: NDArray[np.float64], expected: Expected, plan: Plan, tolerance: float) -> float:
    if actual.shape != expected.probs.shape:
        raise FuseError(f"the fused graph gives {actual.shape}, not {expected.probs.shape}; {_REPORT}")
    probs = softmax(actual) if plan.shows_logits else actual
    worst = float(np.abs(probs - expected.probs)[expected.sure].max(initial=0.0))
    if not worst <= tolerance:  # also true for NaN
        raise FuseError(f"probabilities differ by {worst:.3g}, rounding allows {tolerance:.3g}; {_REPORT}")
    if plan.shows_logits and expected.logits is not None:
        apart = float(np.abs(actual - expected.logits).max(initial=0.0))
        if not apart <= tolerance:
            raise FuseError(f"logits differ by {apart:.3g}, rounding allows {tolerance:.3g}; {_REPORT}")
    return worst


_REPORT = "nothing was written: give typical inputs to measure with, or report this graph"


def _rows(found: Any) -> NDArray[np.float64]:
    if isinstance(found, list):  # ZipMap gives a mapping a row
        found = [list(row.values()) for row in found]
    scores = np.asarray(found).astype(np.float64)
    return scores.reshape(len(scores), -1)


def _runner(path: Path) -> tuple[Runner, str]:
    """Onnxruntime without its optimiser, or onnx's reference evaluator where a type is unknown to it."""
    try:
        session = open_session(path, threads=1, optimize=False)
    except ModelError as error:
        return _reference(path, error), "onnx.reference"

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        try:
            with stopped_after(PATIENCE) as options:
                return list(session.run(list(outputs), dict(feeds), options))
        except Exception as error:
            raise FuseError(
                f"onnxruntime cannot run the model to measure parity: {error}; give inputs that fit it"
            ) from error

    return run, "onnxruntime"


def _reference(path: Path, cause: ModelError) -> Runner:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  # slow to import, seldom needed

    try:
        evaluator = ReferenceEvaluator(onnx.load(path))
    except Exception as error:
        raise FuseError(f"parity cannot be measured: {cause}; onnx.reference: {error}") from error

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        try:
            return list(evaluator.run(list(outputs), dict(feeds)))
        except Exception as error:
            raise FuseError(f"parity cannot be measured: {cause}; onnx.reference: {error}") from error

    return run

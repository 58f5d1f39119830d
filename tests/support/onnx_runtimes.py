"""The programs that run ONNX files: onnxruntime, onnx's reference evaluator, OpenVINO."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from libraries import library

from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._runtimes import open_in

Arrays = dict[str, np.ndarray]


class CannotRun(Exception):
    """This runtime lacks an operator or a type of this graph; nothing is said about its numbers."""


def by_onnxruntime(path: Path, feeds: Mapping[str, np.ndarray], level: str = "ENABLE_ALL") -> Arrays:
    """Every output by name; ``level`` is onnxruntime's of optimisation."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def by_reference(path: Path, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Every output by name, by onnx's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(onnx.load(path))
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))
    except Exception as error:  # it lacks operators, and older versions of others
        raise CannotRun(f"{type(error).__name__}: {error}") from error


def beside(name: str) -> Any:
    """OpenVINO or tract, from the folder of its own where scripts/system_tools.sh puts it."""
    folder = str(Path(sys.prefix) / name)
    if folder not in sys.path:
        sys.path.append(folder)
    return library(name)


@cache
def _core() -> Any:
    return beside("openvino").Core()


def by_openvino(path: Path, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Every output by name, by OpenVINO in float32: on new CPUs its default is bfloat16."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    core = _core()
    try:
        compiled = core.compile_model(str(path), "CPU", settings)
        found = compiled(dict(feeds))
    except Exception as error:  # operators of scikit-learn and others are unknown to it
        raise CannotRun(f"{type(error).__name__}: {error}") from error
    return {name: found[port] for port in compiled.outputs for name in port.names}


def by_tract(path: Path, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Every output by name, by tract."""
    beside("tract")
    names = [output.name for output in onnx.load(path, load_external_data=False).graph.output]
    try:
        return dict(zip(names, open_in("tract", path)(feeds, names), strict=True))
    except FuseError as error:
        raise CannotRun(str(error)) from error


LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
RUNTIMES: dict[str, Callable[[Path, Mapping[str, np.ndarray]], Arrays]] = {
    "onnxruntime": by_onnxruntime,
    "onnxruntime, unoptimised": lambda path, feeds: by_onnxruntime(path, feeds, "DISABLE_ALL"),
    "onnx.reference": by_reference,
    "OpenVINO": by_openvino,
}


def run_or_skip(runtime: str, path: Path, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Every output by name; skips the test where the runtime cannot run the graph."""
    try:
        return RUNTIMES[runtime](path, feeds)
    except CannotRun as error:
        pytest.skip(str(error))

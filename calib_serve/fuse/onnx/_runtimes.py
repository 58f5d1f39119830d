"""Runtimes beside onnxruntime that run a graph on a CPU, where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from calib_serve.core.errors import FuseError, MissingDependency

Runner = Callable[[Mapping[str, NDArray[Any]], Sequence[str]], list[Any]]
"""Inputs by name and names of outputs to these outputs."""
_Run = Callable[[dict[str, NDArray[Any]]], Mapping[str, Any]]


def open_in(runtime: str, path: Path) -> Runner:
    """Open a graph in "openvino", "tract" or "onnx.reference".

    Raises MissingDependency where it is not installed, and FuseError, in its words, where it cannot load or
    run the graph.
    """
    if find_spec(runtime.partition(".")[0]) is None:
        raise MissingDependency(runtime)
    opened = _tried(f"{runtime} cannot load the graph", _OPEN[runtime], path)

    def run(feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[Any]:
        found = _tried(f"{runtime} cannot run the graph", opened, dict(feeds))
        return [found[name] for name in outputs]

    return run


def one_line(error: Exception) -> str:
    """An error's message in one line, of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def _tried(fails: str, call: Callable[[Any], Any], given: Any) -> Any:
    try:
        return call(given)
    except Exception as error:  # each runtime has types of its own
        raise FuseError(f"{fails}: {one_line(error)}") from error


def _openvino(path: Path) -> _Run:
    # Its default is bfloat16 on CPUs that have it, which is off by 1e-2.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = import_module("openvino").Core().compile_model(str(path), "CPU", settings)

    def run(feeds: dict[str, NDArray[Any]]) -> Mapping[str, Any]:
        found = compiled(feeds)
        return {name: found[port] for port in compiled.outputs for name in port.names}

    return run


def _tract(path: Path) -> _Run:
    graph = onnx.load(path, load_external_data=False).graph
    constants = {one.name for one in graph.initializer}
    takes = [one.name for one in graph.input if one.name not in constants]
    runnable = import_module("tract").onnx().load(str(path)).into_model().into_runnable()

    def run(feeds: dict[str, NDArray[Any]]) -> Mapping[str, Any]:
        found = runnable.run([feeds[name] for name in takes])
        names = [one.name for one in graph.output]
        return dict(zip(names, (one.to_numpy() for one in found), strict=True))

    return run


def _reference(path: Path) -> _Run:
    evaluator = import_module("onnx.reference").ReferenceEvaluator(onnx.load(path))
    return lambda feeds: dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))


_OPEN: dict[str, Callable[[Path], _Run]] = {
    "openvino": _openvino,
    "tract": _tract,
    "onnx.reference": _reference,
}

"""A fused graph is proved in the runtimes that are named, each against its raw scores and onnxruntime's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import calib_serve
from fuse_artifacts import artifact
from fuse_texts import DELTA, LAYER, TWO, graph
from onnx_runtimes import beside

from calib_serve.artifact import LogitMap, ProbTable, Step
from calib_serve.core.errors import FuseError, MissingDependency, OptionError
from calib_serve.fuse import FuseReport, fuse_onnx

ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype("f4")
RUNTIMES = ("openvino", "tract", "onnx.reference")
STEPS: dict[str, Step] = {
    "temperature": TWO,
    "each class": LogitMap(np.array([1.2, 0.8, 1.5]), DELTA, on="log_probs"),
    "table": ProbTable(np.array([[0.5, 0.75]]), np.array([[0.4, 0.7, 0.9]])),
}


def fused(folder: Path, body: str, step: Step = TWO, **asked: Any) -> FuseReport:
    made = graph(
        body, **{name: asked.pop(name) for name in ("inputs", "outputs", "imports") if name in asked}
    )
    onnx.save(made, folder / "raw.onnx")
    known: dict[str, Any] = {"unproven": True, "inputs": asked.pop("rows", {"x": ROWS}), "output_name": "y"}
    fitted = artifact(step, classes=3, model=asked.pop("model", {"outputs": "logits"}))
    return fuse_onnx(folder / "raw.onnx", fitted, folder / "out.onnx", **{**known, **asked})


@pytest.mark.parametrize("returns", ["same", "all"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_graph_is_proved_there(runtime: str, step: str, returns: str, tmp_path: Path) -> None:
    beside(runtime)
    body = f"{LAYER} h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)"
    report = fused(tmp_path, body, STEPS[step], returns=returns, runtime=(runtime,))
    (there,) = report.runtimes
    assert (there.engine, there.samples) == (runtime, len(ROWS))
    assert there.max_abs_diff <= there.tolerance < 1e-3
    assert there.rows()[0] in report.rows()


@pytest.mark.parametrize(("runtime", "named"), [("openvino", "'y' in 1"), ("onnx.reference", None)])
def test_scores_of_an_input_of_nan_are_told(runtime: str, named: str | None, tmp_path: Path) -> None:
    beside(runtime)
    # OpenVINO's Relu of NaN is 0, so that such a row gets the scores of one of zeros.
    report = fused(tmp_path, f"{LAYER} h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)", runtime=(runtime,))
    told = [line for line in report.done if line.startswith("warning")]
    wanted = f"warning: {runtime} differs from onnxruntime where an input is NaN: {named} rows"
    assert told == ([wanted] if named else [])


# Of opset 13, onnx's reference normalises by the batch's own statistics.
NORM = (
    "s = Constant <value = float[3] {1, 2, 3}> () m = Constant <value = float[3] {0, 1, 0}> () "
    "v = Constant <value = float[3] {1, 4, 2}> () y = BatchNormalization(x, s, m, m, v)"
)


def test_other_raw_scores_than_onnxruntimes_are_refused(tmp_path: Path) -> None:
    fused(tmp_path, NORM, imports='"" : 13')
    (tmp_path / "out.onnx").unlink()
    with pytest.raises(
        FuseError, match=r"^onnx.reference gives other raw scores than onnxruntime: \d+ of 40"
    ):
        fused(tmp_path, NORM, imports='"" : 13', runtime=("onnx.reference",))
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the reference
def test_another_output_that_differs_is_told_in_how_many_rows(tmp_path: Path) -> None:
    # onnx's reference gives NaN for the LogSumExp of minus infinity.
    body = "y = Identity(x) a = Constant <value_ints = [1]> () e = ReduceLogSumExp(m, a)"
    inputs, outputs = "float[n, 3] x, float[n, 3] m", "float[n, 3] y, float[n, 1] e"
    masked = np.zeros_like(ROWS)
    masked[:2] = -np.inf
    report = fused(
        tmp_path,
        body,
        inputs=inputs,
        outputs=outputs,
        imports='"" : 18',
        rows={"x": ROWS, "m": masked},
        runtime=("onnx.reference",),
    )
    assert "warning: onnx.reference differs from onnxruntime: 'e' in 2 rows" in report.done


def test_a_runtime_that_cannot_load_the_graph_says_why(tmp_path: Path) -> None:
    body = "g = com.microsoft.Gelu(x) y = Identity(g)"
    fused(tmp_path, body)
    with pytest.raises(FuseError, match=r"^in onnx.reference: onnx.reference cannot .*Gelu"):
        fused(tmp_path, body, runtime=("onnx.reference",))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_places_are_the_same_there(runtime: str, tmp_path: Path) -> None:
    beside(runtime)
    body, free = f"{LAYER} h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)", "float[n, t, 3]"
    rows = np.random.default_rng(0).normal(size=(5, 7, 3)).astype("f4")
    asked = {"inputs": f"{free} x", "outputs": f"{free} y", "rows": {"x": rows}, "runtime": (runtime,)}
    report = fused(tmp_path, body, model={"outputs": "logits", "class_axis": -1}, **asked)
    assert [(one.engine, one.samples) for one in report.runtimes] == [(runtime, 35)]


def test_unknown_and_missing_runtimes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        OptionError, match=r"runtime must be one of cuda, openvino, tract, onnx.reference, got 'tvm'"
    ):
        fused(tmp_path, "y = Identity(x)", runtime=("tvm",))
    monkeypatch.setitem(sys.modules, "tract", None)
    with pytest.raises(MissingDependency, match="tract is not installed; run: pip install tract"):
        fused(tmp_path, "y = Identity(x)", runtime=("tract",))


def test_the_command_takes_several_with_commas(tmp_path: Path) -> None:
    for name in ("openvino", "tract"):
        beside(name)
    onnx.save(graph(f"{LAYER} y = MatMul(x, w)"), tmp_path / "raw.onnx")
    artifact(TWO, classes=3).save(tmp_path / "artifact")
    words = [tmp_path / "raw.onnx", tmp_path / "artifact", "-o", tmp_path / "out.onnx", "--unproven"]
    done = calib_serve("fuse", "onnx", *words, "--runtime", ",".join(RUNTIMES))
    assert done.exit_code == 0
    assert all(f"({name}," in done.stdout for name in ("onnxruntime", *RUNTIMES))


def test_a_graph_that_stops_at_an_input_of_nan_is_proved_without_it(tmp_path: Path) -> None:
    # NaN is no whole number, and so no index.
    body = (
        f"{LAYER} t = Constant <value = float[3] {{1, 2, 3}}> () i = Cast <to = 7> (x) "
        "g = Gather (t, i) y = MatMul (g, w)"
    )
    report = fused(tmp_path, body, runtime=("onnx.reference",), rows={"x": np.abs(ROWS).clip(0, 2)})
    assert report.runtimes[0].engine == "onnx.reference"
    assert [line for line in report.done if "NaN" in line] == [
        "warning: onnx.reference is not compared where an input is NaN, at which the graph stops"
    ]

"""What fuse_onnx takes, reports and leaves in the file and the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, TWO, W, X, graph, operators
from test_onnx_outputs import fused, of

from calib_serve import InputShift, LogitMap, ProbTable
from calib_serve.artifact import Examples
from calib_serve.errors import FuseError, InputError
from calib_serve.files import sha256
from calib_serve.fuse.onnx import files
from calib_serve.metrics import softmax

SOFTMAX = "z = Neg(x) y = Softmax(z)"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the report -------------------------------------------------------------------------------------


def test_a_report_is_of_the_files_and_of_both_graphs(tmp_path: Path) -> None:
    near = ProbTable(np.array([[0.5]]), np.array([[0.35, 0.9]]))
    plain = of(TWO, near)
    z = X[:4].astype("f8")
    fitted = replace(plain, examples=Examples(z, plain.probs(z)))
    given = np.array([[0.0, 0.0, -400.0], [1.0, 2.0, 0.0]], "f4")
    report, made = fused(graph("z = Identity(x) y = Softmax(z)"), tmp_path, fitted, inputs={"x": given})
    assert report.done[0].startswith("logit map put in as one Mul")
    assert (report.nodes_before, report.nodes_after) == (2, len(made.graph.node))
    assert (report.samples, report.near_edge, report.near_threshold, report.own_scores) == (2, 1, 0, 4)
    assert (report.engine, report.device, report.outputs) == ("onnxruntime", "cpu", ("y",))
    assert report.tolerance == pytest.approx(200 * 1e-5)  # by the largest logit
    assert (report.model, report.artifact) == (sha256(tmp_path / "raw.onnx"), fitted.fingerprint)
    assert {p.key: p.value for p in made.metadata_props} == {
        "calib_serve.fingerprint": fitted.fingerprint,
        "calib_serve.method": fitted.method,
        "calib_serve.model": report.model,
    }


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ("q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) z = Tanh(d)", 0.05),
        ("q, t, u = DynamicQuantizeLinear(x) d = DequantizeLinear(q, t, u) z = Tanh(d)", 0.05),
        ("q = Round(x) d = DequantizeLinear(zero, s, zero) c = Add(q, d) z = Tanh(c)", 1e-5),
    ],
)
def test_a_graph_that_quantises_may_differ_by_a_quantum(body: str, allowed: float, tmp_path: Path) -> None:
    numbers = "s = Constant <value = float {0.01}> () zero = Constant <value = uint8 {128}> () "
    report, _ = fused(graph(numbers + body + " y = Softmax(z)"), tmp_path, of(TWO))
    assert report.tolerance == allowed  # of logits below 1


# --- options ----------------------------------------------------------------------------------------


def test_inputs_are_taken_as_arrays_or_from_a_file_of_them(tmp_path: Path) -> None:
    model = graph("z = Mul(x, scale) y = Softmax(z)", "float[n, 3] x, float scale")
    arrays: dict[str, Any] = {"x": X, "scale": np.float32(0.5)}  # which is no array
    np.savez(tmp_path / "inputs.npz", **arrays)
    for inputs in (arrays, tmp_path / "inputs.npz", str(tmp_path / "inputs.npz")):
        report, _ = fused(model, tmp_path, of(TWO), inputs=inputs)
        assert (report.samples, report.own_scores) == (len(X), 0)
    (tmp_path / "inputs.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"inputs\.npz is not an npz of inputs by name, as --inputs"):
        fused(model, tmp_path, of(TWO), inputs=tmp_path / "inputs.npz")


# --- shapes that only a run tells -------------------------------------------------------------------

LEARNED = LAYER + "z = com.microsoft.FusedMatMul(x, w) y = Softmax(z)"


def test_a_run_that_tells_shapes_is_of_the_inputs_that_are_given(tmp_path: Path) -> None:
    model = graph(LEARNED, inputs="float[n, features] x")
    with pytest.raises(FuseError, match=r"(?s)'z' .*--inputs|--output-name"):
        fused(model, tmp_path, of(TWO))  # generated ones are 8 wide
    _, made = fused(model, tmp_path, of(TWO), inputs={"x": X})
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(X @ W / 2), atol=1e-5)


@pytest.mark.parametrize("other", ["float[n, width, height] v", "float[n] v", "float v"])
def test_a_run_that_tells_shapes_gives_an_input_of_another_rank_its_own(other: str, tmp_path: Path) -> None:
    before = "total = ReduceSum <keepdims: int = 0> (v) sum = Add(x, total) "
    model = graph(before + LEARNED.replace("(x, w)", "(sum, w)"), f"float[n, features] x, {other}")
    _, made = fused(model, tmp_path, of(InputShift(DELTA), TWO), input_name="x")
    v = np.ones({"float v": (), "float[n] v": (20,)}.get(other, (20, 2, 2)), "f4")
    want = softmax((X + DELTA + v.sum()) @ W / 2)
    np.testing.assert_allclose(run(made, {"x": X, "v": v})["y"], want, atol=1e-4)


# --- what goes wrong on the way ---------------------------------------------------------------------


def test_a_repair_is_told_and_one_that_changes_what_the_file_gives_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renewed(factor: float) -> Any:
        body = f"z = Neg(x) c = Constant <value = float {{{factor}}}> () k = Mul(z, c) y = Softmax(k)"
        return lambda _: (graph(body), ["brought up to date"])

    monkeypatch.setattr(files, "repaired", renewed(1.0))
    report, made = fused(graph(SOFTMAX), tmp_path, of(LogitMap.temperature(4.0)))
    assert report.done[0] == "brought up to date"
    assert "Mul" in operators(made)
    (tmp_path / "fused.onnx").unlink()
    monkeypatch.setattr(files, "repaired", renewed(1.25))
    with pytest.raises(FuseError, match="operators cannot be brought up to date: then 'y' differs"):
        fused(graph(SOFTMAX), tmp_path, of(TWO))
    assert names(tmp_path) == ["raw.onnx"]

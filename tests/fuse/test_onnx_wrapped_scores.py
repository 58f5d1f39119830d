"""Scores behind quantisers, or inside of a local function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, head, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from calib_serve import LogitMap
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.metrics import softmax

K = 4
X = np.random.default_rng(3).normal(size=(40, 6)).astype("f4")
BIAS = LogitMap(np.array(1.0), np.linspace(0, 1, K))


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(np.dtype("f4"), np.random.default_rng(0))


# --- quantisers -------------------------------------------------------------------------------


class Samples(CalibrationDataReader):
    """What onnxruntime's quantiser measures ranges on."""

    def __init__(self) -> None:
        self.rows = iter(X)

    def get_next(self) -> dict | None:
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


def quantised(folder: Path, form: QuantFormat) -> Path:
    b = builder()
    z = b.node("Gemm", b.node("Relu", b.node("Gemm", "x", b.normal(6, 8), b.normal(8))), b.normal(8, K))
    y = b.node("Softmax", z, axis=1, output="y")
    onnx.save(b.model([info("x", "n", 6)], [info(y, "n", K)]), folder / "float.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(folder / "float.onnx", folder / "raw.onnx", Samples(), quant_format=form, **types)
    return folder / "raw.onnx"


def steps_of(probs: np.ndarray) -> bool:
    """Whether all are multiples of one 255th, or one 256th."""
    return any(np.allclose(probs * n, np.round(probs * n), atol=1e-3) for n in (255, 256))


@pytest.mark.parametrize("step", [LogitMap.temperature(2.0), BIAS])
@pytest.mark.parametrize("returns", ["same", "all"])
def test_probabilities_that_onnxruntime_quantised_are_calibrated_and_not_quantised_again(
    step, returns, tmp_path
):
    raw = quantised(tmp_path, QuantFormat.QDQ)
    report = fuse_onnx(raw, artifact(step, classes=K), tmp_path / "out.onnx", returns=returns)
    assert report.done[0] == (
        "QuantizeLinear and DequantizeLinear behind Softmax 'y' removed: calibrated scores are not rounded "
        "to its old steps of 0.0039"
    )
    model = onnx.load(raw)
    (tail,) = [n for n in model.graph.node if n.op_type == "Softmax"]
    model.graph.output.append(info(tail.input[0], "n", K))
    before = run(model, {"x": X}, optimize=False)
    got = run(str(tmp_path / "out.onnx"), {"x": X}, optimize=False)
    probs = got["y" if returns == "same" else "probabilities"]
    assert steps_of(before["y"])
    assert not steps_of(probs)
    np.testing.assert_allclose(probs, softmax(step(before[tail.input[0]].astype("f8"))), atol=1e-5)


@pytest.mark.parametrize("activation", ["Softmax", "Sigmoid"])
def test_other_readers_of_quantised_scores_keep_them(activation, tmp_path):
    b = builder()
    z = b.node("Gemm", "x", b.normal(6, K), b.normal(K))
    y = b.node(activation, z)
    scale, zero = b.number(1 / 256), b.number(0, "u1")
    d = b.node("DequantizeLinear", b.node("QuantizeLinear", y, scale, zero), scale, zero)
    shown, other = b.node("Identity", d, output="shown"), b.node("Tanh", d, output="other")
    label = b.node("ArgMax", d, axis=1, keepdims=0, output="label")
    outputs = [info(shown, "n", K), info(other, "n", K), info(label, "n", kind=TensorProto.INT64)]
    model = b.model([info("x", "n", 6)], outputs)
    onnx.save(model, tmp_path / "raw.onnx")
    kind = "logits" if activation == "Softmax" else "label_logits"
    step = BIAS if activation == "Softmax" else LogitMap(np.ones(K), BIAS.bias)
    fitted = artifact(step, classes=K, outputs=kind)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", output_name="shown")
    raw, got = (
        run(m, {"x": X}, optimize=False) for m in (str(tmp_path / "raw.onnx"), str(tmp_path / "out.onnx"))
    )
    assert not steps_of(got["shown"])
    np.testing.assert_array_equal(got["other"], raw["other"])
    np.testing.assert_array_equal(got["label"], got["shown"].argmax(axis=1))


# --- local functions --------------------------------------------------------------------------


def function(name: str, inputs: list[str], *nodes) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, [nodes[-1].output[0]], list(nodes), opsets)


def call(name: str, inputs: list[str], output: str, domain: str = "local") -> onnx.NodeProto:
    return helper.make_node(name, inputs, [output], domain=domain, name=f"{output}.call")


def layered(b: Builder) -> onnx.ModelProto:
    """Functions in functions, as exporters of modules write them: a block, a linear layer, a softmax."""
    std = ""
    functions = [
        function("Probs", ["z"], helper.make_node("Softmax", ["z"], ["p"], axis=-1)),
        function(
            "Linear", ["x", "w", "b"], call("MatMul", ["x", "w"], "m", std), call("Add", ["m", "b"], "y", std)
        ),
        function("Act", ["x"], helper.make_node("Relu", ["x"], ["y"])),
        function("Out", ["x", "w", "b"], call("Linear", ["x", "w", "b"], "z"), call("Probs", ["z"], "p")),
    ]
    b.nodes += [
        call("Linear", ["x", b.normal(6, 8), b.normal(8)], "h"),
        call("Act", ["h"], "a"),
        call("Out", ["a", b.normal(8, K), b.normal(K)], "y"),
    ]
    graph = helper.make_graph(b.nodes, "g", [info("x", "n", 6)], [info("y", "n", K)], b.initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("kind", ["temperature", "matrix", "dirichlet", "classwise", "head"])
def test_scores_inside_of_functions_are_calibrated_there(kind, tmp_path):
    model = layered(builder())
    onnx.save(model, tmp_path / "raw.onnx")
    rng = np.random.default_rng(0)
    steps = (head(8, K, 1, rng),) if kind == "head" else output_steps(kind, K, rng)
    fitted = artifact(*steps, classes=K)
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx")
    assert report.done[0].startswith("local functions that hold the scores written out: Out, ")
    assert bool(report.folded) == (kind != "dirichlet")
    fused = onnx.load(tmp_path / "out.onnx")
    assert "Act" in {f.name for f in fused.functions}  # what is not on the way out stays a function
    assert "Probs" not in {n.op_type for n in fused.graph.node}
    raw = run(model, {"x": X})["y"].astype("f8")
    if kind in ("temperature", "dirichlet"):
        expected = fitted.probs(np.log(raw))
        np.testing.assert_allclose(run(fused, {"x": X})["y"], expected, atol=1e-5)

"""Quantised tails: layers stay as they are, and calibrated scores are not rounded to the old steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from calib_serve.artifact import LogitMap
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import softmax

CLASSES = 4
ROWS = np.random.default_rng(3).normal(size=(40, 6)).astype("f4")
BIAS = LogitMap(np.array(1.0), np.linspace(0, 1, CLASSES))


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(np.dtype("f4"), np.random.default_rng(0))


class Samples(CalibrationDataReader):
    """What onnxruntime's quantiser measures ranges on."""

    def __init__(self) -> None:
        self.rows = iter(ROWS)

    def get_next(self) -> dict | None:
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


def quantised(folder: Path, form: QuantFormat) -> Path:
    b = builder()
    z = b.node("Gemm", b.node("Relu", b.node("Gemm", "x", b.normal(6, 8), b.normal(8))), b.normal(8, CLASSES))
    y = b.node("Softmax", z, axis=1, output="y")
    onnx.save(b.model([info("x", "n", 6)], [info(y, "n", CLASSES)]), folder / "float.onnx")
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
    report = fuse_onnx(
        raw, artifact(step, classes=CLASSES), tmp_path / "out.onnx", returns=returns, unproven=True
    )
    assert report.done[0] == (
        "QuantizeLinear and DequantizeLinear behind Softmax 'y' removed: calibrated scores are not rounded "
        "to its old steps of 0.0039"
    )
    model = onnx.load(raw)
    (tail,) = [n for n in model.graph.node if n.op_type == "Softmax"]
    model.graph.output.append(info(tail.input[0], "n", CLASSES))
    before = run(model, {"x": ROWS}, optimize=False)
    got = run(str(tmp_path / "out.onnx"), {"x": ROWS}, optimize=False)
    probs = got["y" if returns == "same" else "probabilities"]
    assert steps_of(before["y"])
    assert not steps_of(probs)
    np.testing.assert_allclose(probs, softmax(step(before[tail.input[0]].astype("f8"))), atol=1e-5)


@pytest.mark.parametrize("activation", ["Softmax", "Sigmoid"])
def test_other_readers_of_quantised_scores_read_calibrated_ones(activation, tmp_path):
    b = builder()
    z = b.node("Gemm", "x", b.normal(6, CLASSES), b.normal(CLASSES))
    y = b.node(activation, z)
    scale, zero = b.number(1 / 256), b.number(0, "u1")
    d = b.node("DequantizeLinear", b.node("QuantizeLinear", y, scale, zero), scale, zero)
    shown, other = b.node("Identity", d, output="shown"), b.node("Tanh", d, output="other")
    label = b.node("ArgMax", d, axis=1, keepdims=0, output="label")
    outputs = [info(shown, "n", CLASSES), info(other, "n", CLASSES), info(label, "n", kind=TensorProto.INT64)]
    model = b.model([info("x", "n", 6)], outputs)
    onnx.save(model, tmp_path / "raw.onnx")
    kind = "logits" if activation == "Softmax" else "label_logits"
    step = BIAS if activation == "Softmax" else LogitMap(np.ones(CLASSES), BIAS.bias)
    fitted = artifact(step, classes=CLASSES, outputs=kind)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", output_name="shown", unproven=True)
    raw, got = (
        run(m, {"x": ROWS}, optimize=False) for m in (str(tmp_path / "raw.onnx"), str(tmp_path / "out.onnx"))
    )
    assert not steps_of(got["shown"])
    np.testing.assert_allclose(got["other"], np.tanh(got["shown"]), atol=1e-6)
    assert (got["other"] != raw["other"]).any()
    np.testing.assert_array_equal(got["label"], got["shown"].argmax(axis=1))

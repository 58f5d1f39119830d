"""A graph as Keras exports it: rows behind a batch, odd names, a shift and a matrix."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper

from calib_serve.artifact import InputShift
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import softmax

K = 4


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def fuse(model: onnx.ModelProto, folder, *steps, classes: int = K, **options):
    onnx.save(model, folder / "raw.onnx")
    out = folder / "fused.onnx"
    report = fuse_onnx(folder / "raw.onnx", artifact(*steps, classes=classes), out, **options, unproven=True)
    onnx.checker.check_model(str(out), full_check=True)
    return report, str(out)


def keras(final: str) -> onnx.ModelProto:
    """What tf2onnx makes of Rescaling, Conv2D, GlobalAveragePooling2D and Dense: NHWC, odd names."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0), "model/")
    x = b.node("Mul", "keras_tensor:0", b.number(1 / 127.5))
    x = b.node("Add", x, b.number(-1.0))
    x = b.node("Transpose", x, perm=[0, 3, 1, 2])
    y = b.node("Relu", b.node("Conv", x, b.normal(5, 3, 3, 3, scale=0.3), b.normal(5), auto_pad="SAME_UPPER"))
    y = b.node("ReduceMean", b.node("Transpose", y, perm=[0, 2, 3, 1]), axes=[1, 2], keepdims=0)
    y = b.node("Add", b.node("MatMul", y, b.normal(5, K)), b.normal(K), output="model/dense/BiasAdd:0")
    y = b.node(final, y, output="dense") if final else b.node("Identity", y, output="dense")
    return b.model([info("keras_tensor:0", "unk__6", 8, 8, 3)], [info("dense", "unk__7", K)], opset=15)


@pytest.mark.parametrize("final", ["Softmax", ""])
def test_a_keras_export_takes_a_shift_as_a_node_and_a_matrix_without(final, tmp_path):
    delta = 20 * np.random.default_rng(1).normal(size=(8, 8, 3))
    steps = output_steps("matrix", K, np.random.default_rng(0))
    report, path = fuse(keras(final), tmp_path, InputShift(delta), *steps)
    assert report.nodes_after == report.nodes_before + 1
    assert sum("folded" in what for what in report.done) == 1
    x = np.random.default_rng(2).uniform(0, 255, (3, 8, 8, 3)).astype("f4")
    z = run(keras(""), {"keras_tensor:0": (x + delta).astype("f4")})["dense"]
    got = run(path, {"keras_tensor:0": x})["dense"]
    np.testing.assert_allclose(
        softmax(got) if not final else got, artifact(*steps, classes=K).of_logits(z), atol=1e-5
    )

"""Graphs as known exporters leave them: the public zoo's shapes, Keras', scikit-learn's, torch's two."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import onnx
import pytest
import torch
from fuse_artifacts import artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from sizes import sized
from torch import nn

from calib_serve.artifact import InputShift
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import log_softmax, softmax

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
    assert len(report.folded) == 1
    x = np.random.default_rng(2).uniform(0, 255, (3, 8, 8, 3)).astype("f4")
    z = run(keras(""), {"keras_tensor:0": (x + delta).astype("f4")})["dense"]
    got = run(path, {"keras_tensor:0": x})["dense"]
    np.testing.assert_allclose(
        softmax(got) if not final else got, artifact(*steps, classes=K).of_logits(z), atol=1e-5
    )


class Small(nn.Module):
    def __init__(self, log: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3)
        )
        self.fc = nn.Linear(6, K)
        self.log = log

    def forward(self, x):
        z = self.fc(self.body((x - 0.5) / 0.25).mean((2, 3)))
        return torch.log_softmax(z, 1) if self.log else z


@pytest.mark.parametrize("dynamo", [False, True], ids=["old exporter", "new exporter"])
@pytest.mark.parametrize(
    ("free", "log"), sized([(True, False)], [*itertools.product([True, False], repeat=2)])
)
def test_both_exporters_of_torch(dynamo, free, log, tmp_path):
    torch.manual_seed(0)
    model, x = Small(log).eval(), torch.randn(4, 3, 8, 8)
    path = tmp_path / "raw.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old exporter, that it is the old one
        if dynamo:
            shapes = ({0: torch.export.Dim("n")},) if free else None
            torch.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
        else:
            axes = {"x": {0: "n"}} if free else None
            torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    delta = 0.1 * np.random.default_rng(0).normal(size=(3, 8, 8))
    fitted = artifact(InputShift(delta), *output_steps("vector", K, np.random.default_rng(0)), classes=K)
    report = fuse_onnx(path, fitted, tmp_path / "fused.onnx", unproven=True)
    # The shift is one more; the old exporter's Constant became an initializer.
    assert report.nodes_after <= report.nodes_before + 1
    assert len(report.folded) == 1
    batch = x[:3] if free else x
    with torch.no_grad():
        z = model.fc(model.body((batch + torch.tensor(delta, dtype=torch.float32) - 0.5) / 0.25).mean((2, 3)))
    name = onnx.load(path, load_external_data=False).graph.input[0].name
    got = next(iter(run(str(tmp_path / "fused.onnx"), {name: batch.numpy()}).values()))
    mapped = fitted.output_steps[0](z.numpy())
    np.testing.assert_allclose(got, log_softmax(mapped) if log else mapped, atol=2e-5)

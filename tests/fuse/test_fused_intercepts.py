"""An intercept, and intercept and slope, in ONNX and torch: one answer with numpy."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from calib_serve import calibrate
from calib_serve.fuse import calibrated, fuse_onnx

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 2)).astype(np.float32)
GRAPH = """<ir_version: 8, opset_import: ["" : 18]>
g (float[n, 4] x) => (float[n, 2] p) { z = MatMul(x, w) p = Softmax<axis = 1>(z) }"""
X = RNG.normal(size=(500, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "how", [{"method": "intercept"}, {"method": "logistic"}, {"prior": [0.97, 0.03]}], ids=str
)
def test_a_map_that_is_reported_is_fused_as_it_was_fitted(how, tmp_path) -> None:
    logits = X @ WEIGHT
    y = (RNG.random(500) < 1 / (1 + np.exp(1.5 - 0.5 * (logits[:, 1] - logits[:, 0])))).astype(int)
    artifact = calibrate(logits, y, **{"method": "none", **how}, outputs="logits", cross_validate=False)
    expected = artifact.of_logits(logits)
    assert np.abs(expected[:, 1] - 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).max() > 0.05
    layer = torch.nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.from_numpy(WEIGHT.T.copy())
    with torch.inference_mode():
        np.testing.assert_allclose(calibrated(layer, artifact)(torch.from_numpy(X)), expected, atol=2e-6)
    model = onnx.parser.parse_model(GRAPH)
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    fuse_onnx(tmp_path / "m.onnx", artifact, tmp_path / "fused.onnx", unproven=True)
    session = onnxruntime.InferenceSession(tmp_path / "fused.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, atol=2e-6)

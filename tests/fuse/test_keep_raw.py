"""The raw scores beside the calibrated ones, and parity on the device that serves."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuse_artifacts import KINDS, artifact, output_steps
from fuse_graphs import Builder, run
from gpus import needs_gpu_of_onnxruntime, without_gpu
from onnx import TensorProto, helper
from sklearn.ensemble import RandomForestClassifier

from calib_serve import LogitMap, ModelFacts
from calib_serve.errors import ModelError
from calib_serve.fuse.onnx.graph import fuse_onnx

K = 4


def network(tail: str = "", *, more: str = "", pooled: bool = False) -> onnx.ModelProto:
    """A linear layer, perhaps a convolution, an activation, and perhaps another output."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    info = helper.make_tensor_value_info
    if pooled:
        z = b.node("GlobalAveragePool", b.node("Conv", "x", b.normal(K, 2, 1, 1), b.normal(K)))
    else:
        z = b.node("Gemm", "x", b.normal(6, K), b.normal(K))
    y = b.node(tail, z, axis=1, output="scores") if tail else b.node("Identity", z, output="scores")
    shape = ["n", 2, 3, 3] if pooled else ["n", 6]
    others = [info(b.node("Neg", "x", output=more), TensorProto.FLOAT, shape)] if more else []
    return b.model([info("x", TensorProto.FLOAT, shape)], [info(y, TensorProto.FLOAT, None), *others])


def fuse(model: onnx.ModelProto, folder, *steps, means: str = "logits", **options):
    onnx.save(model, folder / "raw.onnx")
    out = folder / "fused.onnx"
    fitted = artifact(*steps, classes=K, model=ModelFacts(outputs=means))
    return fuse_onnx(folder / "raw.onnx", fitted, out, **options), str(out)


@pytest.mark.parametrize("maps", [True, False])
def test_raw_scores_of_scikit_learn_keep_their_type(maps, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 5)).astype("f4")
    forest = RandomForestClassifier(4, max_depth=3, random_state=0).fit(x, rng.integers(0, K, 80))
    model = skl2onnx.to_onnx(forest, x[:1], target_opset=17, options={"zipmap": maps})
    _, path = fuse(
        model,
        tmp_path,
        LogitMap.temperature(2.0),
        means="probabilities",
        keep_raw=True,
        outputs="probabilities",
    )
    label, calibrated, raw = run(path, {"X": x}).values()
    before = list(run(model, {"X": x}).values())
    np.testing.assert_array_equal(label, before[0])
    if maps:
        assert list(raw) == list(before[1])
        assert list(calibrated) != list(before[1])
    else:
        np.testing.assert_array_equal(raw, before[1])


@without_gpu
def test_a_device_that_is_not_there_is_an_error_not_another_device(tmp_path):
    with pytest.raises(ModelError, match="cuda was asked for"):
        fuse(network(), tmp_path, LogitMap.temperature(2.0), device="cuda")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.onnx"]


@needs_gpu_of_onnxruntime
@pytest.mark.parametrize("kind", KINDS)
def test_parity_is_measured_on_the_gpu_that_serves(kind, tmp_path):
    report, _ = fuse(network(), tmp_path, *output_steps(kind, K, np.random.default_rng(0)), device="cuda")
    assert report.device == "cuda"

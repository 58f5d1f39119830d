"""What exporters leave behind is put right before fusing, said, and compared with the file."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, head
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from calib_serve import LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.metrics import softmax

K = 3
X = np.random.default_rng(1).normal(size=(20, 6)).astype("f4")
VECTOR = LogitMap(np.array([0.5, 2.0, 1.0]), np.array([1.0, 0.0, -1.0]))


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(np.dtype("f4"), np.random.default_rng(0))


def linear(b: Builder, x: str = "x", width: int = 6) -> str:
    return b.node("Gemm", x, b.normal(width, K), b.normal(K))


def fused(model: onnx.ModelProto, folder: Path, *steps, classes: int = K, fitted_on="logits", **options):
    onnx.save(model, folder / "raw.onnx")
    fitted = artifact(*steps, classes=classes, outputs=fitted_on)
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options)
    onnx.checker.check_model(str(folder / "fused.onnx"), full_check=True)
    return report, onnx.load(folder / "fused.onnx")


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    return {o.domain: o.version for o in model.opset_import}


def shape_of(value) -> list:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


# --- opsets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 9, 11])
def test_operators_that_did_change_are_converted(opset, tmp_path):
    """A mean over axes that are an attribute, a Dropout without inputs, and a Softmax of two dimensions."""
    b = builder()
    hidden = b.node("ReduceSum", b.node("Reshape", "x", b.number([0, 2, 3], "i8")), axes=[1], keepdims=0)
    y = b.node("Softmax", b.node("Dropout", linear(b, hidden, 3)), output="y")
    model = b.model([info("x", "n", 6)], [info(y, "n", K)], opset=opset, ir_version=4)
    step = LogitMap(np.array(0.5), np.array([1.0, 0.0, -1.0]))  # the same on logits and log-probabilities
    report, calibrated = fused(model, tmp_path, step)
    assert report.done[0] == f"opset {opset} -> 13: by onnx.version_converter"
    raw = run(model, {"x": X})["y"].astype("f8")
    np.testing.assert_allclose(run(calibrated, {"x": X})["y"], softmax(step(np.log(raw))), atol=1e-6)
    assert calibrated.graph.node[-1].op_type == "Softmax"


def test_weights_in_another_file_survive_a_conversion(tmp_path):
    b = builder()
    y = b.node("Softmax", b.node("Dropout", linear(b)), output="y")
    model = b.model([info("x", "n", 6)], [info(y, "n", K)], opset=9, ir_version=4)
    expected = softmax(np.log(run(model, {"x": X})["y"]) / 2)
    content = b""
    for tensor in model.graph.initializer:
        data = tensor.raw_data
        set_external_data(tensor, "weights.bin", offset=len(content), length=len(data))
        tensor.ClearField("raw_data")
        content += data
    (tmp_path / "weights.bin").write_bytes(content)
    (tmp_path / "raw.onnx").write_bytes(model.SerializeToString())
    fuse_onnx(tmp_path / "raw.onnx", artifact(LogitMap.temperature(2.0), classes=K), tmp_path / "fused.onnx")
    np.testing.assert_allclose(run(str(tmp_path / "fused.onnx"), {"x": X})["y"], expected, atol=1e-6)


def test_a_conversion_that_changes_results_is_refused(tmp_path, monkeypatch):
    b = builder()
    y = b.node("Softmax", b.node("Dropout", linear(b)), output="y")
    model = b.model([info("x", "n", 6)], [info(y, "n", K)], opset=9, ir_version=4)
    convert = onnx.version_converter.convert_version

    def wrong(old, version):
        new = convert(old, version)
        new.graph.initializer[0].raw_data = np.ones((6, K), "f4").tobytes()
        return new

    monkeypatch.setattr("onnx.version_converter.convert_version", wrong)
    with pytest.raises(FuseError, match=r"cannot be brought up to date.*'y' differs.*export it again"):
        fused(model, tmp_path, LogitMap.temperature(2.0))


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("classes", [2, 3])
def test_boosted_trees_as_their_converters_export_them(kind, classes, tmp_path):
    """Opset 9, or no opset of standard operators at all; labels of a false shape; a map an output."""
    tools = pytest.importorskip("onnxmltools")
    library = pytest.importorskip(kind)
    from onnxmltools.convert.common.data_types import FloatTensorType

    y = np.random.default_rng(0).integers(0, classes, 300)
    x = np.random.default_rng(1).normal(size=(300, 4)).astype("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "xgboost":
            model = library.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1).fit(x, y)
        else:
            model = library.LGBMClassifier(n_estimators=5, max_depth=3, n_jobs=1, verbose=-1).fit(x, y)
        export = getattr(tools, f"convert_{kind}")
        exported = export(model, initial_types=[("input", FloatTensorType([None, 4]))])
    step = LogitMap(np.linspace(0.5, 1.5, classes), np.linspace(-0.5, 0.5, classes))
    expected = softmax(step(np.log(model.predict_proba(x[:20]).astype("f8"))))
    for returns in ("same", "probabilities", "all"):
        options = {"classes": classes, "fitted_on": "probabilities", "returns": returns}
        report, calibrated = fused(exported, tmp_path, step, **options)
        old = "of standard operators missing" if kind == "xgboost" else "9"
        assert report.done[0] == f"opset {old} -> 13: no operator changes"
        assert opsets(calibrated) == {"": 13, "ai.onnx.ml": opsets(exported)["ai.onnx.ml"]}
        got = run(calibrated, {"input": x[:20]})
        probs = got["probabilities"]
        if isinstance(probs, list):
            probs = np.array([[row[k] for k in range(classes)] for row in probs])
        np.testing.assert_allclose(probs, expected, atol=1e-6)
        np.testing.assert_array_equal(got["label"], probs.argmax(axis=1))


# --- stated shapes and names ------------------------------------------------------------------


@pytest.mark.parametrize("returns", ["same", "all"])
def test_sizes_keep_the_names_the_model_gave_them(returns, tmp_path):
    b = builder()
    y = b.node("Softmax", linear(b), output="y")
    image = info("aux", "frames", "height")
    other = b.node("Relu", "aux", output="other")
    model = b.model([info("x", "batch", 6), image], [info(y, "rows", "classes"), info(other, "f", "h")])
    model.graph.output[0].CopyFrom(info(y, "rows", "classes"))  # inference knows better
    _, calibrated = fused(model, tmp_path, VECTOR, output_name="y", returns=returns)
    shapes = {v.name: shape_of(v) for v in (*calibrated.graph.input, *calibrated.graph.output)}
    assert shapes["x"] == ["batch", 6]
    assert shapes["aux"] == ["frames", "height"]
    assert shapes["other"] == ["f", "h"]
    if returns == "same":
        assert shapes["y"] == ["rows", "classes"]
    assert not re.search("unk__", str(calibrated.graph.output))


# --- shapes that inference does not know ------------------------------------------------------


def unknown(b: Builder) -> str:
    """Features (n, 6) behind an operator whose output onnx infers nothing of."""
    return b.node("Scaler", "x", domain="ai.onnx.ml", offset=[0.1] * 6, scale=[2.0] * 6, output="features")


@pytest.mark.parametrize("layer", ["Gemm", "MatMul"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_a_head_finds_features_of_unknown_shape(layer, layers, named, tmp_path):
    b = builder()
    features = unknown(b)
    z = linear(b, features) if layer == "Gemm" else b.node("MatMul", features, b.normal(6, K))
    y = b.node("Softmax", z, output="y", axis=1)
    model = b.model([info("x", "n", 6)], [info(y, "n", K)], domains=(("ai.onnx.ml", 3),))
    del model.graph.value_info[:]
    new = head(6, K, layers, np.random.default_rng(0))
    _, calibrated = fused(model, tmp_path, new, features="features" if named else None)
    expected = softmax(new((X - 0.1) * 2))
    np.testing.assert_allclose(run(calibrated, {"x": X})["y"], expected, atol=1e-5)

"""`calib-serve fuse triton` takes every model that `fuse onnx` takes, with the same options."""

from __future__ import annotations

import itertools
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from triton_server import needs_tritonserver, triton_on
from typer.testing import CliRunner

from calib_serve import InputShift, Keyring, LogitMap
from calib_serve.cli import app
from calib_serve.errors import CalibServeError
from calib_serve.serve.triton import Monitor

K = 3
X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
Y = (X @ np.random.default_rng(1).normal(size=(4, K))).argmax(axis=1)
BACKENDS = ["onnxruntime", "python"]


def fuse(folder: Path, raw: Path, *options: str, classes: int = K, steps: tuple = ()) -> Path:
    """Pack with the options as they are typed; the graph's file."""
    artifact(*(steps or (LogitMap.temperature(2.0),)), classes=classes).save(folder / f"{raw.stem}.artifact")
    arguments = [
        "fuse",
        "triton",
        str(raw),
        str(folder / f"{raw.stem}.artifact"),
        "-o",
        str(folder / "models"),
    ]
    arguments += ["--name", raw.stem, "--device", "cpu", "--backend", "python", *options]
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    return folder / "models" / raw.stem / "1" / "model.onnx"


def classifier(folder: Path, name: str, model: Any, labels: np.ndarray = Y, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = to_onnx(model.fit(X, labels), X[:1], target_opset=17, options={"zipmap": False, **options})
    (folder / f"{name}.onnx").write_bytes(made.SerializeToString())
    return folder / f"{name}.onnx"


def graph(folder: Path, b: Builder, inputs: dict[str, list], outputs: dict[str, list]) -> Path:
    shown = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in one.items()]
        for one in (inputs, outputs)
    ]
    onnx.save(b.model(*shown), folder / "raw.onnx")
    return folder / "raw.onnx"


def calibrated(probs: np.ndarray, t: float = 2.0) -> np.ndarray:
    """What a temperature on the logarithm of probabilities makes of them."""
    powers = np.asarray(probs, np.float64).clip(1e-12) ** (1 / t)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("zipmap", [False, True])
@pytest.mark.parametrize(
    "model", [GaussianNB(), KNeighborsClassifier(), OneVsRestClassifier(LogisticRegression())], ids=type
)
def test_probabilities_without_a_softmax_go_in_once_it_is_said_that_they_are(model, zipmap, tmp_path):
    raw = classifier(tmp_path, "m", model, zipmap=zipmap)
    with pytest.raises(CalibServeError, match="outputs="):
        fuse(tmp_path, raw)
    assert not (tmp_path / "models").exists()
    made = run(str(fuse(tmp_path, raw, "--outputs", "probabilities")), {"X": X})
    np.testing.assert_allclose(made["probabilities"], calibrated(model.predict_proba(X)), atol=2e-5)


def test_inputs_features_and_normalisation_are_named(tmp_path):
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    both = b.node("Add", b.node("Flatten", "image"), b.node("Flatten", "mask"))
    b.node("Gemm", both, b.normal(12, K), b.normal(K), output="z")
    shape = ["n", 3, 2, 2]
    raw = graph(tmp_path, b, {"image": shape, "mask": shape}, {"z": ["n", K]})
    options = ["--input-name", "mask", "--with-normalization", "0.5,0.25", "--features", both]
    np.savez(tmp_path / "mine.npz", image=np.ones((5, 3, 2, 2), "f4"), mask=np.ones((5, 3, 2, 2), "f4"))
    shift = InputShift(np.full((3, 2, 2), 0.1))
    out = fuse(tmp_path, raw, *options, "--inputs", str(tmp_path / "mine.npz"), steps=(shift,))
    feeds = {name: np.random.default_rng(0).random((2, 3, 2, 2)).astype("f4") for name in ("image", "mask")}
    moved = {**feeds, "mask": ((feeds["mask"] - 0.5) / 0.25 + 0.1).astype("f4")}
    np.testing.assert_allclose(run(str(out), feeds)["logits"], run(str(raw), moved)["z"], atol=1e-4)


@pytest.mark.server
@pytest.mark.nightly
def test_labels_of_text_and_one_number_a_sample_are_served_in_both_forms(tmp_path):
    needs_tritonserver()
    texts = np.array(["ant", "bee", "cow"])[Y]
    raw = {"text": classifier(tmp_path, "text", GaussianNB(), texts)}
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    number = b.node("Unsqueeze", "X", b.number([1], "i8"))
    b.node("Gemm", number, b.normal(1, K), b.normal(K), output="z")
    raw["number"] = graph(tmp_path, b, {"X": ["n"]}, {"z": ["n", K]})
    for name, backend in itertools.product(raw, BACKENDS):
        said = ["--outputs", "probabilities"] if name == "text" else []
        path = Path(shutil.copy(raw[name], tmp_path / f"{name}_{backend}.onnx"))
        fuse(tmp_path, path, *said, "--backend", backend)
    with triton_on(tmp_path / "models", tmp_path / "server", "--exit-on-error=true") as triton:
        assert triton.ready(), triton.log.read_text()
        for name, backend in itertools.product(raw, BACKENDS):
            x = X[:5] if name == "text" else X[:5, :1]
            sent = {"name": "X", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
            where = f"{triton.http}/v2/models/{name}_{backend}/infer"
            reply = triton.client.post(where, json={"inputs": [sent]})
            assert reply.status_code == 200, reply.text
            shown = {one["name"]: one["data"] for one in reply.json()["outputs"]}
            assert all(shown["receipt"])
            if name == "text":
                assert shown["label"] == GaussianNB().fit(X, texts).predict(x).tolist()
            else:
                plain = run(str(raw[name]), {"X": x[:, 0]})["z"]
                np.testing.assert_allclose(np.reshape(shown["logits"], (-1, K)), plain / 2, atol=1e-6)


def test_labels_are_decisions_of_a_row(tmp_path, monkeypatch):
    """The step that signs, on what the graph of a multi-label model gives."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    b.node("Sigmoid", b.node("Gemm", "x", b.normal(4, K), b.normal(K)), output="p")
    raw = graph(tmp_path, b, {"x": ["n", 4]}, {"p": ["n", K]})
    artifact(LogitMap.temperature(2.0), classes=K, outputs="label_logits").save(tmp_path / "a")
    arguments = ["fuse", "triton", str(raw), str(tmp_path / "a"), "-o", str(tmp_path / "models")]
    for name, backend in (("one", "python"), ("two", "onnxruntime")):
        CliRunner().invoke(
            app, [*arguments, "--name", name, "--device", "cpu", "--backend", backend], catch_exceptions=False
        )
    for step in ("one", "two_receipts"):
        assert '"multilabel"' in (tmp_path / "models" / step / "config.pbtxt").read_text()
    made = run(str(tmp_path / "models/one/1/model.onnx"), {"x": X[:5]})
    ring = Keyring.new()
    ring.save(tmp_path / "keyring.json")
    monkeypatch.setenv("CALIB_SERVE_KEYRING", str(tmp_path / "keyring.json"))
    monitor = Monitor(Mock(), model="one", bins=15, multilabel=True)
    signed = monitor.receipts("1", made["confidence"], made["predicted"])
    told = [[ring.verify(token.decode()) for token in row] for row in signed]
    assert [[r.predicted for r in row] for row in told] == (2 * np.arange(K) + made["predicted"]).tolist()
    groups = [{r.group for r in row} for row in told]
    assert all(len(own) == 1 and own != {0} for own in groups), "the decisions of a row depend on one another"
    assert len(set.union(*groups)) == len(groups)

"""Maps by source inside ONNX graphs and torch modules: each source's, and the common one of any other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from calib_serve.artifact import Artifact, SourceMaps
from calib_serve.core.errors import FuseError
from calib_serve.fuse import calibrated, fuse_onnx
from calib_serve.fuse.onnx import _layers

SITES = ("east", "north", "süd")
ASKED = ["süd", "east", "Mars", "", "north", "east"]
X = np.random.default_rng(1).normal(size=(6, 4)).astype("f4")


def weight(columns: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, columns)).astype("f4")


def graph(path: Path, columns: int, activation: str = "", ml: int = 0, batch: int | str = "n") -> Path:
    """A linear model with what scikit-learn's and other exporters put behind it."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
    axis = {} if activation == "Sigmoid" else {"axis": 1}
    nodes += [helper.make_node(activation, ["z"], ["p"], **axis)] if activation else []
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, d]) for n, d in (("x", 4), ("", columns))
    )
    y.name = "p" if activation else "z"
    made = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight(columns), "w")])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("ai.onnx.ml", ml)] if ml else [])]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    return path


def artifact(classes: int, outputs: str, *, biased: bool = True) -> Artifact:
    scales, bias = np.array([1.0, 0.5, 2.0, 0.8]), np.zeros((4, classes))
    bias[:, -1] = [0.1, -1.0, 2.0, 0.4]
    maps = SourceMaps("site", SITES, scales, bias if biased else None)
    facts = {"outputs": outputs, "input_shape": [4], "input_dtype": "float32"}
    return Artifact((maps,), method="logistic", classes=classes, model=facts)


def wanted(one: Artifact, columns: int, asked: list[str] = ASKED) -> np.ndarray:
    z = (X[: len(asked)] @ weight(columns)).astype("f8")
    return one.of_segments(np.concatenate([0 * z, z], axis=1) if columns == 1 else z, asked)[0]


@pytest.mark.parametrize(
    ("columns", "activation", "ml", "outputs"),
    [
        (3, "", 0, "logits"),
        (3, "Softmax", 1, "probabilities"),
        (2, "Softmax", 2, "logits"),
        (2, "", 4, "logits"),
        (1, "Sigmoid", 0, "logit"),
        (1, "Sigmoid", 0, "probability"),
        (1, "", 0, "logit"),
    ],
)
@pytest.mark.parametrize("returns", ["probabilities", "all"])
def test_a_graph_calibrates_each_row_as_of_the_source_that_its_input_names(
    tmp_path: Path, columns: int, activation: str, ml: int, outputs: str, returns: Any
) -> None:
    one = artifact(max(columns, 2), outputs, biased=columns < 3)
    path, out = graph(tmp_path / "raw.onnx", columns, activation, ml), tmp_path / "fused.onnx"
    report = fuse_onnx(path, one, out, unproven=True, returns=returns)
    assert "chosen by the new input 'site'" in "".join(report.done)
    session = ort.InferenceSession(out)
    feeds = {"x": X, "site": np.array(ASKED, object)}
    (found,) = session.run(["probabilities"], feeds)
    np.testing.assert_allclose(found, wanted(one, columns), atol=1e-6)


def test_a_graph_of_one_row_is_proved_at_every_source(tmp_path: Path) -> None:
    one, path = artifact(3, "logits"), graph(tmp_path / "raw.onnx", 3, batch=1)
    report = fuse_onnx(path, one, tmp_path / "fused.onnx", unproven=True)
    assert report.samples == 1


@pytest.mark.parametrize("wrong", range(4))
def test_a_wrong_map_of_any_source_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    right = _layers.map_by_source

    def altered(editor: Any, tail: Any, *, step: SourceMaps) -> Any:
        scales = step.weight.copy()
        scales[wrong] *= 1.01
        return right(editor, tail, step=SourceMaps(step.by, step.sources, scales, step.bias))

    monkeypatch.setattr("calib_serve.fuse.onnx._plan.map_by_source", altered)
    with pytest.raises(FuseError, match="differ by"):
        fuse_onnx(
            graph(tmp_path / "raw.onnx", 3),
            artifact(3, "logits"),
            tmp_path / "out.onnx",
            unproven=True,
            inputs={"x": X[:2]},
        )


def test_an_input_that_has_the_name_of_the_sources_is_refused(tmp_path: Path) -> None:
    one = Artifact((SourceMaps("x", ("a",), np.ones(2)),), method="temperature", classes=3)
    with pytest.raises(FuseError, match="an input 'x'"):
        fuse_onnx(
            graph(tmp_path / "raw.onnx", 3), one, tmp_path / "out.onnx", unproven=True, outputs="logits"
        )


def test_a_module_does_not_know_sources_and_takes_the_maps_of_one() -> None:
    model = torch.nn.Linear(4, 2, bias=False)
    model.weight = torch.nn.Parameter(torch.tensor(weight(2).T))
    one = artifact(2, "logits")
    with pytest.raises(FuseError, match=r"Artifact\.at"):
        calibrated(model, one)
    found = calibrated(model, one.at("north"))(torch.tensor(X))
    np.testing.assert_allclose(found.detach().numpy(), wanted(one, 2, ["north"] * 6), atol=1e-6)


def test_tritons_python_backend_reads_sources_that_come_as_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    from calib_serve.fuse.triton import graph as served

    one = artifact(3, "logits")
    (tmp_path / "1").mkdir()
    fuse_onnx(graph(tmp_path / "m.onnx", 3), one, tmp_path / "1" / "model.onnx", returns="all", unproven=True)
    triton = SimpleNamespace(Tensor=lambda name, array: (name, array), InferenceResponse=dict)
    monkeypatch.setattr(served, "open_triton", lambda: triton)
    config = {"max_batch_size": 8, "instance_group": [{"count": 1}]}
    at = {"model_config": json.dumps(config), "model_version": "1", "model_repository": str(tmp_path)}
    model = served.TritonPythonModel()
    model.initialize({**at, "model_instance_kind": "CPU"})
    asked = np.array([text.encode() for text in ASKED], object)  # as the backend's as_numpy gives them

    def sent(rows: slice) -> Any:
        given = [("x", X[rows]), ("site", asked[rows])]
        inputs = [SimpleNamespace(name=lambda n=n: n, as_numpy=lambda a=a: a) for n, a in given]
        return SimpleNamespace(inputs=lambda: inputs, requested_output_names=lambda: ["probabilities"])

    for parts in ([slice(0, 6)], [slice(0, 2), slice(2, 6)]):
        got = [response["probabilities"] for response in model.execute(list(map(sent, parts)))]
        np.testing.assert_allclose(np.concatenate(got), wanted(one, 3), atol=1e-6)

"""Archives of every kind answer alike over REST and gRPC, on one real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from live_server import (
    CLASSES,
    WIDTH,
    Running,
    inputs,
    network,
    temperature_artifact,
    total,
    until,
)
from onnx import TensorProto, helper, numpy_helper
from scripted import scripted, told
from sizes import sized

from calib_serve import Artifact
from calib_serve.artifact import Head, InputShift, LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.core.files import sha256
from calib_serve.torchserve import pack, pack_around
from calib_serve.torchserve.archive._archive import write_archive

pytestmark = pytest.mark.server
KINDS = sized(
    ci=("exported", "onnx"),
    nightly=("torchscript", "exported", "onnx"),
)
OLD_HANDLER = '''
import json
import torch
from ts.torch_handler.base_handler import BaseHandler


class Mine(BaseHandler):
    """Centimetres in, percent out: both must survive being calibrated."""

    def preprocess(self, data):
        rows = [row.get("body") or row.get("data") for row in data]
        return torch.tensor([row["centimetres"] for row in rows]) / 100

    def postprocess(self, outputs):
        return [{"percent": [round(100 * v, 4) for v in p]} for p in torch.softmax(outputs, 1).tolist()]
'''


def onnx_file(path: Path) -> Path:
    """The small classifier as ONNX, by hand."""
    state = {k: v.numpy() for k, v in network().state_dict().items()}
    tensors = [numpy_helper.from_array(v, k.replace(".", "_")) for k, v in state.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "0_weight", "0_bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "2_weight", "2_bias"], ["logits"], transB=1),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])]
        for name, width in (("x", WIDTH), ("logits", CLASSES))
    ]
    graph = helper.make_graph(nodes, "net", *ends, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def exported_file(path: Path) -> Path:
    batch = torch.export.Dim("n", min=1, max=64)
    program = torch.export.export(network(), (torch.zeros(2, WIDTH),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def full_artifact() -> Artifact:
    """Every step that reaches into the model: a shift of the input and a new last layer."""
    rng = np.random.default_rng(4)
    steps = (
        InputShift(rng.normal(size=WIDTH).astype(np.float32) * 0.1),
        Head((rng.normal(size=(CLASSES, 32)).astype(np.float32) * 0.3,), (np.zeros(CLASSES, np.float32),)),
        LogitMap(np.linspace(0.4, 0.9, CLASSES), np.linspace(-0.2, 0.2, CLASSES)),
    )
    return replace(temperature_artifact(), steps=steps)


def expected(x: np.ndarray) -> np.ndarray:
    """The full artifact's probabilities, straight from its definition."""
    artifact, net = full_artifact(), network()
    with torch.inference_mode():
        features = net[:2](torch.from_numpy(artifact.input_shift(x))).numpy()
    return artifact.probs(artifact.head(features))


def existing_archive(folder: Path) -> Path:
    """What somebody serves today: their own handler around a TorchScript model."""
    folder.mkdir()
    (folder / "mine.py").write_text(OLD_HANDLER)
    files = {"mine.py": folder / "mine.py", "net.pt": scripted(folder / "net.pt", network())}
    return write_archive(
        folder / "old.mar", files, name="old", version="3.1", handler="mine.py", serialized_file="net.pt"
    )


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("kinds")
    models = {
        "torchscript": scripted(folder / "net.pt", network()),
        "exported": exported_file(folder / "net.pt2"),
        "onnx": onnx_file(folder / "net.onnx"),
    }
    for name in KINDS:
        with told(name == "torchscript"):
            pack(models[name], full_artifact(), folder / "store", name=name, unproven=True)
    old = existing_archive(folder / "old")
    fitted = replace(full_artifact(), steps=full_artifact().steps[2:])
    request = folder / "requests" / "any" / "request.json"
    request.parent.mkdir(parents=True)
    request.write_text(json.dumps({"centimetres": [1.0] * WIDTH}))
    pack_around(old, fitted, folder / "store", probe_data=str(folder / "requests"), unproven=True)
    return register(*sorted((folder / "store").glob("*.mar")))


@pytest.mark.parametrize("kind", KINDS)
def test_over_rest_every_kind_gives_the_artifact_s_probabilities(running: Running, kind: str) -> None:
    x = inputs(20, seed=11)
    replies = [reply.json() for reply in running.predict_all(x, kind)]
    np.testing.assert_allclose([r["probabilities"] for r in replies], expected(x), atol=1e-6)
    assert {r["model"] for r in replies} == {kind}


def test_a_repacked_archive_keeps_its_handler_and_is_calibrated(running: Running) -> None:
    x = inputs(10, seed=13)
    with torch.inference_mode():
        logits = network()(torch.from_numpy(x)).numpy()
    wanted = replace(full_artifact(), steps=full_artifact().steps[2:]).probs(logits)
    for row, probs in zip(x, wanted, strict=True):
        reply = running.http.post("/predictions/old", json={"centimetres": (row * 100).tolist()})
        np.testing.assert_allclose(reply.json()["percent"], 100 * probs, atol=2e-3)
        receipt = running.keyring.verify(reply.headers["x-calib-receipt"])
        assert (receipt.model, receipt.version, receipt.predicted) == (
            "old",
            "3.1-calibrated",
            probs.argmax(),
        )
        assert repr(receipt.confidence) == reply.headers["x-calib-confidence"]
    until(lambda: total(running.server.scrape(), "calib_predictions_total", model="old") == 10)


def test_a_model_that_the_artifact_was_not_fitted_on_is_refused(tmp_path: Path) -> None:
    model = exported_file(tmp_path / "net.pt2")
    facts = {"input_shape": [WIDTH], "sha256": "0" * 64}
    with pytest.raises(FuseError, match="nothing shows that"):
        pack(model, temperature_artifact(model=facts), tmp_path, name="digits")
    facts["sha256"] = sha256(model)
    assert pack(model, temperature_artifact(model=facts), tmp_path, name="digits").is_file()

"""Multi-label archives of others behind TorchServe's envelopes: each label of each row has its receipt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_handlers import Foreign, archive, own
from label_handlers import NAMES, calibrated, labels_artifact, logits_of
from live_server import CLASSES, Running, inputs
from protocol_clients import model_infer, predictions

from calib_serve.fuse.torchserve import pack_around

pytestmark = [
    pytest.mark.server,
    pytest.mark.nightly,
]

X = inputs(3, seed=51)
WANTED = calibrated(logits_of(X))
REQUEST = {"name": "x", "shape": [16], "datatype": "FP32", "data": [0.5] * 16}
V2 = own(
    """
def preprocess(self, data):
    return torch.tensor([row["data"] for row in data])

def postprocess(self, outputs):
    return torch.sigmoid(outputs).tolist()
"""
)


Register = Callable[..., Running]


def behind(
    register: Register, folder: Path, name: str, foreign: Foreign, request: Any, *, envelope: str
) -> Running:
    (folder / "request.json").write_text(json.dumps(request))
    source = archive(name, folder / "old", foreign)
    how = {"request": folder / "request.json", "outputs": "label_logits"}
    return register(pack_around(source, labels_artifact(), folder / "store", **how), envelope=envelope)


@pytest.fixture(scope="module")
def v1(register: Register, tmp_path_factory: pytest.TempPathFactory) -> Running:
    # TorchServe's own handler, which replies what the model returns: here label logits.
    foreign, folder = Foreign("base_handler", model="torchscript"), tmp_path_factory.mktemp("v1")
    return behind(register, folder, "tags1", foreign, REQUEST["data"], envelope="kserve")


@pytest.fixture(scope="module")
def v2(register: Register, tmp_path_factory: pytest.TempPathFactory) -> Running:
    foreign, folder = Foreign(V2, model="torchscript"), tmp_path_factory.mktemp("v2")
    return behind(register, folder, "tags2", foreign, REQUEST, envelope="kservev2")


def check(running: Running, rows: list[list[dict[str, Any]]]) -> None:
    """Each is of its own label and row, and its label is counted once."""
    for told, probs in zip(rows, WANTED, strict=False):
        assert [one["label"] for one in told] == list(NAMES)
        assert [one["predicted"] for one in told] == (probs >= 0.5).tolist()
        found = [running.keyring.verify(one["receipt"]) for one in told]
        assert [r.predicted for r in found] == [2 * k + bool(p >= 0.5) for k, p in enumerate(probs)]
        np.testing.assert_allclose([r.confidence for r in found], np.maximum(probs, 1 - probs), atol=1e-6)
    labels = [{"receipt": one["receipt"], "label": True} for told in rows for one in told]
    assert [running.label(labels).json()["accepted"] for _ in range(2)] == [len(rows) * CLASSES, 0]


@pytest.mark.parametrize("n", [1, 3])
def test_kserve_v1_has_a_list_of_labels_beside_each_prediction(v1: Running, n: int) -> None:
    body = v1.http.post("/v1/models/tags1:predict", json={"instances": X[:n].tolist()}).json()
    over = predictions(v1, "tags1", data=json.dumps({"instances": X[:n].tolist()}).encode())
    for found in (body, over):
        assert set(found) == {"predictions", "labels"}
        probs = 1 / (1 + np.exp(-np.array(found["predictions"])))
        np.testing.assert_allclose(probs, WANTED[:n], atol=1e-6)
        check(v1, found["labels"])


@pytest.mark.parametrize("n", [1, 3])
def test_kserve_v2_has_them_in_the_parameters_of_each_output(v2: Running, n: int) -> None:
    asked = [{**REQUEST, "name": f"x{i}", "data": X[i].tolist()} for i in range(n)]
    reply = v2.http.post("/v2/models/tags2/infer", json={"id": "7", "inputs": asked}).json()
    np.testing.assert_allclose([one["data"] for one in reply["outputs"]], WANTED[:n], atol=1e-6)
    check(v2, [json.loads(one["parameters"]["labels"]) for one in reply["outputs"]])


def test_over_grpc_v2_has_them_in_tensors(v2: Running) -> None:
    found = model_infer(v2, "tags2", *[(f"x{i}", "FP32", [16], X[i].tolist()) for i in range(2)])
    assert found["receipt_label"] == [[*range(CLASSES)]] * 2
    np.testing.assert_allclose(found["confidence"], np.maximum(WANTED, 1 - WANTED)[:2], atol=1e-6)
    found_receipts = [[v2.keyring.verify(r).predicted for r in row] for row in found["receipt"]]
    assert found_receipts == [[2 * k + bool(p >= 0.5) for k, p in enumerate(row)] for row in WANTED[:2]]

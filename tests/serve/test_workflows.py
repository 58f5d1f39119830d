"""A calibrated model as a node of a TorchServe workflow, on a real server."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from live_server import Running, inputs, network, serve, temperature_artifact, torchscript, until

from calib_serve.fuse.torchserve import Batching, pack, pack_feedback

pytestmark = pytest.mark.server

NODES = """
import base64
import json


def prepare(data, context):
    if data is None:
        return None
    bodies = [row.get("data") or row.get("body") for row in data]
    bodies = [json.loads(body) if isinstance(body, (bytes, bytearray)) else body for body in bodies]
    return [_encoded(body) for body in bodies]


def _encoded(body):
    encode = isinstance(body, dict) and "encode" in body
    return base64.b64encode(json.dumps(body["encode"]).encode()).decode() if encode else body
"""

SPEC = """
models:
  min-workers: 1
  max-workers: 1
  batch-size: 2
  max-batch-delay: 5
  retry-attempts: 0
  timeout-ms: 60000
  digits:
    url: digits.mar
dag:
  prepare: [digits]
"""


def workflow(folder: Path, name: str) -> None:
    """An archive as torch-workflow-archiver 0.2.15 writes it."""
    manifest = {
        "createdOn": "21/11/2026 22:22:21",
        "workflow": {"workflowName": name, "specFile": f"{name}.yaml", "handler": "nodes.py"},
        "archiverVersion": "0.2.15",
    }
    with zipfile.ZipFile(folder / f"{name}.war", "w") as file:
        file.writestr("nodes.py", NODES)
        file.writestr(f"{name}.yaml", SPEC)
        file.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("workflows")
    pack(torchscript(folder / "net.pt"), temperature_artifact(), folder, name="digits", batching=Batching())
    pack_feedback(folder)
    workflow(folder, "line")
    served = ["digits.mar", "calibration_feedback.mar"]
    for one in serve(folder, served, folder / "run", workflow_store=str(folder)):
        headers = {"Authorization": f"Bearer {one.server.tokens.management}"}
        address = f"{one.server.management}/workflows"
        with httpx.Client(headers=headers, timeout=120, trust_env=False) as http:
            reply = http.post(address, params={"url": "line.war"})
        assert reply.status_code == 200, reply.text
        yield one


def asked(running: Running, workflow_name: str, body: Any) -> Any:
    """The reply once TorchServe's own function nodes have answered: it gives up on one that is slow."""

    def answered() -> Any:
        reply = running.http.post(f"/wfpredict/{workflow_name}", json=body)
        if "Error executing prepare" in reply.text:
            return None
        assert reply.status_code == 200, reply.text  # TorchServe drops a node's status
        return reply

    return until(answered).json()


@pytest.mark.parametrize("encode", [False, True])
def test_a_workflow_s_reply_holds_a_receipt_that_counts(running: Running, encode: bool) -> None:
    x = inputs(1, seed=3)[0]
    reply = asked(running, "line", {"encode": x.tolist()} if encode else x.tolist())
    with torch.inference_mode():
        wanted = temperature_artifact().probs(network()(torch.from_numpy(x[None])).numpy())[0]
    np.testing.assert_allclose(reply["probabilities"], wanted, atol=1e-6)
    assert running.keyring.verify(reply["receipt"]).confidence == pytest.approx(wanted.max())
    item = {"receipt": reply["receipt"], "label": 1}
    assert [running.label(item).json()["accepted"] for _ in range(2)] == [1, 0]

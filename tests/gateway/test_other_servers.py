"""The gateway before KServe's server, over REST and gRPC."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gateways import WEIGHT, Running, gateway, logits, probs
from live_server import until
from processes import started
from server_environments import server_environ, server_python
from test_triton_gateway import over_grpc, over_rest, softmaxed, texts
from triton_server import free_port

from calib_serve import Keyring

pytestmark = pytest.mark.server

KSERVE = """
import sys
import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer

class Digits(Model):
    def load(self):
        self.ready = True

    def predict(self, payload, headers=None):
        logits = (payload.inputs[0].as_numpy() @ np.array({weight})).astype("f4")
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(logits, binary_data=bool(payload.request_outputs or payload.from_grpc))
        return InferResponse(payload.id, "digits", [output])

if __name__ == "__main__":
    digits = Digits("digits")
    digits.load()
    ModelServer(enable_grpc=True).start([digits])
"""


def ready(url: str, process: subprocess.Popen[Any]) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[tuple[Path, Running]]:
    python, folder = server_python("kserve"), tmp_path_factory.mktemp("kserve")
    http, grpc = free_port(), free_port()
    (folder / "plain.py").write_text(KSERVE.format(weight=WEIGHT.tolist()))
    command = [str(python), "plain.py", "--http_port", str(http), "--grpc_port", str(grpc)]
    with started(command, cwd=folder, env=server_environ("kserve")) as process:
        url, address = f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        until(lambda: ready(f"{url}/v2/models/digits/ready", process), seconds=120)
        with gateway(folder, url, "--output", "logits", models=[model], grpc=address) as running:
            yield folder, running


@pytest.mark.parametrize("ask", [over_rest, over_grpc], ids=["rest", "grpc"])
def test_replies_are_calibrated(kserve: tuple[Path, Running], ask: Any) -> None:
    folder, running = kserve
    found = ask(running, request_id="seven")  # KServe asks for one
    np.testing.assert_allclose(softmaxed(found["logits"]), probs(), atol=1e-6)
    np.testing.assert_allclose(found["confidence"].ravel(), probs().max(axis=1), atol=1e-6)
    ring = Keyring.load(folder / "keys.json")
    receipts = [ring.verify(one) for one in texts(found["receipt"].ravel())]
    assert [one.predicted for one in receipts] == logits().argmax(axis=1).tolist()
    assert running.counted("calib_uncalibrated_total") == 0

"""The gateway before KServe's server, asked by KServe's own clients, over REST and gRPC."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gateways import WEIGHT, Running, X, gateway, logits, probs
from live_server import until
from processes import started
from server_environments import server_environ, server_python
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

KSERVE_CLIENT = """
import asyncio, json, sys
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

url, address, binary = sys.argv[1], sys.argv[2], sys.argv[3] == "binary"
x = np.array(json.loads(sys.argv[4]), "f4")

def request():
    sent = InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x, binary_data=binary)
    return InferRequest("digits", [sent], request_id="seven")

def told(reply):
    return {one.name: [v.decode() if isinstance(v, bytes) else v for v in one.as_numpy().ravel().tolist()]
            for one in reply.outputs}

async def main():
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    found = [told(await rest.infer(url, request(), model_name="digits"))]
    assert await rest.is_server_ready(url) and await rest.is_model_ready(url, "digits")
    grpc = InferenceGRPCClient(address)
    found.append(told(await grpc.infer(request())))
    assert await grpc.is_model_ready("digits")
    print(json.dumps(found))

asyncio.run(main())
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


def check(found: dict[str, Any], folder: Path, x: np.ndarray = X) -> None:
    """Values by the outputs' names, flat."""
    given = np.exp(np.reshape(found["logits"], (len(x), -1)))
    np.testing.assert_allclose(given / given.sum(axis=1, keepdims=True), probs(x), atol=1e-6)
    np.testing.assert_allclose(found["confidence"], probs(x).max(axis=1), atol=1e-6)
    ring = Keyring.load(folder / "keys.json")
    assert [ring.verify(one).predicted for one in found["receipt"]] == logits(x).argmax(axis=1).tolist()


@pytest.mark.parametrize("form", ["json", "binary"])
def test_kserves_own_clients_get_calibrated_replies(
    kserve: tuple[Path, Running], tmp_path: Path, form: str
) -> None:
    folder, running = kserve
    (tmp_path / "client.py").write_text(KSERVE_CLIENT)
    told = [running.http, running.grpc, form, json.dumps(X.tolist())]
    done = subprocess.run(
        [server_python("kserve"), tmp_path / "client.py", *told],
        check=True,
        env=server_environ("kserve"),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    for found in json.loads(done.stdout.splitlines()[-1]):
        check(found, folder)
    assert running.counted("calib_uncalibrated_total") == 0

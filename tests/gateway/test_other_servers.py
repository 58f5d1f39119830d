"""The gateway before MLServer and KServe's server, asked by their own clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gateways import WEIGHT, Running, X, artifact, gateway, logits, probs
from live_server import until
from processes import started
from server_environments import server_environ, server_python
from test_triton_gateway import over_grpc
from triton_server import free_port

from calib_serve import Keyring

pytestmark = pytest.mark.server

MLSERVER = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Digits(MLModel):
    async def predict(self, payload):
        logits = NumpyCodec.decode_input(payload.inputs[0]) @ np.array({weight})
        outputs = [NumpyCodec.encode_output("logits", logits)]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
"""

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


@contextmanager
def served(name: str, folder: Path, command: Sequence[Any], http: int, grpc: int) -> Iterator[Running]:
    artifact().save(folder / "artifact")
    with started([str(one) for one in command], cwd=folder, env=server_environ(name)) as process:
        until(lambda: ready(f"http://127.0.0.1:{http}/v2/models/digits/ready", process), seconds=120)
        with gateway(
            folder,
            f"http://127.0.0.1:{http}",
            "--output",
            "logits",
            models=[f"digits={folder / 'artifact'}"],
            grpc=f"127.0.0.1:{grpc}",
        ) as running:
            yield running


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    program, folder = server_python("mlserver").parent / "mlserver", tmp_path_factory.mktemp("mlserver")
    http, grpc, metrics = free_port(), free_port(), free_port()
    ports = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "settings.json").write_text(json.dumps({**ports, "parallel_workers": 0}))
    (folder / "model-settings.json").write_text('{"name": "digits", "implementation": "plain.Digits"}')
    (folder / "plain.py").write_text(MLSERVER.format(weight=WEIGHT.tolist()))
    with served("mlserver", folder, [program, "start", "."], http, grpc) as running:
        yield folder, running


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    python, folder = server_python("kserve"), tmp_path_factory.mktemp("kserve")
    http, grpc = free_port(), free_port()
    (folder / "plain.py").write_text(KSERVE.format(weight=WEIGHT.tolist()))
    command = [python, "plain.py", "--http_port", http, "--grpc_port", grpc]
    with served("kserve", folder, command, http, grpc) as running:
        yield folder, running


def check(found: dict[str, Any], folder: Path, x: np.ndarray = X) -> None:
    """Values by the outputs' names, flat."""
    given = np.exp(np.reshape(found["logits"], (len(x), -1)))
    np.testing.assert_allclose(given / given.sum(axis=1, keepdims=True), probs(x), atol=1e-6)
    np.testing.assert_allclose(found["confidence"], probs(x).max(axis=1), atol=1e-6)
    ring = Keyring.load(folder / "keys.json")
    assert [ring.verify(one).predicted for one in found["receipt"]] == logits(x).argmax(axis=1).tolist()


def test_mlserver_over_rest_and_grpc(mlserver: tuple[Path, Running]) -> None:
    folder, running = mlserver
    sent = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}
    for more in ({}, {"outputs": [{"name": "logits"}]}):
        reply = running.client.post(f"{running.http}/v2/models/digits/infer", json={"inputs": [sent], **more})
        check({one["name"]: np.ravel(one["data"]).tolist() for one in reply.json()["outputs"]}, folder)
    found = over_grpc(running)
    found["receipt"] = np.array([one.decode() for one in found["receipt"].tolist()])
    check(found, folder)
    assert running.counted("calib_uncalibrated_total") == 0


@pytest.mark.nightly
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

"""A real gateway before real servers, whose models are small and need numpy alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc as grpcio
import httpx
import numpy as np
from deciding import IN_SEGMENTS, choosing
from processes import ended_on_failure, free_port, started
from tritonclient.grpc import service_pb2

from calib_serve import Artifact, Keyring
from calib_serve.artifact import Abstain, LogitMap, PredictionSets
from calib_serve.scores import softmax

WIDTH, CLASSES = 4, 3
WEIGHT = np.random.default_rng(0).normal(size=(WIDTH, CLASSES)).astype("f4") * 2
X = np.random.default_rng(1).normal(size=(5, WIDTH)).astype("f4")

_MODEL = """
import time

import numpy as np
import triton_python_backend_utils as triton

WEIGHT = np.array({weight}, "f4")

class TritonPythonModel:
    def execute(self, requests):
        replies = []
        for request in requests:
            x = triton.get_input_tensor_by_name(request, "x").as_numpy()
            time.sleep({seconds})
            z = x @ WEIGHT
            made = dict(
                logits=z.astype("f4"),
                half=z.astype("f2"),
                best=z.argmax(axis=1).astype("i8"),
                name=np.array([str(k).encode() for k in z.argmax(axis=1)], object),
            )
            replies.append(triton.InferenceResponse(
                [triton.Tensor(name, made[name]) for name in request.requested_output_names()]
            ))
        return replies
"""

_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {width} ] }} ]
output [
  {{ name: "logits" data_type: TYPE_FP32 dims: [ {classes} ] }},
  {{ name: "half" data_type: TYPE_FP16 dims: [ {classes} ] }},
  {{ name: "best" data_type: TYPE_INT64 dims: [ 1 ] reshape: {{ shape: [ ] }} }},
  {{ name: "name" data_type: TYPE_STRING dims: [ 1 ] reshape: {{ shape: [ ] }} }}
]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
version_policy: {{ all: {{ }} }}
"""


def repository(folder: Path, *names: str, versions: tuple[int, ...] = (1,), seconds: float = 0) -> Path:
    """Models that give the same logits, in several datatypes, after so many seconds."""
    for name in names:
        for version in versions:
            (folder / name / str(version)).mkdir(parents=True)
            (folder / name / str(version) / "model.py").write_text(
                _MODEL.format(weight=WEIGHT.tolist(), seconds=seconds)
            )
        config = _CONFIG.format(name=name, width=WIDTH, classes=CLASSES)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


def artifact(**more: object) -> Artifact:
    """A temperature, prediction sets, abstention and a contract for these models."""
    found = {
        "model": {"outputs": "logits"},
        "class_names": ("cat", "dog", "emu"),
        "sets": PredictionSets(np.array(0.6), coverage=0.9),
        "abstain": Abstain(0.5, risk=0.05),
        "contract": IN_SEGMENTS,
        "choice": choosing(CLASSES),
    }
    return Artifact((LogitMap.temperature(2.0),), method="temperature", classes=CLASSES, **{**found, **more})


def logits(x: np.ndarray = X) -> np.ndarray:
    """What the models give."""
    return x @ WEIGHT


def probs(x: np.ndarray = X) -> np.ndarray:
    """What the artifact makes of it."""
    return softmax(logits(x).astype("f8") / 2.0)


@dataclass
class Running:
    """A gateway that was started."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    client: httpx.Client

    def series(self, name: str) -> dict[str, float]:
        """Samples of a family by their labels, as they are written."""
        lines = self.client.get(f"{self.http}/calibration/metrics").text.splitlines()
        found = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith(f"{name}{{"))
        return {labels: float(value) for labels, _, value in found}

    def counted(self, name: str) -> float:
        """Their sum."""
        return sum(self.series(name).values())


INFER = "/v2/models/digits/infer"


def post(
    running: Running, content: bytes = b'{"inputs": []}', path: str = INFER, **more: Any
) -> httpx.Response:
    """An inference."""
    return running.client.post(running.http + path, content=content, **more)


def receipts(found: httpx.Response) -> list[str]:
    """Those of its reply."""
    assert found.status_code == 200, found.text
    return next(one["data"] for one in found.json()["outputs"] if one["name"] == "receipt")


def document(**more: Any) -> bytes:
    """A reply of the model, of five rows."""
    z = logits()
    output = {"name": "logits", "datatype": "FP32", "shape": list(z.shape), "data": z.ravel().tolist()}
    found = {"model_name": "digits", "model_version": "1", "outputs": [{**output, **more.pop("output", {})}]}
    return json.dumps({**found, **more}).encode()


METHOD = "/inference.GRPCInferenceService/ModelInfer"
ASKED = service_pb2.ModelInferRequest(model_name="digits").SerializeToString()


def message(*_: Any) -> bytes:
    """The same reply over gRPC, in typed contents."""
    z = logits()
    found = service_pb2.ModelInferResponse(model_name="digits", model_version="1")
    found.outputs.add(name="logits", datatype="FP32", shape=z.shape).contents.fp32_contents.extend(z.ravel())
    return found.SerializeToString()


@dataclass
class Answers:
    """A server of ModelInfer: ``answer`` makes the reply of a request and its context."""

    address: str
    answer: Callable[[bytes, Any], bytes] = message


@contextmanager
def answering(tls: tuple[bytes, bytes] | None = None) -> Iterator[Answers]:
    """One that listens until the end; ``tls``: its key and certificate, PEM."""
    found = Answers("")

    def answer(sent: bytes, context: Any) -> bytes:
        return found.answer(sent, context)

    class Handler(grpcio.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            mine = details.method == METHOD
            return grpcio.unary_unary_rpc_method_handler(answer) if mine else None

    made = grpcio.server(futures.ThreadPoolExecutor(8), handlers=(Handler(),))
    if tls is None:
        found.address = f"127.0.0.1:{made.add_insecure_port('127.0.0.1:0')}"
    else:
        secure = grpcio.ssl_server_credentials([tls])
        found.address = f"grpcs://127.0.0.1:{made.add_secure_port('127.0.0.1:0', secure)}"
    made.start()
    try:
        yield found
    finally:
        made.stop(0).wait()


@contextmanager
def gateway(
    folder: Path,
    upstream: str,
    *options: str,
    models: Sequence[str],
    grpc: str = "",
    ledger: bool = True,
    limits: str = "",
) -> Iterator[Running]:
    """One before ``upstream``, ready; it counts in ``folder``. ``limits`` sets constants."""
    if not (folder / "keys.json").exists():
        Keyring.new().save(folder / "keys.json")
    port, other = free_port(), free_port()
    told = ["--upstream", upstream, "--port", str(port), "--keyring", str(folder / "keys.json")]
    told += ["--ledger", str(folder / "ledger.db")] if ledger else []
    told += ["--grpc-upstream", grpc, "--grpc-port", str(other)] if grpc else []
    command = [sys.executable, "-c", f"{limits}from calib_serve.app import main; main()", "gateway"]
    scheme = "https" if "--tls-cert" in options else "http"
    with (
        started([*command, *models, *told, *options], text=True) as process,
        httpx.Client(timeout=60, verify=False) as client,
        ended_on_failure(process),
    ):
        until = time.monotonic() + 90
        while not _listens(port):
            assert process.poll() is None, "the gateway ended"
            assert time.monotonic() < until, "the gateway did not start within 90 s"
            time.sleep(0.05)
        yield Running(process, f"{scheme}://127.0.0.1:{port}", f"127.0.0.1:{other}", client)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

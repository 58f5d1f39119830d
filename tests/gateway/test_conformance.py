"""What is not calibrated comes through the gateway as from the server: status, headers and body, by byte."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from gateways import Running, X, artifact, gateway, repository
from test_triton_gateway import _grpc_of, request
from triton_server import Triton, needs_tritonserver, triton_on
from tritonclient.grpc import service_pb2

pytestmark = pytest.mark.server

SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    needs_tritonserver()
    folder = tmp_path_factory.mktemp("conformance")
    repository(folder / "models", "digits", "other")
    with triton_on(folder / "models", folder / "server") as found:
        yield found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, triton: Triton) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("conforming")
    artifact().save(folder / "artifact")
    model = f"digits={folder / 'artifact'}"
    with gateway(folder, triton.http, "--output", "logits", models=(model,), grpc=_grpc_of(triton)) as found:
        yield found


@dataclass(frozen=True)
class Answer:
    """An answer's status, its headers but those of a connection or a clock, and its body without chunks."""

    status: int
    headers: tuple[bytes, ...]
    body: bytes


def raw(url: str, sent: bytes) -> bytes:
    """All that comes back on a connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        found = b""
        while more := connection.recv(1 << 16):
            found += more
    return found


def answer(url: str, sent: bytes) -> Answer:
    head, _, body = raw(url, sent).partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    clock = re.compile(rb"(?i)(date|connection|transfer-encoding|keep-alive):")
    kept = tuple(sorted(one for one in headers if not clock.match(one)))
    return Answer(int(first.split()[1]), kept, body)


def message(
    method: str, path: str, body: bytes = b"", *headers: str, chunked: bool = False, close: bool = True
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, *["Connection: close"] * close]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        half = len(body) // 2
        parts = [one for one in (body[:half], body[half:]) if one]
        body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in parts) + b"0\r\n\r\n"
    elif body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


OTHER = json.dumps(request(outputs=[{"name": "logits"}, {"name": "best"}])).encode()
BINARY = json.dumps({**request(), "parameters": {"binary_data_output": True}}).encode()
JSON_THEN_BYTES = json.dumps(
    {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": list(X.shape),
                "parameters": {"binary_data_size": X.nbytes},
            }
        ],
        "outputs": [{"name": "logits"}],
    }
).encode()
LENGTH = f"Inference-Header-Content-Length: {len(JSON_THEN_BYTES)}"

MESSAGES = {
    "live": message("GET", "/v2/health/live"),
    "ready": message("GET", "/v2/health/ready"),
    "server metadata": message("GET", "/v2"),
    "model metadata": message("GET", "/v2/models/digits"),
    "model ready": message("GET", "/v2/models/digits/ready"),
    "model config": message("GET", "/v2/models/digits/config"),
    "a version's metadata": message("GET", "/v2/models/digits/versions/1"),
    "no such version": message("GET", "/v2/models/digits/versions/9"),
    "no such model": message("GET", "/v2/models/nothing"),
    "nothing": message("GET", "/"),
    "no such path": message("GET", "/nothing?at=all&more"),
    "no such method": message("DELETE", "/v2/models/digits"),
    "the repository": message("POST", "/v2/repository/index", b"{}"),
    "shared memory": message("GET", "/v2/systemsharedmemory/status"),
    "another model": message("POST", "/v2/models/other/infer", OTHER),
    "another model, chunked": message("POST", "/v2/models/other/infer", OTHER, chunked=True),
    "another model, binary": message("POST", "/v2/models/other/infer", BINARY),
    "another model, bytes after JSON": message(
        "POST", "/v2/models/other/infer", JSON_THEN_BYTES + X.tobytes(), LENGTH
    ),
    "another model, compressed": message(
        "POST", "/v2/models/other/infer", gzip.compress(OTHER, mtime=0), "Content-Encoding: gzip"
    ),
    "another model, answered compressed": message(
        "POST", "/v2/models/other/infer", OTHER, "Accept-Encoding: gzip"
    ),
    "another model, classified": message(
        "POST",
        "/v2/models/other/infer",
        json.dumps(request(outputs=[{"name": "logits", "parameters": {"classification": 2}}])).encode(),
    ),
    "an error of another model": message("POST", "/v2/models/other/infer", b'{"inputs": []}'),
    "an error of the calibrated model": message("POST", "/v2/models/digits/infer", b'{"inputs": []}'),
    "no JSON for the calibrated model": message("POST", "/v2/models/digits/infer", b"{"),
    "an unknown output of the calibrated model": message(
        "POST", "/v2/models/digits/infer", json.dumps(request(outputs=[{"name": "no"}])).encode()
    ),
    "generate": message("POST", "/v2/models/other/generate", b'{"x": [1, 2, 3, 4]}'),
}


@pytest.mark.parametrize("sent", MESSAGES.values(), ids=MESSAGES)
def test_an_answer_is_the_servers_by_byte(running: Running, triton: Triton, sent: bytes) -> None:
    assert answer(running.http, sent) == answer(triton.http, sent)


def test_one_connection_serves_several_requests_and_ends_when_it_is_told_to(running: Running) -> None:
    one = message("GET", "/v2/models/digits", close=False)
    found = raw(
        running.http, one + message("POST", "/v2/models/other/infer", OTHER, close=False) + MESSAGES["live"]
    )
    assert found.count(b"HTTP/1.1 200") == 3


METHODS = {
    "ServerLive": service_pb2.ServerLiveRequest(),
    "ServerMetadata": service_pb2.ServerMetadataRequest(),
    "ModelMetadata": service_pb2.ModelMetadataRequest(name="digits"),
    "ModelConfig": service_pb2.ModelConfigRequest(name="digits"),
    "ModelReady": service_pb2.ModelReadyRequest(name="nothing"),
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "NoSuchMethod": service_pb2.ServerLiveRequest(),
    "ModelInfer": service_pb2.ModelInferRequest(model_name="other"),
}


def called(address: str, method: str, sent: bytes) -> tuple[object, object]:
    with grpc.insecure_channel(address) as channel:
        try:
            return None, channel.unary_unary(method)(sent, timeout=30)
        except grpc.RpcError as error:
            return error.code(), error.details()


@pytest.mark.parametrize("name", METHODS)
def test_a_call_of_grpc_is_the_servers_by_byte(running: Running, triton: Triton, name: str) -> None:
    sent = METHODS[name].SerializeToString()
    assert called(running.grpc, SERVICE + name, sent) == called(_grpc_of(triton), SERVICE + name, sent)


def infer_request(model: str) -> service_pb2.ModelInferRequest:
    sent = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[X.tobytes()])
    sent.inputs.add(name="x", datatype="FP32", shape=list(X.shape))
    sent.outputs.add(name="logits")
    return sent


def test_other_models_and_other_services_pass_over_grpc_by_byte(running: Running, triton: Triton) -> None:
    sent = infer_request("other").SerializeToString()
    assert called(running.grpc, f"{SERVICE}ModelInfer", sent) == called(
        _grpc_of(triton), f"{SERVICE}ModelInfer", sent
    )
    for bad in (b"\xff\xff", b""):
        for method in (f"{SERVICE}ModelInfer", "/grpc.health.v1.Health/Check"):
            assert called(running.grpc, method, bad) == called(_grpc_of(triton), method, bad)
    assert called(running.grpc, "/no.such/Thing", b"")[0] is not None


def test_a_stream_passes_and_is_counted_as_uncalibrated(running: Running, triton: Triton) -> None:
    sent = [infer_request(model) for model in ("digits", "other", "digits")]
    before = running.counted("calib_uncalibrated_total")
    found = []
    for address in (running.grpc, _grpc_of(triton)):
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream(
                f"{SERVICE}ModelStreamInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            )
            found.append(sorted(call(iter(sent), timeout=30)))
    assert found[0] == found[1]
    assert len(found[0]) == 3
    assert running.counted("calib_uncalibrated_total") == before + 2

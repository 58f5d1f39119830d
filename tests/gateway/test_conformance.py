"""What is not calibrated comes through the gateway as from the server: status, headers and body, by byte."""

from __future__ import annotations

import gzip
import json
import re
import socket
from dataclasses import dataclass

import grpc
import pytest
from gateways import INFER, METHOD, Running, X
from test_triton_gateway import request
from triton_server import Triton
from tritonclient.grpc import service_pb2

pytestmark = pytest.mark.server

SERVICE, INFER_OTHER = "/inference.GRPCInferenceService/", "/v2/models/other/infer"


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
_X = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "parameters": {"binary_data_size": X.nbytes}}
JSON_THEN_BYTES = json.dumps({"inputs": [_X], "outputs": [{"name": "logits"}]}).encode()
LENGTH = f"Inference-Header-Content-Length: {len(JSON_THEN_BYTES)}"


def classified(name: str) -> bytes:
    return json.dumps(request(outputs=[{"name": name, "parameters": {"classification": 2}}])).encode()


UNKNOWN = json.dumps(request(outputs=[{"name": "no"}])).encode()
ZIPPED = gzip.compress(OTHER, mtime=0)
GETS = {
    "live": "/v2/health/live",
    "model metadata": "/v2/models/digits",
    "model config": "/v2/models/digits/config",
    "no such model": "/v2/models/nothing",
    "nothing": "/",
    "no such model, and a query": "/v2/models/nothing?at=all&more",
}
MESSAGES = {name: message("GET", path) for name, path in GETS.items()} | {
    "no such method": message("DELETE", "/v2/models/other"),
    "another model": message("POST", INFER_OTHER, OTHER),
    "another model, chunked": message("POST", INFER_OTHER, OTHER, chunked=True),
    "another model, binary": message("POST", INFER_OTHER, BINARY),
    "another model, bytes after JSON": message("POST", INFER_OTHER, JSON_THEN_BYTES + X.tobytes(), LENGTH),
    "another model, compressed": message("POST", INFER_OTHER, ZIPPED, "Content-Encoding: gzip"),
    "another model, answered compressed": message("POST", INFER_OTHER, OTHER, "Accept-Encoding: gzip"),
    "another model, classified": message("POST", INFER_OTHER, classified("logits")),
    "an error of another model": message("POST", INFER_OTHER, b'{"inputs": []}'),
    "an error of the calibrated model": message("POST", INFER, b'{"inputs": []}'),
    "no JSON for the calibrated model": message("POST", INFER, b"{"),
    "no UTF-8": message("POST", INFER, b"\xff" * 100),
    "an unknown output of the calibrated model": message("POST", INFER, UNKNOWN),
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
    "ModelMetadata": service_pb2.ModelMetadataRequest(name="digits"),
    "ModelReady": service_pb2.ModelReadyRequest(name="nothing"),
    "ModelInfer": service_pb2.ModelInferRequest(model_name="other"),
}


def called(address: str, method: str, sent: bytes) -> tuple[object, object]:
    with grpc.insecure_channel(address) as channel:
        try:
            return None, channel.unary_unary(method)(sent, timeout=30)
        except grpc.RpcError as error:
            return error.code(), error.details()


def infer_request(model: str) -> service_pb2.ModelInferRequest:
    sent = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[X.tobytes()])
    sent.inputs.add(name="x", datatype="FP32", shape=list(X.shape))
    sent.outputs.add(name="logits")
    return sent


CALLS = {
    **{name: (SERVICE + name, sent.SerializeToString()) for name, sent in METHODS.items()},
    "another model": (METHOD, infer_request("other").SerializeToString()),
    "nothing": (METHOD, b""),
    "health": ("/grpc.health.v1.Health/Check", b""),
}


@pytest.mark.parametrize(("method", "sent"), CALLS.values(), ids=CALLS)
def test_a_call_of_grpc_is_the_servers_by_byte(
    running: Running, triton_grpc: str, method: str, sent: bytes
) -> None:
    assert called(running.grpc, method, sent) == called(triton_grpc, method, sent)


def streamed(address: str, *models: str) -> list[object]:
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        )
        return sorted(call(map(infer_request, models), timeout=30))


def test_a_stream_is_not_served_for_its_messages_may_be_of_any_model(running: Running) -> None:
    for model in ("other", "digits"):
        with pytest.raises(grpc.RpcError) as raised:
            streamed(running.grpc, model)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED

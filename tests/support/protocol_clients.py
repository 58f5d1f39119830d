"""Clients of every protocol that TorchServe speaks, written as their users write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
from live_server import Running
from tritonclient.grpc import service_pb2

OIP = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/ModelInfer"
PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"


@dataclass(frozen=True)
class Answer:
    """What a client reads from one reply, one value a row; ``probabilities`` (n, K)."""

    predicted: list[int]
    confidence: list[float]
    receipts: list[str]
    probabilities: np.ndarray


def of_replies(replies: Sequence[dict[str, Any]]) -> Answer:
    """From this package's own replies, one a row."""
    names = ("predicted", "confidence", "receipt", "probabilities")
    predicted, confidence, receipts, probabilities = ([one[name] for one in replies] for name in names)
    return Answer(predicted, confidence, receipts, np.array(probabilities))


def columns(reply: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an OIP reply by name, each of the shape it says."""
    return {one["name"]: np.array(one["data"]).reshape(one["shape"]).tolist() for one in reply["outputs"]}


def of_outputs(found: dict[str, Any]) -> Answer:
    """From the outputs of an OIP reply."""
    probabilities = np.array(found["probabilities"])
    return Answer(found["predicted"], found["confidence"], found["receipt"], probabilities)


def checked(reply: httpx.Response) -> Any:
    """Its JSON."""
    assert reply.status_code == 200, reply.text
    return reply.json()


def rest_plain(running: Running, model: str, x: np.ndarray) -> Answer:
    """TorchServe's own form, one request a row."""
    posted = [running.http.post(f"/predictions/{model}", json=row.tolist()) for row in x]
    return of_replies([checked(one) for one in posted])


def rest_bytes(running: Running, model: str, x: np.ndarray) -> Answer:
    """The same without saying that it is JSON."""
    kind = {"Content-Type": "application/octet-stream"}
    posted = [
        running.http.post(f"/predictions/{model}", content=json.dumps(row.tolist()), headers=kind)
        for row in x
    ]
    return of_replies([checked(one) for one in posted])


def rest_v1(running: Running, model: str, x: np.ndarray) -> Answer:
    """KServe v1 at its own address."""
    reply = checked(running.http.post(f"/v1/models/{model}:predict", json={"instances": x.tolist()}))
    assert set(reply) == {"predictions"}
    return of_replies(reply["predictions"])


def rest_json(running: Running, model: str, x: np.ndarray) -> Answer:
    """TorchServe's JSON envelope, at TorchServe's address, without a content type."""
    body = json.dumps({"instances": [{"data": row} for row in x.tolist()]}).encode()
    reply = running.http.post(f"/predictions/{model}", content=body, headers={"Content-Type": "a/b"})
    return of_replies(checked(reply)["predictions"])


def v2_body(x: np.ndarray) -> dict[str, Any]:
    """An OIP request over REST."""
    one = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return {"id": "7", "inputs": [one]}


def rest_v2(running: Running, model: str, x: np.ndarray) -> Answer:
    """OIP over REST at its own address."""
    reply = checked(running.http.post(f"/v2/models/{model}/infer", json=v2_body(x)))
    assert (reply["id"], reply["model_name"], reply["model_version"]) == ("7", model, "1.0")
    return of_outputs(columns(reply))


@contextmanager
def grpc_call(running: Running, call: str) -> Iterator[Any]:
    """A unary call with the server's token."""
    metadata = (
        ("protocol", "gRPC"),
        ("channel", "predict"),
        ("authorization", f"Bearer {running.server.tokens.inference}"),
    )
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(running.server.grpc, options=options) as channel:
        unary = channel.unary_unary(call)
        yield lambda request: unary(request, metadata=metadata, timeout=30)


def field(number: int, body: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, encoded = len(body), b""
    while True:
        encoded += bytes([length & 127 | (128 if length > 127 else 0)])
        length >>= 7
        if not length:
            return bytes([number << 3 | 2]) + encoded + body


def predictions(running: Running, model: str, **inputs: bytes) -> Any:
    """inference.proto's Predictions(model_name = 1, input map = 3) -> prediction = 1, JSON."""
    request = field(1, model.encode()) + b"".join(
        field(3, field(1, name.encode()) + field(2, value)) for name, value in inputs.items()
    )
    with grpc_call(running, PREDICTIONS) as call:
        return _body(call(request))


def _body(reply: bytes) -> Any:
    """The JSON in a PredictionResponse."""
    at = next(i for i in range(1, 9) if reply[i] < 128) + 1  # after the field's length
    return json.loads(reply[at:])


def grpc_plain(running: Running, model: str, x: np.ndarray) -> Answer:
    """TorchServe's gRPC, one request a row."""
    return of_replies([predictions(running, model, data=json.dumps(row.tolist()).encode()) for row in x])


def grpc_v1(running: Running, model: str, x: np.ndarray) -> Answer:
    """KServe v1's body over TorchServe's gRPC."""
    body = json.dumps({"instances": x.tolist()}).encode()
    return of_replies(predictions(running, model, data=body)["predictions"])


def model_infer(
    running: Running, model: str, *tensors: tuple[str, str, list[int], list[Any]]
) -> dict[str, Any]:
    """OIP over gRPC with Triton's messages, whose numbers are KServe's; outputs by name, texts unquoted."""
    request = service_pb2.ModelInferRequest(model_name=model)
    field_of = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}
    for name, datatype, shape, data in tensors:
        one = request.inputs.add(name=name, datatype=datatype, shape=shape)
        getattr(one.contents, field_of[datatype]).extend(data)
    with grpc_call(running, OIP) as call:
        reply = service_pb2.ModelInferResponse.FromString(call(request.SerializeToString()))
    assert reply.model_name == model
    assert reply.id
    found = {}
    for one in reply.outputs:
        ((_, data),) = one.contents.ListFields()
        values = [json.loads(value) if isinstance(value, bytes) else value for value in data]
        found[one.name] = np.array(values).reshape(one.shape).tolist()
    return found


def grpc_oip(running: Running, model: str, x: np.ndarray) -> Answer:
    """OIP over gRPC."""
    return of_outputs(model_infer(running, model, ("x", "FP32", list(x.shape), x.ravel().tolist())))


CLIENTS = (rest_plain, rest_bytes, rest_v1, rest_json, rest_v2, grpc_plain, grpc_v1, grpc_oip)

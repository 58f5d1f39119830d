"""The protocols that TorchServe speaks, told apart by a request's body alone.

``plain``: the body is one input, or labels. ``v1``: KServe v1 and TorchServe's JSON envelope,
``{"instances": [...]}``. ``v2``: the Open Inference Protocol, ``{"inputs": [{"name", "shape", "datatype",
"data"}, ...]}``. The server passes all of them to a worker in the same way, whatever the address was.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError

__all__ = [
    "Form",
    "Message",
    "Tensor",
    "as_text",
    "end_stream",
    "read_headers",
    "read_message",
    "read_messages",
    "read_tensors",
]

Form = Literal["plain", "v1", "v2"]

_MARKS = ('"instances"', '"inputs"')
_NUMBERS = ("BOOL", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
_MOST_AXES = 16
_DATATYPES = (*_NUMBERS, "FP16", "FP32", "FP64", "BYTES")


@dataclass(frozen=True, eq=False)
class Message:
    """One request: ``body`` is the payload of a plain one, the JSON object of the others, None if missing.

    ``headers``: HTTP's, or what gRPC's input map holds besides the body; lower-case names. ``fields``: the
    names of what was sent. ``id``: the client's, else the server's. ``grpc``: whether by OIP ModelInfer.
    """

    form: Form
    body: Any
    headers: Mapping[str, str]
    fields: tuple[str, ...] = ()
    id: str = ""
    grpc: bool = False


def read_messages(data: Sequence[Mapping[str, Any]], ctx: Any) -> list[Message]:
    """All requests of a batch, of TorchServe's rows and context."""
    return [
        read_message(row, ctx.get_all_request_header(i), id=str(ctx.get_request_id(i) or ""))
        for i, row in enumerate(data)
    ]


def end_stream(ctx: Any, index: int) -> None:
    """Say that a gRPC reply is its stream's last: without it, StreamPredictions ends the worker."""
    headers = ctx.get_all_request_header(index)
    # Over HTTP, where the reply would become a stream by it, there always is a text among them.
    if "explain" not in headers and not any(isinstance(value, str) for value in headers.values()):
        ctx.set_response_header(index, "ts_stream_next", "false")


def read_message(row: Mapping[str, Any], headers: Mapping[str, Any], *, id: str = "") -> Message:
    """One request, of TorchServe's row (names to values) and headers.

    >>> read_message({"body": b'{"instances": [[1, 2]]}'}, {}).form
    'v1'
    """
    payload, named = row.get("data", row.get("body")), read_headers(row, headers)
    document = _document(payload)
    if isinstance(document.get("instances"), list):
        return Message("v1", document, named, tuple(row), id)
    # What TorchServe makes of a ModelInfer; over HTTP, there is always a host.
    grpc = "host" not in named and {"id", "model_name", "inputs"} <= document.keys()
    inputs = document.get("inputs")
    if grpc or (isinstance(inputs, list) and inputs and all(_is_tensor(one) for one in inputs)):
        return Message("v2", document, named, tuple(row), str(document.get("id") or id), grpc)
    return Message("plain", payload, named, tuple(row), id)


def read_headers(row: Mapping[str, Any], headers: Mapping[str, Any]) -> dict[str, str]:
    """The request's headers; gRPC has none, so what ``row`` names like one of ours counts as one.

    >>> read_headers({"data": b"", "X-Calib-Segment": b"DE"}, {"Host": "a", "data": {"content-type": ""}})
    {'host': 'a', 'x-calib-segment': 'DE'}
    """
    # TorchServe puts each parameter's type among the headers, as a dict.
    found = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    if len(row) > 1:
        for name, value in row.items():
            if name.lower().startswith("x-calib-"):
                found[name.lower()] = as_text(value)
    return found


def as_text(value: object) -> str:
    """A text that may have come as bytes."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def _document(payload: Any) -> dict[str, Any]:
    """The JSON object that ``payload`` is or holds, if it may be of v1 or v2; else an empty one."""
    if isinstance(payload, (str, bytes, bytearray)):
        marks: Any = _MARKS if isinstance(payload, str) else [mark.encode() for mark in _MARKS]
        if not any(mark in payload for mark in marks):
            return {}  # most requests end here, without being parsed twice
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError):
            return {}
    return payload if isinstance(payload, dict) else {}


def _is_tensor(given: object) -> bool:
    return isinstance(given, dict) and "datatype" in given


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named tensor: ``values`` is an array, or for BYTES a flat list: bytes over gRPC, text over HTTP."""

    name: str
    datatype: str
    values: NDArray[Any] | list[Any]


def read_tensors(message: Message) -> dict[str, Tensor]:
    """The input tensors of a v2 request by name; InputError where they are not as the protocol says."""
    found: dict[str, Tensor] = {}
    inputs = message.body.get("inputs")
    for given in inputs if isinstance(inputs, list) else ():
        tensor = _tensor(given, grpc=message.grpc)
        if tensor.name in found:
            raise InputError(f"there are two input tensors {tensor.name[:40]!r}; names must differ")
        found[tensor.name] = tensor
    return found


def _tensor(given: Any, *, grpc: bool) -> Tensor:
    fields = given if isinstance(given, dict) else {}
    name, datatype, shape, data = (fields.get(key) for key in ("name", "datatype", "shape", "data"))
    if not isinstance(name, str) or datatype not in _DATATYPES:
        raise InputError(
            "an input tensor has name, shape, datatype and data, and its datatype is one of "
            + ", ".join(_DATATYPES)
        )
    sizes: list[Any] = shape if isinstance(shape, list) and len(shape) <= _MOST_AXES else [None]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise InputError(f"the shape of the tensor {name[:40]!r} must be a list of sizes, such as [1, 16]")
    if not isinstance(data, list) or (grpc and not data and math.prod(sizes)):
        how = (
            "its contents; TorchServe does not pass on raw_input_contents"
            if grpc
            else 'its "data" as a JSON array; TorchServe does not read binary tensors'
        )
        raise InputError(f"the tensor {name[:40]!r} holds no data; send {how}")
    values = (
        _bytes(name, data, grpc=grpc) if datatype == "BYTES" else _numbers(name, datatype, data, grpc=grpc)
    )
    size = len(values) if isinstance(values, list) else values.size
    if size != math.prod(sizes):
        raise InputError(
            f"the tensor {name[:40]!r} holds {size} values, its shape {sizes[:8]} says otherwise"
        )
    return Tensor(name, datatype, values if isinstance(values, list) else values.reshape(sizes))


def _numbers(name: str, datatype: str, data: list[Any], *, grpc: bool) -> NDArray[Any]:
    try:
        array = np.asarray(data) if data else np.zeros(0)
    except (ValueError, OverflowError, RecursionError):
        raise InputError(f"the data of the tensor {name[:40]!r} are ragged: rows differ in length") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"the data of the tensor {name[:40]!r} must be numbers, as {datatype} says")
    if grpc and datatype in ("UINT32", "UINT64") and array.dtype.kind == "i":
        array = array.astype(datatype.lower())  # Java has no such types: large numbers come as negative ones
    return array


def _bytes(name: str, data: list[Any], *, grpc: bool) -> list[Any]:
    values = list(_flat(data))
    try:
        if all(isinstance(value, str) for value in values):
            return [base64.b64decode(value) for value in values] if grpc else values
    except ValueError:
        pass
    raise InputError(f"the data of the tensor {name[:40]!r} must be texts, as BYTES says")


def _flat(data: list[Any]) -> Iterator[Any]:
    """The elements of a nested list, row by row."""
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()

"""Read requests in the protocols that TorchServe speaks, told apart by a request's body alone.

``plain``: the body is one input, or labels. ``v1``: KServe v1 and TorchServe's JSON envelope,
``{"instances": [...]}``. ``v2``: the Open Inference Protocol, ``{"inputs": [{"name", "shape", "datatype",
"data"}, ...]}``. The server passes all of them to a worker in the same way, whatever the address was.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calib_serve.core.errors import InputError
from calib_serve.core.oip import Tensor, read_tensor
from calib_serve.receipts import LONGEST_SEGMENT, Tag

Form = Literal["plain", "v1", "v2"]

MOST_ROWS = 1_000
"""Rows in one request: a batch of the server's holds several, and their replies wait for each other."""

_MARKS = ('"instances"', '"inputs"')
_NO_TAG = Tag()
_SEGMENT, _GROUP, _ID = "x-calib-segment", "x-calib-group", "x-calib-id"


@dataclass(frozen=True, eq=False)
class Message:
    """One request: ``body`` is a plain payload, or the JSON object of other protocols; None if missing.

    ``headers``: HTTP's, or what gRPC's input map holds besides the body; lower-case names. ``id``: the
    client's, else the server's. ``grpc``: whether by OIP ModelInfer.
    """

    form: Form
    body: Any
    headers: Mapping[str, str]
    id: str = ""
    grpc: bool = False


def read_messages(data: Sequence[Mapping[str, Any]], ctx: Any) -> list[Message]:
    """Read all requests of a batch, of TorchServe's rows and context."""
    return [
        read_message(row, ctx.get_all_request_header(i), id=str(ctx.get_request_id(i) or ""))
        for i, row in enumerate(data)
    ]


def read_message(row: Mapping[str, Any], headers: Mapping[str, Any], *, id: str = "") -> Message:
    """Read one request, of TorchServe's row (names to values) and headers.

    >>> read_message({"body": b'{"instances": [[1, 2]]}'}, {}).form
    'v1'
    """
    payload, named = row.get("data", row.get("body")), _headers(row, headers)
    document = _document(payload)
    # By the body alone: TorchServe does not say on which address it came.
    if isinstance(document.get("instances"), list):
        return Message("v1", document, named, id)
    # What TorchServe makes of a ModelInfer; over HTTP, there is always a host.
    grpc = "host" not in named and {"id", "model_name", "inputs"} <= document.keys()
    inputs = document.get("inputs")
    if grpc or (isinstance(inputs, list) and inputs and all(_is_tensor(one) for one in inputs)):
        return Message("v2", document, named, str(document.get("id") or id), grpc)
    return Message("plain", payload, named, id)


def _headers(row: Mapping[str, Any], headers: Mapping[str, Any]) -> dict[str, str]:
    """The request's headers; gRPC has none, so inputs in ``row`` named like our headers stand for them."""
    # TorchServe puts each parameter's type among the headers, as a dict.
    found = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    if len(row) > 1:
        for name, value in row.items():
            if name.lower().startswith("x-calib-"):
                found[name.lower()] = as_text(value)
    return found


def as_text(value: object) -> str:
    """Decode a text that may have come as bytes."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def _document(payload: Any) -> dict[str, Any]:
    """Parse the JSON object of KServe's protocols in a payload; empty where it is anything else."""
    if isinstance(payload, (str, bytes, bytearray)):
        is_text = isinstance(payload, str)
        marks: Sequence[Any] = _MARKS if is_text else [mark.encode() for mark in _MARKS]
        if not any(mark in payload for mark in marks):
            return {}  # most requests end here, without being parsed twice
        try:
            payload = json.loads(payload)
        except (ValueError, RecursionError):
            return {}
    return payload if isinstance(payload, dict) else {}


def _is_tensor(given: object) -> bool:
    return isinstance(given, dict) and "datatype" in given


def read_tensors(message: Message) -> dict[str, Tensor]:
    """Read the input tensors of a v2 request by name; InputError where they are not as the protocol says."""
    found: dict[str, Tensor] = {}
    inputs = message.body.get("inputs")
    for given in inputs if isinstance(inputs, list) else ():
        data = given.get("data") if _is_tensor(given) else [...]
        if not isinstance(data, list) or (message.grpc and not data):
            how = (
                "its contents; TorchServe does not pass on raw_input_contents"
                if message.grpc
                else 'its "data" as a JSON array; TorchServe does not read binary tensors'
            )
            raise InputError(f"the tensor {str(given.get('name'))[:40]!r} holds no data; send {how}")
        tensor = read_tensor(given, from_java=message.grpc)
        if tensor.name in found:
            raise InputError(f"there are two input tensors {tensor.name[:40]!r}; names must differ")
        found[tensor.name] = tensor
    return found


@dataclass(frozen=True, eq=False)
class RequestRows:
    """The rows of ``message``: ``payloads`` and ``tags``, one each; none where it is ``refused``, and why."""

    message: Message
    payloads: Sequence[Any] = ()
    tags: Sequence[Tag] = ()
    refused: str = ""


def read_request(message: Message, *, shape: Sequence[int | None]) -> RequestRows:
    """Read the rows of a request; ``shape`` is one input's, without the batch. It never raises."""
    try:
        if message.form == "v1":
            instances = message.body["instances"]
            _check_rows(len(instances))
            tags = _tags(message, len(instances), {})
            return RequestRows(message, [_instance(i, given) for i, given in enumerate(instances)], tags)
        if message.form == "v2":
            return _of_tensors(message, shape)
        return RequestRows(message, [message.body], [tag_of(message.headers)])
    except InputError as error:
        return RequestRows(message, refused=str(error))


def plain_tags(data: Sequence[Mapping[str, Any]], ctx: Any) -> list[Tag]:
    """The tags of each request of a batch, one row a request."""
    return [tag_of(_headers(row, ctx.get_all_request_header(i))) for i, row in enumerate(data)]


def tag_of(headers: Mapping[str, str]) -> Tag:
    """Read the tags of a whole request: its segment, group and id."""
    if _SEGMENT in headers or _GROUP in headers or _ID in headers:
        return Tag(headers.get(_SEGMENT, "")[:LONGEST_SEGMENT], headers.get(_GROUP, ""), headers.get(_ID, ""))
    return _NO_TAG


def _instance(index: int, given: Any) -> Any:
    """Take one instance's payload from "data" or "body", as TorchServe's handlers do, too."""
    if isinstance(given, dict):
        given = given.get("data", given.get("body", given))
    if not isinstance(given, dict):
        return given
    try:
        if list(given) == ["b64"]:
            return base64.b64decode(given["b64"], validate=True)
        return {
            name: base64.b64decode(value["b64"], validate=True)
            if isinstance(value, dict) and list(value) == ["b64"]
            else value
            for name, value in given.items()
        }
    except (TypeError, ValueError):
        raise InputError(f"instance {index}: the text in b64 is not base64") from None


def _of_tensors(message: Message, shape: Sequence[int | None]) -> RequestRows:
    tensors = read_tensors(message)
    ours = {name: tensors.pop(name) for name in (_SEGMENT, _GROUP, _ID) if name in tensors}
    if len(tensors) != 1:
        names = ", ".join(repr(name[:40]) for name in list(tensors)[:5]) or "none"
        raise InputError(f"the model takes one input tensor, got {names}")
    (tensor,) = tensors.values()
    payloads = _rows(tensor, shape)
    _check_rows(len(payloads))
    return RequestRows(message, payloads, _tags(message, len(payloads), ours))


def _rows(tensor: Tensor, shape: Sequence[int | None]) -> list[Any]:
    if tensor.datatype == "BYTES":
        return list(tensor.values.ravel().tolist())
    found = tensor.values.shape
    # A tensor of the very shape of one input is one row, not as many as its first size.
    one = len(found) == len(shape) and all(w in (None, f) for f, w in zip(found, shape, strict=True))
    rows: list[Any] = tensor.values.tolist() if len(found) > 1 and not one else [tensor.values.tolist()]
    return rows


def _check_rows(n: int) -> None:
    if not 0 < n <= MOST_ROWS:
        raise InputError(f"send 1 to {MOST_ROWS} instances a request, got {n}")


def _tags(message: Message, n: int, tensors: Mapping[str, Tensor]) -> list[Tag]:
    """Tag each row by a tensor, else by the request's parameters, else by its headers."""
    parameters = message.body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InputError('"parameters" must be an object, such as {"segment": "DE"}')
    columns = []
    for short, name in (("segment", _SEGMENT), ("group", _GROUP), ("id", _ID)):
        given: Any = parameters.get(short, message.headers.get(name, ""))
        if name in tensors:
            given = tensors[name].values.ravel().tolist()
            given = given[0] if len(given) == 1 else given
        values = _column(short, given, n)
        if name == _ID and not isinstance(given, list):  # ids differ: of one text, each row has its own
            values = [Tag(id=one).of_row(row, n).id for row, one in enumerate(values)]
        columns.append(values)
    return [Tag(segment[:LONGEST_SEGMENT], group, id) for segment, group, id in zip(*columns, strict=True)]


def _column(name: str, given: Any, n: int) -> list[str]:
    values = given if isinstance(given, list) else [given] * n
    if len(values) != n or not all(
        isinstance(value, (str, bytes, int)) and not isinstance(value, bool) for value in values
    ):
        raise InputError(f"{name} must be a text or whole number, or a list of {n} of them, one an instance")
    return [as_text(value) for value in values]

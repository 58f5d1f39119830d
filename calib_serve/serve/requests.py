"""What a classifier is asked for by one request of any protocol: one payload and one tag a row."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calib_serve.errors import InputError
from calib_serve.reporter.recorder import Tag
from calib_serve.serve.protocols import Message, Tensor, as_text, read_headers, read_tensors
from calib_serve.watch.slices import LONGEST_SEGMENT

__all__ = ["MOST_ROWS", "Request", "message_tag", "opened", "plain_tags", "read_request"]

MOST_ROWS = 1_000
"""Rows in one request: a batch of the server's holds several, and their replies wait for each other."""

_NO_TAG = Tag()
SEGMENT, GROUP, ID = "x-calib-segment", "x-calib-group", "x-calib-id"
_BASE64 = re.compile(rb"\s?([A-Za-z0-9+/\s]{16,}={0,2})\s?")


@dataclass(frozen=True, eq=False)
class Request:
    """The rows of ``message``: ``payloads`` and ``tags``, one each, of a refused one none.

    ``outputs``: the names of output tensors asked for (v2), () for all. ``refused``: why there is no answer.
    """

    message: Message
    payloads: Sequence[Any] = ()
    tags: Sequence[Tag] = ()
    outputs: tuple[str, ...] = ()
    refused: str = ""


def read_request(message: Message, *, shape: Sequence[int | None]) -> Request:
    """The rows of a request; ``shape`` is that of one input, without the batch. It never raises."""
    try:
        if message.form == "v1":
            return _of_instances(message)
        if message.form == "v2":
            return _of_tensors(message, shape)
        return Request(message, [_plain(message)], [_tag(message.headers)])
    except InputError as error:
        return Request(message, refused=str(error))


def plain_tags(data: Sequence[Mapping[str, Any]], ctx: Any) -> list[Tag]:
    """What each request of a batch names, one row a request; ``data`` and ``ctx`` are TorchServe's."""
    return [_tag(read_headers(row, ctx.get_all_request_header(i))) for i, row in enumerate(data)]


def message_tag(message: Message) -> Tag:
    """What a whole request names, by its headers."""
    return _tag(message.headers)


def _tag(headers: Mapping[str, str]) -> Tag:
    if SEGMENT in headers or GROUP in headers or ID in headers:
        return Tag(headers.get(SEGMENT, "")[:LONGEST_SEGMENT], headers.get(GROUP, ""), headers.get(ID, ""))
    return _NO_TAG


def opened(payload: Any) -> Any:
    r"""``payload``, or the bytes that it is the base64 text of: how JSON and workflows carry pictures.

    >>> opened("iVBORw0KGgoAAAANSUhEUg==")[:4], opened("[1, 2]")
    (b'\x89PNG', '[1, 2]')
    """
    if isinstance(payload, (bytes, bytearray)):
        found = _BASE64.fullmatch(payload)
    else:
        found = _BASE64.fullmatch(payload.encode("utf-8", "replace")) if isinstance(payload, str) else None
    if found is None:
        return payload
    try:
        return base64.b64decode(b"".join(found[1].split()), validate=True)
    except ValueError:
        return payload


def _plain(message: Message) -> Any:
    if message.body is None and message.fields:
        names = ", ".join(repr(name[:40]) for name in message.fields[:5])
        raise InputError(
            f'the request has no "data" or "body", only {names}; a workflow gives a node that several nodes '
            "lead to their outputs by their names: let one node join them"
        )
    return message.body


def _of_instances(message: Message) -> Request:
    instances = message.body["instances"]
    _check_rows(len(instances))
    tags = _tags(message, len(instances), {})
    return Request(message, [_instance(i, given) for i, given in enumerate(instances)], tags)


def _instance(index: int, given: Any) -> Any:
    """One instance's payload: TorchServe's handlers take it from "data" or "body", too."""
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


def _of_tensors(message: Message, shape: Sequence[int | None]) -> Request:
    tensors = read_tensors(message)
    ours = {name: tensors.pop(name) for name in (SEGMENT, GROUP) if name in tensors}
    if len(tensors) != 1:
        names = ", ".join(repr(name[:40]) for name in list(tensors)[:5]) or "none"
        raise InputError(f"the model takes one input tensor, got {names}")
    (tensor,) = tensors.values()
    payloads = _rows(tensor, shape)
    _check_rows(len(payloads))
    return Request(message, payloads, _tags(message, len(payloads), ours), _outputs(message))


def _rows(tensor: Tensor, shape: Sequence[int | None]) -> list[Any]:
    if isinstance(tensor.values, list):
        return tensor.values
    found = tensor.values.shape
    one = len(found) == len(shape) and all(w in (None, f) for f, w in zip(found, shape, strict=True))
    rows: list[Any] = tensor.values.tolist() if len(found) > 1 and not one else [tensor.values.tolist()]
    return rows


def _outputs(message: Message) -> tuple[str, ...]:
    asked = message.body.get("outputs") or []
    if not isinstance(asked, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in asked
    ):
        raise InputError('"outputs" must be a list such as [{"name": "predicted"}]')
    return tuple(one["name"] for one in asked)


def _check_rows(n: int) -> None:
    if not 0 < n <= MOST_ROWS:
        raise InputError(f"send 1 to {MOST_ROWS} instances a request, got {n}")


def _tags(message: Message, n: int, tensors: Mapping[str, Tensor]) -> list[Tag]:
    """Of each row: by a tensor, else by the request's parameters, else by its headers."""
    parameters = message.body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InputError('"parameters" must be an object, such as {"segment": "DE"}')
    columns = []
    for short, name in (("segment", SEGMENT), ("group", GROUP)):
        given: Any = parameters.get(short, message.headers.get(name, ""))
        if name in tensors:
            values = tensors[name].values
            given = values if isinstance(values, list) else values.ravel().tolist()
            given = given[0] if len(given) == 1 else given
        columns.append(_column(short, given, n))
    own = Tag(id=message.headers.get(ID, ""))
    return [
        Tag(segment[:LONGEST_SEGMENT], group, own.of_row(row, n).id)
        for row, (segment, group) in enumerate(zip(*columns, strict=True))
    ]


def _column(name: str, given: Any, n: int) -> list[str]:
    values = given if isinstance(given, list) else [given] * n
    if len(values) != n or not all(
        isinstance(value, (str, bytes, int)) and not isinstance(value, bool) for value in values
    ):
        raise InputError(f"{name} must be a text or whole number, or a list of {n} of them, one an instance")
    return [as_text(value) for value in values]

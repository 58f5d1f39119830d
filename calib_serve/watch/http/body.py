"""The items of a request: JSON or NDJSON, bounded in size and number, read before anything is done."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from calib_serve.errors import MissingDependency
from calib_serve.watch.http.wire import MOST_ITEMS

try:
    from fastapi import HTTPException, Request
    from pydantic import BaseModel, ValidationError
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["read_items", "read_one"]

Model = TypeVar("Model", bound=BaseModel)

_NDJSON = "application/x-ndjson"


async def read_items(request: Request, max_bytes: int) -> list[Any]:
    """The items of a JSON ``{"items": [...]}``, a JSON list, or NDJSON; or HTTP 400, 413, 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", _NDJSON):
        raise HTTPException(415, "send application/json or application/x-ndjson")
    content = await _content(request, max_bytes)
    items = _lines(content) if kind == _NDJSON else _document(content)
    if len(items) > MOST_ITEMS:
        raise HTTPException(413, f"a batch has at most {MOST_ITEMS} items, got {len(items)}")
    return items


async def read_one(request: Request, model: type[Model], *, max_bytes: int = 16 << 10) -> Model:
    """The body as ``model``; or HTTP 400, 413, or 422, which does not repeat what was sent."""
    content = await _content(request, max_bytes)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        told = error.errors(include_input=False, include_url=False, include_context=False)
        raise HTTPException(422, [{k: one[k] for k in ("loc", "msg", "type")} for one in told]) from error


async def _content(request: Request, max_bytes: int) -> bytes:
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                raise HTTPException(413, f"a batch has at most {max_bytes} bytes; send smaller ones")
    except ClientDisconnect as error:  # nobody reads the answer, and no traceback floods the log
        raise HTTPException(400, "the body was cut off") from error
    return bytes(content)


def _document(body: bytes) -> list[Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not JSON") from error
    items = content.get("items") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise HTTPException(400, 'send {"items": [...]} or a list')
    return items


def _lines(body: bytes) -> list[Any]:
    """One item a line; a line that is not JSON is an item that will be refused."""

    def parse(line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    return [parse(line) for line in body.splitlines() if line.strip()]

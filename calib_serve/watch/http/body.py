"""The bodies of requests: checked by their headers, read within bounds, and parsed off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from calib_serve.errors import InputError, MissingDependency
from calib_serve.watch.items import TooManyItems, check_number, read_document, read_lines

try:
    from fastapi import HTTPException, Request
    from pydantic import BaseModel, ValidationError
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["Bodies", "parser_of", "read_one"]

Model = TypeVar("Model", bound=BaseModel)

_NDJSON = "application/x-ndjson"
_ONE = 16 << 10  # bytes of a body that is no batch
_AT_ONCE = 16  # the largest batches that are read at the same time


class Bodies:
    """Reads bodies of at most ``max_bytes`` each, and of sixteen times that together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._held = max_bytes, 0

    async def read(self, request: Request) -> bytes:
        """The body; or HTTP 400, 413, 415 or 429. What its headers tell is refused before it is read."""
        _check_headers(request, self.max_bytes)
        content = bytearray()
        try:
            async for chunk in request.stream():
                if len(content) + len(chunk) > self.max_bytes:
                    raise _too_large(self.max_bytes)
                if self._held + len(chunk) > _AT_ONCE * self.max_bytes:
                    told = "too many batches are being sent; send it again"
                    raise HTTPException(429, told, {"Retry-After": "1"})
                self._held += len(chunk)
                content += chunk
            return bytes(content)
        except ClientDisconnect as error:  # nobody reads the answer, and no traceback floods the log
            raise HTTPException(400, "the body was cut off, or came too slowly") from error
        finally:
            self._held -= len(content)


def parser_of(request: Request) -> Callable[[bytes], list[Any]]:
    """What makes items of the body: of a JSON ``{"items": [...]}`` or list, or of NDJSON; or HTTP 415.

    The function takes as long as the body is large, so it belongs in a thread; it raises HTTP 400 and 413.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", _NDJSON):
        raise HTTPException(415, "send application/json or application/x-ndjson")
    parse = read_lines if kind == _NDJSON else _items_of_document

    def items(content: bytes) -> list[Any]:
        try:
            return parse(content)
        except InputError as error:
            raise HTTPException(413 if isinstance(error, TooManyItems) else 400, str(error)) from error

    return items


async def read_one(request: Request, model: type[Model]) -> Model:
    """The body as ``model``; or HTTP 400, 413, 415, or 422, which does not repeat what was sent."""
    content = await Bodies(_ONE).read(request)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        told = error.errors(include_input=False, include_url=False, include_context=False)
        raise HTTPException(422, [{k: one[k] for k in ("loc", "msg", "type")} for one in told]) from error


def _check_headers(request: Request, max_bytes: int) -> None:
    """HTTP 413 or 415 for a body that will not be read."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"send the body as it is, without Content-Encoding: {encoding[:40]}")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"a batch has at most {max_bytes} bytes; send smaller ones")


def _items_of_document(body: bytes) -> list[Any]:
    content = read_document(body)
    items = content.get("items") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise InputError('send {"items": [...]} or a list')
    check_number(len(items))
    return items

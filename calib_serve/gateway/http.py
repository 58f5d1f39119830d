"""HTTP on both sides of the gateway: headers, addresses and answers, as ASGI has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from calib_serve.core.errors import InputError

Headers = list[tuple[bytes, bytes]]
"""Names, of requests in lower case, and values."""

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect".split()
)
# Some servers and meshes go by these, whatever the request's first line says.
_ADDRESSES = frozenset(
    b"x-http-method-override x-http-method x-method-override x-original-url x-rewrite-url "
    b"seldon-model seldon-internal-model".split()
)
TOKEN = b"x-calib-token"
"""The token by which a request's segment, group and id are believed; it goes no further."""


def forwarded(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> Headers:
    """Drop the headers of one connection, those that its Connection header names, the token, and ``more``."""
    given = list(headers)
    named = b",".join(value for name, value in given if name.lower() == b"connection").lower()
    return without_headers(given, *_HOP, TOKEN, *(part.strip() for part in named.split(b",")), *more)


def without_headers(headers: Headers, *names: bytes) -> Headers:
    """Drop the headers of these names, which are in lower case."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def content_length(body: bytes) -> tuple[bytes, bytes]:
    """The header of a body's length."""
    return b"content-length", str(len(body)).encode()


def at_most_one(headers: Headers, name: bytes) -> str:
    """The value of a header, "" where it is missing; InputError where it is there twice."""
    found = [value for key, value in headers if key.lower() == name]
    if len(found) > 1:
        raise InputError(f"the header {name.decode()} is there {len(found)} times")
    return found[0].decode("latin-1").strip() if found else ""


def check_one_address(headers: Iterable[tuple[bytes, bytes]], model: str) -> None:
    """Raise InputError where a header names another method, path or model than the request does."""
    for name, value in headers:
        if name.lower() in _ADDRESSES and value.decode("latin-1") != model:
            raise InputError(f"the header {name.decode()} names another address than the request")


async def answer_with(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a complete answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def target_of(scope: Scope) -> bytes:
    """The path and the query as they came."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body's bytes as they come; NoAnswer where the client went away."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NoAnswer(400, "the body was cut off")
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


class NoAnswer(Exception):
    """The server did not answer; ``status`` is the client's: 502, or 504 where it took too long."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

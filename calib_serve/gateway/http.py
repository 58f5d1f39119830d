"""HTTP on both sides of the gateway: headers, addresses and answers, as ASGI has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from calib_serve.core.errors import InputError
from calib_serve.receipts import LONGEST_SEGMENT, Tag, is_segment

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
_LONGEST = 200  # bytes of a group or an id


def forwarded(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> Headers:
    """Drop the headers of one connection, those that its Connection header names, and ``more``."""
    given = list(headers)
    named = b",".join(value for name, value in given if name.lower() == b"connection").lower()
    return without_headers(given, *_HOP, *(part.strip() for part in named.split(b",")), *more)


def without_headers(headers: Headers, *names: bytes) -> Headers:
    """Drop the headers of these names, which are in lower case."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def at_most_one(headers: Headers, name: bytes) -> str:
    """The value of a header, "" where it is missing; InputError where it is there twice."""
    found = [value for key, value in headers if key.lower() == name]
    if len(found) > 1:
        raise InputError(f"the header {name.decode()} is there {len(found)} times")
    return found[0].decode("latin-1").strip() if found else ""


def about(headers: Headers) -> Tag:
    """Read ``x-calib-segment``, ``x-calib-group`` and ``x-calib-id``; InputError for an invalid one."""
    found = {name: _text(at_most_one(headers, b"x-calib-" + name.encode()), name) for name in Tag._fields}
    if not is_segment(found["segment"]):
        raise InputError(f"x-calib-segment has at most {LONGEST_SEGMENT} characters")
    return Tag(**found)


def _text(latin: str, name: str) -> str:
    """Decode a header's bytes as UTF-8."""
    try:
        text = latin.encode("latin-1").decode()
    except UnicodeError as error:
        raise InputError(f"x-calib-{name} must be UTF-8") from error
    if len(latin) > _LONGEST or not text.isprintable():
        raise InputError(f"x-calib-{name} has at most {_LONGEST} bytes of printable text")
    return text


async def answer_with(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a complete answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def target_of(scope: Scope) -> bytes:
    """The path and the query as they came."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


class NoAnswer(Exception):
    """The server did not answer; ``status`` is the client's: 502, or 504 where it took too long."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

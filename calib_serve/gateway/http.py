"""HTTP on both sides of the gateway: headers, bounded bodies, and the one server behind it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from calib_serve.core.errors import CalibServeError, InputError, MissingDependency
from calib_serve.gateway.calibration import About
from calib_serve.receipts import LONGEST_SEGMENT, is_segment

try:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL
except ImportError as error:
    raise MissingDependency("aiohttp", "gateway") from error

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
_AT_ONCE = 16  # the largest bodies that are held at the same time
_IDLE = 3.0  # seconds that a connection is kept; servers close theirs after 5 or more
_HEAD = 64 << 10  # bytes of a line of the head of an answer
_AUTO = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_CHUNK = 1 << 16

# --- headers ----------------------------------------------------------------------------------


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


def about(headers: Headers) -> About:
    """Read the names in a request's headers; InputError for an invalid one."""
    found = {name: _text(at_most_one(headers, b"x-calib-" + name.encode()), name) for name in About._fields}
    if not is_segment(found["segment"]):
        raise InputError(f"x-calib-segment has at most {LONGEST_SEGMENT} characters")
    return About(**found)


def _text(latin: str, name: str) -> str:
    """Decode a header's bytes as UTF-8."""
    try:
        text = latin.encode("latin-1").decode()
    except UnicodeError as error:
        raise InputError(f"x-calib-{name} must be UTF-8") from error
    if len(latin) > _LONGEST or not text.isprintable():
        raise InputError(f"x-calib-{name} has at most {_LONGEST} bytes of printable text")
    return text


# --- bounds -----------------------------------------------------------------------------------


class Full(CalibServeError):
    """Too many requests or bodies are in hand: ask again."""


class TooLarge(CalibServeError):
    """A body with more bytes than allowed."""


class Waiting:
    """At most ``requests`` in hand, and bodies of at most ``most`` bytes each, sixteen times that together.

    >>> waiting = Waiting(1, most=10)
    >>> with waiting.one():
    ...     waiting.requests
    1
    """

    def __init__(self, requests: int, *, most: int) -> None:
        self.most, self.requests, self.held = most, 0, 0
        self._requests = requests

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request as in hand; Full where there are too many."""
        if self.requests >= self._requests:
            raise Full("too many requests are waiting; send it again")
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def body(self) -> Iterator[Body]:
        """Hold a body, whose bytes are given back at the end."""
        body = Body(self)
        try:
            yield body
        finally:
            self.held -= body.held


class Body:
    """The body of one request, whose bytes ``waiting`` counts, with data derived from it."""

    def __init__(self, waiting: Waiting) -> None:
        self.held = 0
        self._waiting, self._chunks = waiting, list[bytes]()

    def add(self, chunk: bytes) -> None:
        """Append a chunk; TooLarge or Full beyond the bounds."""
        if self.held + len(chunk) > self._waiting.most:
            raise TooLarge(f"a body has at most {self._waiting.most} bytes (--max-megabytes)")
        self.hold(len(chunk))
        self._chunks.append(chunk)

    def hold(self, size: int) -> None:
        """Count so many bytes more; Full beyond the bound of all bodies."""
        if self._waiting.held + size > _AT_ONCE * self._waiting.most:
            raise Full("too many bodies are being sent; send it again")
        self._waiting.held += size
        self.held += size

    async def read(self, receive: Receive) -> bytes:
        """Read the whole body, once; NoAnswer where the client went away."""
        async for chunk in _chunks(receive):
            self.add(chunk)
        whole = b"".join(self._chunks)
        self._chunks.clear()
        return whole


# --- the client's side ------------------------------------------------------------------------


async def answer_with(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a complete answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NoAnswer(400, "the body was cut off")
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


def target_of(scope: Scope) -> bytes:
    """The path and the query as they came."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


async def stream_through(upstream: HttpUpstream, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the request unchanged to ``upstream``, and its answer unchanged to the client."""
    headers: Headers = scope["headers"]
    length = at_most_one(headers, b"content-length")
    has_body = bool(at_most_one(headers, b"transfer-encoding")) or length not in ("", "0")
    body = _chunks(receive) if has_body else None
    async with upstream.request(
        scope["method"], target_of(scope), forwarded(headers, b"host"), body, whole=False
    ) as answer:
        given = forwarded(answer.raw_headers, b"date")
        endless = not at_most_one(given, b"content-length")
        # An answer without a length may be endless: stop reading it when the client has gone.
        gone = asyncio.create_task(_gone(receive)) if endless else None
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": given})
            async for chunk in answer.content.iter_any():
                if gone is not None and gone.done():
                    return  # nobody reads it: the server is let go
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if gone is not None:
                gone.cancel()


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


# --- the server's side ------------------------------------------------------------------------


class NoAnswer(Exception):
    """The server did not answer; ``status`` is the client's: 502, or 504 where it took too long."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpUpstream:
    """Sends requests to ``url`` alone, whatever they name; open it inside the event loop.

    ``timeout``: seconds that a connection, and each wait for bytes of an answer, may take; of a request whose
    answer is read as a whole, all of it. ``folder``: whether the address may have a path, which then stands
    before those of requests. InputError for an address that is not of a server.
    """

    def __init__(self, url: str, *, timeout: float, connections: int, folder: bool = False) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InputError(f"a server's address is http://HOST:PORT, got {url[:80]!r}")
        path = parts.path.rstrip("/")
        if parts.username is not None or (path and not folder):
            raise InputError("a server's address is http://HOST:PORT alone, without user and path")
        self._origin = f"{parts.scheme}://{parts.netloc}{path}"
        self._timeout, self._most = timeout, connections
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool of connections."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most, keepalive_timeout=_IDLE),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO,
            trust_env=False,
            max_line_size=_HEAD,
            max_field_size=_HEAD,
        )

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        data: bytes | AsyncIterable[bytes] | None,
        *,
        whole: bool,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer once its head is there; NoAnswer if it does not come, or is cut off inside.

        ``target``: path and query, still encoded. ``whole``: the answer is read as a whole, in time.
        """
        assert self._session is not None, "open it first"
        seconds = self._timeout
        limits = aiohttp.ClientTimeout(
            total=seconds if whole else None, sock_connect=seconds, sock_read=None if whole else seconds
        )
        named: CIMultiDict[str] = CIMultiDict(
            (name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers
        )
        try:
            async with self._session.request(
                method,
                URL(self._origin + target.decode("ascii"), encoded=True),
                headers=named,
                # As a file: aiohttp writes bytes at once, which holds the event loop for large ones.
                data=io.BytesIO(data) if isinstance(data, bytes) and len(data) > _CHUNK else data,
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                yield answer
        except asyncio.TimeoutError as error:
            late = f"the server behind the gateway did not answer within {seconds:g} s"
            raise NoAnswer(504, late) from error
        except aiohttp.ClientError as error:
            raise NoAnswer(502, "the server behind the gateway does not answer") from error

"""The one server behind the gateway, over HTTP."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from calib_serve.core.errors import InputError
from calib_serve.gateway.http import (
    Headers,
    NoAnswer,
    Receive,
    Scope,
    Send,
    at_most_one,
    body_chunks,
    forwarded,
    target_of,
)

_HEAD = 64 << 10  # bytes of a line of the head of an answer
_AUTO = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


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
            # Servers close their connections after 5 seconds or more.
            connector=aiohttp.TCPConnector(limit=self._most, keepalive_timeout=3.0),
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
                data=io.BytesIO(data) if isinstance(data, bytes) and len(data) > 1 << 16 else data,
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                yield answer
        except asyncio.TimeoutError as error:
            late = f"the server behind the gateway did not answer within {seconds:g} s"
            raise NoAnswer(504, late) from error
        except aiohttp.ClientError as error:
            raise NoAnswer(502, "the server behind the gateway does not answer") from error


async def stream_through(upstream: HttpUpstream, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the request unchanged to ``upstream``, and its answer unchanged to the client."""
    headers: Headers = scope["headers"]
    length = at_most_one(headers, b"content-length")
    has_body = bool(at_most_one(headers, b"transfer-encoding")) or length not in ("", "0")
    body = body_chunks(receive) if has_body else None
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

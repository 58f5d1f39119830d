"""The server behind the gateway, over HTTP: one pool of connections, and nothing but that server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from calib_serve.errors import InputError, MissingDependency
from calib_serve.gateway.headers import Headers

try:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL
except ImportError as error:
    raise MissingDependency("aiohttp", "gateway") from error

__all__ = ["HttpUpstream", "NoAnswer"]

_IDLE = 3.0  # seconds that a connection is kept; servers close theirs after 5 or more
_HEAD = 64 << 10  # bytes of a line of the head of an answer
_AUTO = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_CHUNK = 1 << 16


class NoAnswer(Exception):
    """The server did not answer; ``status`` is the client's: 502, or 504 where it took too long."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpUpstream:
    """Sends requests to ``url`` alone, whatever their address is; open it inside the event loop.

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
        self._origin, self._timeout, self._most = (
            f"{parts.scheme}://{parts.netloc}{path}",
            timeout,
            connections,
        )
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool."""
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
        """The answer, once its head is there; NoAnswer while it is not, or is cut off inside the context.

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
                data=io.BytesIO(data) if isinstance(data, bytes) and len(data) > _CHUNK else data,
                timeout=limits,
                allow_redirects=False,
            ) as answer:
                yield answer
        except asyncio.TimeoutError as error:
            raise NoAnswer(
                504, f"the server behind the gateway did not answer within {seconds:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise NoAnswer(502, "the server behind the gateway does not answer") from error

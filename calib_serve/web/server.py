"""Run the app by uvicorn until SIGINT or SIGTERM, within bounds of connections and time."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.core.errors import InputError, ServerError
from calib_serve.core.options.base import changed
from calib_serve.core.options.servers import ListenOptions
from calib_serve.core.process import interruptible

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ListenKeywords

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def serve_app(
    app: App,
    options: ListenOptions | None = None,
    *,
    started: Callable[[int], object] | None = None,
    **keywords: Unpack[ListenKeywords],
) -> None:
    """Serve an ASGI app and return after SIGINT or SIGTERM, once the requests in hand are answered.

    Also where SIGINT was ignored, as for a process that a shell started in the background. It speaks
    HTTP/1.1, without WebSockets, by TLS 1.2 or later where there is a certificate. A client that is late with
    the head of a request, or with a body, loses its connection.

    Args:
        app: An ASGI app, such as ``create_app`` returns.
        options: A ``ListenOptions``; keywords replace its fields.
        started: Called once the app has started and listens, with the port: where 0 is asked for, a free one.
        **keywords: Fields of ``ListenOptions``: ``host``, ``max_connections``, ``port``, ``request_seconds``,
            ``root_path``, ``tls_cert``, ``tls_key``.

    Raises:
        ServerError: Where the app does not start, or the port cannot be used.
        InputError: For a certificate, or options, that cannot be right.
    """
    options = changed(options or ListenOptions(), keywords, serve_app)
    cert, key = options.tls_cert, options.tls_key
    context = None if cert is None or key is None else _tls(cert, key)
    config = uvicorn.Config(
        _in_time(app, options.request_seconds),
        host=options.host,
        port=options.port,
        http=type("Connection", (_Connection,), {"seconds": options.request_seconds}),
        ws="none",
        limit_concurrency=options.max_connections + 1,  # uvicorn refuses the one that reaches it
        h11_max_incomplete_event_size=16 << 10,  # bytes of a request's line and headers
        backlog=128,  # connections that wait to be accepted
        root_path=options.root_path,
        proxy_headers=True,
        # As uvicorn's own command has it, and over IPv6 as well.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1"),
        log_config=None,  # as the program's own
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,  # seconds that clients have to end what they began
    )
    config.load()
    config.ssl = context
    # uvicorn finishes the requests in hand, then raises the signal again, which is caught here.
    with suppress(KeyboardInterrupt), interruptible():
        asyncio.run(_Server(config, started).serve())


class _Server(uvicorn.Server):
    """uvicorn's server, but it says when it listens: before, another program may have the port."""

    def __init__(self, config: uvicorn.Config, listens: Callable[[int], object] | None) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as error:  # uvicorn has logged the reason
            where = f"{self.config.host} port {self.config.port}"
            told = "the log says why; where another program has the port, choose one by --port (port=)"
            raise ServerError(f"this server does not listen on {where}: {told}") from error
        if self._listens is not None:
            self._listens(self.servers[0].sockets[0].getsockname()[1])


# h11, not httptools: its states tell whether a request's head was read to its end.
class _Connection(H11Protocol):
    """uvicorn's connection, but with a time limit for the head of each request."""

    seconds: float
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(self.seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._late is None and self.conn.their_state is h11.IDLE:
            self._late = self.loop.call_later(self.seconds, self.transport.abort)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # a head was read to its end
            self._in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._in_time()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _in_time(app: App, seconds: float) -> App:
    """Wrap ``app`` with a time limit of ``seconds`` for a body, which looks cut off beyond it.

    The connection ends with the answer where the body was not read whole, so that the rest cannot drip on.
    """

    async def timed(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        until = asyncio.get_running_loop().time() + seconds
        whole = not any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

        async def received() -> Any:
            nonlocal whole
            if whole:
                return await receive()
            try:
                left = until - asyncio.get_running_loop().time()
                message = await asyncio.wait_for(receive(), max(left, 0.0))
            except asyncio.TimeoutError:
                return {"type": "http.disconnect"}
            whole = not message.get("more_body", False)
            return message

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start" and not whole:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await app(scope, received, sent)

    return timed


def _tls(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # never ask on a terminal
    except (OSError, ValueError) as error:
        raise InputError(
            f"{cert} and {key} are no certificate and its key, unencrypted, in PEM: {error}"
        ) from error
    return context

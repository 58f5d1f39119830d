"""Run the app by uvicorn until SIGINT or SIGTERM, within bounds of connections and time."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from calib_serve.core.errors import InputError, ServerError
from calib_serve.core.options.servers import ListenOptions
from calib_serve.core.process import interruptible
from calib_serve.web.limits import Limits

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def serve_app(
    app: App,
    *,
    host: str = ListenOptions.host,
    port: int = ListenOptions.port,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    started: Callable[[int], object] | None = None,
) -> None:
    """Serve an ASGI app and return after SIGINT or SIGTERM, once the requests in hand are answered.

    Also where SIGINT was ignored, as for a process that a shell started in the background. It speaks
    HTTP/1.1, without WebSockets, by TLS 1.2 or later where there is a certificate. A client that is late with
    a request or its body loses its connection.

    Args:
        app: An ASGI app, such as ``create_app`` returns.
        host: Address to listen on.
        port: Port to listen on.
        tls_cert: Certificate with its chain, PEM: serve by TLS.
        tls_key: The certificate's key, PEM.
        started: Called once the app has started and listens, with the port: where 0 is asked for, a free one.

    Raises:
        ServerError: Where the app does not start, or the port cannot be used.
        InputError: For a certificate, or options, that cannot be right.
    """
    ListenOptions(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key)  # which checks them
    context = None if tls_cert is None or tls_key is None else _tls(tls_cert, tls_key)
    config = uvicorn.Config(
        _ending(app),
        host=host,
        port=port,
        http=_Connection,
        ws="none",
        limit_concurrency=Limits.CONNECTIONS + 1,  # uvicorn refuses the one that reaches it
        h11_max_incomplete_event_size=16 << 10,  # bytes of a request's line and headers
        backlog=128,  # connections that wait to be accepted
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


# uvicorn has no time limit for a request, and not before every server stands a proxy that has one. h11, not
# httptools: its states tell whether a request was read to its end.
class _Connection(H11Protocol):
    """uvicorn's connection, which ends where a request, with its body, has not come in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(Limits.SECONDS, transport.abort)

    def handle_events(self) -> None:  # of what came just now, or waited behind another request
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(Limits.SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._in_time()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _ending(app: App) -> App:
    """Wrap ``app`` so that an answer ends the connection where the request's body was not read whole.

    What follows may be no request, but the rest of a body whose length a proxy reads in another way.
    """

    async def ending(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        whole = not any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

        async def received() -> Any:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start" and not whole:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await app(scope, received, sent)

    return ending


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

"""Connections of a server that stay few and do not wait for ever, whatever clients send, or do not send."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from calib_serve.errors import MissingDependency

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingDependency("uvicorn", "watch") from error

__all__ = ["Loop", "connections"]

_TOGETHER = 1 << 16  # bytes


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait ``seconds`` for a TLS handshake, not a minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """As of every loop."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self._seconds
        return await super().create_server(*args, **options)


def connections(most: int, seconds: float) -> type[H11Protocol]:
    """What uvicorn is to make of each connection, by ``http=``.

    ``most`` of them are open: whoever connects then takes the place of the one from which the server has
    waited longest for a request, or part of one. A request, with its body, comes in whole within ``seconds``
    of its first byte, or of the connection; an answer is read as fast.
    """
    return type("Connection", (_Connection,), {"most": most, "seconds": seconds})


class _Connection(H11Protocol):
    most: ClassVar[int]
    seconds: ClassVar[float]

    _waiting: float | None = None  # since when it is the client's turn; None while it is the server's
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Together(transport, self.loop))  # type: ignore[arg-type]
        self._waiting = time.monotonic()
        self._arm()
        if len(self.connections) > self.most:
            everyone: Any = self.connections  # all of this class
            oldest = min((c for c in everyone if c._waiting is not None), key=lambda c: c._waiting)
            self.connections.discard(oldest)  # at once: others may come before it is told
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        """Whose turn it is, and whether the client is in the middle of a request."""
        idle = self.conn.their_state is h11.IDLE
        if not idle and self.conn.their_state is not h11.SEND_BODY:
            self._waiting = None
            self._disarm()
            return
        self._waiting = self._waiting or time.monotonic()
        begun = not idle or bool(self.conn.trailing_data[0])
        if begun or self.cycle is None:
            self._arm()
        else:
            self._disarm()  # between two requests uvicorn's keep-alive counts

    def _arm(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Together:
    """A transport that sends together what is written in one turn of the loop: a head and its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._held = transport, loop, bytearray()

    def write(self, data: bytes) -> None:
        """Send it with what comes after it, or once it is much."""
        if not self._held and data:
            self._loop.call_soon(self._flush)
        self._held += data
        if len(self._held) > _TOGETHER:
            self._flush()

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, bytearray()
        if held:
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

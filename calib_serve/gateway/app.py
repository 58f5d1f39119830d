"""The gateway over HTTP, as an ASGI app: what is calibrated is read, all else streams through."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from calib_serve.errors import InputError
from calib_serve.gateway.calibration import Calibrations, Counts
from calib_serve.gateway.headers import Headers, about, at_most_one, forwarded
from calib_serve.gateway.http import (
    App,
    Receive,
    Scope,
    Send,
    answer_with,
    read_body,
    stream_through,
    target_of,
)
from calib_serve.gateway.infer import Inference, Wanted
from calib_serve.gateway.own import LABELS, PREFIX
from calib_serve.gateway.routes import Route, read_route
from calib_serve.gateway.upstream import HttpUpstream, NoAnswer
from calib_serve.gateway.waiting import Full, TooLarge, Waiting

__all__ = ["Gateway", "Part"]

log = logging.getLogger("calib_serve.gateway")

_LABELS, _BELOW = LABELS.encode(), f"{PREFIX}/".encode()
_SMALL = 1 << 16  # bytes of a body
_STATUS: tuple[tuple[type[Exception], int], ...] = ((Full, 429), (TooLarge, 413), (InputError, 400))


class Part(Protocol):
    """What starts and stops with the gateway."""

    async def open(self) -> None:
        """Start."""

    async def close(self) -> None:
        """Stop."""


class Gateway:
    """The app in front of ``upstream``; ``own`` answers at /v1/labels and below /calibration/.

    ``parts`` are opened before the first request, in this order, and closed after the last; ``failed`` is why
    one could not be.
    """

    def __init__(
        self,
        calibrations: Calibrations,
        upstream: HttpUpstream,
        own: App,
        *,
        waiting: Waiting,
        counts: Counts,
        parts: tuple[Part, ...] = (),
    ) -> None:
        self._upstream, self._own, self._waiting = upstream, own, waiting
        self._calibrations, self._counts, self._parts = calibrations, counts, (upstream, *parts)
        self._inference = Inference(calibrations, counts)
        self.failed: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            started = _Started(send)
            try:
                await self._serve(scope, receive, started)
            except (NoAnswer, Full, TooLarge, InputError) as error:
                if not started.yes:
                    await _refuse(started, error)
                # Else the answer ends here, without its end: the client sees that it is cut off.

    async def _live(self, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as opened:
            await receive()
            try:
                for part in self._parts:
                    opened.push_async_callback(part.close)
                    await part.open()
            except Exception as error:  # told by whoever serves this app
                self.failed = error
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        if at_most_one(headers, b"transfer-encoding") and at_most_one(headers, b"content-length"):
            raise InputError("a request has either a length or chunks")
        method, path = scope["method"], scope["raw_path"]
        route = read_route(method, path)
        if path == _LABELS or path.startswith(_BELOW):
            await self._own(scope, receive, send)
        elif route.kind == "health":
            await stream_through(self._upstream, scope, receive, send)
        else:
            with self._waiting.one():
                output = self._calibrations.output_of(route.model)
                if output is not None and route.kind == "infer" and method == "POST":
                    await self._infer(route, output, scope, receive, send)
                    return
                if output is not None and route.kind == "inference":
                    self._counts.passed(route.model, route.version)
                await stream_through(self._upstream, scope, receive, send)

    async def _infer(self, route: Route, output: str, scope: Scope, receive: Receive, send: Send) -> None:
        may_add = self._calibrations.added_to(route.model)
        wanted = Wanted(route, output, about(scope["headers"]), self._waiting.most, may_add)
        with self._waiting.body() as held:
            await read_body(receive, held, self._waiting)
            ask = await _off_the_loop(len(held), wanted.ask, bytes(held), scope["headers"])
            async with self._upstream.request(
                "POST", target_of(scope), ask.headers, ask.body, whole=True
            ) as answer:
                content = await answer.read()
        given = forwarded(answer.raw_headers, b"date")
        if answer.status == 200:
            work = self._inference.reply, wanted, ask, given, content
            content, given = await _off_the_loop(len(content), *work)
        await answer_with(send, answer.status, given, content)


async def _off_the_loop(size: int, work: Callable[..., Any], *args: Any) -> Any:
    """What is small is done at once; what is large, in a thread, so that others need not wait for it."""
    return work(*args) if size < _SMALL else await asyncio.to_thread(work, *args)


class _Started:
    """``send``, and whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send, self.yes = send, False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self.yes = True
        await self._send(message)


async def _refuse(send: Send, error: Exception) -> None:
    """An error as the protocol says it; what it is about is no server's fault but for NoAnswer."""
    status = (
        error.status
        if isinstance(error, NoAnswer)
        else next(s for kind, s in _STATUS if isinstance(error, kind))
    )
    more: Headers = [(b"retry-after", b"1")] if status == 429 else []
    if status in (400, 413):  # nothing after it on this connection is believed
        more.append((b"connection", b"close"))
    body = json.dumps({"error": str(error)}).encode()
    length = str(len(body)).encode()
    await answer_with(
        send, status, [*more, (b"content-type", b"application/json"), (b"content-length", length)], body
    )

"""The gateway over HTTP, as an ASGI app: what is calibrated is read, all else streams through."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, Protocol

from calib_serve.errors import InputError, MissingDependency
from calib_serve.gateway.calibration import Calibrations
from calib_serve.gateway.exporter import CONTENT_TYPE_LATEST, CollectorRegistry, Counts, generate_latest
from calib_serve.gateway.http import (
    App,
    Full,
    Headers,
    HttpUpstream,
    Message,
    NoAnswer,
    Receive,
    Scope,
    Send,
    TooLarge,
    Waiting,
    about,
    answer_with,
    at_most_one,
    forwarded,
    stream_through,
    target_of,
)
from calib_serve.gateway.rest import Inference, Route, Wanted, read_route
from calib_serve.watch.http import Guard

try:
    from fastapi import HTTPException, Request, Response
    from fastapi.responses import JSONResponse
except ImportError as error:
    raise MissingDependency("fastapi", "gateway") from error

__all__ = ["LABELS", "PREFIX", "Gateway", "Part", "of_watch_elsewhere", "of_watch_inside"]

log = logging.getLogger("calib_serve.gateway")

LABELS = "/v1/labels"
PREFIX = "/calibration"
"""Below it are metrics, and the page of a watch in this process."""

_LABELS, _BELOW = LABELS.encode(), f"{PREFIX}/".encode()
_SMALL = 1 << 16  # bytes of a body
_UNPACKED = 4  # bodies that are decompressed at the same time
_STATUS: tuple[tuple[type[Exception], int], ...] = ((Full, 429), (TooLarge, 413), (InputError, 400))


class Part(Protocol):
    """Starts and stops with the gateway."""

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
        guard: Guard,
        waiting: Waiting,
        counts: Counts,
        parts: tuple[Part, ...] = (),
    ) -> None:
        self._upstream, self._own, self._waiting = upstream, own, waiting
        self._calibrations, self._counts, self._parts = calibrations, counts, (upstream, *parts)
        # Inference needs no token: on loopback it is for local programs, not for pages that a browser shows.
        self._guard = None if guard.is_open else guard
        self._inference = Inference(calibrations, counts)
        self._unpacking = asyncio.Semaphore(_UNPACKED)
        self.failed: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, as ASGI calls it."""
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
            except Exception as error:  # reported by whoever serves this app
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
        if self._guard is not None and (wrong := self._guard.refusal(scope)):
            raise NoAnswer(*wrong)
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
        headers: Headers = scope["headers"]
        may_add = self._calibrations.added_to(route.model)
        wanted = Wanted(route, output, about(headers), self._waiting.most, may_add)
        with self._waiting.body() as body:
            raw = await body.read(receive)
            ask = await self._off_the_loop(raw, headers, wanted.ask, raw, headers)
            if ask.body is not raw:
                body.hold(len(ask.body))
            async with self._upstream.request(
                "POST", target_of(scope), ask.headers, ask.body, whole=True
            ) as answer:
                content = await answer.read()
        given = forwarded(answer.raw_headers, b"date")
        if answer.status == 200:
            work = self._inference.reply, wanted, ask, given, content
            content, given = await self._off_the_loop(content, given, *work)
        await answer_with(send, answer.status, given, content)

    async def _off_the_loop(self, body: bytes, headers: Headers, work: Callable[..., Any], *args: Any) -> Any:
        """Do at once what is small; what is large in a thread, so that others need not wait for it.

        What comes compressed is large whatever its bytes are: sixty kilobytes may hold sixty megabytes.
        """
        if any(name.lower() == b"content-encoding" for name, _ in headers):
            async with self._unpacking:
                return await asyncio.to_thread(work, *args)
        return work(*args) if len(body) < _SMALL else await asyncio.to_thread(work, *args)


class _Started:
    """``send``, and whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send, self.yes = send, False

    async def __call__(self, message: Message) -> None:
        self.yes = True
        await self._send(message)


async def _refuse(send: Send, error: Exception) -> None:
    """Send an error as the protocol has it; only NoAnswer is the server's fault."""
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


def of_watch_inside(app: App) -> App:
    """Answer by the app of a watch in this process: labels, metrics, the page, incidents."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        below = scope["path"] != LABELS
        await app({**scope, "root_path": PREFIX} if below else scope, receive, send)

    return answer


def of_watch_elsewhere(watch: HttpUpstream, registry: CollectorRegistry, guard: Guard) -> App:
    """Hand labels on to a watch at another address, with the client's token; metrics are the gateway's.

    Both need what ``guard`` asks for: the watch itself may be open to this host alone.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        labels = scope["path"] == LABELS
        try:
            await guard.needs("label" if labels else "scrape")(Request(scope))
        except HTTPException as error:
            found: Response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        else:
            if labels:
                await stream_through(watch, scope, receive, send)
                return
            if (scope["method"], scope["path"]) == ("GET", f"{PREFIX}/metrics"):
                found = Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
            else:
                found = JSONResponse({"detail": "Not Found"}, 404)
        await found(scope, receive, send)

    return guard.around(answer)

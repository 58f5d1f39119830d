"""HTTP by ASGI: whole answers, bodies within bounds, and requests that stream through to another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from calib_serve.gateway.headers import Headers, at_most_one, forwarded
from calib_serve.gateway.upstream import HttpUpstream, NoAnswer
from calib_serve.gateway.waiting import Waiting

__all__ = ["App", "Receive", "Scope", "Send", "answer_with", "read_body", "stream_through", "target_of"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def answer_with(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive, held: bytearray, waiting: Waiting) -> None:
    """The body of a request; NoAnswer where the client went away."""
    async for chunk in _chunks(receive):
        waiting.add(held, chunk)


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
    """The path and the query as they came, but for the folder that the app is mounted in."""
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


async def stream_through(upstream: HttpUpstream, scope: Scope, receive: Receive, send: Send) -> None:
    """The request as it is to ``upstream``, and its answer as it is to the client."""
    headers: Headers = scope["headers"]
    length = at_most_one(headers, b"content-length")
    has_body = bool(at_most_one(headers, b"transfer-encoding")) or length not in ("", "0")
    body = _chunks(receive) if has_body else None
    async with upstream.request(
        scope["method"], target_of(scope), forwarded(headers, b"host"), body, whole=False
    ) as answer:
        given = forwarded(answer.raw_headers, b"date")
        endless = not at_most_one(given, b"content-length")
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
    """Ends when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass

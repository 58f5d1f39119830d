"""Bodies of requests, bounded each and all together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from calib_serve.core.errors import CalibServeError
from calib_serve.gateway.http import NoAnswer, Receive


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
        if self._waiting.held + size > 16 * self._waiting.most:
            raise Full("too many bodies are being sent; send it again")
        self._waiting.held += size
        self.held += size

    async def read(self, receive: Receive) -> bytes:
        """Read the whole body, once; NoAnswer where the client went away."""
        async for chunk in body_chunks(receive):
            self.add(chunk)
        whole = b"".join(self._chunks)
        self._chunks.clear()
        return whole


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body's bytes as they come; NoAnswer where the client went away."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NoAnswer(400, "the body was cut off")
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]

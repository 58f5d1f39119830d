"""Bodies of requests, bounded each and all together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calib_serve.core.errors import CalibServeError


class Full(CalibServeError):
    """Too many requests or bodies are in hand: ask again."""


class TooLarge(CalibServeError):
    """A body with more bytes than allowed."""


class Waiting:
    """Bounds of the requests in hand and of their bodies, which together have sixteen times the bytes of one.

    Args:
        requests: Requests in hand, at most.
        most: Bytes of a body, at most.

    >>> waiting = Waiting(1, most=10)
    >>> with waiting.one():
    ...     waiting.requests
    1
    """

    def __init__(self, requests: int, *, most: int = 0) -> None:
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

    def check_size(self, size: int) -> None:
        """Raise TooLarge for a body of so many bytes."""
        if size > self.most:
            raise TooLarge(f"a body has at most {self.most} bytes")

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
        self._waiting.check_size(self.held + len(chunk))
        self.hold(len(chunk))
        self._chunks.append(chunk)

    def hold(self, size: int) -> None:
        """Count so many bytes more; Full beyond the bound of all bodies."""
        if self._waiting.held + size > 16 * self._waiting.most:
            raise Full("too many bodies are being sent; send it again")
        self._waiting.held += size
        self.held += size

    def whole(self) -> bytes:
        """All that was added, once."""
        whole = b"".join(self._chunks)
        self._chunks.clear()
        return whole

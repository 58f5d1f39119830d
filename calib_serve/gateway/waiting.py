"""How much the gateway takes on at a time: requests, and bytes of their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calib_serve.errors import CalibServeError

__all__ = ["Full", "TooLarge", "Waiting"]

_AT_ONCE = 16  # the largest bodies that are held at the same time


class Full(CalibServeError):
    """Too much is at work already: ask again."""


class TooLarge(CalibServeError):
    """A body of more bytes than one may have."""


class Waiting:
    """At most ``requests`` at work, and bodies of at most ``most`` bytes each, sixteen times that together.

    >>> waiting = Waiting(1, most=10)
    >>> with waiting.one():
    ...     waiting.requests
    1
    """

    def __init__(self, requests: int, *, most: int) -> None:
        self.most, self.requests = most, 0
        self._requests, self._held = requests, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request at work; Full where there are too many."""
        if self.requests >= self._requests:
            raise Full("too many requests are waiting; send it again")
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def body(self) -> Iterator[bytearray]:
        """A body that is read: ``add`` to it; what it holds is given back at the end."""
        held = bytearray()
        try:
            yield held
        finally:
            self._held -= len(held)

    def add(self, body: bytearray, chunk: bytes) -> None:
        """More of a body; TooLarge or Full beyond the bounds."""
        if len(body) + len(chunk) > self.most:
            raise TooLarge(f"a body has at most {self.most} bytes (--max-megabytes)")
        if self._held + len(chunk) > _AT_ONCE * self.most:
            raise Full("too many bodies are being sent; send it again")
        body += chunk
        self._held += len(chunk)

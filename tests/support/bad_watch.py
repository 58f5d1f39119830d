"""Watches that answer badly, by raw sockets: they hang, drip, lie, or send their clients elsewhere."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Way = Callable[["BadWatch", socket.socket, int], None]
"""How a connection with a request of so many items is answered."""


class BadWatch:
    """Answers in its way, and keeps the heads of what it was sent."""

    def __init__(self, way: Way) -> None:
        self.heads: list[str] = []
        self.ended = threading.Event()
        self._way = way
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.ended.is_set():
            with suppress(OSError):
                peer, _ = self._door.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError, ValueError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += peer.recv(1 << 16) or _gone()
            head, _, body = data.partition(b"\r\n\r\n")
            self.heads.append(head.decode("latin-1"))
            lengths = [
                line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-l")
            ]
            while len(body) < int(lengths[0]):
                body += peer.recv(1 << 16) or _gone()
            self._way(self, peer, len(json.loads(body)["items"]))

    def close(self) -> None:
        self.ended.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._door.close()


def _gone() -> bytes:
    raise ConnectionError


@contextmanager
def bad_watch(way: Way) -> Iterator[BadWatch]:
    made = BadWatch(way)
    try:
        yield made
    finally:
        made.close()


def says(document: object, *, status: str = "200 OK", more: str = "") -> Way:
    """Answers with this JSON, or these bytes, whole."""

    def way(_: BadWatch, peer: socket.socket, items: int) -> None:
        told = document(items) if callable(document) else document
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        peer.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)

    return way


def sends(raw: bytes) -> Way:
    """Sends these bytes, and ends the connection."""
    return lambda _, peer, __: peer.sendall(raw)


def hangs(watch: BadWatch, _: socket.socket, __: int) -> None:
    """Never answers."""
    watch.ended.wait(120)


def drips(first: bytes, again: bytes, every: float = 0.2) -> Way:
    """Sends something every moment, and never ends."""

    def way(watch: BadWatch, peer: socket.socket, _: int) -> None:
        peer.sendall(first)
        while not watch.ended.wait(every):
            peer.sendall(again)

    return way


def pours(watch: BadWatch, peer: socket.socket, _: int) -> None:
    """Sends an answer that has no end, as quickly as it can."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    while not watch.ended.is_set():
        peer.sendall(piece)


GOOD = says(lambda n: {"items": [{"accepted": True}] * n})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


def no_tls(url: str) -> str:
    """The address by TLS, which the peer does not speak."""
    return url.replace("http://", "https://")

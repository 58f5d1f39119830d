"""A server that keeps every byte that comes to it, and answers with the bytes that a test gives it."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An HTTP answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Recording:
    """What came in, one entry a request; ``answer`` gives the bytes that go back, None for no answer."""

    port: int = 0
    scheme: str = "http"
    requests: list[bytes] = field(default_factory=list)
    answer: Callable[[bytes], bytes | None] = lambda _: reply(b"{}")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.scheme}://127.0.0.1:{self.port}"


@contextmanager
def recording(tls: ssl.SSLContext | None = None) -> Iterator[Recording]:
    """One that listens until the end."""
    made = Recording(scheme="https" if tls else "http")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made.port = listening.getsockname()[1]
        open_ones: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    one, _ = listening.accept()
                    if tls:
                        one = tls.wrap_socket(one, server_side=True, do_handshake_on_connect=False)
                    open_ones.append(one)
                    threading.Thread(target=_talk, args=(made, one), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield made
        finally:
            for one in open_ones:
                one.close()


def _talk(made: Recording, connection: socket.socket) -> None:
    with suppress(OSError):
        while sent := _request(connection):
            made.requests.append(sent)
            answer = made.answer(sent)
            if answer is None:
                time.sleep(60)
                return
            connection.sendall(answer)
            if b"content-length" not in answer.partition(b"\r\n\r\n")[0].lower():
                connection.close()


def _request(connection: socket.socket) -> bytes:
    """A request with all of its body, as a strict reader sees it."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = connection.recv(1 << 16)
        if not more:
            return b""
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    named = {k.strip().lower(): v.strip() for k, _, v in (x.partition(b":") for x in head.split(b"\r\n")[1:])}
    while True:
        if b"transfer-encoding" in named:
            done = body.endswith(b"0\r\n\r\n")
        else:
            done = len(body) >= int(named.get(b"content-length", b"0"))
        if done:
            return head + b"\r\n\r\n" + body
        body += connection.recv(1 << 16)

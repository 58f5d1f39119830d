"""A proxy before a PostgreSQL that dies between a COMMIT and its answer."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from processes import free_port


@contextmanager
def cut_after_commit(url: str) -> Iterator[tuple[str, threading.Event]]:
    """The proxy's address, and the event while which no client hears of its COMMIT."""
    at, port, cut, stop = urlsplit(url), free_port(), threading.Event(), threading.Event()
    server = socket.create_server(("127.0.0.1", port))
    server.settimeout(0.1)

    def serve() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                client, _ = server.accept()
                threading.Thread(target=_between, args=(client, at.port, cut), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield url.replace(f":{at.port}", f":{port}"), cut
    finally:
        stop.set()
        thread.join()
        server.close()


def _between(client: socket.socket, port: int | None, cut: threading.Event) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as store:
        while True:
            ready, _, _ = select.select([client, store], [], [])
            for one in ready:
                content = one.recv(1 << 16)
                if not content:
                    return
                if one is client:
                    store.sendall(content)
                    if cut.is_set() and content.endswith(b"commit\0"):
                        store.recv(1 << 16)  # it is done
                        return
                else:
                    client.sendall(content)

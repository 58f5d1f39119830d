"""A real ``calib-serve watch`` and clients that connect to it and stall."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from processes import free_port, started

from calib_serve.receipts import Keyring

IMPATIENT = "from calib_serve.web import Limits; Limits.SECONDS, Limits.CONNECTIONS = 2.0, 100; "
"""Two seconds for a request, and a hundred connections."""
ONE = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}


class Served:
    """A real ``calib-serve watch``, its address and what it logged."""

    def __init__(self, folder: Path, host: str, port: int, tls: bool) -> None:
        self.log, self.host, self.port = folder / "log", host, port
        self.url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        self.client = httpx.Client(base_url=self.url, verify=False, timeout=60, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None

    def connect(self, text: bytes = b"") -> socket.socket:
        """A connection that has sent ``text``, and waits."""
        peer = socket.create_connection((self.host, self.port), timeout=60)
        peer.sendall(text)
        return peer

    def counts(self, predictions: int = 3) -> bool:
        """Whether a batch is counted."""
        answer = self.client.post("/v1/predictions", json=[ONE] * predictions)
        return answer.status_code == 200 and len(answer.json()["items"]) == predictions

    def ready(self) -> bool:
        """Whether it answers."""
        with suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def cpu(self) -> float:
        """Processor seconds that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def watching(folder: Path, *options: str, host: str = "127.0.0.1", limits: str = "") -> Iterator[Served]:
    """A watch with ``options``; ``limits``: a program that sets constants first, such as ``IMPATIENT``."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    Keyring.new().save(folder / "keys.json")
    program = f"{limits}from calib_serve.app import main; main()"
    command = [sys.executable, "-c", program, "watch", "m:1=3", "--keyring", str(folder / "keys.json")]
    command += ["--ledger", str(folder / "l.db"), "--host", host, "--port", str(port), *options]
    served = Served(folder, host, port, "--tls-cert" in options)
    with (
        served.log.open("wb") as log,
        started(command, stdout=subprocess.DEVNULL, stderr=log) as process,
        served.client,
    ):
        served.process = process
        while not served.ready():
            assert process.poll() is None, served.log.read_text()
            time.sleep(0.1)
        yield served


def closed(peer: socket.socket) -> bool:
    """Whether the other end closes the connection, within a minute."""
    with peer, suppress(ConnectionError):
        while peer.recv(1 << 16):
            pass
    return True

"""The watch server under clients that stall, or send what is dear to parse: others are answered."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from live_server import until
from sizes import sized
from stalling import IMPATIENT, ONE, Served, closed, watching

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server that gives a request two seconds, and serves a hundred connections."""
    with watching(tmp_path_factory.mktemp("watch"), limits=IMPATIENT) as served:
        yield served


def test_a_crowd_of_silent_connections_is_let_go(plain: Served) -> None:
    with ExitStack() as stack:
        for _ in range(sized(200, 900)):
            stack.enter_context(plain.connect())
        until(plain.counts)
    assert plain.log.stat().st_size < 100_000
    assert "Traceback" not in plain.log.read_text()


def head(plain: Served, length: int) -> bytes:
    return (
        f"POST /v1/labels HTTP/1.1\r\nHost: {plain.host}:{plain.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    ).encode()


def test_whoever_stops_in_the_middle_of_a_request_is_let_go(plain: Served) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    stalled = [
        plain.connect(),
        plain.connect(head(plain, 5)),
        plain.connect(head(plain, 5) + b"\r\n[1"),
        plain.connect(whole + head(plain, 5) + b"\r\n["),
        plain.connect(whole + head(plain, 5)),
        plain.connect(head(plain, 1 << 40) + b"\r\n["),  # refused at once, and never sent
    ]
    assert all(closed(peer) for peer in stalled)
    assert plain.counts()


def cut_off(peer: socket.socket, text: bytes) -> bool:
    """Whether the connection ends while ``text`` is sent again and again, for a minute at most."""
    for _ in range(600):
        try:
            peer.sendall(text)
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_whoever_sends_a_byte_a_moment_is_let_go(plain: Served) -> None:
    with plain.connect(head(plain, 100_000)) as peer:
        assert cut_off(peer, b"X")
    with plain.connect(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as peer:
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 ")
        assert cut_off(peer, b"X")  # the head of a second request
    assert plain.counts()


JSON, NDJSON = "application/json", "application/x-ndjson"
SIZE = (4 << 20) - 1000


def spent(plain: Served, body: bytes, kind: str) -> tuple[float, int]:
    """Processor seconds of the server for a body, and its answer."""
    before = plain.cpu()
    answer = plain.client.post("/v1/predictions", content=body, headers={"content-type": kind})
    return plain.cpu() - before, answer.status_code


@pytest.fixture(scope="module")
def fair(plain: Served) -> float:
    """Processor seconds that a legal batch costs."""
    legal = json.dumps([{**ONE, "segment": "x" * 60, "group": "g" * 255}] * 9900).encode()
    assert SIZE / 2 < len(legal) < SIZE
    cost, answer = spent(plain, legal, JSON)
    assert answer == 200
    return cost


@pytest.mark.parametrize(
    ("part", "kind", "status"),
    [
        (b"1\n", NDJSON, 413),
        (b"\n", NDJSON, 200),
        (b"[" * 400 + b"\n", NDJSON, 413),
        (b"[", JSON, 413),
        (b"[1],", JSON, 413),
        (b'{"":', JSON, 413),
    ],
)
def test_four_megabytes_of_anything_cost_little_more_than_a_legal_batch(
    plain: Served, fair: float, part: bytes, kind: str, status: int
) -> None:
    hostile = part * (SIZE // len(part))
    if kind == JSON and part.endswith(b","):
        hostile = b"[" + hostile + b"1]"
    for _ in range(3):  # two programs on one core also take from each other what it has cached
        dear, answer = spent(plain, hostile, kind)
        assert answer == status
        if dear < 2 * fair:
            break
    assert dear < 2 * fair


def test_a_body_is_refused_by_its_headers_before_it_is_sent(plain: Served) -> None:
    for more, status in ((b"\r\n", b"413"), (b"Content-Encoding: gzip\r\n\r\n", b"415")):
        length = 1 << 40 if status == b"413" else 50
        with plain.connect(head(plain, length) + more) as peer:
            assert peer.recv(1000).startswith(b"HTTP/1.1 " + status)

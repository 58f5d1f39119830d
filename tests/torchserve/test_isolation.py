"""One bad request in a batch of eight: it alone is refused, its neighbours' answers do not change."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import torch
from hostile import MATRIX, npy
from live_server import Running, exported, network, temperature_artifact, with_delay

from calib_serve.torchserve import pack

pytestmark = pytest.mark.server
MODEL = "isolated"


class Overflowing(torch.nn.Module):
    """The small classifier on 4 x 4 images; NaN where an input is close to float32's end."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        much = flat[:, :1] * 10
        return self.net(flat.clamp(-100, 100)) + (much - much)


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("isolation")
    model = exported(folder / "net.pt2", Overflowing(), 1, 4, 4)
    artifact = temperature_artifact(model={"input_shape": [1, 4, 4]})
    how = {"mean": 0, "std": 1, "resize": [4, 4]}
    path = pack(model, artifact, folder, name=MODEL, batch_size=8, pictures=how, unproven=True)
    return register(with_delay(path, 15_000))  # eight at once always share a batch


NEIGHBOURS = np.random.default_rng(9).normal(size=(7, 1, 4, 4)).astype(np.float32)


def eight(
    running: Running, body: bytes, content_type: str
) -> tuple[httpx.Response, list[dict[str, Any]], set[str]]:
    """The reply to ``body``, the seven neighbours' replies, and which workers answered."""

    def send(i: int) -> httpx.Response:
        if i == 7:
            return running.predict(None, MODEL, content=body, headers={"content-type": content_type})
        return running.predict(NEIGHBOURS[i].tolist(), MODEL)

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(send, range(8)))
    good = [reply.json() for reply in replies[:7]]
    for one in good:
        assert one.pop("receipt")
    return replies[7], good, {r.headers["x-calib-worker"] for r in replies[:7]}


@pytest.fixture(scope="module")
def clean(running: Running) -> tuple[list[dict[str, Any]], set[str]]:
    reply, good, workers = eight(running, npy(NEIGHBOURS[0]), "application/octet-stream")
    assert reply.status_code == 200
    return good, workers


@pytest.mark.parametrize(("body", "kind", "status"), [m[1:] for m in MATRIX], ids=[m[0] for m in MATRIX])
def test_only_the_bad_one_is_refused(
    running: Running, clean: tuple[list[dict[str, Any]], set[str]], body: bytes, kind: str, status: int
) -> None:
    reply, good, workers = eight(running, body, kind)
    assert reply.status_code == status
    if status == 400:
        assert 10 < len(reply.json()["message"]) < 300, "a reason, and not the request's own content"
    assert good == clean[0], "the neighbours' answers are the same to the last bit"
    assert workers == clean[1], "the same worker process answered"


ODD_HEADERS = (
    b"\xff\xfe\x80",
    b"\xe2\x80\xa8[METRICS]x",
    b"\xc2\x85[METRICS]x",
    b"a" * 7000,
    b"\xf0\x9f\x90\x88",
    b"\xed\xa0\x80",
    b"\t",
    b'"; drop',
)


def test_headers_of_any_bytes_reach_no_worker_s_end(running: Running) -> None:
    (pid,) = running.server.workers(MODEL)
    where = urlsplit(running.server.inference)
    token = running.server.tokens.inference

    def send(value: bytes) -> bytes:
        with socket.create_connection((where.hostname, where.port), timeout=60) as raw:
            raw.sendall(
                f"POST /predictions/{MODEL} HTTP/1.1\r\nHost: h\r\n".encode()
                + f"Content-Type: application/json\r\nAuthorization: Bearer {token}\r\n".encode()
                + b"X-Odd: "
                + value
                + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"
            )
            return raw.recv(100)

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(send, ODD_HEADERS))
    assert all(reply.startswith(b"HTTP/1.1 400") for reply in replies)
    assert running.server.workers(MODEL) == [pid]

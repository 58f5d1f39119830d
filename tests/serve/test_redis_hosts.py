"""Two hosts, each with a TorchServe of its own, count labels in one Redis: each label once, come what may."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from ledgers import accept
from live_server import Running, small_store
from real_servers import Redis

from calib_serve.receipts import Keyring, Label
from calib_serve.serve.emit import Emitter
from calib_serve.serve.properties import Ports
from calib_serve.serve.publish import Publisher
from calib_serve.serve.server import Server
from calib_serve.watch.ledger import Sums, Version, open_ledger


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path, durable=True) as server:
        yield server


@pytest.fixture
def hosts(tmp_path: Path, redis: Redis) -> Iterator[list[Running]]:
    """The first serves the classifier on two workers, and each takes labels on one."""
    store = small_store(tmp_path)
    ring = Keyring.new()
    ring.save(tmp_path / "keyring.json")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        servers = [
            Server(
                store,
                models,
                folder=tmp_path / name,
                ports=Ports.free(),
                keyring=tmp_path / "keyring.json",
                ledger=redis.url,
                writer=name,
            )
            for name, models in (
                ("a", ["digits.mar", "calibration_feedback.mar"]),
                ("b", ["calibration_feedback.mar"]),
            )
        ]
        for server in servers:
            stack.callback(server.stop)
        list(pool.map(lambda server: server.start(), servers))
        yield [Running(server, stack.enter_context(server.client()), ring) for server in servers]


@pytest.mark.store
@pytest.mark.parametrize("busy", [False, True])
def test_sums_that_were_sent_as_redis_died_are_not_sent_again(
    redis: Redis, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, ledger = Keyring.new(), open_ledger(redis.url, writer="a")

    def count(n: int) -> None:
        tokens = [ring.sign(model="m", version="1", predicted=1, confidence=0.75) for _ in range(n)]
        assert all(accept(ledger, [Label(ring.verify(t), 1) for t in tokens]))

    lines: list[str] = []

    def write(text: str) -> None:
        lines.append(text)
        if len(lines) == 1:
            redis.kill()  # what is being written has been sent, and cannot be marked

    def sent() -> float:
        found = [line for text in lines for line in text.splitlines() if "calib_feedback_total" in line]
        return sum(float(line.split(":")[1].split("|")[0]) for line in found)

    def read_and_count(*, own: bool = False) -> dict[Version, Sums]:
        found = read(own=own)
        count(1)
        return found

    read = ledger.sums
    publisher = Publisher(ledger, Emitter(write=write, host="h", interval=3600), name="a")
    count(5)
    with monkeypatch.context() as patch:
        if busy:  # another label comes right after each look at the sums
            patch.setattr(ledger, "sums", read_and_count)
        publisher.publish()
        assert sent() == 5
        redis.start()
        count(2)
        publisher.publish()
    publisher.publish()
    assert sent() == ledger.sums()["m", "1"].feedback.n == (9 if busy else 7)
    ledger.close()

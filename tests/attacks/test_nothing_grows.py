"""Very many requests through reporter, gateway and watch: memory, descriptors and threads do not grow."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gateways import CLASSES, INFER, artifact, document, gateway
from prometheus_client import CollectorRegistry
from real_servers import Server
from recording_server import recording, reply
from sizes import sized

from calib_serve import Reporter

pytestmark = pytest.mark.server

REQUESTS = sized(1_500, 200_000)
AT_ONCE = 50  # of a reporter; each reply of the gateway has five
P = np.full((AT_ONCE, CLASSES), 1 / CLASSES)


def state(process: psutil.Process) -> dict[str, float]:
    return {
        "MiB": process.memory_info().rss / 2**20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


def serve(client: Any, url: str, reporter: Reporter, requests: int) -> None:
    """A third through the gateway, two thirds through the reporter, with labels now and then."""
    for i in range(requests // 3):
        answer = client.post(f"{url}{INFER}", content=document(), headers={"x-calib-segment": f"s{i % 100}"})
        assert answer.status_code == 200
        if i % (AT_ONCE // 2) == 0:
            receipts = reporter.served(P, segment=f"s{i % 100}")
            assert all(one.accepted for one in reporter.labels([{"receipt": str(receipts[0]), "label": 0}]))
    reporter.flush()


def test_nothing_grows(tmp_path: Path) -> None:
    threads = threading.active_count()
    artifact().save(tmp_path / "artifact")
    models = [f"digits={tmp_path / 'artifact'}"]
    with (
        Server(tmp_path, models=(f"digits:1={tmp_path / 'artifact'}",)) as watch,
        recording() as upstream,
        gateway(
            tmp_path,
            upstream.url,
            "--output",
            "logits",
            "--watch",
            watch.url,
            "--trust-headers",
            models=models,
            ledger=False,
        ) as before,
    ):

        def answer(_: object) -> bytes:
            upstream.requests.clear()  # which would grow
            return reply(document())

        upstream.answer = answer
        own = {"keyring": tmp_path / "keys.json", "watch": watch.url, "registry": CollectorRegistry()}
        with Reporter(CLASSES, model="digits", version="1", **own) as reporter:
            serve(before.client, before.http, reporter, REQUESTS // 3)  # what is made once is made by now
            processes = {
                "watch": psutil.Process(watch.process.pid),
                "gateway": psutil.Process(before.process.pid),
                "reporter": psutil.Process(os.getpid()),
            }
            first = {name: state(one) for name, one in processes.items()}
            serve(before.client, before.http, reporter, REQUESTS)
            last = {name: state(one) for name, one in processes.items()}
    for name, before_it in first.items():
        print(name, before_it, last[name])  # shown by pytest -rP
        assert last[name]["threads"] <= before_it["threads"] + 2, (name, before_it, last[name])
        assert last[name]["descriptors"] <= before_it["descriptors"] + 8, (name, before_it, last[name])
        assert last[name]["MiB"] <= before_it["MiB"] + 48, (name, before_it, last[name])
    assert threading.active_count() <= threads + 2

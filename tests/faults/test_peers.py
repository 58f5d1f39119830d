"""Whoever is at the other end is slow, gone, or restarted: nobody else waits, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from live_server import exported, temperature_artifact
from processes import started
from sizes import sized

from calib_serve.torchserve import pack

pytestmark = pytest.mark.server
CALIB_SERVE = (sys.executable, "-c", "from calib_serve.app import main; main()")
ONE = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}


def receipts(url: str, count: int) -> list[str]:
    answer = httpx.post(f"{url}/v1/predictions", json=[ONE] * count, timeout=60).json()
    return [one["receipt"] for one in answer["items"]]


def test_a_label_file_waits_for_a_server_that_is_restarting(make_server, tmp_path: Path) -> None:
    server = make_server()
    tokens = receipts(server.url, 5)
    path = tmp_path / "labels.csv"
    path.write_text("receipt,label\n" + "".join(f"{r},2\n" for r in tokens))
    server.stop()
    command = [*CALIB_SERVE, "label", str(path), "--url", f"{server.url}/v1/labels"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as sender:
        server.start()
        out, _ = sender.communicate(timeout=300)
    assert (sender.returncode, out.strip()) == (0, "5 counted")


def connect(url: str, text: bytes) -> socket.socket:
    where = httpx.URL(url)
    peer = socket.create_connection((where.host, where.port or 80), timeout=60)
    peer.sendall(text)
    return peer


def test_clients_that_send_half_a_batch_keep_nobody_waiting_and_are_not_counted(make_server) -> None:
    server = make_server()
    body = json.dumps([ONE] * 50).encode()
    head = (
        f"POST /v1/predictions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    halves = [connect(server.url, head + body[: len(body) // 2]) for _ in range(sized(40, 300))]
    assert len(receipts(server.url, 3)) == 3
    for peer in halves[::2]:
        peer.close()  # some hang up, the others stay
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    total = sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("calib_predictions_total{"))
    assert total == 3
    for peer in halves[1::2]:
        peer.close()
    assert server.stop() == 0


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_server_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    store = tmp_path / "model_store"
    pack(exported(tmp_path / "net.pt2"), temperature_artifact(), store, name="digits", unproven=True)
    command = [*CALIB_SERVE, "serve", "--free-ports"]
    with started(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as serving:
        while not re.search("Ctrl-C", serving.stdout.readline()):
            assert serving.poll() is None
        processes = psutil.Process(serving.pid).children(recursive=True)
        serving.kill()
        serving.wait()
        _, left = psutil.wait_procs(processes, timeout=60)
        for process in left:
            process.kill()
    assert not left
    shutil.rmtree(store)

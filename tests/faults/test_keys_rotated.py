"""Keys change under load: over two hosts no receipt is refused, and a broken keyring file changes nothing."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest
from real_servers import Server
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.receipts import Keyring
from calib_serve.watch.ledger import open_ledger

pytestmark = pytest.mark.server

LOADERS = 6
BATCH = 20


def keys(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["keys", *map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def key_of(receipt: str) -> str:
    raw = base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4))
    return raw[3 : 3 + raw[2]].decode()


class Load(threading.Thread):
    """Predicts on one host and labels on another, in turns, until it is told to stop."""

    def __init__(self, hosts: list[Server], first: int) -> None:
        super().__init__()
        self._hosts, self._first = hosts, first
        self._done = threading.Event()
        self.keys: Counter[str] = Counter()
        self.latest: dict[str, set[str]] = {}  # by host
        self.refused: Counter[str] = Counter()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}
        turn = self._first
        try:
            with httpx.Client(timeout=60) as http:
                while not self._done.is_set():
                    here, there = self._hosts[turn % 2], self._hosts[(turn + 1) % 2]
                    turn += 1
                    answer = http.post(f"{here.url}/v1/predictions", json={"items": [one] * BATCH})
                    receipts = [item["receipt"] for item in answer.raise_for_status().json()["items"]]
                    labels = {"items": [{"receipt": receipt, "label": 1} for receipt in receipts]}
                    told = http.post(f"{there.url}/v1/labels", json=labels).raise_for_status().json()
                    self.refused.update(item["reason"] for item in told["items"] if not item["accepted"])
                    self.keys.update(map(key_of, receipts))
                    self.latest[here.url] = set(map(key_of, receipts))
        except Exception as error:  # told by the test's own thread
            self.error = error

    def stop(self) -> None:
        self._done.set()
        self.join()
        if self.error is not None:
            raise self.error


@pytest.mark.nightly
def test_a_rotation_over_two_hosts_under_load_refuses_no_receipt(tmp_path, empty_redis, server_class) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    rings = [folder / "keys.json" for folder in folders]
    Keyring.create(rings[0])
    rings[1].write_bytes(rings[0].read_bytes())
    rings[1].chmod(0o600)
    old = Keyring.load(rings[0]).active
    options = ("--ledger", empty_redis, "--writer")
    with server_class(folders[0], *options, "a") as a, server_class(folders[1], *options, "b") as b:
        loads = [Load([a, b], first) for first in range(LOADERS)]
        try:
            until(lambda: all(load.keys for load in loads), "no label was counted")
            keys("add", rings[0])
            (new,) = set(Keyring.load(rings[0]).keys) - {old}
            keys("add", rings[1], "--from", rings[0])
            assert Keyring.load(rings[1]).active == old
            keys("promote", rings[0], "--key", new)
            a.process.send_signal(signal.SIGHUP)
            until(lambda: any(new in load.keys for load in loads), "no host signs with the new key")
            keys("promote", rings[1], "--key", new)
            until(
                lambda: all(load.latest.get(host.url) == {new} for load in loads for host in (a, b)),
                "a host signs with the old key",
            )
            # Each has labelled on both hosts what it got since.
            marks = [load.keys[new] + 4 * BATCH for load in loads]
            until(
                lambda: all(load.keys[new] >= mark for load, mark in zip(loads, marks, strict=True)), "stuck"
            )
            for ring in rings:
                refused = CliRunner().invoke(cli, ["keys", "retire", str(ring), "--key", old])
                assert refused.exit_code
                assert "are accepted until" in str(refused.exception)
                keys("retire", ring, "--key", old, "--force")  # no label of its receipts is awaited here
            marks = [load.keys[new] + 4 * BATCH for load in loads]
            until(
                lambda: all(load.keys[new] >= mark for load, mark in zip(loads, marks, strict=True)), "stuck"
            )
        finally:
            for load in loads:
                load.stop()
        metrics = "".join(httpx.get(f"{host.url}/metrics", timeout=60).text for host in (a, b))
    assert sum((load.refused for load in loads), Counter()) == {}
    assert metrics.count('calib_feedback_refused_total{reason="unknown_key"} 0.0') == 2
    labelled = sum((load.keys for load in loads), Counter())
    assert set(labelled) == {old, new}
    assert all(labelled[key] for key in (old, new))
    ledger = open_ledger(empty_redis)
    assert ledger.sums()["digits", "1.0"].feedback.n == sum(labelled.values())
    ledger.close()


def test_a_keyring_that_breaks_under_a_running_watch_changes_nothing_and_is_counted(make_server) -> None:
    server = make_server()
    path = server.folder / "keys.json"
    ring = Keyring.load(path)
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}

    def failures() -> float:
        text = httpx.get(f"{server.url}/metrics", timeout=60).text
        (line,) = [
            x for x in text.splitlines() if x.startswith('calib_monitor_errors_total{stage="keyring"}')
        ]
        return float(line.rpartition(" ")[2])

    def receipt() -> str:
        answer = httpx.post(f"{server.url}/v1/predictions", json={"items": [one]}, timeout=60)
        return answer.raise_for_status().json()["items"][0]["receipt"]

    assert failures() == 0
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    until(lambda: failures() > 0, "a broken keyring was not counted")  # also where nobody uses it
    assert key_of(receipt()) == ring.active
    path.write_bytes(whole)
    rotated = Keyring.edit(path, lambda ring: ring.rotated())
    until(lambda: key_of(receipt()) == rotated.active, "the mended keyring was not read")
    labels = {"items": [{"receipt": receipt(), "label": 1}]}
    assert httpx.post(f"{server.url}/v1/labels", json=labels, timeout=60).json()["accepted"] == 1
    assert json.loads(whole)["keys"][ring.active] not in httpx.get(f"{server.url}/metrics", timeout=60).text

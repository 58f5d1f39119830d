"""``calib-serve scale``: what a user loses by it, which is nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from live_server import Running, foreign, inputs, serve, temperature_artifact, torchscript, total, until
from sizes import nightly, sized
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.errors import ServerError
from calib_serve.fuse.torchserve import Batching, pack
from calib_serve.serve.lifecycle import LEAVE
from calib_serve.serve.scaling import management_of, scale

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = tmp_path_factory.mktemp("store")
    # Requests that wait for a batch are those that TorchServe drops when it ends a worker.
    batching = Batching(workers=3, batch_size=4, delay=50)
    pack(torchscript(store / "net.pt"), temperature_artifact(), store, name="digits", batching=batching)
    foreign(store, "plain", PLAIN)
    yield from serve(store, ["digits.mar", "plain.mar"], store / "run")


PLAIN = """
def handle(data, context):
    return None if data is None else ["fine"] * len(data)
"""


class Load:
    """Connections that predict until told to stop; remembers every status."""

    def __init__(self, running: Running, connections: int) -> None:
        self.running, self.statuses = running, []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def _run(self) -> None:
        x = inputs(1).tolist()[0]
        with self.running.server.client(timeout=30) as http:
            while not self._stop.is_set():
                try:
                    self.statuses.append(http.post("/predictions/digits", json=x).status_code)
                except httpx.HTTPError as error:
                    self.statuses.append(type(error).__name__)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.statuses) > 30)
        return self

    def __exit__(self, *_: object) -> None:
        n = len(self.statuses)
        until(lambda: len(self.statuses) > n + 30)
        self._stop.set()
        for thread in self._threads:
            thread.join()


def counted(running: Running) -> float:
    return total(running.server.scrape(), "calib_predictions_total", model="digits")


def settled(running: Running) -> float:
    """What is counted once nothing more comes: more than a second's counts come late."""
    time.sleep(2)
    return counted(running)


def run(running: Running, *arguments: str) -> str:
    done = CliRunner().invoke(cli, ["scale", *arguments, "--folder", str(running.server.folder)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def workers_of(running: Running) -> list[psutil.Process]:
    children = psutil.Process(running.server.pid).children()
    return [child for child in children if "model_service_worker" in " ".join(child.cmdline())]


def test_nothing_is_lost_under_load_and_no_process_is_left(running: Running) -> None:
    before, answered = settled(running), 0
    for _ in range(sized(1, 10)):
        with Load(running, 6) as load:
            assert run(running, "digits", "--workers", "1") == "digits 1.0: 1 workers, 3 before\n"
        assert set(load.statuses) == {200}
        answered += len(load.statuses)
        until(lambda n=answered: counted(running) >= before + n)
        assert len(running.server.workers("digits")) == 1
        assert len(workers_of(running)) == 1 + len(running.server.workers("plain"))
        with Load(running, 2) as load:
            assert run(running, "digits", "--workers", "3") == "digits 1.0: 3 workers, 1 before\n"
        assert set(load.statuses) == {200}
        answered += len(load.statuses)
        assert len(running.server.workers("digits")) == 3
    assert settled(running) == before + answered


def test_sigterm_loses_nothing_either_while_requests_wait_for_a_batch(running: Running) -> None:
    before = settled(running)
    with Load(running, 6) as load:
        for _ in range(sized(1, 10)):
            old = running.server.workers("digits")
            for pid in old[:2]:
                os.kill(pid, signal.SIGTERM)
            until(lambda old=old: len({*running.server.workers("digits")} - {*old[:2]}) == 3)
    assert set(load.statuses) == {200}
    assert settled(running) - before == len(load.statuses)


@nightly
def test_a_server_without_requests_is_scaled_too(running: Running) -> None:
    before = counted(running)
    assert run(running, "digits", "--workers", "2", "--version", "1.0")
    assert len(workers_of(running)) == 2 + len(running.server.workers("plain"))
    assert counted(running) == before, "what ends a worker is no prediction"
    assert run(running, "digits", "--workers", "3")


@nightly
def test_a_version_that_still_gets_requests_keeps_its_workers(running: Running) -> None:
    with Load(running, 6) as load, pytest.raises(ServerError, match="elsewhere"):
        run(running, "digits", "--workers", "0")
    assert set(load.statuses) <= {200, 503}
    run(running, "digits", "--workers", "3")
    assert running.predict(inputs(1)[0].tolist()).status_code == 200


def test_a_version_without_requests_is_left_without_workers(running: Running) -> None:
    run(running, "digits", "--workers", "0")
    assert running.server.workers("digits") == []
    assert running.predict(inputs(1)[0].tolist()).status_code == 503
    run(running, "digits", "--workers", "3")
    assert running.predict(inputs(1)[0].tolist()).status_code == 200


def test_a_client_cannot_end_a_worker(running: Running) -> None:
    pids = running.server.workers("digits")
    for _ in range(12):
        assert "receipt" in running.predict(None, json=inputs(1)[0].tolist(), headers={LEAVE: "1"}).json()
    assert running.server.workers("digits") == pids


def test_what_cannot_be_done_is_said(running: Running, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="not one of calib-serve"):
        run(running, "plain", "--workers", "0")
    with pytest.raises(ServerError, match="no model nothing"):
        run(running, "nothing", "--workers", "1")
    with pytest.raises(ServerError, match="cannot read"):
        management_of(tmp_path)
    with pytest.raises(ServerError, match="0 or more"):
        scale(management_of(running.server.folder), "digits", -1)
    (tmp_path / "config.properties").write_text("cpu_launcher_enable=true\n")
    with pytest.raises(ServerError, match="cpu_launcher"):
        management_of(tmp_path)


def test_an_interrupted_scaling_leaves_no_stopped_process(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = management_of(running.server.folder)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(api), "set_workers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scale(api, "digits", 1)
    until(lambda: len(running.server.workers("digits")) == 3)
    assert running.predict(inputs(1)[0].tolist()).status_code == 200

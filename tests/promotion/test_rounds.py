"""The loop on a real TorchServe under load: drift, refit, shadow, promotion; a broken promise, and back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from live_server import CLASSES, Running, inputs, network, temperature_artifact, torchscript, until
from sizes import nightly
from typer.testing import CliRunner

from calib_serve import Keyring
from calib_serve.artifact import Contract
from calib_serve.cli import app as cli
from calib_serve.errors import ConflictError, InputError, LedgerError, ServerError
from calib_serve.fuse.torchserve import Batching, pack, pack_feedback, recalibrated
from calib_serve.metrics import softmax
from calib_serve.promotion import Host, Limits, PromotionLog, Rounds, Step, swap
from calib_serve.serve.properties import Ports
from calib_serve.serve.server import Server
from calib_serve.watch.ledger import open_ledger

pytestmark = pytest.mark.server

CONTRACT = "contract: 1\nact: {above: 0.2, accuracy: 0.15, per: 1d}\n"
"""What holds whatever the confidences say, until labels are of another class."""


class Users:
    """They predict and label all the time; labels are drawn from softmax(z / ``drift``), or never right."""

    def __init__(self, running: Running, connections: int = 4) -> None:
        self.running, self.drift, self.wrong = running, 4.0, False
        self.lost: list[object] = []
        self.versions: list[str] = []
        self._x = inputs(500)
        with torch.inference_mode():
            self._z = network()(torch.from_numpy(self._x)).numpy()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(connections)]

    def _run(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        with self.running.server.client(timeout=30) as http:
            while not self._stop.is_set():
                try:
                    self._some(http, rng)
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.lost.append(repr(error))

    def _some(self, http: httpx.Client, rng: np.random.Generator) -> None:
        items = []
        for k in rng.integers(0, len(self._x), 20):
            reply = http.post("/predictions/digits", json=self._x[k].tolist()).raise_for_status().json()
            label = rng.choice(CLASSES, p=softmax(self._z[k : k + 1] / self.drift)[0])
            if self.wrong:
                label = (reply["predicted"] + 1) % CLASSES
            items.append({"receipt": reply["receipt"], "label": int(label)})
            self.versions.append(self.running.keyring.verify(reply["receipt"]).version)
        told = http.post("/predictions/calibration_feedback", json=items).raise_for_status().json()
        if told["accepted"] != len(items):
            self.lost.append(told)

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    store, folder = tmp_path / "store", tmp_path / "run"
    contract = Contract.read(CONTRACT, class_names=())
    artifact = temperature_artifact(1.0, contract=contract)
    model = torchscript(tmp_path / "net.pt")
    pack(model, artifact, store, name="digits", batching=Batching(workers=1, batch_size=8, delay=5))
    pack_feedback(store, arl=10_000, maturity="0")
    folder.mkdir()
    keyring = Keyring.new()
    keyring.save(folder / "keyring.json")
    server = Server(
        store,
        ["digits.mar", "calibration_feedback.mar"],
        folder=folder,
        ports=Ports.free(),
        settings={"enable_model_api": "true"},
        samples=folder / "samples",
        sample_rate=1.0,
        sample_seconds=0.5,
    )
    with server, server.client() as http:
        yield Running(server, http, keyring)


def rounds_of(running: Running) -> Rounds:
    """Those of a process that knows nothing but the log and the server."""
    host = Host.of(running.server.folder)
    log = PromotionLog(host.folder / "promotions.jsonl")
    samples = host.folder / "samples"
    limits = Limits(method="temperature")
    return Rounds(host, "digits", log, ledger=open_ledger(host.ledger), samples=samples, limits=limits)


def next_step(running: Running) -> Step:
    """Asks a new process each time."""

    def asked() -> Step | None:
        time.sleep(0.3)
        return rounds_of(running).step()

    done: Step = until(asked, seconds=60)
    return done


def test_drift_is_followed_by_a_promotion_and_a_broken_promise_by_the_way_back(running: Running) -> None:
    host = Host.of(running.server.folder)
    with Users(running) as users:
        told = [next_step(running).step for _ in range(5)]
        assert told == ["drift", "refit", "shadow", "better", "promoted"]
        assert host.default("digits").version == "1.0-p2"
        at = len(users.versions)
        until(lambda: "1.0-p2" in users.versions[at:])
        users.wrong = True
        rolling = next_step(running)
        while rolling.step in ("drift", "refit", "shadow"):  # the same labels are a drift, too
            rolling = next_step(running)
        assert rolling.step == "rolling back", rolling
        assert next_step(running).step == "rolled back"
        assert host.default("digits").version == "1.0-p1"
        at = len(users.versions)
        until(lambda: "1.0-p1" in users.versions[at:])
    assert users.lost == []
    assert set(users.versions) == {"1.0", "1.0-p1", "1.0-p2"}
    shown = CliRunner().invoke(cli, ["promote", "--show", "--folder", str(host.folder)]).output
    assert "1.0-p2 broke its contract, and 1.0-p1 did not" in shown
    assert "digits 1.0-p2  better: Shadow" in shown


@nightly
def test_a_promotion_by_hand_waits_for_the_verdict_and_is_taken_back_by_hand(running: Running) -> None:
    host = Host.of(running.server.folder)

    def promote(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["promote", *arguments, "--folder", str(host.folder)])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    better, current = temperature_artifact(4.0), temperature_artifact(1.0)
    beside = recalibrated(host.store / "digits.mar", current, host.store, version="1.1", shadow=better)
    new = recalibrated(host.store / "digits.mar", better, host.store, version="2.0")
    code, told = promote(str(new))
    assert code == 1
    assert "No label says anything of shadow" in told
    with pytest.raises(LedgerError, match="there is no ledger"):
        promote(str(new), "--ledger", str(host.folder / "nowhere.sqlite"))
    assert promote(str(beside), "--force") == (0, "digits 1.1 is served, 1.0 before\n")
    with Users(running) as users:
        until(lambda: promote(str(new))[0] == 0, seconds=60)
        until(lambda: users.versions[-1] == "2.0")
        assert promote("--back", "--model", "digits") == (0, "digits 1.1 is served, 2.0 before\n")
        until(lambda: users.versions[-1] == "1.1")
    assert users.lost == []
    with host.sole("digits"), pytest.raises(ConflictError, match="promotes versions of digits"):
        promote(str(new), "--force")
    assert host.default("digits").version == "1.1"


def packed(running: Running, version: str, t: float) -> Path:
    store = running.server.store
    return recalibrated(store / "digits.mar", temperature_artifact(t), store, version=version)


@nightly
def test_a_server_that_dies_in_the_middle_is_said_and_the_round_goes_on_when_it_is_back(
    running: Running,
) -> None:
    host, server = Host.of(running.server.folder), running.server

    class Dying(PromotionLog):
        def add(self, step: Step) -> Step:
            if step.step == "registered":
                server.stop()
            return super().add(step)

    log = PromotionLog(host.folder / "promotions.jsonl")
    archive = packed(running, "1.0-p1", 2.0)
    facts = {"served": "1.0", "archive": archive.name, "shadow": "sha256:" + 64 * "0"}
    log.add(Step(time.time(), "refit", "digits", "1.0-p1", "It is better.", facts))
    with pytest.raises(ServerError, match="not known what is served"):
        swap(host, archive, Dying(log.path))
    with pytest.raises(ServerError, match="cannot read the tokens"):
        rounds_of(running).step()
    server.start()
    assert host.default("digits").version == "1.0"
    until(lambda: time.time() > log.steps()[-1].time + Limits().rest, seconds=20)
    assert next_step(running).step == "shadow"
    assert host.default("digits").version == "1.0-p1"
    assert rounds_of(running).step() is None, "no label yet"
    server.stop()
    server.start()
    assert next_step(running).step == "restored"
    assert host.default("digits").version == "1.0-p1"
    host.api.set_default("digits", "1.0")
    assert next_step(running).step == "left"
    assert rounds_of(running).step() is None
    assert host.default("digits").version == "1.0", "what a person decided stays"


@pytest.mark.parametrize("arguments", [(), ("a.mar", "--back"), ("--back",), ("--auto", "--model", "m")])
def test_a_command_that_says_too_little_or_too_much_is_refused(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.properties").write_text("model_store=/nowhere\n")
    done = CliRunner().invoke(cli, ["promote", *arguments, "--folder", str(tmp_path)])
    assert isinstance(done.exception, InputError)

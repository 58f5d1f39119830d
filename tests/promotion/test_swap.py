"""Versions that are exchanged on a real TorchServe under load: what its users lose, which is nothing."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live_server import Running, inputs, serve, temperature_artifact, torchscript, until
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.errors import ConflictError, ServerError
from calib_serve.fuse.torchserve import Batching, pack, pack_feedback, recalibrated
from calib_serve.promotion.host import Host
from calib_serve.promotion.log import PromotionLog, Step
from calib_serve.promotion.swap import swap

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = tmp_path_factory.mktemp("store")
    batching = Batching(workers=2, batch_size=4, delay=20)
    pack(torchscript(store / "net.pt"), temperature_artifact(), store, name="digits", batching=batching)
    pack_feedback(store)
    models = ["digits.mar", "calibration_feedback.mar"]
    yield from serve(store, models, store / "run", enable_model_api="true")


class Load:
    """Connections that predict and label what they got, until told to stop."""

    def __init__(self, running: Running, connections: int = 4) -> None:
        self.running = running
        self.failed: list[object] = []
        self.refused: list[str] = []
        self.versions: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def _run(self) -> None:
        x = inputs(1).tolist()[0]
        with self.running.server.client(timeout=30) as http:
            while not self._stop.is_set():
                try:
                    reply = http.post("/predictions/digits", json=x)
                    if reply.status_code != 200:
                        self.failed.append(reply.status_code)
                        continue
                    receipt = reply.json()["receipt"]
                    self.versions.append(self.running.keyring.verify(receipt).version)
                    told = http.post(
                        "/predictions/calibration_feedback", json=[{"receipt": receipt, "label": 1}]
                    )
                    if told.status_code != 200 or told.json()["accepted"] != 1:
                        self.refused.append(told.text)
                except httpx.HTTPError as error:
                    self.failed.append(type(error).__name__)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.versions) > 20)
        return self

    def __exit__(self, *_: object) -> None:
        n = len(self.versions)
        until(lambda: len(self.versions) > n + 20 or self.failed)
        self._stop.set()
        for thread in self._threads:
            thread.join()


def host_of(running: Running) -> Host:
    return Host.of(running.server.folder)


def newer(running: Running, version: str, t: float = 1.5) -> Path:
    store = running.server.store
    return recalibrated(store / "digits.mar", temperature_artifact(t), store, version=version)


def test_no_request_and_no_label_is_lost_by_versions_that_come_and_go(running: Running) -> None:
    host, log = host_of(running), PromotionLog(running.server.folder / "promotions.jsonl")
    earlier = len(log.steps("digits"))
    before = running.predict(inputs(1)[0].tolist()).json()["receipt"]
    archive = newer(running, "2.0")
    with Load(running) as load:
        assert swap(host, archive, log) == ("digits", "1.0")
    assert (load.failed, load.refused) == ([], [])
    assert set(load.versions) == {"1.0", "2.0"}
    assert load.versions[-1] == "2.0"
    assert running.label([{"receipt": before, "label": 1}]).json()["accepted"] == 1
    with Load(running) as load:
        assert swap(host, running.server.store / "digits.mar", log, retire=True) == ("digits", "2.0")
    assert (load.failed, load.refused) == ([], [])
    assert load.versions[-1] == "1.0"
    assert list(host.versions("digits")) == ["1.0"]
    told = [(one.step, one.version) for one in log.steps("digits")[earlier:]]
    assert told == [
        *(("listed", "2.0"), ("registered", "2.0"), ("default", "2.0")),
        *(("listed", "1.0"), ("registered", "1.0"), ("default", "1.0"), ("retired", "2.0")),
    ]
    assert swap(host, running.server.store / "digits.mar", log) == ("digits", "1.0"), "done already"
    log.add(Step(1.0, "registered", "digits", "1.0", "", {"before": "2.0", "archive_before": "2"}))
    assert swap(host, running.server.store / "digits.mar", log) == ("digits", "1.0")
    assert log.steps("digits")[-1].step == "default", "the way back is told, where a swap was cut short"
    assert log.steps("digits")[-1].facts["archive_before"] == "2"


def edited(source: Path, target: Path, name: str, content: str) -> Path:
    """An archive with another file in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        files = {one: old.read(one) for one in old.namelist()} | {name: content.encode()}
        hashes = json.loads(files.pop("MAR-INF/SHA256.json"))
        hashes[name] = hashlib.sha256(content.encode()).hexdigest()
        for one, data in {**files, "MAR-INF/SHA256.json": json.dumps(hashes).encode()}.items():
            new.writestr(one, data)
    return target


def test_a_version_whose_workers_do_not_start_is_not_promoted_and_leaves_nothing(running: Running) -> None:
    host, log = host_of(running), PromotionLog(running.server.folder / "broken.jsonl")
    good = newer(running, "3.0")
    broken = edited(good, running.server.store / "broken.mar", "calibrated_classifier.py", "1 / 0\n")
    with pytest.raises(ServerError, match=r"not promoted: .*1\.0 is still served"):
        swap(host, broken, log)
    assert host.default("digits").version == "1.0"
    assert list(host.versions("digits")) == ["1.0"]
    assert [one.step for one in log.steps()] == ["listed", "failed"]
    assert running.predict(inputs(1)[0].tolist()).status_code == 200


def test_what_cannot_be_promoted_is_said_and_changes_nothing(running: Running, tmp_path: Path) -> None:
    host, log = host_of(running), PromotionLog(tmp_path / "log.jsonl")
    same = edited(running.server.store / "digits.mar", tmp_path / "other.mar", "more.txt", "more")
    with pytest.raises(ConflictError, match=r"registered already, with digits\.mar"):
        swap(host, same, log)
    (tmp_path / "digits.mar").write_bytes(same.read_bytes())
    with pytest.raises(ConflictError, match="another archive of that name"):
        swap(host, tmp_path / "digits.mar", log)
    known = host.models_file.read_bytes()
    host.models_file.write_text("[")
    with pytest.raises(ServerError, match="list of models"):
        swap(host, newer(running, "4.0"), log)
    host.models_file.write_bytes(known)
    with (
        host.sole("digits"),
        pytest.raises(ConflictError, match=f"process {os.getpid()}"),
        host.sole("digits"),
    ):
        pass
    refused = CliRunner().invoke(cli, ["promote", str(newer(running, "5.0")), "--folder", str(host.folder)])
    assert refused.exit_code == 1
    assert "No label says anything of shadow" in refused.output
    keys = running.server.key_file.read_text()
    running.server.key_file.write_text(keys.replace(running.server.tokens.management, "wrong"))
    with pytest.raises(ServerError, match="its token is not taken"):
        host.default("digits")
    running.server.key_file.write_text(keys)
    with pytest.raises(ServerError, match="no model cats"):
        host.default("cats")
    with pytest.raises(ServerError, match="cannot read"):
        Host.of(tmp_path)
    assert host.default("digits").version == "1.0"
    assert running.predict(inputs(1)[0].tolist()).status_code == 200

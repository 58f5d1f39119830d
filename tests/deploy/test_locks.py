"""lock/ has all that pyproject.toml asks for, at the versions of constraints.txt, each file by its hash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
from locks import LOCKS, locked
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TOOL = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TOOL["project"]
HERE = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}

TOOLS = {
    f"{folder}/{path.stem}": path.read_text()
    for folder in ("tools", "servers")
    for path in (ROOT / "lock" / folder).glob("*.txt")
}

each_lock = pytest.mark.parametrize("name", sorted(LOCKS))


def pins(path: str) -> dict[str, str]:
    lines = [line for line in (ROOT / path).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def asked(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, with these extras and the extras that they name."""
    left = [Requirement(text) for text in PROJECT["dependencies"]]
    left += [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    own = [one for one in left if one.name == PROJECT["name"]]
    return [one for one in left if one not in own] + [r for one in own for r in asked(*one.extras)]


@pytest.mark.parametrize("name", sorted(LOCKS | TOOLS))
def test_every_requirement_is_one_version_with_hashes(name: str) -> None:
    found = locked((LOCKS | TOOLS)[name])
    assert found
    if name != "torch":  # whose build for macOS has another version
        assert len({package for package, _, _ in found}) == len(found)
    assert all(len(set(hashes)) == len(hashes) for _, _, hashes in found)


@each_lock
def test_versions_are_those_that_are_tested(name: str) -> None:
    if name == "triton-build":
        return  # Python 3.10's newest, for one wheel
    tested = pins("constraints-3.10.txt" if name == "triton" else "constraints.txt")
    if name == "triton":
        tested.pop("numpy")  # below 2, for Triton's Python backend
    if name == "build":
        tested |= {one: version for one, version, _ in locked(LOCKS["build"]) if one not in tested}
    for package, version, _ in locked(LOCKS[name]):
        assert tested.get(package, version if name == "triton" else None) == version.split("+")[0], package


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("all", ["all"]),
        ("dev", ["dev"]),
        ("torchserve", ["torchserve", "onnx", "watch"]),
        ("transformers", ["torchserve", "onnx", "watch"]),
        ("triton", ["watch"]),
        ("watch", ["postgres"]),
    ],
)
def test_a_lock_has_all_that_pyproject_asks_for(name: str, extras: list[str]) -> None:
    held = {package: version for package, version, _ in locked(LOCKS[name] + LOCKS["torch"])}
    for one in asked(*extras):
        package = canonicalize_name(one.name)
        if one.marker is None or one.marker.evaluate(HERE):
            assert package in held, f"{one}: run make lock"
            assert held[package].split("+")[0] in one.specifier, f"{one}: run make lock"


def test_whatever_installs_from_an_index_checks_hashes() -> None:
    """Makefile, images and scripts: besides what is built here, and the tool that makes the locks."""
    files = [ROOT / "Makefile", *(ROOT / "deploy").rglob("Dockerfile"), *(ROOT / "scripts").glob("*.sh")]
    checked = ("--require-hashes", "$(LOCKED)", "${hashed[@]}")
    own = ("--no-index", "-e .", "uv==")
    seen = 0
    for path in files:
        for line in path.read_text().replace("\\\n", " ").splitlines():
            for command in re.split(r"&&|\|\|", line):
                if re.search(r"(?:pip|python\S*) .*\binstall\b|\$\((?:PIP|LOCKED)\)", command.split("#")[0]):
                    seen += 1
                    assert ":=" in command or any(word in command for word in (*checked, *own)), command
    assert seen > 10
    script = (ROOT / "scripts/locked.sh").read_text()
    assert "hashed=(--no-deps --require-hashes --only-binary=:all:)" in script

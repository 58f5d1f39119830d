"""Environments of other model servers hold what their locks say, and are made whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from locks import locked
from packaging.utils import canonicalize_name
from server_environments import LOCKS, ROOT, server_environ, server_python

SCRIPT = ROOT / "scripts" / "server_environments.sh"
LISTED = """
import json
from importlib.metadata import distributions
print(json.dumps({d.name: d.version for d in distributions()}))
"""


def run_script(*names: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "VENV": sys.prefix}
    return subprocess.run([SCRIPT, *names], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", LOCKS)
def test_an_environment_holds_what_its_lock_says_and_nothing_else(name: str) -> None:
    told = subprocess.check_output([server_python(name), "-I", "-c", LISTED], text=True)
    held = {canonicalize_name(package): version for package, version in json.loads(told).items()}
    assert held == {package: version for package, version, _ in locked(LOCKS[name].read_text())}
    assert "torch" not in held


@pytest.mark.parametrize("name", LOCKS)
def test_the_checkout_is_what_a_program_there_imports(name: str) -> None:
    shown = "import calib_serve; print(calib_serve.__file__)"
    found = subprocess.check_output([server_python(name), "-c", shown], env=server_environ(name), text=True)
    assert Path(found.strip()).parents[1] == ROOT


def test_what_is_there_is_left_as_it_is() -> None:
    folder = server_python("litserve").parents[1]
    before = (folder / "pyvenv.cfg").stat().st_mtime_ns
    assert run_script("litserve").returncode == 0
    assert (folder / "pyvenv.cfg").stat().st_mtime_ns == before


def test_a_name_without_a_lock_is_refused() -> None:
    server_python("litserve")
    ended = run_script("no-such-server")
    assert ended.returncode == 1
    assert "no-such-server.txt" in ended.stderr

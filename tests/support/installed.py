"""The wheel of this checkout, installed as a user installs it, beside the packages that the tests have."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(*command: str | Path, cwd: Path, fails: bool = False) -> str:
    """What ``command`` printed, once it has succeeded (or, where it ``fails``, has not)."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, check=False, cwd=cwd, env=clean, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode != 0) is fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``python`` of an environment whose ``calib_serve`` is the wheel, and nothing of the checkout.

    All else it has from the environment that the tests run in; ``calib-serve`` lies beside it.
    """
    folder = tmp_path_factory.mktemp("installed")
    # By the pinned tools that built the checkout: an isolated build asks a package index for them.
    run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    # Its .pth files, the checkout's editable install among them, are not followed from there.
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run(python, "-c", "import calib_serve; print(calib_serve.__file__)", cwd=folder)
    assert where.startswith(str(site)), where
    return python

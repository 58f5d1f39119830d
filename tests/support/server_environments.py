"""Other model servers, each in an environment of its own: ``scripts/server_environments.sh`` makes them.

The package under test is not installed there. It comes by ``PYTHONPATH``, and with it whatever of this
Python's environment is not in theirs stays out: what an example imports is what its page says to install.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path(sys.prefix) / "servers"
LOCKS = {path.stem: path for path in sorted((ROOT / "lock" / "servers").glob("*.txt"))}


def server_python(name: str) -> Path:
    """The Python of the environment ``name``; skips where it is not what its lock says, never in CI."""
    folder = ENVIRONMENTS / name
    held = folder / "lock.txt"
    if not held.is_file() or held.read_bytes() != LOCKS[name].read_bytes():
        reason = f"{folder} does not hold lock/servers/{name}.txt; run scripts/server_environments.sh {name}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}: CI must not skip")
        pytest.skip(reason)
    return folder / "bin" / "python"


def server_environ(name: str, **more: str) -> dict[str, str]:
    """What a program of the environment ``name`` runs with: this checkout, and its own programs first."""
    folder = server_python(name).parent
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        **more,
    }

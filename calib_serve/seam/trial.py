"""Run an archive's own handler in a process of its own, as a worker of TorchServe would run it.

What it does is in ``calib_serve.seam.trial_worker``; here the process is started, watched and heard.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import calib_serve
from calib_serve.errors import ModelError
from calib_serve.options.data import TrialOptions

__all__ = ["SECONDS", "run_trial"]

SECONDS = TrialOptions.probe_timeout
"""How long a handler may take to answer a trial's batch."""

_TAIL = 12  # lines of a failed trial's output that are shown
_LOOKS = 0.2  # seconds between two looks at the progress
_LOADS = 600.0  # seconds that a handler may take to load its model


def run_trial(
    folder: Path,
    what: str,
    *,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] | None = None,
    **job: Any,
) -> Any:
    """What the trial ``what`` of ``trial_worker`` returns for the archive unpacked in ``folder``.

    ``job`` are its parameters, as JSON holds them; ``progress`` is called with (done, of) where that is
    known. Raises ModelError, with the handler's last words, where it does not load, does not answer a batch
    within ``seconds``, or where the trial itself says why not. No process is left, however this one ends.
    """
    root = Path(calib_serve.__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="calib-trial-") as scratch:
        order, result, done, words = (
            Path(scratch) / name for name in ("job.json", "result.json", "done", "words")
        )
        told_by = {"what": what, "folder": str(folder), "progress": str(done)}
        order.write_text(json.dumps({**told_by, **job}), "utf-8")
        # As WorkerLifeCycle.java: the archive's folder is the working folder, and first on the path.
        paths = [str(folder), str(root), os.environ.get("PYTHONPATH", "")]
        # Without a host's settings: no receipt is signed and no sample kept.
        env = {name: value for name, value in os.environ.items() if not name.startswith("CALIB_SERVE_")}
        # Into a file: a handler may say much, and what it starts may hold a pipe open.
        with words.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "calib_serve.seam.trial_worker", str(order), str(result)],
                cwd=folder,
                env={**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.PIPE,  # closed when this process ends, which the worker sees
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            came = _watch(process, done, seconds, progress)
        try:
            told: dict[str, Any] = json.loads(result.read_text("utf-8"))
        except (OSError, ValueError):
            tail = words.read_bytes().decode("utf-8", "replace").splitlines()[-_TAIL:]
            ended = f"the handler ended (code {process.returncode}){came}; its last words:"
            raise ModelError("\n  ".join([ended, *tail])) from None
    if "error" in told:
        raise ModelError(told["error"])
    return told["result"]


def _watch(
    process: subprocess.Popen[bytes],
    file: Path,
    seconds: float,
    progress: Callable[[int, int], None] | None,
) -> str:
    """Wait for the process to end; how far it came, in words."""
    seen, last, came, limit = "", time.monotonic(), "", max(seconds, _LOADS)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOKS)
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
                    "with --probe-timeout SECONDS"
                )
    finally:
        with suppress(ProcessLookupError):  # it and what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

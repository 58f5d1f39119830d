"""How a worker ends: on SIGTERM, or when the server lets it go, its counters are sent first."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable
from types import FrameType

__all__ = ["end_cleanly", "wait_until_read"]

_PATIENCE = 5.0  # seconds a batch may take to finish after SIGTERM
_RETRY = 0.02
_PARSED = 2.0  # seconds a busy server may take to count what it has read


def end_cleanly(flush: Callable[[], object]) -> None:
    """Call ``flush`` once when this worker ends, and turn SIGTERM into such an end between requests."""
    atexit.register(_flush_and_wait, flush)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _Terminator())


def _flush_and_wait(flush: Callable[[], object]) -> None:
    flush()
    wait_until_read()


class _Terminator:
    """Leaves at the moment when the worker waits for a command: no prediction is cut in half."""

    def __init__(self) -> None:
        self._since: float | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if _is_idle(frame) or now - self._since > _PATIENCE:
            sys.exit(0)  # not a crash: atexit runs, the server starts another worker
        timer = threading.Timer(_RETRY, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()


def _is_idle(frame: FrameType | None) -> bool:
    """Whether ``frame`` is TorchServe's loop waiting for the first byte of the next command."""
    waiting = frame is not None and frame.f_code.co_name == "_retrieve_buffer"
    caller = frame.f_back if waiting and frame is not None else None
    return (
        caller is not None
        and caller.f_code.co_name == "retrieve_msg"
        and frame is not None
        and not frame.f_locals.get("data")
        and "cmd" not in caller.f_locals
    )


def wait_until_read(*, seconds: float = 5.0) -> None:
    """Wait until the server has read all that was written to stdout, where that is a pipe.

    The server stops reading as soon as it sees the worker's connection close, so a worker that
    ended at once would lose its last lines.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on every platform
        import termios  # noqa: PLC0415

        end, waiting = time.monotonic() + seconds, array("i", [1])
        while waiting[0] and time.monotonic() < end:
            fcntl.ioctl(1, termios.FIONREAD, waiting)
            time.sleep(0.005)
        time.sleep(_PARSED)  # read is not yet parsed

"""Counters of one worker, sent to TorchServe as deltas: accumulated, then flushed.

A line for each request would cost 12 microseconds and 0.7 kB of log; so a worker accumulates in memory and
sends changes once a second, when many are pending, and when it ends. The server sums over workers and keeps
the sums of dead workers: only what a killed worker had not sent yet is lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping

from calib_serve.errors import InputError
from calib_serve.reporter.recorder import Key, zeros
from calib_serve.serve.metric_lines import BY_NAME, label_value, metric_line

__all__ = ["Emitter", "to_stdout", "wait_until_counted"]

_ERRORS = "calib_monitor_errors_total"
_AHEAD = 32 << 10  # bytes; the server reads 17 kB ahead of the line that it counts, at most


def to_stdout(text: str) -> None:
    """Write lines where the server reads them, independent of logging and print."""
    # Not through logging or print: a library that reconfigures either would lose metrics. The
    # newline first ends what a print(..., end="") may have left open.
    sys.stdout.flush()
    data = memoryview(b"\n" + text.encode("utf-8", "replace"))
    while data:
        data = data[os.write(1, data) :]


def wait_until_counted(*, seconds: float = 5.0) -> None:
    """Wait until the server has counted all that was written to stdout, where that is a pipe.

    The server reads the pipe ahead of counting. So lines that add 0 are appended: once these are read, the
    lines before them are counted. Gives up after ``seconds``.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on every platform
        import termios  # noqa: PLC0415

        end, left = time.monotonic() + seconds, array("i", [0])

        def taken() -> bool:
            while time.monotonic() < end:
                fcntl.ioctl(1, termios.FIONREAD, left)
                if not left[0]:
                    return True
                time.sleep(0.001)
            return False

        # Wait until it is empty: a write to a full pipe without a reader would block forever.
        if stat.S_ISFIFO(os.fstat(1).st_mode) and taken():
            line = metric_line(_ERRORS, 0, ("emit",), host=_host(), second=int(time.time())) + "\n"
            to_stdout(line * (_AHEAD // len(line) + 1))
            taken()


def _host() -> str:
    return label_value(socket.gethostname())


class Emitter:
    r"""Sums counters and keeps the last value of gauges until the next flush.

    ``interval``: seconds between flushes; ``limit``: pending updates that trigger an early flush. ``write``
    gets one text of whole lines. ``before_flush`` is called first, to add what others hold back.

    >>> sent = []
    >>> emitter = Emitter(write=sent.append, host="h", clock=lambda: 0.0)
    >>> emitter.add("calib_feedback_refused_total", 1, "duplicate")
    >>> emitter.add("calib_feedback_refused_total", 1, "duplicate")
    >>> emitter.flush()
    1
    >>> sent[0]
    '[METRICS]calib_feedback_refused_total.Count:2.0|#reason:duplicate|#type:COUNTER|#hostname:h,0\n'
    """

    def __init__(
        self,
        *,
        write: Callable[[str], None] = to_stdout,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        interval: float = 1.0,
        limit: int = 10_000,
    ) -> None:
        if not interval > 0 or limit < 1:
            raise InputError(f"interval and limit must be positive, got {interval} and {limit}")
        self._write, self._clock, self._interval, self._limit = write, clock, interval, limit
        self._host = label_value(host) if host else _host()
        self._waiting: dict[Key, float] = {}
        self._updates = 0
        # Re-entrant: SIGTERM may flush on the very thread that is adding.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self.before_flush: Callable[[], None] = lambda: None

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add ``value`` to a counter."""
        self.add_all({(name, labels): value})

    def add_all(self, changes: Mapping[Key, float]) -> None:
        """Add to many counters at once: (name, labels) to value."""
        with self._lock:
            for key, value in changes.items():
                self._waiting[key] = self._waiting.get(key, 0) + value
            self._updates += len(changes)
            if self._updates >= self._limit:
                self.flush()

    def failed(self, *stages: str, times: int = 1) -> None:
        """Count failures of the monitoring itself; ``times`` 0 starts their series."""
        self.add_all({(_ERRORS, (stage,)): times for stage in stages})

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        if BY_NAME[name].kind != "gauge":
            raise InputError(f"{name} is a counter; add to it")
        with self._lock:
            self._waiting[name, labels] = value

    def create(self, names: Iterable[str], *, model: str, version: str, bins: int) -> None:
        """Start counters of a model at 0, in every bin."""
        self.add_all(zeros(names, model=model, version=version, bins=bins))

    def flush(self) -> int:
        """Send pending updates; returns the number of lines. A line that fails counts as an error."""
        with self._lock:
            self.before_flush()
            waiting, self._waiting, self._updates = self._waiting, {}, 0
            lines, second = [], int(self._clock())
            for (name, labels), value in waiting.items():
                values = tuple(map(label_value, labels))
                try:
                    lines.append(metric_line(name, value, values, host=self._host, second=second))
                except InputError:
                    self.failed("emit")
            if lines:
                self._write("\n".join(lines) + "\n")
            return len(lines)

    def start(self) -> None:
        """Start flushing on a timer, in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="calib-emit", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            try:
                self.flush()
            except Exception:  # the timer must survive any failure of a flush
                self.failed("emit")

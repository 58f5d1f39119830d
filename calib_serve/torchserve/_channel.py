"""The channel by which a worker sends its counters to the server: lines on stdout.

A line for each request would cost 12 microseconds and 0.7 kB of log; so a worker accumulates in memory and
sends changes once a second, when many are pending, and when it ends. The server sums over workers and keeps
the sums of dead workers: only what a killed worker had not sent yet is lost. It reads a line back with a
regular expression, and silently drops or cuts what does not match: ``LINE`` mirrors it (TorchServe 0.12,
``org.pytorch.serve.metrics.Metric``), so that every line is known to arrive before it is sent.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import stat
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence

from calib_serve.core.errors import InputError
from calib_serve.receipts import BY_NAME, SeriesKey

LINE = re.compile(
    r"\[METRICS]\s*([\w\s]+)\.([\w\s]+):([0-9\-,.e]+)\|#([^|]*)(\|#type:([^|,]+))?"
    r"\|#hostname:([^,]+),([^,]+)(,(.*))?",
    re.ASCII,
)
"""What the server accepts; group 3 is the value, group 4 the labels."""

_UNSAFE = re.compile(r"[^\w .;/@+=()\[\]{}<>~!?*&^$'-]")
_ERRORS = "calib_monitor_errors_total"


def label_value(text: str) -> str:
    """Encode ``text`` as a label value that the channel carries whole: in percents, where it must be.

    Letters and digits of any script stay. What separates fields (``: , |``), ends lines in any
    alphabet, or starts an escape (``%``) is encoded, so different texts stay different up to
    200 characters.

    >>> label_value("digits v1")
    'digits v1'
    >>> label_value("a:b,c|d")
    'a%3Ab%2Cc%7Cd'
    """
    encoded = _UNSAFE.sub(_percent, text) if _UNSAFE.search(text) else text
    if encoded != encoded.strip() or not encoded:
        # Only an empty text becomes a bare "%": a "%" in a text is encoded.
        encoded = re.sub(r"^\s|\s$", "%20", encoded) or "%"
    return encoded if len(encoded) <= 200 else encoded[:197] + "..."


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


def metric_line(name: str, value: float, labels: Sequence[str], *, host: str, second: int) -> str:
    """Write one line for one update; ``labels`` in the order of the series, already as ``label_value``.

    Raises InputError where the server would drop the line: a value that is not finite, is
    negative for a counter, or is 1e16 and more (the server reads no ``+``).
    """
    series = BY_NAME[name]
    if len(labels) != len(series.labels):
        raise InputError(f"{name} has the labels {series.labels}, got {len(labels)} values")
    if not math.isfinite(value) or abs(value) >= 1e16 or (series.in_torchserve == "counter" and value < 0):
        raise InputError(f"{name} cannot carry the value {value}; the server would drop it")
    pairs = ",".join(f"{key}:{text}" for key, text in zip(series.labels, labels, strict=True))
    kind = series.in_torchserve.upper()
    return f"[METRICS]{name}.Count:{float(value)!r}|#{pairs}|#type:{kind}|#hostname:{host},{second}"


def _to_stdout(text: str) -> None:
    """Write lines where the server reads them, independent of logging and print."""
    # Not through logging or print: a library that reconfigures either would lose metrics. The
    # newline first ends what a print(..., end="") may have left open.
    sys.stdout.flush()
    data = memoryview(b"\n" + text.encode("utf-8", "replace"))
    while data:
        data = data[os.write(1, data) :]


def wait_until_counted() -> None:
    """Wait until the server has counted every line written to stdout, where stdout is a pipe.

    The server reads the pipe ahead of counting. So lines that add 0 are appended: once these are read, the
    lines before them are counted. Gives up after 5 seconds.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on every platform
        import termios  # noqa: PLC0415

        end, left = time.monotonic() + 5.0, array("i", [0])

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
            # A server that ran read 17 kB behind a line at most before it had counted that.
            _to_stdout(line * ((32 << 10) // len(line) + 1))
            taken()


def _host() -> str:
    return label_value(socket.gethostname())


class Emitter:
    r"""Sums counters and keeps the last value of gauges until the next flush.

    ``interval``: seconds between flushes, or less after many updates. ``write`` gets one text of whole lines.
    ``before_flush`` is called first, to add what others hold back.

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
        write: Callable[[str], None] = _to_stdout,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        interval: float = 1.0,
    ) -> None:
        if not interval > 0:
            raise InputError(f"interval must be positive, got {interval}")
        self._write, self._clock, self._interval = write, clock, interval
        self._host = label_value(host) if host else _host()
        self._waiting: dict[SeriesKey, float] = {}
        self._updates = 0
        # Re-entrant: a flush adds what others hold back, and many updates flush.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self.before_flush: Callable[[], None] = lambda: None

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add ``value`` to a counter."""
        self.add_all({(name, labels): value})

    def add_all(self, changes: Mapping[SeriesKey, float]) -> None:
        """Add to many counters at once: (name, labels) to value."""
        with self._lock:
            for key, value in changes.items():
                self._waiting[key] = self._waiting.get(key, 0) + value
            self._updates += len(changes)
            if self._updates >= 10_000:  # more are sent at once
                self.flush()

    def failed(self, *stages: str, times: int = 1) -> None:
        """Count failures of the monitoring itself; ``times=0`` starts their series."""
        self.add_all({(_ERRORS, (stage,)): times for stage in stages})

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        if BY_NAME[name].in_torchserve != "gauge":
            raise InputError(f"{name} is a counter; add to it")
        with self._lock:
            self._waiting[name, labels] = value

    def flush(self) -> int:
        """Send pending updates; return the number of lines. A line that fails counts as an error."""
        with self._lock:
            self.before_flush()
            # Taken first: what is counted while lines are written goes with the next flush.
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

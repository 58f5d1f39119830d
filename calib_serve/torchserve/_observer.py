"""The observer of a TorchServe worker: counts and signs predictions, and sends the counters on.

A line for each request would cost 12 microseconds and 0.7 kB of log; so a worker accumulates in memory and
sends changes once a second, when many are pending, and when it ends. The server sums over workers and keeps
the sums of dead workers: only what a killed worker had not sent yet is lost. It reads a line back with a
regular expression, and silently drops or cuts what does not match: ``LINE`` mirrors it (TorchServe 0.12,
``org.pytorch.serve.metrics.Metric``), so that every line is known to arrive before it is sent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import socket
import stat
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import CalibServeError, InputError, ModelError
from calib_serve.core.options.servers import ServeOptions
from calib_serve.core.process import on_hangup
from calib_serve.receipts import (
    BY_NAME,
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    SAMPLE_RATE,
    SAMPLE_SECONDS,
    SAMPLES,
    LiveKeyring,
    Recorder,
    ReporterShadow,
    SampleLog,
    SeriesKey,
    SignedReceipt,
    Tag,
    from_environment,
    parse_policy,
)
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.metrics_file import of_this_worker, undeclared

if TYPE_CHECKING:
    from calib_serve.ledger import Binding, PredictionIds

LINE = re.compile(
    r"\[METRICS]\s*([\w\s]+)\.([\w\s]+):([0-9\-,.e]+)\|#([^|]*)(\|#type:([^|,]+))?"
    r"\|#hostname:([^,]+),([^,]+)(,(.*))?",
    re.ASCII,
)
"""What the server accepts; group 3 is the value, group 4 the labels."""

_LONGEST = 200  # characters of a label value; longer names are cut
_UNSAFE = re.compile(r"[^\w .;/@+=()\[\]{}<>~!?*&^$'-]")


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
    return encoded if len(encoded) <= _LONGEST else encoded[: _LONGEST - 3] + "..."


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
    """Wait until the server has counted every line written to stdout, where stdout is a pipe.

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
            if self._updates >= self._limit:
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


# --- The observer -----------------------------------------------------------------------------------


def live_keyring(path: str, emitter: Emitter) -> LiveKeyring:
    """Open the keyring in ``path``, read again when it changed and on SIGHUP; failures are counted.

    KeyringError where it cannot be read to begin with.
    """
    ring = LiveKeyring(path, failed=lambda: emitter.failed("keyring"))
    on_hangup(ring.again)
    return ring


def host_sample_log() -> SampleLog | None:
    """Open the log in ``CALIB_SERVE_SAMPLES``, at rate ``CALIB_SERVE_SAMPLE_RATE``; None where unset.

    Written every ``CALIB_SERVE_SAMPLE_SECONDS``: a server that stops kills its workers. Both default to those
    of ``ServeOptions``.
    """
    folder, rate = from_environment(SAMPLES), from_environment(SAMPLE_RATE)
    if folder is None:
        if rate is not None:
            log.warning("%s is of samples, and %s names no folder to keep them in", SAMPLE_RATE, SAMPLES)
        return None
    try:
        seconds = float(from_environment(SAMPLE_SECONDS) or ServeOptions.sample_seconds)
        return SampleLog(folder, rate=float(rate or ServeOptions.sample_rate), flush_seconds=seconds).start()
    except (ValueError, OSError) as error:
        raise ModelError(f"cannot keep samples in {folder} at rate {rate}: {error}") from error


log = logging.getLogger(__name__)

_MOST_IDS = 100_000  # ids that wait for the ledger
_IDS_AT_ONCE = 500
_PATIENCE = 0.25  # seconds that one prediction waits for a ledger which others write to

_DROPPED = (
    "the metrics file %s lacks %d of the series that this worker sends, such as %s: TorchServe drops them,"
    " unless model_metrics_auto_detect=true. Print a file that has all:"
    " python -m calib_serve.torchserve.metrics_file %s"
)


def observe(
    options: ModelOptions, artifact: Artifact, *, model: str, version: str, folder: Path | None = None
) -> Observer:
    """Make an observer for this worker; its ``flush`` sends the counts.

    ``folder``: where the archive lies, for the artifact that runs in the shadow of the served one, if any.
    """
    path = from_environment(KEYRING)
    if path is None:
        log.warning("receipts are off: %s does not name a keyring (calib-serve keys new FILE)", KEYRING)
    if (metrics := of_this_worker()) and (dropped := undeclared(metrics)):
        log.warning(_DROPPED, metrics, len(dropped), dropped[0], metrics)
    reference = artifact.reference
    emitter = Emitter(interval=options.flush_seconds)
    if reference is not None and reference.n:
        # The calibration set's bins, the same from every worker: the reference for drift.
        for b, count in enumerate(reference.count.tolist()):
            emitter.set("calib_reference_share", count / reference.n, model, version, str(b))
    # A sample is found by its receipt, and here each is of one label of it.
    if artifact.is_multilabel and from_environment(SAMPLES):
        log.warning("no samples are kept: of a multi-label model, receipts are of single labels")
    budget = from_environment(LABEL_BUDGET)
    observer = Observer(
        emitter,
        model=model,
        version=version,
        bins=15 if reference is None else len(reference),
        keyring=None if path is None else live_keyring(path, emitter),
        samples=None if artifact.is_multilabel else host_sample_log(),
        policy=None if budget is None else parse_policy(budget, workers=options.workers),
        shadow=_shadow(options, artifact, folder),
    )
    if options.shadow and observer.shadow is None:
        observer.broken("shadow")
    return observer


def _shadow(options: ModelOptions, artifact: Artifact, folder: Path | None) -> ReporterShadow | None:
    """Load the archive's shadow; a broken one is logged, and serving goes on without it."""
    if not options.shadow or folder is None:
        return None
    try:
        return ReporterShadow(folder / options.shadow, artifact)
    except CalibServeError as error:
        log.error("no shadow runs: %s", error)
        return None


class Observer(Recorder):
    """A recorder into the ``emitter`` of a worker.

    ``shadow`` says of the logits that come with predictions what it would have served.
    """

    def __init__(
        self,
        emitter: Emitter,
        *,
        model: str,
        shadow: ReporterShadow | None = None,
        **more: Any,
    ) -> None:
        tag = b"" if shadow is None else shadow.tag
        super().__init__(emitter, model=model, shadow_tag=tag, **more)
        self._emitter, self.shadow = emitter, shadow
        self._ids = IdWriter(
            from_environment(LEDGER), model=model, failed=lambda times: self.broken("ids", times=times)
        )
        emitter.before_flush = self.settle
        emitter.failed("emit", "ids", times=0)
        emitter.flush()
        emitter.start()

    def served(
        self,
        predictions: Sequence[tuple[int, float]],
        *,
        logits: Sequence[NDArray[Any]] = (),
        tags: Sequence[Tag] = (),
        invalid: int = 0,
        counted: Sequence[tuple[int, float]] | None = None,
        count: bool = True,
        sign: bool = True,
        shadows: Sequence[tuple[int, float] | None] = (),
    ) -> list[SignedReceipt | None]:
        """Count and sign predictions, as Recorder does, and bind their ids."""
        if self.shadow is not None and predictions:
            try:
                # Before the receipts are signed: they carry what the shadow would have served.
                rows = range(len(predictions))
                shadows = self.shadow.says(rows, probs=None, logits=np.stack(logits))
            except Exception as error:  # fails open
                self.broken("shadow", error, times=len(predictions))
        receipts = super().served(
            predictions,
            logits=logits,
            tags=tags,
            invalid=invalid,
            counted=counted,
            count=count,
            sign=sign,
            shadows=shadows,
        )
        if any(tag.id for tag in tags):
            try:
                self._ids.put(tags, receipts)
            except Exception as error:  # fails open
                self.broken("ids", error, times=len(tags))
        return receipts

    def settle(self) -> None:
        """Add up the queued predictions, and bind their ids."""
        super().settle()
        try:
            self._ids.flush()
        except Exception as error:  # fails open
            self.broken("ids", error)

    def flush(self) -> None:
        """Send pending counts, and write the waiting samples."""
        super().flush()
        try:
            self._emitter.flush()
        except Exception as error:  # fails open
            self.broken("record", error)


class IdWriter:
    """Binds the ids of one model's predictions in the ledger ``where``; None: without a ledger.

    An id is bound before its prediction is answered, so that its label may come at once. While the ledger is
    away predictions do not wait for it, and their ids do. ``failed`` is called with a number of ids that name
    no prediction, or cannot yet.
    """

    def __init__(self, where: str | None, *, model: str, failed: Callable[[int], None]) -> None:
        self._where, self._model, self._failed = where, model, failed
        self._waiting: deque[Binding] = deque()
        self._ids: PredictionIds | None = None
        self._said, self._away = False, False
        self._turn = threading.Lock()

    def put(self, tags: Sequence[Tag], receipts: Sequence[SignedReceipt | None]) -> None:
        """Bind the ids among ``tags``, or with the next ``flush`` where the ledger failed the last time."""
        from calib_serve.ledger import Binding  # noqa: PLC0415 - only where ids come
        from calib_serve.receipts import is_id  # noqa: PLC0415 - only where ids come

        named = [(tag.id, receipt) for tag, receipt in zip(tags, receipts, strict=True) if tag.id]
        if self._where is None and named and not self._said:
            self._said = True
            log.warning(
                "requests name ids, and %s names no ledger to keep them: labels need receipts", LEDGER
            )
        # Bounded: a ledger that stays away must not take the worker's memory.
        room = 0 if self._where is None else _MOST_IDS - len(self._waiting)
        made = [Binding(self._model, id, str(one)) for id, one in named if one is not None and is_id(id)]
        self._waiting.extend(made[:room])
        if lost := len(named) - len(made[:room]):
            self._failed(lost)
        if not self._away:
            self.flush()

    def flush(self) -> None:
        """Bind the waiting ids, durable on return; they go on to wait where the ledger fails."""
        with self._turn:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), _IDS_AT_ONCE))]
            try:
                bound = self._opened().bind(some, now=time.time())
            except (CalibServeError, OSError) as error:
                log.error("ids cannot be kept yet: %s", error)
                self._waiting.extendleft(reversed(some))
                self._failed(len(some))
                self._away = True
                return
            self._away = False
            if lost := len(bound) - sum(bound):  # another prediction has the id
                self._failed(lost)

    def _opened(self) -> PredictionIds:
        if self._ids is None:
            from calib_serve.ledger import Ledger, PredictionIds  # noqa: PLC0415 - SQLAlchemy takes a while

            self._ids = PredictionIds(Ledger(str(self._where), timeout=_PATIENCE))
        return self._ids

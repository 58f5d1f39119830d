"""The thread that delivers what a reporter counts, through forks and to the end of its process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.process import around_forks
from calib_serve.receipts.counters import Sink
from calib_serve.receipts.inputs import are_probabilities
from calib_serve.receipts.outbox import Outbox
from calib_serve.receipts.recorder import Recorder

log = logging.getLogger(__name__)

_OPEN: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """A thread that delivers ``recorder`` and ``outbox`` every ``seconds``; a fork begins anew.

    ``latest``: the scores of the last call, which are looked at as well. ``started``: in this process.
    """

    def __init__(
        self,
        recorder: Recorder,
        outbox: Outbox | None,
        sink: Sink,
        *,
        seconds: float,
    ) -> None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - not at import: sockets and all, 12 ms

        self._finalize = Finalize
        self._recorder, self._outbox, self._sink, self._seconds = recorder, outbox, sink, seconds
        self.latest: NDArray[np.floating] = np.zeros(0)
        self.started = False
        self._stop, self._adding, self._until = threading.Event(), threading.RLock(), 0.0
        self._thread = threading.Thread()
        around_forks(self)

    def start(self) -> None:
        """Start the thread, and deliver the rest when this process ends."""
        with self._adding:
            if not self.started:
                self.started, self._stop, self._until = True, threading.Event(), 0.0
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop,), name="calib-report", daemon=True
                )
                self._thread.start()
                # Also where multiprocessing started the process, which then runs no function of atexit.
                self._at_exit = self._finalize(None, _close_all, exitpriority=10)
                _OPEN.add(self)

    def flush(self) -> int:
        """Deliver now; return the number of predictions that still wait, as the watch does not take them."""
        with self._adding:
            self._recorder.settle()
        return 0 if self._outbox is None or self._outbox.send(at_once=True) else len(self._outbox)

    def close(self) -> None:
        """Deliver within five seconds, and end; lost predictions are logged and counted."""
        if not self.started:
            return
        self.begin_to_close()
        self.started = False
        self._at_exit.cancel()
        # The thread delivers: at the end of a process no new one may start, and a watch may hang.
        self._thread.join(max(self._until - time.monotonic(), 0.0))
        if self._outbox is not None and (lost := self._outbox.drop()):
            log.error("%d predictions were never counted: the watch did not take them in time", lost)
            self._sink.failed("lost", times=lost)

    def begin_to_close(self) -> None:
        """Begin to close, without waiting: several reporters all begin before the first one waits."""
        if self.started and not self._stop.is_set():
            # Seconds for what waits: the end of the process takes some of five of its own.
            self._until = time.monotonic() + 3.5
            self._stop.set()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            with self._guarded():
                with self._adding:
                    self._recorder.settle()
                if not are_probabilities(self.latest):
                    self._recorder.broken("scores")
                if self._outbox is not None:
                    self._outbox.send()
        left = 1
        while left:
            with self._guarded():
                left = self.flush()
            if not left or time.monotonic() >= self._until:
                return
            time.sleep(0.2)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Run a step of the thread, which survives any failure."""
        try:
            yield
        except Exception as error:
            self._recorder.broken("record", error)

    def before_fork(self) -> None:
        """Hold the counter's lock over a fork, so that the child does not inherit it from a thread."""
        self._adding.acquire()

    def after_in_parent(self) -> None:
        """Release the counter's lock in the parent."""
        self._adding.release()

    def after_in_child(self) -> None:
        """Drop the predictions that the parent process counts."""
        self._adding, self.started = threading.RLock(), False
        self._recorder.after_fork()


def _close_all() -> None:
    """Close all reporters of this process, in five seconds together."""
    found = [one for one in list(_OPEN) if one.started]
    for one in found:
        one.begin_to_close()
    for one in found:
        one.close()

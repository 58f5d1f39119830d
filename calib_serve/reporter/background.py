"""What a reporter does beside serving: it counts what waits, in a thread and when the process ends."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.util
import threading
import time
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from calib_serve.forks import around_forks
from calib_serve.reporter.given import are_probabilities
from calib_serve.reporter.home import HomewardQueue
from calib_serve.reporter.outbox import Outbox
from calib_serve.reporter.recorder import Recorder, Sink

__all__ = ["Background"]

log = logging.getLogger(__name__)

_SAMPLES_EVERY = 60.0  # seconds between two times that samples are written
_AT_EXIT = 3.5  # seconds for what waits when the process ends, which takes some of its own
_OPEN: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Counts what waits in ``recorder`` and ``outboxes`` every ``seconds``; a forked process begins anew.

    ``latest``: the scores of the last call, which are looked at as well. ``started``: in this process.
    """

    def __init__(
        self,
        recorder: Recorder,
        outboxes: Sequence[HomewardQueue | Outbox],
        sink: Sink,
        *,
        seconds: float,
    ) -> None:
        self._recorder, self._outboxes, self._sink, self._seconds = recorder, outboxes, sink, seconds
        self.latest: NDArray[np.floating] = np.zeros(0)
        self.started = False
        self._stop, self._adding, self._until = threading.Event(), threading.Lock(), 0.0
        self._thread = threading.Thread()
        around_forks(self)

    def start(self) -> None:
        """Begin to count in a thread, and to count what waits when this process ends."""
        with self._adding:
            if not self.started:
                self.started, self._stop, self._until = True, threading.Event(), 0.0
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop,), name="calib-report", daemon=True
                )
                self._thread.start()
                # Also where multiprocessing started the process, which then runs no function of atexit.
                self._at_exit = multiprocessing.util.Finalize(None, _close_all, exitpriority=10)
                _OPEN.add(self)

    def flush(self) -> int:
        """Count what waits now; how many predictions still wait, as the watch does not take them."""
        with self._adding:
            self._recorder.flush()
        return sum(0 if one.send(at_once=True) else len(one) for one in self._outboxes)

    def close(self) -> None:
        """Count what waits, within five seconds; what is lost is logged and counted."""
        if not self.started:
            return
        self.begin_to_close()
        self.started = False
        self._at_exit.cancel()
        # The thread counts it: at the end of a process no other may begin, and a watch may hang.
        self._thread.join(max(self._until - time.monotonic(), 0.0))
        if lost := sum(one.drop() for one in self._outboxes):
            log.error("%d predictions were never counted: the watch did not take them in time", lost)
            self._sink.failed("lost", times=lost)

    def begin_to_close(self) -> None:
        """Begin with what ``close`` waits for: of several reporters all begin before the first waits."""
        if self.started and not self._stop.is_set():
            self._until = time.monotonic() + _AT_EXIT
            self._stop.set()

    def let_go(self) -> None:
        """Let the thread count what waits, and end."""
        self._stop.set()

    def _run(self, stop: threading.Event) -> None:
        samples_at = time.monotonic()
        while not stop.wait(self._seconds):
            with self._guarded():
                with self._adding:
                    if time.monotonic() - samples_at < _SAMPLES_EVERY:
                        self._recorder.settle()
                    else:
                        self._recorder.flush()
                        samples_at = time.monotonic()
                if not are_probabilities(self.latest):
                    self._recorder.broken("scores")
                for one in self._outboxes:
                    one.send()
        left = 1
        while left:
            with self._guarded():
                left = self.flush()
            if not left or time.monotonic() >= self._until:
                return
            time.sleep(0.2)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let the thread survive any failure."""
        try:
            yield
        except Exception as error:
            self._recorder.broken("record", error)

    def before_fork(self) -> None:
        """Let no thread hold the lock of a counter, which the child would find held for ever."""
        self._adding.acquire()

    def after_in_parent(self) -> None:
        """Go on."""
        self._adding.release()

    def after_in_child(self) -> None:
        """Forget what the parent counts."""
        self._adding, self.started = threading.Lock(), False
        self._recorder.after_fork()
        for one in self._outboxes:
            one.after_fork()


def _close_all() -> None:
    """Close all of this process, in five seconds together."""
    found = [one for one in list(_OPEN) if one.started]
    for one in found:
        one.begin_to_close()
    for one in found:
        one.close()

"""What a reporter does beside serving: it counts what waits, in a thread and when the process ends."""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
import time
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calib_serve.reporter.given import are_probabilities
from calib_serve.reporter.home import HomewardQueue
from calib_serve.reporter.outbox import Outbox
from calib_serve.reporter.recorder import Recorder, Sink

__all__ = ["Background"]

log = logging.getLogger(__name__)

_SAMPLES_EVERY = 60.0  # seconds between two times that samples are written
_AT_EXIT = 5.0  # seconds for what waits when the process ends


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
        self._stop, self._adding = threading.Event(), threading.Lock()
        _around_forks(self)

    def start(self) -> None:
        """Begin to count in a thread, and to count what waits when this process ends."""
        with self._adding:
            if not self.started:
                self.started, self._stop = True, threading.Event()
                threading.Thread(
                    target=self._run, args=(self._stop,), name="calib-report", daemon=True
                ).start()
                # Also where multiprocessing started the process, which then runs no function of atexit.
                multiprocessing.util.Finalize(None, _closed, args=(weakref.ref(self),), exitpriority=10)

    def flush(self) -> int:
        """Count what waits now; how many predictions still wait, as the watch does not take them."""
        with self._adding:
            self._recorder.flush()
        return sum(0 if one.send(at_once=True) else len(one) for one in self._outboxes)

    def close(self) -> None:
        """Count what waits, within five seconds; what is lost is logged and counted."""
        self.let_go()
        until = time.monotonic() + _AT_EXIT
        while (left := self.flush()) and time.monotonic() < until:
            time.sleep(0.2)
        if left and (lost := sum(one.drop() for one in self._outboxes)):
            log.error("%d predictions were never counted: the watch did not take them", lost)
            self._sink.failed("lost", times=lost)

    def let_go(self) -> None:
        """Let the thread count what waits, and end."""
        self._stop.set()
        self.started = False

    def _run(self, stop: threading.Event) -> None:
        samples_at = time.monotonic()
        while not stop.wait(self._seconds):
            try:
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
            except Exception as error:  # the thread must survive any failure
                self._recorder.broken("record", error)
        self.flush()

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


def _around_forks(background: Background) -> None:
    """What a fork needs, for as long as there is the background."""
    if not hasattr(os, "register_at_fork"):
        return
    to = weakref.ref(background)

    def call(name: str) -> None:
        if (one := to()) is not None:
            getattr(one, name)()

    os.register_at_fork(
        before=lambda: call("before_fork"),
        after_in_parent=lambda: call("after_in_parent"),
        after_in_child=lambda: call("after_in_child"),
    )


def _closed(to: weakref.ref[Background]) -> None:
    if (one := to()) is not None:
        one.close()

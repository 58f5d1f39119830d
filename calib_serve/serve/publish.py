"""Publish a watch to the server's metrics page: what is counted in the ledger, as gauges of absolute sums.

TorchServe adds to a counter what it is sent, and keeps a gauge as it was set. So a worker that dies loses
nothing and publishes nothing twice: the next one sets the same sums.
"""

from __future__ import annotations

import logging
import threading
import time

from calib_serve.serve.emit import BY_NAME, Emitter
from calib_serve.watch.exposition import Row, detector_rows, sum_rows, sums_of, trouble_rows
from calib_serve.watch.service import Watch

__all__ = ["Publisher"]

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0  # seconds between looks at what has turned mature


class Publisher:
    """Sends what ``watch`` counted to the server, every ``interval`` seconds at most."""

    def __init__(self, watch: Watch, emitter: Emitter, *, interval: float = 1.0) -> None:
        self._watch, self._emitter, self._interval = watch, emitter, interval
        self._sent: dict[tuple[str, tuple[str, ...]], float] = {}
        self._fresh = threading.Event()
        self._fresh.set()
        self._turn = threading.RLock()  # SIGTERM may publish on the very thread that does

    def wake(self) -> None:
        """Signal new sums."""
        self._fresh.set()

    def start(self) -> None:
        """Start publishing in a thread."""
        threading.Thread(target=self._run, name="calib-publish", daemon=True).start()

    def publish(self) -> None:
        """Send what has changed since it was sent last."""
        with self._turn:
            try:
                self._send(self._rows())
            except Exception as error:  # retried next time
                log.error("the ledger's sums could not be published: %s", type(error).__name__)
                self._emitter.failed("publish")
                self._emitter.flush()
                self._fresh.set()

    def _rows(self) -> list[Row]:
        watch, versions = self._watch, list(self._watch.models)
        published = watch.ledger.published()
        sums = sums_of(published, versions, bins=watch.ledger.bins)
        return [
            *sum_rows(sums, published, of=("labels",)),  # the classifiers' workers count predictions
            *detector_rows(watch, versions, published),
            *trouble_rows(watch),
        ]

    def _send(self, rows: list[Row]) -> None:
        for name, labels, value in rows:
            before = self._sent.get((name, labels))
            if before == value:
                continue
            if BY_NAME[name].in_torchserve == "gauge":
                self._emitter.set(name, value, *labels)
            else:  # what this process counted itself
                self._emitter.add(name, value - (before or 0.0), *labels)
            self._sent[name, labels] = value
        self._emitter.flush()

    def _run(self) -> None:
        while True:
            # Labels turn mature while none comes in.
            self._fresh.wait(_LOOK_EVERY)
            self._fresh.clear()
            self.publish()
            time.sleep(self._interval)

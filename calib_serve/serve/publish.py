"""Publish the ledger's sums to the server's counters.

The ledger marks what was sent when the block that sends it ends. Where the mark fails, or the ledger goes
back to an earlier state, this worker remembers what it sent. A worker killed in between leaves sums that were
sent but not marked, which the next one sends again: the counters are ahead by them, the ledger is not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

from calib_serve.serve.emit import Emitter
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.ledger import Emission, Ledger, Sums, Version, WriterLease, read_generation
from calib_serve.watch.series import PUBLISHED

__all__ = ["Publisher", "consumer_name"]

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0  # seconds between looks at what has turned mature


def consumer_name(name: str = "") -> str:
    """What a server's marks are kept under; its workers publish between them."""
    return f"torchserve:{name or socket.gethostname()}"


class Publisher:
    """Sends the ledger's unpublished sums to the server, once a second at most.

    ``name`` tells this server from others that share the ledger; default: the host's name. ``lease``: on the
    writer's name; None where nobody else publishes from this ledger. ``feed``: drift detectors to feed on the
    way, whose incidents are published as well.
    """

    def __init__(
        self,
        ledger: Ledger,
        emitter: Emitter,
        *,
        name: str = "",
        interval: float = 1.0,
        feed: DriftFeed | None = None,
        lease: WriterLease | None = None,
    ) -> None:
        self._feed = feed
        self._ledger, self._emitter, self._interval = ledger, emitter, interval
        self._consumer = self._as_asked = consumer_name(name)
        self._lease, self._asked = lease, ledger.writer if lease is None else lease.asked
        # What this worker has sent, whether or not that was marked, and what it has told of incidents.
        self._sent: dict[Version, Sums] = {}
        self._marked = True
        self._told: dict[str, int] = {}
        self._lost = 0
        self._fresh = threading.Event()
        self._fresh.set()  # an earlier worker may have left unpublished sums

    def wake(self) -> None:
        """Signal new sums."""
        self._fresh.set()

    def start(self) -> None:
        """Start publishing in a thread."""
        threading.Thread(target=self._run, name="calib-publish", daemon=True).start()

    def publish(self) -> None:
        """Send the ledger's unpublished sums."""
        try:
            self._take_name()
            with self._ledger.transaction():
                with self._emission() as found:
                    # Nothing that can fail comes between: what is added here is sent, whatever happens next,
                    # and the ledger marks it only when the lines are on their way.
                    self._send(found)
                    self._emitter.flush()
                if self._feed is not None:
                    self._send_drift(self._feed)
                    self._emitter.flush()
            self._marked = True
        except Exception as error:  # retried next time
            self._marked = False
            log.error("the ledger's sums could not be published: %s", type(error).__name__)
            self._emitter.failed("publish")
            self._emitter.flush()
            self._fresh.set()

    def _take_name(self) -> None:
        """Publish what is counted under the name that this server holds; each name has marks of its own."""
        name = self._asked if self._lease is None else self._lease.hold()
        consumer = self._as_asked if name == self._asked else f"{self._as_asked}/{name}"
        if consumer != self._consumer:
            self._consumer, self._sent = consumer, {}
        if self._lease is not None and self._lease.lost > self._lost:
            self._emitter.failed("lease", times=self._lease.lost - self._lost)
            self._lost = self._lease.lost

    @contextlib.contextmanager
    def _emission(self) -> Iterator[Emission]:
        before = self._sent_so_far()
        with self._ledger.emission(self._consumer, before=before) as found:
            yield found
            # On their way, whether or not the mark is made.
            self._sent = before | found.marks(before)

    def _run(self) -> None:
        while True:
            # Labels turn mature while none comes in.
            self._fresh.wait(None if self._feed is None else _LOOK_EVERY)
            self._fresh.clear()
            if self._feed is not None:
                self._feed_detectors(self._feed)
            self.publish()
            time.sleep(self._interval)

    def _feed_detectors(self, feed: DriftFeed) -> None:
        try:
            feed.tick()
        except Exception as error:  # retried next time
            log.error("drift detection waits: %s", type(error).__name__)
            self._emitter.failed("ledger")

    def _send_drift(self, feed: DriftFeed) -> None:
        """The counts of incidents since the last time, and how things stand now."""
        alarms, opened = feed.incidents.counts()
        key = f"published/drift/{self._consumer}"
        counts = {
            json.dumps([name, *version]): n
            for name, each in (
                ("calib_drift_alarms_total", alarms),
                ("calib_incidents_total", opened),
                ("calib_feedback_late_total", feed.late()),
            )
            for version, n in each.items()
        }
        kept = json.loads(self._ledger.load(key) or b"{}")
        before = {
            told: max(kept.get(told, 0), self._told.get(told, 0)) for told in kept | self._told | counts
        }
        for told, n in counts.items():
            if n > before[told]:
                name, model, version = json.loads(told)
                self._emitter.add(name, n - before[told], model, version)
        self._told = {told: max(n, counts.get(told, 0)) for told, n in before.items()}
        if self._told != kept:
            self._ledger.store(key, json.dumps(self._told).encode())
        still = Counter((one.model, one.version) for one in feed.incidents.latest() if one.open)
        waiting = self._ledger.waiting()
        for version in {*self._ledger.sums()}:
            self._emitter.set("calib_incidents_open", still[version], *version)
            self._emitter.set("calib_feedback_waiting", waiting.get(version, 0), *version)
            if math.isfinite(seconds := feed.maturity(version).seconds):
                self._emitter.set("calib_maturity_seconds", seconds, *version)
        for version, (evidence, threshold) in feed.evidence.items():
            if math.isfinite(evidence):  # right after an alarm there is none
                self._emitter.set("calib_drift_log_evidence", evidence, *version)
            self._emitter.set("calib_drift_log_threshold", threshold, *version)

    def _send(self, found: Emission) -> None:
        for (model, version), sums in found.fresh.items():
            _emit(self._emitter, model, version, sums)

    def _sent_so_far(self) -> dict[Version, Sums]:
        """What this server was sent of the writer's sums: what is marked, or this worker knows of beyond it.

        Where labels were taken out of the ledger on purpose, no more than it holds.
        """
        lowered, known = read_generation(self._ledger).lowered, self._ledger.published(self._consumer)
        went_back = any(v not in known or known[v].below(sent) for v, sent in self._sent.items())
        sent = {v: s.highest(known.get(v, s)) for v, s in (known | self._sent).items()}
        key = f"lowered/{self._consumer}"
        seen = self._ledger.load(key)
        if seen is not None and seen != str(lowered).encode():
            zeros, counted = Sums.zeros(self._ledger.bins), self._ledger.sums(own=True)
            sent = {version: sums.lowest(counted.get(version, zeros)) for version, sums in sent.items()}
        elif went_back and self._marked:
            log.error("the ledger went back: what was published before is not published again")
            self._emitter.failed("rollback")
        self._ledger.store(key, str(lowered).encode())
        return sent


def _emit(emitter: Emitter, model: str, version: str, sums: Sums) -> None:
    for one in PUBLISHED:
        if one.of == "labels":
            for index, value in enumerate(sums[one.name].tolist()):
                if value > 0:
                    place = (str(index),) if one.per == "bin" else ()
                    emitter.add(one.name, value, model, version, *place)

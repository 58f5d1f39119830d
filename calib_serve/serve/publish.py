"""Publish the ledger's sums to the server's counters, each exactly once.

The ledger marks what was sent when the block that sends it ends. Where the mark fails, this worker
remembers what it sent. A worker killed in between leaves sums that were sent but not marked; the next
worker asks the server what it holds, and marks them then instead of sending them again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping

from calib_serve.fuse.mar_options import METRICS, from_environment
from calib_serve.serve.emit import Emitter
from calib_serve.serve.metric_lines import label_value
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.ledger import Emission, Ledger, Sums, Version
from calib_serve.watch.series import PUBLISHED

__all__ = ["Publisher"]

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0  # seconds between looks at what has turned mature
_COUNT = re.compile(r'^calib_feedback_total\{model="([^"]*)",version="([^"]*)".*\} (\S+)$', re.MULTILINE)


class Publisher:
    """Sends the ledger's unpublished sums to the server, once a second at most.

    ``name`` tells this server from others that share the ledger; default: the host's name. ``feed``: drift
    detectors to feed on the way, whose incidents are published as well.
    """

    def __init__(
        self,
        ledger: Ledger,
        emitter: Emitter,
        *,
        name: str = "",
        interval: float = 1.0,
        feed: DriftFeed | None = None,
    ) -> None:
        self._feed = feed
        self._ledger, self._emitter, self._interval = ledger, emitter, interval
        self._consumer = f"torchserve:{name or socket.gethostname()}"
        self._first = True
        # Sent, but perhaps not marked: labels that were marked before, and the sums that were sent.
        self._unmarked: dict[Version, tuple[float, Sums]] = {}
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
            with self._ledger.emission(self._consumer) as found:
                self._send(found)
                if self._feed is not None:
                    self._send_drift(self._feed)
                # Sent within the block: the ledger marks it only when the lines are on their way.
                self._emitter.flush()
            self._unmarked = {}
        except Exception as error:  # retried next time
            log.error("the ledger's sums could not be published: %s", type(error).__name__)
            self._emitter.failed("publish")
            self._emitter.flush()
            self._fresh.set()

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
        before = json.loads(self._ledger.load(key) or b"{}")
        for told, n in counts.items():
            if n > before.get(told, 0):
                name, model, version = json.loads(told)
                self._emitter.add(name, n - before.get(told, 0), model, version)
        if counts != before:
            self._ledger.store(key, json.dumps(counts).encode())
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
        fresh, counted = found.fresh, _labels(found.counted)
        marked = {key: n - _labels(fresh).get(key, 0.0) for key, n in counted.items()}
        if not (self._first and self._sent_before(fresh, counted, marked)):
            for key, sums in fresh.items():
                before, sent = self._unmarked.get(key, (math.nan, sums))
                _emit(self._emitter, *key, sums - sent if before == marked[key] else sums)
        self._unmarked = {key: (marked[key], sums) for key, sums in fresh.items()}
        self._first = False

    def _sent_before(
        self, fresh: Mapping[Version, Sums], counted: Mapping[Version, float], marked: Mapping[Version, float]
    ) -> bool:
        """Whether the server holds all of ``fresh`` already, as the last worker died before the mark."""
        before = self._at_start_of_server(marked)
        held = _held() if fresh and before is not None else None
        if held is None or before is None:
            return False
        return all(
            held.get((label_value(key[0]), label_value(key[1])), 0.0) == counted[key] - before.get(key, 0.0)
            for key in fresh
        )

    def _at_start_of_server(self, marked: Mapping[Version, float]) -> dict[Version, float] | None:
        """The marks when this server's counters started at 0; None if they start now."""
        key, server = f"publish/{self._consumer}", _server()
        kept = self._ledger.load(key)
        if kept is not None and (found := json.loads(kept))["server"] == server:
            return {(model, version): n for model, version, n in found["marked"]}
        rows = [[*version, n] for version, n in marked.items()]
        self._ledger.store(key, json.dumps({"server": server, "marked": rows}).encode())
        return None


def _labels(sums: Mapping[Version, Sums]) -> dict[Version, float]:
    return {version: float(each.labels.sum()) for version, each in sums.items()}


def _server() -> str:
    """The server process that this worker belongs to, and when it started."""
    pid = os.getppid()
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - not a file one keeps
            return f"{pid}/{file.read().rpartition(')')[2].split()[19]}"
    except OSError:
        return str(pid)


def _held() -> dict[tuple[str, str], float] | None:
    """The labels that the server's counters hold, by model and version; None where it does not answer."""
    address = from_environment(METRICS)
    if address is None:
        return None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}/metrics?name[]=calib_feedback_total", timeout=10) as reply:
        text = reply.read().decode("utf-8", "replace")
    held: dict[tuple[str, str], float] = {}
    for model, version, value in _COUNT.findall(text):
        held[model, version] = held.get((model, version), 0.0) + float(value)
    return held


def _emit(emitter: Emitter, model: str, version: str, sums: Sums) -> None:
    for one in PUBLISHED:
        if one.of == "labels":
            for index, value in enumerate(sums[one.name].tolist()):
                if value > 0:
                    place = (str(index),) if one.per == "bin" else ()
                    emitter.add(one.name, value, model, version, *place)

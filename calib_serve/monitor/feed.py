"""The feed of the drift detectors: mature labels, in the order of their predictions, off the label path.

A bet on a prediction is fixed when it is made, so the detector's guarantee holds in the order of predictions,
once the labels of a time are in. In the order of arrival it does not: wrong predictions may be told sooner.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from calib_serve.ledger import LabelRecord, Ledger, note_recovery, read_kept, recent_recovery
from calib_serve.monitor.drift.detector import Detector
from calib_serve.monitor.incidents import IncidentLog
from calib_serve.monitor.measured import VERSIONS_A_TRANSACTION
from calib_serve.monitor.windows import Maturity, learned_delay
from calib_serve.receipts import DAY, SKEW, Version

log = logging.getLogger(__name__)

ITEMS_A_TRANSACTION = 5_000
"""Labels that are fed, or items that waited for their version, at once: others wait for no more."""

_LEARN_EVERY = 60.0  # seconds between two times that a version's maturity is learned
_DETECTOR = "detector"


class Follower(Protocol):
    """Follows the fed labels; its state lies in the ledger, so that each label counts once."""

    def feed(self, version: Version, rows: Sequence[LabelRecord], *, now: float) -> None:
        """Count labels, in the order of their predictions, in the transaction that takes them out.

        Store what is to be kept before returning. What is raised ends the step: the labels wait on.
        """


class DriftFeed:
    """Feeds waiting labels in ``ledger`` to the detectors of their versions, and keeps their state.

    ``detector`` makes the detector of a version whose first label comes in; None: labels are fed to the
    ``followers`` alone, which are given the same ones. ``maturity``: seconds after which the labels of a
    prediction are in; None: learned from their delays. With 0, labels are fed as they come, and predictions
    that all have their labels, up to the first without one, need no wait. Processes that share a ledger feed
    one detector between them. The thread also rolls up what was counted, and forgets what has expired.
    ``trouble``: why the last tick failed.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        detector: Callable[[], Detector] | None = Detector,
        maturity: float | None = None,
        clock: Callable[[], float] | None = None,
        followers: Sequence[Follower] = (),
    ) -> None:
        self.incidents = IncidentLog(ledger)
        self.trouble: str | None = None
        self._ledger, self._detector, self._given = ledger, detector, maturity
        self._clock = clock or ledger.time.now
        self._learned: dict[Version, tuple[float, float]] = {}
        self._labelled: dict[Version, tuple[float, float]] = {}
        self._tried: dict[Version, float] = {}
        self._took: dict[Version, float] = {}
        self._take_all = 0.0
        self._grouped: set[Version] = set()
        self._fed, self._others = set[Version](), dict[Version, tuple[float, ...]]()
        self._stop, self._thread = threading.Event(), threading.Thread()
        self._followers = tuple(followers)
        self._also: list[tuple[Callable[[], object], float]] = []
        self.also(ledger.sweep, every=600.0)

    def maturity(self, version: Version) -> Maturity:
        """The age at which predictions of this version are mature."""
        if self._given is not None:
            return Maturity(self._given, given=True)
        # Longer where there are so many versions that it would take more than .5 % of a core.
        now, keep = self._clock(), max(_LEARN_EVERY, self._take_all / 0.005)
        learned, at = self._learned.get(version, (0.0, -math.inf))
        # Negative where the clock was set back: then it is learned again.
        if not 0 <= now - at < keep:
            began = time.thread_time()
            with self._ledger.moment() as moment:
                dated = moment.together(version).dated(-math.inf, now + _LEARN_EVERY, "segment")
            learned = learned_delay(dated, now=now)
            self._learned[version] = (learned, now)
            took = time.thread_time() - began
            self._take_all += took - self._took.get(version, 0.0)
            self._took[version] = took
        return Maturity(learned, given=False)

    def _labelled_until(self, version: Version, maturity: Maturity) -> float:
        """The time before which all young predictions have their labels, as of some seconds ago."""
        now = self._clock()
        until, at = self._labelled.get(version, (-math.inf, -math.inf))
        if not 0 <= now - at < max(10.0, self._take_all / 0.005):
            mature = now - maturity.seconds
            since = mature - DAY  # spans lie whole inside, and are a day wide at most
            with self._ledger.moment() as moment:
                young = moment.spans(version, since, "segment")
            # A reporter takes some seconds to bring predictions, which wait for their labels as well.
            until = min(young.labelled_until(since, mature), now - _LEARN_EVERY / 2)
            self._labelled[version] = until, now
        return until

    def tick(self) -> None:
        """Feed all mature labels; LedgerError where the ledger cannot be used."""
        try:
            ready = self._ready()
            for at in range(0, len(ready), VERSIONS_A_TRANSACTION):
                with self._ledger.transaction():
                    more = [v for v in ready[at : at + VERSIONS_A_TRANSACTION] if self._step(v)]
                for version in more:
                    while self._step(version):
                        pass
        except Exception as error:
            self.trouble = f"drift detection waits: {error}"
            raise
        self.trouble = None

    def wrong(self) -> str | None:
        """A reason where labels do not reach the detectors, by one set of options and no lost state."""
        if self.trouble is not None:
            return self.trouble
        # A program that started later feeds a detector with other options.
        for (model, version), (arl, tolerance, _, block) in list(self._others.items()):
            return (
                f"another program on this ledger, started later, feeds the detector of {model} {version} by "
                f"--arl {arl:g} --tolerance {tolerance:g} --block {block:g}: give both the same"
            )
        return recent_recovery(self._ledger, now=self._clock())

    def _ready(self) -> list[Version]:
        """The versions that have labels to feed: a step is not free for the others."""
        if self._given == 0:
            return list(self._mature(0.0))
        by_wait: dict[float, set[Version]] = {}
        early = []
        for version in self._ledger.followers.waiting():
            maturity = self.maturity(version)
            by_wait.setdefault(maturity.seconds, set()).add(version)
            if self._labelled_until(version, maturity) > self._tried.get(version, -math.inf):
                early.append(version)
        mature = {
            version
            for seconds, versions in by_wait.items()
            if math.isfinite(seconds)
            for version in versions.intersection(self._mature(seconds))
        }
        return sorted(mature.union(early))

    def _mature(self, seconds: float) -> dict[Version, int]:
        """The number of waiting labels this old, by version; all of them without a wait."""
        return self._ledger.followers.waiting(until=self._clock() - seconds if seconds else math.inf)

    def also(self, work: Callable[[], object], *, every: float) -> None:
        """Add ``work`` to the thread, every so many seconds."""
        self._also.append((work, every))

    def start(self) -> None:
        """Tick from now on, in a thread, until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="calib-drift", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, which may finish a step first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        due = [time.monotonic() + seconds for _, seconds in self._also]
        rest = 1.0
        while not self._stop.wait(rest):
            began = time.thread_time()
            try:
                # First: scrapes and windows then have few rows to add up themselves.
                self._ledger.roll_up()
                self.tick()
                for i, (work, seconds) in enumerate(self._also):
                    if time.monotonic() >= due[i]:
                        due[i] = time.monotonic() + seconds
                        work()
            except Exception as error:  # tried again at the next tick
                if not self._stop.is_set():
                    log.error("drift detection waits: %s", error)
            rest = self._rest(time.thread_time() - began)

    def _rest(self, took: float) -> float:
        """Seconds until the next tick: 1, and more after a long one, so that many labels are fed at once.

        That costs less: whatever the number of labels, a version's detector is read and written once a tick.
        """
        learned = (seconds for seconds, _ in list(self._learned.values()) if math.isfinite(seconds))
        wait = min(learned, default=0.0) if self._given is None else self._given
        # The thread takes 1 % of a core, where labels may wait so long: 5 s, or a tenth of their own time.
        return max(1.0, min(took / 0.01, max(5.0, 0.1 * wait)))

    def _step(self, version: Version) -> bool:
        """Feed some labels of a version; whether more may wait."""
        maturity, now = self.maturity(version), self._clock()
        # Waiting labels may be dated ahead of this clock, by other hosts' clocks.
        until = math.inf
        if maturity.seconds:
            until = max(now - maturity.seconds, self._labelled_until(version, maturity))
            self._tried[version] = until = self._whole_groups(version, until, maturity)
        with self._ledger.transaction():
            rows = self._ledger.followers.take(version, until=until, most=ITEMS_A_TRANSACTION)
            if rows:
                if any(row.group for row in rows):
                    self._grouped.add(version)
                fed = self._in_order(version, rows) if maturity.seconds else rows
                if self._detector is not None:
                    self._feed(version, fed, self._detector(), now)
                for follower in self._followers:
                    follower.feed(version, fed, now=now)
        return len(rows) == ITEMS_A_TRANSACTION

    def _whole_groups(self, version: Version, until: float, maturity: Maturity) -> float:
        """The time until which predictions are fed: with groups in steps, so that no group is torn."""
        if version not in self._grouped or until == -math.inf:
            return until
        step = max(300.0, maturity.seconds / 4 if maturity.known else 0.0)
        return math.floor(until / step) * step

    def _in_order(self, version: Version, rows: Sequence[LabelRecord]) -> Sequence[LabelRecord]:
        """The rows no older than the last fed label, whose time is kept; the others are late."""
        fed = self._ledger.followers.progress()[version].fed_until
        if fed > self._clock() + SKEW:  # a clock was ahead: by it all that comes would be late
            fed = -math.inf
        fresh = [row for row in rows if row.time >= fed]
        until = max(rows[-1].time, fed)
        self._ledger.followers.advance(version, fed_until=until, late=len(rows) - len(fresh))
        return fresh

    def _feed(self, version: Version, rows: Sequence[LabelRecord], made: Detector, now: float) -> None:
        detector = self._restored(version, made, now)
        first = detector.labels + 1
        alarms = detector.update(
            [row.confidence for row in rows],
            [row.correct for row in rows],
            time=[row.time for row in rows],
            predicted=[row.predicted for row in rows],
            group=[row.group for row in rows],
        )
        self._ledger.followers.keep(_DETECTOR, version, "", detector.state(), now=now)
        self._fed.add(version)
        excess = [row.confidence - row.correct for row in rows]
        opened = self.incidents.observe(version, excess, alarms, first=first, now=now)
        self._ledger.followers.advance(
            version,
            evidence=(detector.log_evidence, detector.log_threshold),
            alarms=len(alarms),
            incidents=len(opened),
        )
        for one in opened:
            log.warning("%s %s: calibration drifted, %s: incident %d", *version, one.direction, one.id)

    def _restored(self, version: Version, made: Detector, now: float) -> Detector:
        kept, damaged = read_kept(self._ledger, _DETECTOR, version, Detector.restore)
        for error in damaged.values():
            note_recovery(self._ledger, version, "the drift detector", error, now=now)
        if not kept:
            return made
        before = kept[""]
        if before.options == made.options:
            self._others.pop(version, None)
            return before
        if version in self._fed:  # two programs that began it anew in turn would never detect anything
            self._others[version] = before.options
            return before
        log.warning(
            "%s %s: a new drift detector starts: its run length, tolerance, bins and block changed, %s to %s",
            *(*version, before.options, made.options),
        )
        return made

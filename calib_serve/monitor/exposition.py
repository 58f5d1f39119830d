"""Rows that a watch publishes wherever it runs: series, label values in the declared order, values.

Sums are read from the ledger, absolute and by window: whoever shares it shows the same ones, under its name.
A window is a gauge, so that one scrape shows it whole, and what is taken out of it is gone at the next.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from calib_serve.core.errors import REASONS
from calib_serve.ledger import Published
from calib_serve.monitor.windows import Window
from calib_serve.receipts import SUMS, Sums, Version, add_at, merge_slices

if TYPE_CHECKING:
    from calib_serve.monitor.watch import Watch

T = TypeVar("T")

_STAGES = ("held", "ids", "keyring", "ledger", "samples", "scrape", "tokens")

BIN_WINDOWS = ("1h", "24h", "7d", "30d")
"""The windows whose sums are published by bin: those that rules can be written for."""

TOTALS = ("calib_predictions_total", "calib_feedback_total")
"""What is published of all that a ledger counts; by bin it is published for windows alone."""

Row = tuple[str, tuple[str, ...], float]
"""A series, the values of its labels, and its value."""


def sums_of(published: Published, versions: Sequence[Version], *, bins: int) -> dict[Version, Sums]:
    """The sums of some versions, zeros where nothing is counted, and the sums of all other versions.

    Args:
        published: Sums of the ledger.
        versions: Versions that are there in any case.
        bins: Number of bins of confidence.
    """
    found = dict.fromkeys(versions, Sums.zeros(bins))
    for version, sums in sorted(merge_slices(published.segments).items()):
        add_at(found, version, sums)
    return found


def sum_rows(
    sums: Mapping[Version, Sums], published: Published, *, names: Sequence[str] = TOTALS
) -> Iterator[Row]:
    """Yield sums over all bins.

    Args:
        sums: Sums of each version.
        published: Sums of the ledger, for the labels of its series.
        names: Which of ``TOTALS``.
    """
    for name in names:
        for version, each in sums.items():
            yield name, (*version, *published.labels(version)), float(each[name].sum())


def window_rows(
    watch: Watch, windows: Mapping[str, Window], served: Mapping[str, Window] | None = None
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the rows of ``calib_window_sums``, of windows of a version in every bin.

    Predictions are of ``served``, those up to now, as what shifts is seen before labels come.

    Args:
        watch: Watch whose ledger is read.
        windows: Windows of one version by name.
        served: The same windows up to now; None: their predictions are counted elsewhere.
    """
    for name, window in windows.items():
        of = {"labels": window} if served is None else {"labels": window, "predictions": served[name]}
        for one in SUMS:
            found = of.get(one.of) if one.in_windows else None
            for place, value in enumerate(found.sums[one.name].tolist() if found else ()):
                labels = (*window.version, str(place), name, one.short, watch.ledger.uuid[:8])
                yield labels, value


class Kept(Generic[T]):
    """What ``make`` makes of each version: anew when its sums changed, else after some seconds.

    Where there are many, each call renews new and changed ones for two seconds, the oldest and most
    served first, then for a fifth of a second those that only move by time, one at least.

    Args:
        make: Makes it, from the ledger.
        clock: Seconds, from any moment on.
    """

    def __init__(self, make: Callable[[Version], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock, self._lock = make, clock, threading.Lock()
        self._made: dict[Version, tuple[float, bytes, T]] = {}

    def of(self, sums: Mapping[Version, Sums]) -> dict[Version, T]:
        """What is made by now of the versions that have these sums.

        Args:
            sums: Sums of each version.
        """
        with self._lock:
            self._made = {version: one for version, one in self._made.items() if version in sums}
            began, stamps = self._clock(), {v: one.vector.tobytes() for v, one in sums.items()}
            changed = {v: at for v, (at, stamp, _) in self._made.items() if stamp != stamps[v]}
            changed |= dict.fromkeys(sums.keys() - self._made.keys(), -math.inf)
            # 15 s, as scrapes come from several servers, and windows move by themselves.
            moved = {v: at for v, (at, *_) in self._made.items() if v not in changed and began - at > 15.0}
            for due, most in ((changed, 2.0), (moved, 0.2)):
                for i, version in enumerate(sorted(due, key=lambda v: (due[v], -sums[v].predictions.sum()))):
                    if i and self._clock() - began > most:
                        break
                    self._made[version] = self._clock(), stamps[version], self._make(version)
            return {version: made for version, (_, _, made) in self._made.items()}

    def age(self) -> float:
        """Seconds since the oldest was made; NaN without any."""
        with self._lock:
            return self._clock() - min((at for at, _, _ in self._made.values()), default=math.nan)


def detector_rows(watch: Watch, versions: Sequence[Version], published: Published) -> Iterator[Row]:
    """Yield the state of some versions' drift detectors; unknown values are left out.

    Args:
        watch: Watch whose ledger, feed and incidents are read.
        versions: Versions, in the order of the rows.
        published: Sums of the ledger, for the labels of its series.
    """
    feed = watch.feed
    progress = watch.ledger.followers.progress()
    still = Counter((one.model, one.version) for one in watch.incidents() if one.open)
    for version in versions:
        known, own = progress.get(version), published.labels(version)
        yield "calib_drift_alarms_total", (*version, *own), known.alarms if known else 0
        yield "calib_feedback_late_total", (*version, *own), known.late if known else 0
        yield "calib_incidents_open", version, still[version]
        yield "calib_feedback_accepted_total", version, watch.intake.accepted[version]
        yield "calib_feedback_corrected_total", version, watch.intake.corrected[version]
        numbers = {"calib_maturity_seconds": feed.maturity(version).seconds}
        if known:
            numbers["calib_drift_log_evidence"] = known.log_evidence
            numbers["calib_drift_log_threshold"] = known.log_threshold
        yield from ((name, version, value) for name, value in numbers.items() if math.isfinite(value))


def trouble_rows(watch: Watch) -> Iterator[Row]:
    """Yield refused labels, failures, and the results of checks."""
    for reason in REASONS:
        yield "calib_feedback_refused_total", (reason,), watch.intake.refused[reason]
    for stage in _STAGES:
        yield "calib_monitor_errors_total", (stage,), watch.counts.errors[stage]
    for name, wrong in watch.checks.reasons().items():
        yield "calib_check_ok", (name,), float(wrong is None)

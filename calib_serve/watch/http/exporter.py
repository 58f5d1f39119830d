"""Prometheus exposition of a ``Watch``: absolute sums from the ledger, at every scrape.

One process owns one registry. Sums come from the ledger, so they go on after a restart where they
stood, and a scrape during a write sees the state before it or after it, never between. Series of a writer
or a generation that is not the default say so in two more labels. A scrape has a limit of series: what of
versions, segments and windows is left out of it is a gauge of its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from calib_serve.errors import REASONS, LedgerError, MissingDependency
from calib_serve.watch.checks import Check
from calib_serve.watch.contracts import BURN_WINDOWS
from calib_serve.watch.drift.statistics import expected_accuracy
from calib_serve.watch.http.gauges import WINDOWS, WindowGauges
from calib_serve.watch.http.room import MAX_SERIES, Room
from calib_serve.watch.ids import FATES
from calib_serve.watch.incidents import Incident
from calib_serve.watch.ledger import Key, Sums, Version, merge_slices
from calib_serve.watch.series import CONTRACTS, PUBLISHED, SEGMENTS, SERIES, SHADOWS, WATCH, Series
from calib_serve.watch.service import Watch
from calib_serve.watch.sources import labels_by_source

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingDependency("prometheus_client", "watch") from error

__all__ = ["Batch", "Requests", "WatchCollector", "export"]

log = logging.getLogger(__name__)

Row = tuple[tuple[str, ...], float]
Batch = Literal["labels", "predictions", "predictions_without_key"]
"""What a batch holds; of predictions, whether they came without an ``Idempotency-Key``."""

_BY_NAME = {series.name: series for series in (*SERIES, *SEGMENTS, *WATCH, *CONTRACTS, *SHADOWS)}
_NONE: Mapping[str, str] = MappingProxyType({})
_LEFT_OUT = ("all", "segments", "windows")
_OF_CLAUSE = sum(len(BURN_WINDOWS) + 1 if "window" in one.labels else 1 for one in CONTRACTS)
"""Series of a clause: of burn rates over these windows and its own time."""
_STAGES = ("ids", "keyring", "lease", "ledger", "samples", "scrape", "tokens")


class Requests:
    """How many requests were answered, and how long that took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[str] = Counter()

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        with self._lock:
            self.count[route, str(status)] += 1
            self.seconds[route] += seconds  # type: ignore[assignment]  # a Counter adds floats as well


class WatchCollector(Collector):
    """Turns a ``Watch`` into metric families; every bin of every version is there from the start.

    ``max_series``: about how many there are of all versions together, at most.
    """

    def __init__(self, watch: Watch, requests: Requests, *, max_series: int = MAX_SERIES) -> None:
        self._watch, self._requests, self._most = watch, requests, max_series
        self._gauges = WindowGauges(watch)
        self._versions, self._segments = Room(), Room()
        self._left_out = dict.fromkeys(_LEFT_OUT, 0)
        self._in_use = 0
        bins = watch.ledger.bins
        self._of_segment = _count((one.segment_series for one in PUBLISHED if one.by_segment), bins)
        self._of_version = _count((*SERIES, *WATCH), bins)

    def trouble(self) -> str | None:
        """Why what is in use is left out of scrapes, if it is."""
        if not self._in_use:
            return None
        return (
            f"series of {self._in_use} versions in use, or of their segments, are left out of /metrics, "
            f"which has {self._most:,} at most: raise --max-series, or watch by more than one process"
        )

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        models = self._watch.models
        sizes = {version: self._size(version) for version in models}
        versions = self._versions.choose(sizes, self._watch.counted_at, most=self._most)
        self._left_out = {"all": len(models) - len(versions), "segments": 0, "windows": 0}
        self._in_use = self._versions.crowded_out(sizes, self._watch.counted_at)
        try:
            published = self._watch.publication.read(None if len(versions) == len(models) else versions)
            sources = labels_by_source(self._sources(versions))
            told = [*self._detectors(versions, published.generation), *self._windows(versions)]
        except LedgerError as error:
            # Publish no sums: zeros would look like a restart.
            log.error("a scrape could not read the ledger: %s", error)
            self._watch.counts.errors["scrape"] += 1
        else:
            zeros, segments, more = Sums.zeros(self._watch.ledger.bins), published.sums, published.labels
            yield from _sums(dict.fromkeys(versions, zeros) | merge_slices(segments), more)
            self._note_merged(published.merged)
            yield from _segments(
                self._fitting(segments, room=self._most - sum(sizes[v] for v in versions)), more
            )
            yield _family("calib_source_labels_total", list(sources.items()), more)
            yield from told
        yield from self._troubles(versions)

    def _note_merged(self, versions: Collection[Version]) -> None:
        """Of these there is no room for segments, and none were read."""
        self._left_out["segments"] = len(versions)
        self._in_use += len(self._versions.in_use(self._watch.counted_at).intersection(versions))

    def _size(self, version: Version) -> int:
        """How many series a version has, with those of its contract."""
        contract = self._watch.models[version].contract
        return self._of_version + (_OF_CLAUSE * len(contract.clauses) if contract else 0)

    def _fitting(self, sums: Mapping[Key, Sums], *, room: int) -> dict[Key, Sums]:
        """The segments for which the versions leave ``room``."""
        named = {key: each for key, each in sums.items() if key.name}
        sizes = {v: n * self._of_segment for v, n in Counter(key.of for key in named).items()}
        chosen = set(self._segments.choose(sizes, self._watch.counted_at, most=room))
        self._in_use += self._segments.crowded_out(sizes, self._watch.counted_at)
        self._left_out["segments"] += len(sizes) - len(chosen)
        return {key: each for key, each in named.items() if key.of in chosen}

    def _sources(self, versions: Sequence[Version]) -> dict[Key, Sums]:
        ledger = self._watch.ledger
        if not self._left_out["all"]:
            return ledger.slices("source", own=True)
        return {k: s for v in versions for k, s in ledger.slices("source", own=True, version=v).items()}

    def _detectors(self, versions: Sequence[Version], generation: int) -> Iterator[Metric]:
        watch, feed = self._watch, self._watch.feed
        alarms, incidents = feed.incidents.counts()
        opened = [one for one in watch.incidents() if one.open and (one.model, one.version) in watch.models]
        still = Counter((one.model, one.version) for one in opened)
        late, waiting = feed.late(), watch.ledger.waiting()
        shares = {
            v: (reference.count / reference.n).tolist()
            for v in versions
            if (reference := watch.models[v].reference)
        }
        yield _family("calib_reference_share", _binned(shares))
        for name, counts in (
            ("calib_drift_alarms_total", alarms),
            ("calib_incidents_total", incidents),
            ("calib_incidents_open", still),
            ("calib_feedback_late_total", late),
            ("calib_feedback_waiting", waiting),
        ):
            kept = {"generation": str(generation)} if generation and name.endswith("_total") else {}
            yield _family(name, [(v, counts.get(v, 0)) for v in versions], kept)
        yield from _open(opened)
        yield _family("calib_maturity_seconds", [(v, feed.maturity(v).seconds) for v in versions])
        evidence = [(v, feed.evidence[v]) for v in versions if v in feed.evidence]
        yield _family("calib_drift_log_evidence", [(v, e) for v, (e, _) in evidence])
        yield _family("calib_drift_log_threshold", [(v, t) for v, (_, t) in evidence])
        shifts = [(v, watch.shifts[v]) for v in versions if v in watch.shifts]
        yield _family("calib_shift_alarms_total", [(v, watch.counts.shifts[v]) for v, _ in shifts])
        yield _family("calib_shift_log_evidence", [(v, s.log_evidence) for v, s in shifts])

    def _windows(self, versions: Sequence[Version]) -> Iterator[Metric]:
        found = self._gauges.rows(versions)
        self._left_out["windows"] = len(versions) - len(found)
        whole: dict[str, list[Row]] = {}
        for rows in found.values():
            for name, more in rows.items():
                whole.setdefault(name, []).extend(more)
        for name, every in whole.items():
            yield _family(name, every)
        if found:
            yield _family("calib_windows_age_seconds", [((), self._gauges.age())])

    def _troubles(self, versions: Sequence[Version]) -> Iterator[Metric]:
        counts, requests = self._watch.counts, self._requests
        refused = self._watch.intake.refused
        yield _family("calib_feedback_refused_total", [((reason,), refused[reason]) for reason in REASONS])
        yield _family("calib_invalid_outputs_total", [(v, counts.invalid[v]) for v in versions])
        yield _family("calib_versions_left_out", [((what,), n) for what, n in self._left_out.items()])
        errors = counts.errors + Counter(lease=self._watch.publication.lost)
        yield _family("calib_monitor_errors_total", [((stage,), errors[stage]) for stage in _STAGES])
        yield _family("calib_ledger_rollbacks_total", [((), self._watch.publication.rollbacks)])
        unknown = [((batch,), counts.unknown[batch]) for batch in get_args(Batch)]
        yield _family("calib_batches_unknown_total", unknown)
        yield from self._ids()
        found = self._watch.checks.reasons().items()
        yield _family("calib_check_ok", [((name,), float(reason is None)) for name, reason in found])
        yield _family("calib_requests_total", [(route, n) for route, n in list(requests.count.items())])
        yield _family("calib_request_seconds_total", [((r,), s) for r, s in list(requests.seconds.items())])

    def _ids(self) -> Iterator[Metric]:
        ids = self._watch.ids
        fates = ids.fates() if ids is not None else dict.fromkeys(FATES, 0)
        yield _family("calib_prediction_ids_total", [((fate,), n) for fate, n in fates.items()])
        with contextlib.suppress(LedgerError):  # its check says so
            yield _family("calib_prediction_ids", [((), ids.store.size() if ids is not None else 0)])


def _open(incidents: Iterable[Incident]) -> Iterator[Metric]:
    """What is known of open incidents, of which a version has one."""
    by_version = {(one.model, one.version): one for one in incidents}
    bins = {
        (*version, str(bin_["bin"])): bin_["confidence"] - bin_["accuracy"]
        for version, one in by_version.items()
        for bin_ in one.bins
    }
    yield _family("calib_incident_gap", [(v, one.gap) for v, one in by_version.items()])
    yield _family("calib_incident_onset_timestamp_seconds", [(v, one.onset) for v, one in by_version.items()])
    yield _family("calib_incident_bin_gap", list(bins.items()))


def _sums(sums: Mapping[Version, Sums], more: Mapping[str, str]) -> Iterator[Metric]:
    for one in PUBLISHED:
        columns = {version: each[one.name] for version, each in sums.items()}
        whole = [(version, float(column[0])) for version, column in columns.items()]
        yield _family(one.name, _binned(columns) if one.per == "bin" else whole, more)
    expected = {v: expected_accuracy(s) for v, s in sums.items()}
    yield _family("calib_expected_accuracy", [(v, e.accuracy) for v, e in expected.items()])
    yield _family("calib_expected_accuracy_error", [(v, e.standard_error) for v, e in expected.items()])


def _segments(sums: Mapping[Key, Sums], more: Mapping[str, str]) -> Iterator[Metric]:
    for one in PUBLISHED:
        if one.by_segment:
            columns = {(key.model, key.version, key.name): each[one.name] for key, each in sums.items()}
            yield _family(one.segment_series.name, _binned(columns), more)


def _binned(columns: Mapping[Any, Iterable[float]]) -> list[Row]:
    return [((*key, str(b)), float(x)) for key, column in columns.items() for b, x in enumerate(column)]


def _family(name: str, rows: Iterable[Row], more: Mapping[str, str] = _NONE) -> Metric:
    """``more``: labels beside those of the series, alike in all rows."""
    series = _BY_NAME[name]
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = kind(name, series.help, labels=(*series.labels, *more))
    for labels, value in rows:
        if math.isfinite(value):  # unknown values are left out
            family.add_metric((*labels, *more.values()), value)
    return family


def _count(series: Iterable[Series], bins: int) -> int:
    """How many series a version has, or one of its segments."""
    found = 0
    for one in series:
        if one.labels[:2] == ("model", "version"):
            each = bins if "bin" in one.labels else 1
            found += each * (len(WINDOWS) if "window" in one.labels else 1)
    return found


def export(
    watch: Watch,
    registry: CollectorRegistry,
    *,
    requests: Requests | None = None,
    max_series: int = MAX_SERIES,
) -> Requests:
    """Publish ``watch`` in ``registry``; the counter of requests it publishes beside.

    ``max_series``: of one scrape, about. What is left out for it shows in ``watch.checks`` as well.
    """
    requests = requests or Requests()
    collector = WatchCollector(watch, requests, max_series=max_series)
    registry.register(collector)
    watch.checks.add(Check("series", collector.trouble))
    return requests

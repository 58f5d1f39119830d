"""Prometheus exposition of a ``Watch``: absolute sums from the ledger, at every scrape.

Sums go on after a restart where they stood, and a scrape during a write sees the state before it or after it,
never between. So many versions have series of their own; the sums of the others are told together, as those
of one version ``other``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from calib_serve.core.errors import LedgerError
from calib_serve.monitor import (
    TOTALS,
    Check,
    Watch,
    detector_rows,
    sum_rows,
    sums_of,
    trouble_rows,
)
from calib_serve.receipts import BY_NAME, FATES, LEDGER_LABELS, OTHER, Sums, Version, add_at
from calib_serve.web.limits import Limits
from calib_serve.web.window_gauges import WindowGauges

log = logging.getLogger(__name__)

Row = tuple[tuple[str, ...], float]
Batch = Literal["labels", "predictions", "predictions_without_key"]
"""What a batch holds; of predictions, whether they came without an ``Idempotency-Key``."""

_VERSION = ("model", "version")
_REST: Version = (OTHER, OTHER)  # the sums of all versions beyond


class WatchCollector(Collector):
    """Turns a ``Watch`` into metric families; every bin of every version is there from the start.

    ``max_versions`` have series of their own: those of ``watch.models`` in their order, then others that the
    ledger holds. The sums of the rest are told together, so that totals are right.

    Numbers are of the windows that were asked for: those of all four would be four times as many series as
    one set of rules reads.
    """

    def __init__(self, watch: Watch, *, max_versions: int = Limits.VERSIONS) -> None:
        self._watch, self._most = watch, max_versions
        self._gauges = WindowGauges(watch)
        self.ask = self._gauges.ask
        self._beyond, self._began = 0, time.time()

    def trouble(self) -> str | None:
        """A reason where some versions have no series of their own."""
        if not self._beyond:
            return None
        return (
            f"the series of {self._beyond} versions are told as one version {OTHER!r}: {self._most} have "
            "their own; watch by more than one process"
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the families of one scrape."""
        watch = self._watch
        versions = list(watch.models)[: self._most]
        try:
            with watch.ledger.moment():
                published = watch.ledger.published()
                own = sums_of(published, list(watch.models), bins=watch.ledger.bins)
                # Made before anything is yielded: a ledger that fails midway must not leave half a scrape.
                told = [
                    *_families(detector_rows(watch, versions, published)),
                    *self._looks(versions),
                    *self._windows({version: own[version] for version in versions}),
                ]
        except LedgerError as error:
            # Publish no sums: zeros would look like a restart.
            log.error("a scrape could not read the ledger: %s", error)
            watch.counts.errors["scrape"] += 1
        else:
            beyond = list(own)[self._most :]
            self._beyond = len(beyond)
            for version in beyond:
                add_at(own, _REST, own.pop(version))
            yield from _families(sum_rows(own, published))
            yield from told
        yield from self._troubles(versions)

    def _looks(self, versions: Sequence[Version]) -> Iterator[Metric]:
        """Yield the reference and open incidents."""
        watch = self._watch
        known = ((v, reference) for v in versions if (reference := watch.models[v].reference))
        yield _family(
            "calib_reference_share",
            [((*v, str(b)), n / one.n) for v, one in known for b, n in enumerate(one.count.tolist())],
        )
        # A version has at most one that is open.
        gaps = {(one.model, one.version): one.gap for one in watch.incidents() if one.open}
        yield _family("calib_incident_gap", [(v, gap) for v, gap in gaps.items() if v in watch.models])

    def _windows(self, sums: Mapping[Version, Sums]) -> Iterator[Metric]:
        found = self._gauges.rows(sums)
        yield from (_family(name, rows) for name, rows in found.items())
        if found:
            yield _family("calib_windows_age_seconds", [((), self._gauges.age())])

    def _troubles(self, versions: Sequence[Version]) -> Iterator[Metric]:
        watch = self._watch
        yield from _families(trouble_rows(watch))
        yield _family("calib_invalid_outputs_total", [(v, watch.counts.invalid[v]) for v in versions])
        yield _family("calib_process_start_timestamp_seconds", [((), self._began)])
        yield _family("calib_versions_left_out", [((), self._beyond)])
        unknown = [((batch,), watch.counts.unknown[batch]) for batch in get_args(Batch)]
        yield _family("calib_batches_unknown_total", unknown)
        yield _family("calib_prediction_ids_total", [((fate,), watch.ids.fates[fate]) for fate in FATES])


def _families(rows: Iterable[tuple[str, tuple[str, ...], float]]) -> Iterator[Metric]:
    """Yield the families of ``exposition.Row``s."""
    by_name: dict[str, list[Row]] = {}
    for name, labels, value in rows:
        by_name.setdefault(name, []).append((labels, value))
    for name, of in by_name.items():
        yield _family(name, of)


def _family(name: str, rows: Sequence[Row]) -> Metric:
    """Make one metric family; sums of predictions are of a ledger, and over all bins."""
    series = BY_NAME[name]
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    labels = (*_VERSION, *LEDGER_LABELS) if name in TOTALS else series.labels
    family = kind(name, series.help, labels=labels)
    for labels, value in rows:
        if math.isfinite(value):  # unknown values are left out
            family.add_metric(labels, float(value))
    return family


def export(watch: Watch, registry: CollectorRegistry) -> WatchCollector:
    """Publish ``watch`` in ``registry``; ``watch.checks`` says how many versions have no series."""
    collector = WatchCollector(watch)
    registry.register(collector)
    watch.checks.add(Check("series", collector.trouble))
    return collector

"""Metrics of a collector for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from calib_serve.core.errors import REASONS, InputError, MissingDependency
from calib_serve.integrations.collect.collector import Totals
from calib_serve.integrations.collect.source import Source

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingDependency("prometheus_client", "watch") from error

_FAILURES = ("watch", "dead_letter")


class _Collected(Collector):
    def __init__(self, totals: Totals, source: Source) -> None:
        self._totals, self._source = totals, source

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of one scrape; every reason is there from the start."""
        totals = self._totals
        labels = CounterMetricFamily(
            "calib_collect_labels_total",
            "Labels settled: accepted, held, or why refused.",
            labels=["outcome"],
        )
        for outcome in ("accepted", "held", *REASONS):
            labels.add_metric([outcome], totals.labels[outcome])
        dead = CounterMetricFamily(
            "calib_collect_dead_letters_total", "Labels and messages set aside.", labels=["reason"]
        )
        for reason in dict.fromkeys((*REASONS, "unreadable", *totals.dead)):
            dead.add_metric([reason], totals.dead[reason])
        failures = CounterMetricFamily(
            "calib_collect_failures_total", "What failed and is tried again.", labels=["what"]
        )
        for what in _FAILURES:
            failures.add_metric([what], totals.failures[what])
        failures.add_metric(["source"], self._source.failures)
        yield from (labels, dead, failures)
        for name, told, value in (
            ("calib_collect_held", "Labels held back to be tried again.", totals.held),
            (
                "calib_collect_lag",
                "Messages or files at the source that are not settled.",
                self._source.lag(),
            ),
            ("calib_collect_sent_timestamp_seconds", "When the watch last answered.", totals.sent_at),
        ):
            yield GaugeMetricFamily(name, told, value=value)


def serve_metrics(totals: Totals, source: Source, *, host: str, port: int) -> None:
    """Serve /metrics at ``host:port`` from a thread; InputError where the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Collected(totals, source))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise InputError(f"metrics cannot be served at {host}:{port}: {error}") from error

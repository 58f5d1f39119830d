"""The gateway's own series, in the registry of the watch or of the reporters that run with it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from calib_serve.receipts import BY_NAME


class LabelledCounts(Collector):
    """Counts of the series ``name`` by its labels' values; those of ``known`` begin at 0."""

    def __init__(self, name: str, known: Iterable[tuple[str, ...]]) -> None:
        self._series, self._numbers = BY_NAME[name], Counter[tuple[str, ...]](dict.fromkeys(known, 0))
        self._lock = threading.Lock()

    def add(self, *values: str) -> None:
        """Count one."""
        with self._lock:
            self._numbers[values] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the family of one scrape."""
        family = CounterMetricFamily(self._series.name, self._series.help, labels=self._series.labels)
        for values, number in list(self._numbers.items()):
            family.add_metric(values, number)
        yield family


class UncalibratedReplies(LabelledCounts):
    """Counts the replies of calibrated models that passed uncalibrated, from 0 on.

    ``versions`` are those given; of others, which clients name, series are made until there are ``most``.
    """

    def __init__(self, versions: Iterable[tuple[str, str]], *, most: int) -> None:
        super().__init__("calib_uncalibrated_total", versions)
        self._most = most

    def passed(self, model: str, version: str) -> None:
        """Count a reply that passed uncalibrated."""
        known = (model, version) in self._numbers or len(self._numbers) < self._most
        self.add(model, version if known else "other")


class OneRegistry(CollectorRegistry):
    """A registry over several programs': samples that they share are added up."""

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family once."""
        families: dict[str, Metric] = {}
        for family in super().collect():
            if families.setdefault(family.name, family) is not family:
                _add(families[family.name], family)
        yield from families.values()


def _add(to: Metric, more: Metric) -> None:
    values = {(one.name, frozenset(one.labels.items())): i for i, one in enumerate(to.samples)}
    for one in more.samples:
        place = values.get((one.name, frozenset(one.labels.items())))
        if place is None:
            to.samples.append(one)
        elif not one.name.endswith("_created"):
            there = to.samples[place]
            to.samples[place] = there._replace(value=there.value + one.value)

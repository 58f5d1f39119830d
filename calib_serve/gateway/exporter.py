"""The gateway's own series, in the registry of the watch or of the reporters that run with it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from calib_serve.receipts import WORKERS

_UNCALIBRATED = next(one for one in WORKERS if one.name == "calib_uncalibrated_total")


class UncalibratedReplies(Collector):
    """Counts the replies of calibrated models that passed uncalibrated, from 0 on.

    ``versions`` are those given; of others, which clients name, series are made until there are ``most``.
    """

    def __init__(self, versions: Iterable[tuple[str, str]], *, most: int) -> None:
        self._passed, self._most = Counter(dict.fromkeys(versions, 0)), most
        self._lock = threading.Lock()

    def passed(self, model: str, version: str) -> None:
        """Count a reply that passed uncalibrated."""
        with self._lock:
            known = (model, version) in self._passed or len(self._passed) < self._most
            self._passed[model, version if known else "other"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the family of one scrape."""
        family = CounterMetricFamily(_UNCALIBRATED.name, _UNCALIBRATED.help, labels=_UNCALIBRATED.labels)
        for version, number in list(self._passed.items()):
            family.add_metric(version, number)
        yield family


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

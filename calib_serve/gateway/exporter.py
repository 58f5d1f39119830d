"""The gateway's own series, in the registry of the watch or of the reporters that run with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calib_serve.errors import MissingDependency
from calib_serve.gateway.calibration import Counts
from calib_serve.watch.series import WORKERS

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingDependency("prometheus_client", "gateway") from error

__all__ = ["CONTENT_TYPE_LATEST", "CollectorRegistry", "GatewayCollector", "OneRegistry", "generate_latest"]

_UNCALIBRATED = next(one for one in WORKERS if one.name == "calib_uncalibrated_total")


class GatewayCollector(Collector):
    """Answers of calibrated models that went out as the server gave them; 0 from the start."""

    def __init__(self, counts: Counts, versions: Iterable[tuple[str, str]]) -> None:
        self._counts = counts
        for version in versions:
            counts.uncalibrated[version] += 0

    def collect(self) -> Iterator[Metric]:
        """The family of one scrape."""
        family = CounterMetricFamily(_UNCALIBRATED.name, _UNCALIBRATED.help, labels=_UNCALIBRATED.labels)
        for version, number in list(self._counts.uncalibrated.items()):
            family.add_metric(version, number)
        yield family


class OneRegistry(CollectorRegistry):
    """A registry of several programs in one: samples that they all have are added up."""

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        families: dict[str, Metric] = {}
        for family in super().collect():
            if family.name not in families:
                families[family.name] = family
            else:
                _add(families[family.name], family)
        yield from families.values()


def _add(to: Metric, more: Metric) -> None:
    values = {(one.name, tuple(sorted(one.labels.items()))): i for i, one in enumerate(to.samples)}
    for one in more.samples:
        place = values.get((one.name, tuple(sorted(one.labels.items()))))
        if place is None:
            to.samples.append(one)
        elif not one.name.endswith("_created"):
            there = to.samples[place]
            to.samples[place] = there._replace(value=there.value + one.value)

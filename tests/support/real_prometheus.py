"""A real Prometheus with this project's rules, and servers that publish the declared series for it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from processes import free_port, started
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from real_servers import needed

from calib_serve.receipts.series import SUMS, Series
from calib_serve.receipts.sums import Sums
from calib_serve.web import monitoring_files


class Prometheus:
    """What runs at ``url``."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url, self._client = url, client

    def get(self, path: str, **params: Any) -> Any:
        """The data of an answer of its API."""
        answer = self._client.get(f"{self.url}/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str, **labels: str) -> list[dict[str, Any]]:
        """What an expression finds now, of those series that have these labels."""
        found = self.get("query", query=expression)["result"]
        return [one for one in found if labels.items() <= one["metric"].items()]

    def number(self, expression: str, **labels: str) -> float:
        """The only value that it finds."""
        (found,) = self.query(expression, **labels)
        return float(found["value"][1])

    def risen(self, selector: str, over: str = "10m") -> float:
        """By how much counters went up, all series together: ``increase`` from sample to sample, exactly."""
        found = 0.0
        for series in self.query(f"{selector}[{over}]"):
            values = [float(value) for _, value in series["values"]]
            found += sum(b - a if b >= a else b for a, b in pairwise(values))
        return found

    def wait(self, expression: str, seconds: float = 180) -> None:
        """Until it finds something."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.query(expression):
                return
            time.sleep(0.3)
        raise AssertionError(f"{expression} stayed empty for {seconds} s")


def panels_of(
    grafana: Path, there: Prometheus, *, model: str, version: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the title of each panel of the dashboard below ``grafana``, and what all its queries find."""
    board = json.loads((grafana / "dashboards" / "calibration.json").read_text())
    for panel in board["panels"]:
        asked = [
            one["expr"].replace("$model", model).replace("$version", version) for one in panel["targets"]
        ]
        yield panel["title"], [row for one in asked for row in there.query(one)]


def rules(*, since_start: bool = False) -> str:
    """The rules, evaluated every second; ``since_start`` reads counters as they stand, exactly."""
    text = monitoring_files(parts=["rules"])["prometheus/rules.yml"]
    text = re.sub(r"interval: (4m|30s)", "interval: 1s", text)
    return re.sub(r"increase\((\w+(?:\{[^}]*\})?)\[24h\]\)", r"\1", text) if since_start else text


@contextmanager
def prometheus(
    folder: Path, targets: list[tuple[str, Mapping[str, str]]], *, since_start: bool = False
) -> Iterator[Prometheus]:
    """One that scrapes ``targets``, host and labels, every second."""
    program = needed("prometheus", "prometheus")
    (folder / "rules.yml").write_text(rules(since_start=since_start))
    (folder / "alerts.yml").write_text(monitoring_files(parts=["alerts"])["prometheus/alerts.yml"])
    scrapes = [
        {"job_name": f"calib-serve-{i}", "static_configs": [{"targets": [host], "labels": dict(labels)}]}
        for i, (host, labels) in enumerate(targets)
    ]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [rules.yml, alerts.yml]\nscrape_configs: {json.dumps(scrapes)}\n"
    )
    port = free_port()
    command = [program, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    with (
        (folder / "prometheus.log").open("w") as log,
        started([*command, "--storage.tsdb.path=data"], cwd=folder, stdout=log, stderr=log),
        httpx.Client(timeout=60, trust_env=False) as client,
    ):
        # One client: a client for each of some hundred queries would take seconds to make.
        there = Prometheus(f"http://127.0.0.1:{port}", client)
        wait_until_ready(there.url)
        yield there


def wait_until_ready(url: str) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/-/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("Prometheus did not start within 180 s")


class Published(Collector):
    """Publishes ``series`` of model m, version 1: its ``sums``, and ``values`` of the others.

    Without a value, gauges are 1 and counters the number of scrapes.
    """

    def __init__(self, series: tuple[Series, ...], values: Mapping[str, float]) -> None:
        self.series, self.values = series, values
        self.sums, self.scrapes = Sums.zeros(), 0

    _LABELS: Mapping[str, tuple[str, ...]] = {
        "model": ("m",),
        "version": ("1",),
        "bin": tuple(str(b) for b in range(15)),
        # Counters have the predictions.
        "sum": tuple(one.short for one in SUMS if one.in_windows and one.of == "labels"),
        "window": ("5m", "30m", "1h", "6h", "24h", "3d", "7d"),
        "kind": ("class",),
        "slice": ("7",),
        "class": ("7",),
        "source": ("team",),
        "clause": ("act",),
        "tag": ("0123abcd",),
        "reason": ("expired",),
        "stage": ("ledger",),
        "check": ("ledger",),
        "series": ("windows",),
        "batch": ("labels",),
        "fate": ("bound",),
        "ledger": ("0123abcd",),
        "edition": ("1",),
        "route": ("/v1/labels",),
        "status": ("200",),
        "model_name": ("m",),
        "model_version": ("1",),
    }

    def collect(self) -> Iterator[Metric]:
        """The families."""
        summed = {one.name for one in SUMS}
        self.scrapes += 1
        for one in self.series:
            # TorchServe's own counters lack the "_total" that the client's counters always get.
            kind = CounterMetricFamily if one.name.endswith("_total") else GaugeMetricFamily
            family = kind(one.name, one.help, labels=one.labels)
            rows: list[tuple[str, ...]] = [()]
            for label in one.labels:
                rows = [(*row, value) for row in rows for value in self._LABELS[label]]
            other = self.values.get(one.name, self.scrapes if one.kind == "counter" else 1.0)
            where = one.labels.index("bin") if "bin" in one.labels else None
            for row in rows:
                at = 0 if where is None else int(row[where])
                name = f"calib_{row[-2]}_total" if one.name == "calib_window_sums" else one.name
                family.add_metric(row, self.sums[name][at] if name in summed else other)
            yield family


@contextmanager
def publishing(collector: Published) -> Iterator[str]:
    """Its host and port."""
    registry, port = CollectorRegistry(), free_port()
    registry.register(collector)
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

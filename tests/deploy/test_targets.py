"""A real Prometheus whose targets are pods: a rollout is silent, two processes at one target are said."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from processes import free_port, started
from real_prometheus import Prometheus, Published, prometheus, publishing, rules, wait_until_ready
from real_servers import needed

from calib_serve.receipts.series import CONTRACTS, SERIES, WATCH
from calib_serve.web import MonitoringOptions, monitoring_files

pytestmark = pytest.mark.server

JOBS = {"calib-serve-watch": True, "hiding": False}
"""Whether each keeps the series' own labels, as the jobs do that this project writes."""


def pods(folder: Path, rollout: str, places: Mapping[str, str]) -> None:
    """Tell Prometheus of one pod a job, with its own labels, as a labelmap of pods' labels would."""
    for job, place in places.items():
        labels = {"env": job, "pod": f"watch-{rollout}", "pod_template_hash": rollout, "version": rollout}
        new = folder / f"{job}.new"
        new.write_text(json.dumps([{"targets": [place], "labels": labels}] if place else []))
        new.replace(folder / f"{job}.json")


@contextmanager
def watching(folder: Path) -> Iterator[Prometheus]:
    """One that scrapes both jobs; an alert's day is ten seconds, its quarter of an hour five."""
    (folder / "rules.yml").write_text(rules())
    alerts = monitoring_files(MonitoringOptions(), parts=["alerts"])["prometheus/alerts.yml"]
    alerts = alerts.replace("offset 1d", "offset 10s").replace("for: 15m", "for: 5s")
    (folder / "alerts.yml").write_text(re.sub("for: (5m|1h|2m)", "for: 1s", alerts))
    scrapes = [
        {"job_name": job, "honor_labels": honored, "file_sd_configs": [{"files": [f"{job}.json"]}]}
        for job, honored in JOBS.items()
    ]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [rules.yml, alerts.yml]\nscrape_configs: {json.dumps(scrapes)}\n"
    )
    port = free_port()
    command = [needed("prometheus", "prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (
        (folder / "prometheus.log").open("w") as log,
        started([*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log),
        httpx.Client(timeout=60, trust_env=False) as client,
    ):
        wait_until_ready(f"http://127.0.0.1:{port}")
        yield Prometheus(f"http://127.0.0.1:{port}", client)


def test_a_rollout_of_the_watch_is_silent_and_its_end_is_not(tmp_path: Path) -> None:
    served = "count by (env) (model_version:calib_served:24h)"
    with ExitStack() as stack:
        names = ("calib_predictions_total", "calib_contract_state")
        series = tuple(one for one in (*SERIES, *CONTRACTS) if one.name in names)
        old, new = (stack.enter_context(publishing(Published(series, {}))) for _ in range(2))
        pods(tmp_path, "r1", dict.fromkeys(JOBS, old))
        there = stack.enter_context(watching(tmp_path))
        there.wait(f"count({served}) == 2")
        there.wait("count(calib_contract_state offset 11s) == 2")
        pods(tmp_path, "r2", dict.fromkeys(JOBS, new))
        there.wait('count(up{pod="watch-r2"}) == 2')
        for _ in range(20):
            time.sleep(1)
            assert not there.query('ALERTS{alertname="MonitorAbsent",alertstate="firing"}')
        hidden = there.query('ALERTS{alertname="TargetMixed",hidden="version"}')
        assert {one["metric"]["env"] for one in hidden} == {"hiding"}
        pods(tmp_path, "r2", {"calib-serve-watch": ""})
        there.wait('ALERTS{alertname="MonitorAbsent",alertstate="firing",job="calib-serve-watch"}')
        there.wait('ALERTS{alertname="MonitorAbsent",alertstate="firing",env="calib-serve-watch"}')


@contextmanager
def in_turn(*places: str) -> Iterator[str]:
    """An address of several, as a Service is: each request is answered by the next."""
    turn = itertools.cycle(places)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = httpx.get(f"http://{next(turn)}{self.path}", trust_env=False)
            self.send_response(200)
            self.send_header("Content-Type", found.headers["content-type"])
            self.end_headers()
            self.wfile.write(found.content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_two_processes_at_one_target_are_said_and_one_of_its_own_is_not(tmp_path: Path) -> None:
    own = tuple(one for one in SERIES if one.name == "calib_predictions_total")
    with ExitStack() as stack:
        servers = [Published(own, {}) for _ in range(2)]
        for i, one in enumerate(servers):
            one.sums = one.sums.with_values({("calib_predictions_total", 3): 2268 - 940 * i})
        a, b = (stack.enter_context(publishing(one)) for one in servers)
        began = [Published(WATCH, {"calib_process_start_timestamp_seconds": 100.0 + i}) for i in range(2)]
        c, d = (stack.enter_context(publishing(one)) for one in began)
        both, watches = (stack.enter_context(in_turn(*two)) for two in ((a, b), (c, d)))
        targets = [(place, {"env": env}) for env, place in
                   (("servers", both), ("watches", watches), ("one", a), ("another", c))]  # fmt: skip
        there = stack.enter_context(prometheus(tmp_path, targets))
        there.wait('count(ALERTS{alertname="TargetMixed"}) == 2')
        found = {one["metric"]["env"] for one in there.query('ALERTS{alertname="TargetMixed"}')}
        assert found == {"servers", "watches"}

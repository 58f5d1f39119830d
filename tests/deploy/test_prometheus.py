"""Two replicas, one killed and restarted, a real Prometheus: its numbers are those of numpy."""

import json
import math
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import real_servers
from processes import end

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.bins import Bins
from calib_serve.watch.drift import psi
from calib_serve.watch.ledger.sums import Sums

pytestmark = pytest.mark.server

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "calibration.json"


@dataclass
class Deployment:
    """A Prometheus and what was sent to the replicas that it scrapes."""

    url: str
    confidence: np.ndarray
    right: np.ndarray
    reference: Bins

    def query(self, expression):
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=60).json()
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def number(self, name, window="total"):
        result = self.query(f"model_version:calib_{name}:{window}")
        assert len(result) == 1, f"{name} over {window}: {result}"
        return float(result[0]["value"][1])

    def wait(self, expression, seconds=180):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.query(expression):
                return
            time.sleep(0.3)
        raise AssertionError(f"{expression} stayed empty for {seconds} s")


def send(server, confidence, right):
    """Predict class 1 with each confidence, then label it right (1) or wrong (0)."""
    items = [
        {"model": "digits", "version": "1.0", "predicted": 1, "confidence": float(c)} for c in confidence
    ]
    answer = httpx.post(f"{server.url}/v1/predictions", json={"items": items}, timeout=60).json()
    labels = [
        {"receipt": one["receipt"], "label": int(y)} for one, y in zip(answer["items"], right, strict=True)
    ]
    done = httpx.post(f"{server.url}/v1/labels", json={"items": labels}, timeout=60).json()
    assert done["accepted"] == len(labels)


def start_prometheus(program, folder, targets):
    for name in ("rules.yml", "alerts.yml"):
        text = (DEPLOY / "prometheus" / name).read_text()
        (folder / name).write_text(re.sub(r"interval: \w+", "interval: 1s", text))
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yml, alerts.yml]\n"
        f"scrape_configs: [{{job_name: watch, static_configs: [{{targets: {json.dumps(targets)}}}]}}]\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder / "prometheus.log").open("w")
    process = subprocess.Popen(
        [
            program,
            "--config.file=prometheus.yml",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={folder / 'data'}",
        ],
        cwd=folder,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    log.close()
    return process, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    program = real_servers.needed("prometheus", "prometheus")
    rng = np.random.default_rng(0)
    reference = Bins.tally(rng.beta(8, 2, 500), np.ones(500))
    folder = tmp_path_factory.mktemp("deployment")
    artifact = Artifact((LogitMap.temperature(1.5),), method="temperature", classes=3, reference=reference)
    artifact.save(folder / "artifact")
    c = rng.beta(5, 2, 900)
    y = (rng.random(900) < c - 0.1).astype(int)
    places = [tmp_path_factory.mktemp(f"replica{i}") for i in range(2)]
    replicas = [real_servers.Server(place, models=(f"digits:1.0={folder / 'artifact'}",)) for place in places]
    prometheus = None
    try:
        for replica in replicas:
            replica.start()
        targets = [f"127.0.0.1:{replica.port}" for replica in replicas]
        prometheus, url = start_prometheus(program, folder, targets)
        there = Deployment(url, c, y, reference)
        _wait_until_up(url)
        there.wait("sum(up) == 2")
        there.wait("count(calib_feedback_total) == 30")  # every bin of both, at 0
        send(replicas[0], c[:300], y[:300])
        send(replicas[1], c[300:600], y[300:600])
        time.sleep(2.5)
        replicas[0].stop(signal.SIGKILL)
        replicas[0].start()
        send(replicas[0], c[600:], y[600:])
        there.wait("model_version:calib_labels:total == 900")
        there.wait("model_version:calib_labels:5m > 850")
        yield there
    finally:
        if prometheus:
            end(prometheus)
        for replica in replicas:
            if replica.process:
                replica.__exit__()


def _wait_until_up(url):
    until = time.monotonic() + 180
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/-/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("Prometheus did not start within 60 s")


def by_numpy(there):
    """Every recorded number, from the raw predictions alone."""
    c, y = there.confidence, there.right
    bins, sums = Bins.tally(c, y), Sums.labelled(c, y)
    full = bins.count > 0
    variance = bins.confidence[full] * (1 - bins.confidence[full] / bins.count[full])
    served = Sums.served(c).predictions
    return {
        "labels": 900,
        "served": 900,
        "label_share": 1,
        "served_confidence": c.mean(),
        "ece": bins.ece(),
        "noise_floor": bins.noise_floor(),
        "ece_sigma": math.sqrt((1 - 2 / math.pi) * variance.sum()) / 900,
        "signed_gap": c.mean() - y.mean(),
        "mce": bins.mce(at_least=20),
        "accuracy": y.mean(),
        "mean_confidence": c.mean(),
        "brier": ((c - y) ** 2).mean(),
        "overconfidence_error": bins.overconfidence_error(),
        "debiased_l2_squared": bins.debiased_l2_squared(),
        "in_the_large_z": (y.sum() - c.sum()) / math.sqrt((c * (1 - c)).sum()),
        "confidence_psi": psi(served, there.reference.count),
        "_": sums.brier(),
    }


def test_every_number_equals_numpy_over_replicas_and_a_restart(deployment):
    wanted = by_numpy(deployment)
    assert wanted.pop("_") == pytest.approx(wanted["brier"], rel=1e-12)
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    recorded = set(re.findall(r"record: model_version:calib_(\w+):total", rules))
    assert recorded - {"feedback_confidence_squared", "feedback_confidence_correct"} == set(wanted)
    for name, value in wanted.items():
        assert deployment.number(name) == pytest.approx(value, rel=1e-9), name


def test_windows_agree_up_to_the_extrapolation_of_increase(deployment):
    for name in ("ece", "accuracy", "mean_confidence", "brier"):
        assert deployment.number(name, "5m") == pytest.approx(by_numpy(deployment)[name], rel=0.03), name


def test_every_query_of_the_dashboard_finds_something(deployment):
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    for window in ("5m", "total"):
        for title, expression in queries:
            filled = expression.replace("$window", window).replace("$model", ".*").replace("$version", ".*")
            assert "$" not in filled
            assert deployment.query(filled), f"{title}: {filled} is empty"


def test_the_dashboard_is_what_its_script_writes():
    script = DEPLOY / "grafana" / "make_dashboard.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_rules_load_and_none_fails(deployment):
    groups = httpx.get(f"{deployment.url}/api/v1/rules", timeout=60).json()["data"]["groups"]
    failing = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
    assert len(groups) == 5
    assert failing == []

"""Two replicas, one killed and restarted, a real Prometheus: its numbers are those of numpy."""

import signal
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
import real_servers
from real_prometheus import Prometheus, prometheus
from rules_by_numpy import by_numpy

from calib_serve.artifact import Artifact, Contract, LogitMap
from calib_serve.core.bins import Bins

pytestmark = pytest.mark.server


@dataclass
class Deployment:
    """A Prometheus and what was sent to the replicas that it scrapes."""

    prometheus: Prometheus
    confidence: np.ndarray
    right: np.ndarray
    reference: Bins

    def number(self, name):
        return self.prometheus.number(f"model_version:calib_{name}:24h")

    @property
    def by_numpy(self):
        ones = np.ones(len(self.confidence))
        return by_numpy(self.confidence, self.right, ones, ones > 0, self.reference.count)


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


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    rng = np.random.default_rng(0)
    reference = Bins.tally(rng.beta(8, 2, 500), np.ones(500))
    folder = tmp_path_factory.mktemp("deployment")
    # Of what is acted on, far fewer are right.
    contract = Contract.read("contract: 1\nact: {above: 0.6, accuracy: 0.98}")
    temperature = LogitMap.temperature(1.5)
    artifact = Artifact(
        (temperature,), method="temperature", classes=3, reference=reference, contract=contract
    )
    artifact.save(folder / "artifact")
    c = rng.beta(5, 2, 900)
    y = (rng.random(900) < c - 0.1).astype(int)
    places = [tmp_path_factory.mktemp(f"replica{i}") for i in range(2)]
    models = (f"digits:1.0={folder / 'artifact'}",)
    replicas = [real_servers.Server(place, "--maturity", "0", models=models) for place in places]
    try:
        for replica in replicas:
            replica.start()
        targets = [(f"127.0.0.1:{replica.port}", {}) for replica in replicas]
        with prometheus(folder, targets, since_start=True) as found:
            found.wait("sum(up) == 2")
            found.wait("count(calib_feedback_total) == 2")  # of both, at 0
            send(replicas[0], c[:300], y[:300])
            send(replicas[1], c[300:600], y[300:600])
            found.wait("model_version:calib_labels:24h == 600")
            replicas[0].stop(signal.SIGKILL)
            replicas[0].start()
            send(replicas[0], c[600:], y[600:])
            found.wait("model_version:calib_labels:24h == 900")
            yield Deployment(found, c, y, reference)
    finally:
        for replica in replicas:
            if replica.process:
                replica.__exit__()


def test_every_number_equals_numpy_over_replicas_and_a_restart(deployment):
    for name, value in deployment.by_numpy.items():
        assert deployment.number(name) == pytest.approx(value, rel=1e-9), name


def test_a_broken_promise_is_one_alert_whatever_the_replicas_and_a_kept_one_is_none(deployment):
    firing = 'ALERTS{alertname=~"Contract.*",alertstate="firing"}'
    one = 'ALERTS{alertname="ContractBroken",alertstate="firing"}'
    deployment.prometheus.wait(one)
    found = {
        (each["metric"]["alertname"], each["metric"]["clause"])
        for each in deployment.prometheus.query(firing)
    }
    (broken,) = deployment.prometheus.query(one)
    assert {name: broken["metric"][name] for name in ("model", "version", "clause", "severity")} == {
        "model": "digits",
        "version": "1.0",
        "clause": "act",
        "severity": "critical",
    }
    assert {clause for _, clause in found} == {"act"}
    (rule,) = [
        one
        for group in deployment.prometheus.get("rules")["groups"]
        for one in group["rules"]
        if one["name"] == "ContractBroken"
    ]
    assert "cannot be chance" in rule["alerts"][0]["annotations"]["description"]

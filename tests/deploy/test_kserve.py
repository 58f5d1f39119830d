"""deploy/kserve.yaml as KServe and Kubernetes read it, and whether its parts fit one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from manifests import check

ROOT = Path(__file__).parents[2]
MANIFEST = (ROOT / "deploy" / "kserve.yaml").read_text()
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all(MANIFEST)}
KINDS = {
    "InferenceService": "V1beta1InferenceService",
    "ConfigMap": "V1ConfigMap",
    "NetworkPolicy": "V1NetworkPolicy",
}
PREDICTOR = OBJECTS["InferenceService"]["spec"]["predictor"]
SERVER, PROXY = PREDICTOR["containers"]
NGINX = OBJECTS["ConfigMap"]["data"]["nginx.conf"]


@pytest.mark.parametrize("kind", KINDS)
def test_kserve_and_kubernetes_know_every_field(kind: str) -> None:
    assert set(OBJECTS) == set(KINDS)
    check(OBJECTS[kind], KINDS[kind])


def test_every_mount_is_a_volume_and_every_volume_is_mounted() -> None:
    mounted = {mount["name"] for one in PREDICTOR["containers"] for mount in one["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in PREDICTOR["volumes"]}
    assert mounted == set(volumes)
    assert volumes["proxy"]["configMap"]["name"] == OBJECTS["ConfigMap"]["metadata"]["name"]
    # Secrets are read by their group at most; a keyring that others read is refused.
    for name in ("keys", "tokens"):
        assert not volumes[name]["secret"]["defaultMode"] & 0o027
    assert {"name": "CALIB_SERVE_GROUP_READS", "value": "1"} in SERVER["env"]


def test_only_the_proxy_s_ports_are_seen_and_the_probes_and_prometheus_use_them() -> None:
    assert "ports" not in SERVER  # else KServe's Service would send past the proxy
    predictions, metrics = (port["containerPort"] for port in PROXY["ports"])
    assert predictions == 8080  # where KServe's Service sends what it gets, as no port is named
    assert [f"listen {port};" in NGINX for port in (predictions, metrics)] == [True, True]
    assert SERVER["readinessProbe"]["httpGet"] == {"path": "/ping", "port": predictions}
    assert PREDICTOR["annotations"]["prometheus.io/port"] == str(metrics)
    assert "prometheus.io/path" in PREDICTOR["annotations"]
    rules = OBJECTS["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [predictions, metrics]
    assert "from" in rules[1]
    (label,) = OBJECTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].values()
    assert label == OBJECTS["InferenceService"]["metadata"]["name"]

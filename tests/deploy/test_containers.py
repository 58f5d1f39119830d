"""What can be held of the container files without a container engine: paths, ports, names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.serve.properties import read_properties

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KSERVE = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def test_every_folder_that_compose_mounts_is_there() -> None:
    for service in COMPOSE["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).resolve().is_dir(), mount


def test_compose_shows_nothing_beyond_this_host() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_prometheus_scrapes_where_torchserve_listens() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    metrics = read_properties(ROOT / "config.properties")["metrics_address"]
    assert metrics.removeprefix("http://") in targets
    assert COMPOSE["services"]["prometheus"]["network_mode"] == "service:torchserve"


def test_grafana_finds_its_source_and_dashboards() -> None:
    grafana = COMPOSE["services"]["grafana"]
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "$PROMETHEUS_URL"
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://127.0.0.1:9090"
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/calib-serve.yml").read_text())
    where = provider["providers"][0]["options"]["path"]
    assert any(mount.split(":")[1] == where for mount in grafana["volumes"])


def test_the_dockerfile_copies_what_exists_and_installs_known_extras() -> None:
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    extras = re.search(r"/src\[(.+?)\]", DOCKERFILE)
    assert extras
    known = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras.group(1).split(","))
    assert "USER serving" in DOCKERFILE
    assert "torch==2.13.0" in DOCKERFILE


@pytest.mark.parametrize(
    "arguments",
    [
        re.findall(r'"([^"]+)"', re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[-1]),
        KSERVE["spec"]["predictor"]["containers"][0]["args"],
    ],
    ids=["Dockerfile", "KServe"],
)
def test_the_container_s_options_are_the_command_s(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["serve", "--store", str(tmp_path), "--folder", str(tmp_path), *arguments]
    )
    assert result.exit_code != 2, result.output  # 2: an option that does not exist
    assert "name at least one archive" in str(result.exception)
    settings = [a.removeprefix("--set=") for a in arguments if "address=" in a]
    known = read_properties(ROOT / "config.properties")
    assert {s.split("=")[0] for s in settings} <= set(known)


def test_kserve_s_manifest_holds_together() -> None:
    predictor = KSERVE["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert KSERVE["apiVersion"] == "serving.kserve.io/v1beta1"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in predictor["volumes"]}
    assert container["readinessProbe"]["httpGet"]["port"] == int(
        predictor["annotations"]["prometheus.io/port"]
    )
    assert (
        f"--set=inference_address=http://0.0.0.0:{container['ports'][0]['containerPort']}"
        in container["args"]
    )
    # Secrets are read by their group at most; a keyring that others read is refused.
    mode = next(v for v in predictor["volumes"] if v["name"] == "keys")["secret"]["defaultMode"]
    assert not mode & 0o027

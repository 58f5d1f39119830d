"""``calib-serve export monitoring``: what it writes, from what is installed, and what it refuses."""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import calib_serve
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from installed import run
from real_servers import needed

from calib_serve.core.errors import InputError
from calib_serve.web import MonitoringOptions, monitoring_files

pytestmark = pytest.mark.server
RULES, ALERTS = "prometheus/rules.yml", "prometheus/alerts.yml"
DASHBOARD = "grafana/dashboards/calibration.json"


def files_below(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


def exported(folder: Path, *options: str) -> list[str]:
    done = calib_serve("export", "monitoring", folder, *options)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def alerts(text: str) -> list[dict]:
    return yaml.safe_load(text)["groups"][0]["rules"]


def test_the_installed_wheel_writes_in_an_empty_folder_what_the_checkout_has(
    installed: Path, tmp_path: Path
) -> None:
    told = run(installed.parent / "calib-serve", "export", "monitoring", "out", cwd=tmp_path)
    assert files_below(tmp_path / "out") == monitoring_files()
    assert told.count("wrote") == len(monitoring_files())
    promtool = needed("promtool", "prometheus")
    folder = tmp_path / "out" / "prometheus"
    run(promtool, "check", "rules", "rules.yml", "alerts.yml", cwd=folder)
    run(promtool, "check", "config", "prometheus.yml", cwd=folder)
    run(needed("amtool", "prometheus-alertmanager"), "check-config", "alertmanager.yml", cwd=folder)


def test_a_file_that_was_changed_is_kept_and_none_is_written_until_told(tmp_path: Path) -> None:
    (tmp_path / ALERTS).parent.mkdir()
    (tmp_path / ALERTS).write_text("groups: []  # mine\n")
    refused = calib_serve("export", "monitoring", tmp_path)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("alerts.yml; write to another place, or give --force\n")
    assert set(files_below(tmp_path)) == {ALERTS}
    assert "mine" in (tmp_path / ALERTS).read_text()
    exported(tmp_path, "--force")
    assert files_below(tmp_path) == monitoring_files()


def test_the_tolerance_is_that_of_every_limit() -> None:
    made = monitoring_files(MonitoringOptions(tolerance=0.05))
    by_name = {alert["alert"]: alert["expr"] for alert in alerts(made[ALERTS])}
    for name in ("ClassOrSegmentOff", "LabelsSuspect"):
        assert "> 0.05 + 4 * " in by_name[name]
    assert "> bool 0.0025)" in made[RULES]
    assert f"+ {4 * (1 - 2 / math.pi) ** 0.5:.6g} * sqrt(" in made[RULES]
    assert "0.02" not in made[ALERTS]
    assert "@" not in "".join(made.values()).replace("team@example", "").replace("calibration@example", "")


def test_one_window_is_recorded_and_read_everywhere(tmp_path: Path) -> None:
    exported(tmp_path, "--window", "7d")
    groups = yaml.safe_load((tmp_path / RULES).read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"]}
    read = [(tmp_path / path).read_text() for path in (RULES, ALERTS, DASHBOARD)]
    for text in read:
        assert set(re.findall(r"\bmodel_version\w*:calib_\w+:\w+", text)) <= recorded
    promtool = needed("promtool", "prometheus")
    subprocess.run([promtool, "check", "rules", RULES, ALERTS], cwd=tmp_path, check=True, capture_output=True)


def test_prometheus_scrapes_what_is_named_and_misses_that_alone(tmp_path: Path) -> None:
    targets = "watch=a:1,server=b:2,server=c:3,pods=dns+d.e:4"
    exported(tmp_path, "--targets", targets)
    whole = yaml.safe_load((tmp_path / "prometheus/prometheus.yml").read_text())
    jobs = {job.pop("job_name"): job for job in whole["scrape_configs"]}
    assert jobs.pop("prometheus") == {"static_configs": [{"targets": ["127.0.0.1:9090"]}]}
    assert all(job.pop("honor_labels") for job in jobs.values()), "a target's version is not the model's"
    assert jobs == {
        "watch": {"static_configs": [{"targets": ["a:1"]}]},
        "server": {"static_configs": [{"targets": ["b:2", "c:3"]}]},
        "pods": {"dns_sd_configs": [{"names": ["d.e"], "type": "A", "port": 4}]},
    }
    assert "alerting" not in whole
    assert "up{job=~'watch|server|pods'} == 0" in (tmp_path / ALERTS).read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tolerance": float("nan")}, "between 0 and 0.5"),
        ({"runbooks": 'a"\n- alert: x'}, "without '#'"),
        ({"window": "5m"}, "got '5m'"),
        ({"window": "90d"}, "got '90d'"),
        ({"targets": ("a=b:1\n  - job_name: c",)}, "job=host:port"),
        ({"targets": ("a=dns+b",)}, "job=dns+host:port"),
        ({"alertmanager": "http://a:1"}, "must be HOST:PORT"),
        ({"keep": ("env", "model")}, "'model' is no label"),
        ({"keep": ("app.kubernetes.io/name",)}, "is no label"),
        ({"keep": ()}, "must name a label"),
    ],
)
def test_options_of_which_no_file_can_be_made_are_refused(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        MonitoringOptions(**options)


def test_alertmanager_sends_each_severity_somewhere_and_knows_the_alerts_it_names(tmp_path: Path) -> None:
    exported(tmp_path)
    names = {alert["alert"] for alert in alerts((tmp_path / ALERTS).read_text())}
    text = (tmp_path / "prometheus/alertmanager.yml").read_text()
    named = {name for one in re.findall(r'alertname=~?"([^"]+)"', text) for name in one.split("|")}
    assert named <= names
    amtool = needed("amtool", "prometheus-alertmanager")

    def receiver(**labels: str) -> str:
        told = [amtool, "config", "routes", "test", "--config.file", "prometheus/alertmanager.yml"]
        told += [f"{name}={value}" for name, value in labels.items()]
        return subprocess.check_output(told, cwd=tmp_path, text=True).strip()

    for alert in alerts((tmp_path / ALERTS).read_text()):
        severities = re.findall("critical|warning", alert["labels"]["severity"])
        for severity in severities:
            wanted = {"critical": "pager", "warning": "team"}[severity]
            assert receiver(alertname=alert["alert"], severity=severity) == wanted


def test_grafanas_own_models_read_the_dashboard_and_write_all_of_it() -> None:
    """Every key is one of Grafana's: what its models do not know, they would not write back."""

    def missing(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
        if isinstance(ours, dict):
            for key, value in ours.items():
                yield from missing(value, theirs.get(key, key), f"{path}.{key}")
        elif isinstance(ours, list):
            for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from missing(one, other, f"{path}[{i}]")
        elif ours != theirs:
            yield path, ours, theirs

    board = json.loads(monitoring_files()[DASHBOARD])
    read = Dashboard.from_json(copy.deepcopy(board))
    assert list(missing(board, json.loads(JSONEncoder().encode(read)))) == []

"""The rules are up to date, valid, and pass promtool's own unit tests."""

import subprocess
import sys
from pathlib import Path

import pytest
import real_servers
import yaml

from calib_serve.watch.series import SEGMENTS, SERIES, WATCH, WORKERS

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
DASHBOARDS = sorted((FOLDER.parent / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def promtool():
    path = real_servers.needed("promtool", "prometheus")

    def run(*arguments):
        done = subprocess.run([path, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("script", ["make_rules.py", "make_alerts.py"])
def test_rules_and_alerts_are_what_their_scripts_write(script):
    assert subprocess.run([sys.executable, FOLDER / script, "--check"], check=False).returncode == 0


def test_recorded_series_are_there_between_two_evaluations():
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    for group in groups:
        minutes = int(group["interval"].removesuffix("m"))
        assert minutes < 5, "Prometheus forgets a sample after 5 minutes"


def test_the_number_of_recorded_series_is_what_the_docs_say():
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    for group in groups:
        names = [rule["record"] for rule in group["rules"]]
        by_bin = [name for name in names if name.startswith("model_version_bin:")]
        assert (len(by_bin), len(names) - len(by_bin)) == (5, 18)
    budget = (FOLDER.parents[1] / "docs" / "scaling.md").read_text()
    assert f"**{(5 * 15 + 18) * len(groups)} recorded series**" in budget


def test_promtool_finds_rules_and_configuration_valid(promtool):
    promtool("check", "rules", "rules.yml", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


@pytest.mark.parametrize("file", [path.name for path in sorted(FOLDER.glob("*_test.yml"))])
def test_promtool_unit_tests_pass(promtool, file):
    promtool("test", "rules", file)


def test_every_alert_is_tested_to_fire():
    fired = {
        one["alertname"]
        for path in FOLDER.glob("*_test.yml")
        for test in yaml.safe_load(path.read_text())["tests"]
        for one in test.get("alert_rule_test", [])
        if one["exp_alerts"]
    }
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    assert fired == {alert["alert"] for alert in alerts}


def test_every_series_that_rules_and_dashboards_read_is_a_declared_one():
    texts = [path.read_text() for path in (FOLDER / "rules.yml", FOLDER / "alerts.yml", *DASHBOARDS)]
    used = {word for text in texts for word in _words(text) if word.startswith("calib_")}
    groups = {"calib_alerts", *(f"calib_{window}" for window in ("1h", "24h", "7d"))}
    declared = {series.name for series in (*SERIES, *WORKERS, *SEGMENTS, *WATCH)}
    assert used - groups <= declared


def test_every_alert_has_a_runbook_with_its_name():
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    runbook = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"docs/monitoring.md#{alert['alert'].lower()}"
        assert f"### {alert['alert']}\n" in runbook


def _words(text):
    import re

    return re.findall(r"(?<![\w:])[a-z_]\w*(?![\w:])", text)

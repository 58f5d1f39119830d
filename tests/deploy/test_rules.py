"""The rules are up to date, valid, and pass promtool's own unit tests."""

import subprocess
import sys
from pathlib import Path

import pytest
import real_servers
import yaml

from calib_serve.watch.series import SEGMENTS, SERIES, WATCH

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
DASHBOARDS = sorted((FOLDER.parent / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def promtool():
    path = real_servers.needed("promtool", "prometheus")

    def run(*arguments):
        done = subprocess.run([path, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_rules_are_what_their_script_writes():
    assert subprocess.run([sys.executable, FOLDER / "make_rules.py", "--check"], check=False).returncode == 0


def test_promtool_finds_rules_and_configuration_valid(promtool):
    promtool("check", "rules", "rules.yml", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


def test_promtool_unit_tests_pass(promtool):
    promtool("test", "rules", "rules_test.yml")


def test_every_series_that_rules_and_dashboards_read_is_a_declared_one():
    texts = [path.read_text() for path in (FOLDER / "rules.yml", FOLDER / "alerts.yml", *DASHBOARDS)]
    used = {word for text in texts for word in _words(text) if word.startswith("calib_")}
    groups = {"calib_alerts", *(f"calib_{window}" for window in ("5m", "1h", "1d", "total"))}
    declared = {series.name for series in (*SERIES, *SEGMENTS, *WATCH)}
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

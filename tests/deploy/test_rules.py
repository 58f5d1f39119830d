"""The rules are up to date, valid, and pass promtool's own unit tests."""

import subprocess
import sys
from pathlib import Path

import pytest
import real_servers
import yaml

from calib_serve.watch.series import SERIES

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


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


def test_every_series_that_rules_read_is_one_we_publish():
    text = (FOLDER / "rules.yml").read_text() + (FOLDER / "alerts.yml").read_text()
    published = {series.name for series in SERIES}
    used = {
        word for word in _words(text) if word.startswith("calib_") and not word.startswith("calib_alerts")
    }
    recorded = {f"calib_{window}" for window in ("5m", "1h", "1d", "total")}  # group names
    assert used - recorded <= published


def test_every_alert_has_a_runbook_with_its_name():
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    runbook = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"docs/monitoring.md#{alert['alert'].lower()}"
        assert f"### {alert['alert']}\n" in runbook


def _words(text):
    import re

    return re.findall(r"(?<![\w:])[a-z_]\w*(?![\w:])", text)

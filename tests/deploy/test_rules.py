"""Every rule and alert that the command writes passes promtool's cases, and reads series that there are."""

import re
from pathlib import Path

import pytest
import real_servers
import yaml
from rule_cases import BURNS, cases, promtool

from calib_serve.receipts.series import CONTRACTS, LEDGER_LABELS, SERIES, WATCH, WORKERS
from calib_serve.web import MonitoringOptions, monitoring_files

ROOT = Path(__file__).parents[2]
WRITTEN = monitoring_files(parts=["rules", "alerts", "dashboards"])
RULES, ALERTS = WRITTEN["prometheus/rules.yml"], WRITTEN["prometheus/alerts.yml"]
DASHBOARD = WRITTEN["grafana/dashboards/calibration.json"]
OF_OTHERS = {
    "calib_labels_refused",
    "calib_labels_counted",
    "up",
    "prometheus_rule_group_last_evaluation_timestamp_seconds",
}
"""Series of Prometheus itself, which the alerts read."""


def alerts():
    return yaml.safe_load(ALERTS)["groups"][0]["rules"]


CASES = {case.name: case for case in cases()}


@pytest.mark.server
@pytest.mark.parametrize("name", CASES)
def test_promtool_finds_what_numpy_and_the_bounds_say(name):
    real_servers.needed("promtool", "prometheus")
    case = CASES[name]
    made = monitoring_files(MonitoringOptions(window=case.window), parts=["rules"])
    assert not promtool(case, {"rules.yml": made["prometheus/rules.yml"], "alerts.yml": ALERTS})


def test_every_rule_and_every_alert_has_a_case():
    rules = [rule["record"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]
    about = {name for case in CASES.values() if case.window == "24h" for name in case.about}
    assert {*rules, *(alert["alert"] for alert in alerts())} == about
    assert len(CASES) == len(cases())


def test_every_alert_has_a_runbook():
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), flags=re.MULTILINE)
    assert {alert["alert"] for alert in alerts()} <= set(sections)


def test_every_series_that_rules_and_dashboards_read_is_a_declared_one():
    expressions = [alert["expr"] for alert in alerts()]
    used = {word for text in (RULES, DASHBOARD, ALERTS) for word in _words(text) if word.startswith("calib_")}
    used |= {word for text in expressions for word in re.findall(r"\b(?:up|prometheus_rule\w+)\b", text)}
    groups = {"calib_counters", "calib_numbers", "calib_alerts"}
    declared = {series.name for series in (*SERIES, *WORKERS, *WATCH, *CONTRACTS)}
    assert used - groups - {"calib_"} <= declared | OF_OTHERS


def test_every_recorded_series_that_is_read_is_recorded():
    """In texts of alerts as well, which ask Prometheus for more than the alert's own number."""
    rules = {rule["record"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]}
    read = {
        name
        for text in (RULES, ALERTS, DASHBOARD)
        for name in re.findall(r"\bmodel_version\w*:[\w:]*[^\W_]\b", text)
    }
    assert len(read) > 10
    assert read <= rules


def test_what_is_scraped_is_summed_by_the_series_own_labels_and_by_those_that_were_said():
    """What a rollout changes must not begin a number anew, and environments must not cancel."""
    made = monitoring_files(MonitoringOptions(keep=("env", "region")))
    declared = {s.name: s.labels for s in (*SERIES, *WORKERS, *WATCH, *CONTRACTS)}
    seen = 0
    for path in ("prometheus/rules.yml", "prometheus/alerts.yml", "grafana/dashboards/calibration.json"):
        found = re.findall(
            r"by \(([^)]*)\) \((?:[a-z_]+[( ]+(?:\(replica[^)]*\) )?\(*)*(calib_\w+)", made[path]
        )
        for labels, name in found:
            # Some keep the window, of which others read one.
            own = set(declared[name]) - {*LEDGER_LABELS, "window"}
            assert set(labels.split(", ")) - {"ledger", "window", "job", "instance"} == {
                "env",
                "region",
                *own,
            }, name
        seen += len(found)
        assert not re.search(r"\b(sum|max|min|avg|count|group)\s*\(", made[path]), (
            "aggregates all labels away"
        )
    assert seen > 50


def test_no_rule_drops_a_label_of_an_environment():
    own = {"model", "version", "bin", "sum", "window", "reason", "clause", *LEDGER_LABELS}
    copies = {"replica", "prometheus_replica", "receive_replica", "rule_replica"}
    for text in (RULES, ALERTS, DASHBOARD):
        for labels in re.findall(r"\b(?:without|ignoring)\s*\(([^)]*)\)", text):
            assert set(labels.split(", ")) <= own or set(labels.split(", ")) == copies


def test_the_bounds_of_burn_rates_are_those_of_the_sre_workbook():
    """2 % of 30 days' budget in an hour, 5 % in six, 10 % in three days; short windows are a twelfth."""
    hours = {"5m": 1 / 12, "30m": 1 / 2, "1h": 1, "6h": 6, "3d": 72}
    (expr,) = (alert["expr"] for alert in alerts() if alert["alert"] == "ContractBurning")
    found = re.findall(r"low\{window='(\w+)'\}\) > ([\d.]+) .*?rate\{window='(\w+)'\}\) <= ([\d.]+)", expr)
    assert [(rate, long, short) for rate, long, short, _ in BURNS] == [
        (float(rate), long, short) for long, rate, short, same in found if rate == same
    ]
    for (rate, long, short, severity), share in zip(BURNS, (0.02, 0.05, 0.10), strict=True):
        assert rate == pytest.approx(share * 30 * 24 / hours[long])
        assert hours[long] / hours[short] == pytest.approx(12)
        assert severity == ("warning" if share == 0.10 else "critical")


def _words(text):
    return re.findall(r"(?<![\w:])[a-z_]\w*(?![\w:])", text)

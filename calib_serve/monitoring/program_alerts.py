"""Alerts of the programs themselves: a monitor that is gone, stale or failing, and answers that are wrong."""

from __future__ import annotations

from calib_serve.monitoring.alert import NAME, Alert, went_up
from calib_serve.monitoring.queries import LEAST, SAME, recorded

__all__ = ["program_alerts"]

_ROLLBACKS = "calib_ledger_rollbacks_total"
_ALL = "sum without (model, version)"


def program_alerts(jobs: str) -> tuple[Alert, ...]:
    """``jobs``: a regular expression of the scrape jobs that publish the series."""
    return (*_gone(jobs), *_FAILING, *_WRONG_ANSWERS, _WATCHDOG)


def _gone(jobs: str) -> tuple[Alert, ...]:
    here, before = f"{_ALL} ({recorded('served', '1h')})", f"{_ALL} ({recorded('served', '1h')} offset 1d)"
    stale = "time() - prometheus_rule_group_last_evaluation_timestamp_seconds{rule_group=~'.*;calib_.*'}"
    return (
        Alert(
            "MonitorDown",
            "A server that publishes calibration series cannot be scraped: what it counts meanwhile is seen "
            "when it answers again, unless it ended.",
            f"up{{job=~'{jobs}'}} == 0",
            "Prometheus cannot scrape {{ $labels.job }} at {{ $labels.instance }}",
            lasts="5m",
        ),
        Alert(
            "MonitorAbsent",
            "No calibration series come, from anywhere or from an environment that had some a day ago.",
            f"absent(up{{job=~'{jobs}'}}) or {before} unless {here}",
            "Nothing publishes calibration series any more"
            "{{ range $name, $is := $labels }}, {{ $name }} {{ $is }}{{ end }}",
            severity="critical",
            lasts="10m",
        ),
        Alert(
            "MonitorStale",
            "The oldest window that calib-serve watch publishes was computed 15 minutes ago or earlier.",
            f"{SAME} (calib_windows_age_seconds) > 900",
            "Windows of calib-serve watch are {{ $value | humanizeDuration }} old",
            lasts="5m",
        ),
        Alert(
            "RulesStale",
            "Prometheus has not evaluated a group of these rules for 15 minutes: its numbers stand still.",
            f"{SAME} ({stale}) > 900",
            "The rules {{ $labels.rule_group }} were evaluated {{ $value | humanizeDuration }} ago",
            lasts="5m",
        ),
    )


_FAILING = (
    Alert(
        "MonitorErrors",
        "Of this stage; the server's log says more.",
        went_up("calib_monitor_errors_total", "15m") + " > 0",
        "The monitoring itself failed at {{ $labels.stage }}",
    ),
    Alert(
        "CalibrationCheckFailing",
        "What counting rests on, looked at by the program itself; on one replica or all.",
        f"{LEAST} (calib_check_ok) == 0",
        "The check {{ $labels.check }} of a running program fails",
        lasts="2m",
    ),
    # A process that found it when it started counts it from its first scrape.
    Alert(
        "LedgerWentBack",
        "Receipts that were counted may count again.",
        f"{went_up(_ROLLBACKS, '1h')} > 0 or {SAME} ({_ROLLBACKS} unless {_ROLLBACKS} offset 1h) > 0",
        "The ledger went back to an earlier state: labels that were acknowledged are missing",
    ),
)
_WRONG_ANSWERS = (
    Alert(
        "InvalidOutputs",
        "A single one is an error of the model.",
        went_up("calib_invalid_outputs_total", "15m") + " > 0",
        f"{NAME} answers NaN or infinity",
        severity="critical",
    ),
    Alert(
        "Uncalibrated",
        "Such an answer holds the model's own confidence, and no receipt.",
        went_up("calib_uncalibrated_total", "15m") + " > 0",
        f"{NAME} answers without its calibration",
        severity="critical",
    ),
)
_WATCHDOG = Alert(
    "CalibrationWatchdog",
    "Always fires: whoever stops getting it knows that Prometheus or the way of alerts is dead.",
    "vector(1)",
    "Calibration alerts are on their way",
    severity="none",
)

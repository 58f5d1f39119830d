"""``alerts.yml``: all alerts; docs/monitoring.md says what to do about each.

Alerts of calibration ask for statistical evidence beyond a tolerance. Where ``calib-serve watch`` counts the
predictions, they read its windows: those hold mature labels alone, and its intervals know which labels belong
together. Elsewhere they read the recorded numbers.

Burn rates of contracts are alerted on over two windows, as the SRE workbook does (Beyer et al. 2018,
chapter 5): the long one says that it matters, the short one that it goes on. Here the long one needs
evidence, too: the lower end of its interval must lie above the bound. A short window without labels does not
silence it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.queries import HALF_NORMAL, LEAST, REPLICA, SAME, SUM, recorded, watch_window
from calib_serve.monitoring.rules import burn, burn_low, clause_gauge, clause_number

__all__ = ["BURN_ALERTS", "Alert", "alerts", "alerts_file"]

NAME = "{{ $labels.model }} {{ $labels.version }}"
SHARE = "{{ $value | humanizePercentage }}"

OWN_LABELS = (
    '{{ $own := "" }}{{ range $name, $is := $labels }}{{ if ne $name "__name__" }}'
    '{{ $own = printf "%s%s=%q," $own $name $is }}{{ end }}{{ end }}'
)
"""Puts the alert's labels into ``$own``, a selector: its texts ask for more about the same version there."""
_GAPS = "(model_version_bin:calib_confidence:24h{%s} - model_version_bin:calib_accuracy:24h{%s})"


def bins_off(tolerance: float) -> str:
    """Which bins are off by more than the tolerance: those of the incident, else those of the last day."""
    found = f"sort_desc(max without ({REPLICA}) (calib_incident_bin_gap{{%s}}))"
    other = f"sort_desc({_GAPS} > {tolerance} or {_GAPS} < -{tolerance})"
    each = "{{ range $bins }} {{ .Labels.bin }} ({{ .Value | humanizePercentage }}){{ end }}"
    return (
        f"{OWN_LABELS}{{{{ $bins := query (printf {json.dumps(found)} $own) }}}}{{{{ if not $bins }}}}"
        f"{{{{ $bins = query (printf {json.dumps(other)} $own $own $own $own) }}}}{{{{ end }}}}"
        f"{{{{ if $bins }}}} By bin, confidence less accuracy:{each}.{{{{ end }}}}"
    )


def gap_told(expression: str) -> str:
    """Which way confidence is off and by how much; ``expression``: the gap, %s where the labels belong."""
    asked = f"printf {json.dumps(expression)}{' $own' * expression.count('%s')}"
    return (
        f"{OWN_LABELS}{{{{ with query ({asked}) }}}}{{{{ $gap := . | first | value }}}}"
        " Over all, {{ if gt $gap 0.0 }}overconfident{{ else }}underconfident{{ end }},"
        " confidence less accuracy is {{ $gap | humanizePercentage }}.{{ end }}"
    )


_ONSET = f"max without ({REPLICA}) (calib_incident_onset_timestamp_seconds{{%s}})"
SINCE = (
    f"{OWN_LABELS}{{{{ with query (printf {json.dumps(_ONSET)} $own) }}}}"
    " It began about {{ . | first | value | humanizeTimestamp }}.{{ end }}"
)
"""When the drift began, where that is known."""


@dataclass(frozen=True)
class Alert:
    """One rule of alerts.yml. ``text`` says more than the ``summary`` does, where there is more to say."""

    name: str
    says: str
    expr: str
    summary: str
    text: str = ""
    severity: str = "warning"
    lasts: str = ""
    window: str = ""

    @property
    def windows(self) -> set[str]:
        """Those of the recorded series that it reads."""
        return set(re.findall(r"model_version(?:_bin)?:calib_\w+:(\w+)", self.expr))

    def yaml(self, runbooks: str) -> str:
        """The rule."""
        labels = f"severity: {self.severity}" + (f', window: "{self.window}"' if self.window else "")
        runbook = f"{runbooks}#{self.name.lower()}"
        described = f"{self.says}{self.text} Runbook: {runbook}"
        return (
            f"      - alert: {self.name}\n        expr: >-\n          {self.expr}\n"
            + (f"        for: {self.lasts}\n" if self.lasts else "")
            + f"        labels: {{{labels}}}\n        annotations:\n"
            f"          summary: {json.dumps(self.summary)}\n"
            f"          description: {json.dumps(described)}\n"
            f"          runbook_url: {runbook}\n"
        )


def went_up(counter: str, over: str, *, drop: str = "") -> str:
    """By how much a counter went up, over replicas and the labels to ``drop``."""
    return f"{SUM[:-1]}{drop}) (increase({counter}[{over}]))"


# --- calibration -----------------------------------------------------------------------------------------

WATCHED = f"{watch_window('predictions', '24h')} > 0"
_GAP = f"({watch_window('gap', '24h')} and {WATCHED} or {recorded('signed_gap', '24h')})"
# A scrape that fails once must not page twice.
_OPEN = f"({SAME} (last_over_time(calib_incidents_open[15m])) > 0)"
_SO_FAR = f"{SAME} (calib_incident_gap)"


def calibration_alerts(options: MonitoringOptions) -> tuple[Alert, ...]:
    """Errors, drift, classes, segments and sources."""
    return (
        _error_of_watch(options.tolerance),
        _error_of_counters(options.tolerance, options.sigmas),
        _drift(options.tolerance),
        _slice(options.tolerance, options.sigmas),
        _source(options.tolerance, options.sigmas),
        _shift(),
    )


def _error_of_watch(tolerance: float) -> Alert:
    return Alert(
        "CalibrationErrorHigh",
        "The whole 95 % interval of the calibration error lies above the tolerance of "
        f"{100 * tolerance:g} points.",
        f"{watch_window('debiased_ece_low', '24h')} > {tolerance} and {WATCHED}",
        f"{NAME}: calibration error of at least {SHARE} over 24 hours",
        gap_told(watch_window("gap", "24h", more="%s")) + bins_off(tolerance),
        lasts="5m",
        window="24h",
    )


def _error_of_counters(tolerance: float, sigmas: float) -> Alert:
    """Not where watch waits for the first mature labels: wrong ones may be told sooner than right ones."""
    ece, floor, error = (recorded(name, "1h") for name in ("ece", "noise_floor", "gap_error"))
    return Alert(
        "CalibrationErrorHigh",
        "More than noise explains and more than the tolerance, on enough labels of most predictions.",
        f"{ece} > {floor} + {sigmas * HALF_NORMAL:.6g} * {error}"
        f" and {recorded('debiased_l2_squared', '1h')} > {round(tolerance**2, 12)}"
        f" and {recorded('labels', '1h')} >= 500 and {recorded('coverage', '1h')} >= 0.5"
        f" unless ({WATCHED} or {watch_window('immature_share', '24h')} == 1)",
        f"{NAME}: ECE {SHARE} over the last hour",
        gap_told(recorded("signed_gap", "1h") + "{%s}") + bins_off(tolerance),
        lasts="5m",
        window="1h",
    )


def _drift(tolerance: float) -> Alert:
    """Fires as long as an incident is open, however often the detector alarms. Its value is the gap."""
    return Alert(
        "CalibrationDrift",
        "A drift incident is open.",
        f"{_SO_FAR} and {_OPEN} or {_GAP} and {_OPEN} or {_OPEN} * 0",
        f"{NAME}: calibration has drifted, {{{{ if gt $value 0.0 }}}}overconfident by {SHARE}"
        f"{{{{ else if lt $value 0.0 }}}}underconfident, confidence less accuracy is {SHARE}"
        "{{ else }}by how much is not known yet{{ end }}",
        SINCE + bins_off(tolerance),
    )


def _slice(tolerance: float, sigmas: float) -> Alert:
    gap, error = f"{SAME} (calib_slice_gap)", f"{SAME} (calib_slice_gap_error)"
    return Alert(
        "ClassOrSegmentOff",
        f"The gap of a class or segment, which others may hide, is {sigmas:g} standard errors beyond the "
        f"tolerance over 24 hours.",
        f"{gap} > {tolerance} + {sigmas:g} * {error} or {gap} < -({tolerance} + {sigmas:g} * {error})",
        f"{NAME}: confidence less accuracy is {SHARE} in {{{{ $labels.kind }}}} {{{{ $labels.slice }}}}",
        lasts="5m",
    )


def _source(tolerance: float, sigmas: float) -> Alert:
    """Who sends labels that say something else than the others do can bend every number."""
    gap, error = f"{SAME} (calib_source_gap_difference)", f"{SAME} (calib_source_gap_difference_error)"
    return Alert(
        "CalibrationSourceDiffers",
        "Labels of one source say something else than those of all others at the same confidences.",
        f"{gap} > {tolerance} + {sigmas:g} * {error} or {gap} < -({tolerance} + {sigmas:g} * {error})",
        f"{NAME}: by labels of {{{{ $labels.source }}}} the gap is {SHARE} off that of all others",
        lasts="15m",
    )


def _shift() -> Alert:
    """Needs no label. 0.2 is the customary threshold of the population stability index."""
    return Alert(
        "ConfidenceShift",
        "The population stability index of the last hour's confidences is above 0.2.",
        f"{recorded('confidence_psi', '1h')} > 0.2 and {recorded('served', '1h')} >= 500",
        f"{NAME}: confidences are not distributed as when it was calibrated",
        lasts="15m",
    )


# --- contracts -------------------------------------------------------------------------------------------

BURN_ALERTS = ((14.4, "1h", "5m", "critical"), (6, "6h", "30m", "critical"), (1, "3d", "6h", "warning"))
"""(burn rate, long window, short window, severity): 2 % of 30 days' budget in an hour, 5 % in six, 10 % in
three days."""

_CLAUSE = "{{ $labels.clause }}"
_STATE, _SPENT = clause_number("state"), clause_number("budget_spent")
_BROKEN = f"{_STATE} == -1"
_RUNS_OUT = clause_gauge("runs_out_seconds")
_SOON = 3 * 86_400  # seconds
_LONG_UNKNOWN = "14d"
_PUBLISHED = f"{SUM[:-1]}, bin) (calib_predictions_total)"
"""Versions that are there: the contract of one that was taken away must not be missed."""


def _told(name: str, before: str, how: str, after: str) -> str:
    """A clause's gauge with words around it, where there is one; ``how``: how its value is written."""
    asked = json.dumps(clause_gauge(name, more="{%s}"))
    value = f"{{{{ . | first | value | {how} }}}}"
    return f"{{{{ with query (printf {asked} $own) }}}}{before}{value}{after}{{{{ end }}}}"


_SHARE = "humanizePercentage"
_NUMBERS = (
    OWN_LABELS
    + _told("promise", " Promised: ", _SHARE, ".")
    + _told("value", " Over its time: ", _SHARE, ".")
    + _told("low", " Since it is watched, at least ", _SHARE, "")
    + _told("high", " and at most ", _SHARE, " (95 %, at any time).")
    + _told("budget_left", " Budget left: ", _SHARE, ".")
    + _told("runs_out_seconds", " It is spent in ", "humanizeDuration", " at this rate.")
)


def _burning(rate: float, long: str, short: str, severity: str) -> Alert:
    return Alert(
        "ContractBurning",
        f"The error budget is spent at a burn rate above {rate:g}: over {long} by its whole 95 % interval, "
        f"and over {short} as far as there are labels.",
        f"{burn(long)} and {burn_low(long)} > {rate:g} unless {burn(short)} <= {rate:g}",
        f"{NAME}: the budget of {_CLAUSE} is spent {{{{ $value | humanize }}}} times as fast as promised "
        f"over {long}",
        _NUMBERS,
        severity=severity,
        window=long,
    )


CONTRACT_ALERTS = (
    Alert(
        "ContractBroken",
        "The promise is not kept: what labels say cannot be chance, whenever it is looked at (5 %).",
        # A scrape that fails once must not page twice.
        f"last_over_time({_STATE}[15m]) == -1",
        f"{NAME}: the contract is broken, {_CLAUSE}",
        _NUMBERS,
        severity="critical",
    ),
    *(_burning(*one) for one in BURN_ALERTS),
    Alert(
        "ContractBudgetGone",
        "The error budget of the clause's time is spent; whether the promise is broken is not known yet.",
        f"{_SPENT} >= 1 unless {_BROKEN}",
        f"{NAME}: {{{{ $value | humanizePercentage }}}} of the budget of {_CLAUSE} is spent",
        _NUMBERS,
        lasts="1h",
    ),
    Alert(
        "ContractBudgetRunsOut",
        "More than half of the error budget is spent, and the rest lasts for less than three days.",
        f"{_RUNS_OUT} < {_SOON} and {_SPENT} > 0.5 and {_SPENT} < 1",
        f"{NAME}: the budget of {_CLAUSE} runs out in {{{{ $value | humanizeDuration }}}}",
        _NUMBERS,
        lasts="1h",
    ),
    Alert(
        "ContractNotKnown",
        "At least 1,000 predictions were served in a day, and too few labels came to say how the promise "
        "stands.",
        f"{clause_gauge('promise')} unless {clause_gauge('value')}"
        f" and ignoring (clause) {recorded('served', '24h')} >= 1000",
        f"{NAME}: nothing is known of {_CLAUSE}, which promises {{{{ $value | humanizePercentage }}}}",
        lasts="1d",
    ),
    Alert(
        "ContractNotKnown",
        "For two weeks labels came, and they do not tell yet whether the promise is kept or broken.",
        f"{_STATE} == 0 and max_over_time(abs({_STATE})[{_LONG_UNKNOWN}:6h]) == 0"
        f" and {clause_gauge('labels')} > {clause_gauge('labels', more=f' offset {_LONG_UNKNOWN}')}",
        f"{NAME}: two weeks of labels do not tell whether {_CLAUSE} is kept",
        _NUMBERS,
        severity="info",
        window=_LONG_UNKNOWN,
    ),
    Alert(
        "ContractGone",
        "The version had this clause a day ago, and nothing watches it now.",
        f"({_STATE} offset 1d) unless {_STATE} and ignoring (clause) {_PUBLISHED}",
        f"{NAME}: {_CLAUSE} of its contract is not watched any more",
        lasts="15m",
    ),
)
"""In the order of alerts.yml."""


# --- labels, and what numbers rest on --------------------------------------------------------------------

_REFUSED = went_up("calib_feedback_refused_total{reason!~'duplicate|not_wanted'}", "1h", drop=", reason")
_COUNTED = f"sum without (model, version) ({recorded('labels', '1h')})"
_COVERAGE = f"({watch_window('coverage', '24h')} and {WATCHED} or {recorded('coverage', '24h')})"
# The last hour at which the day before it had a label.
_LAST = json.dumps("max_over_time(timestamp(model_version:calib_labels:24h{%s} > 0)[7d:1h]) - 86400")
_LAST_LABEL = (
    f"{OWN_LABELS}{{{{ with query (printf {_LAST} $own) }}}}"
    " The last one came about {{ . | first | value | humanizeTimestamp }}.{{ end }}"
)


def _missing(window: str, text: str, unless: str = "") -> Alert:
    """``unless``, not ``== 0``: a label counter that was never created has no value to compare."""
    return Alert(
        "LabelsMissing",
        f"At least 1,000 predictions were served in {text}, and none got a label.",
        f"{recorded('served', window)} >= 1000 unless {recorded('labels', window)} > 0{unless}",
        f"{NAME}: no label arrived in {text}",
        _LAST_LABEL,
        lasts="1h",
        window=window,
    )


LABEL_ALERTS = (
    _missing("24h", "a day"),
    _missing("7d", "a week", f" unless {recorded('served', '24h')} >= 1000"),
    Alert(
        "LabelsFew",
        "Labels come, fewer than 200 in a day: numbers of that day can hardly tell an error from noise.",
        f"{recorded('labels', '24h')} > 0 and {recorded('labels', '24h')} < 200"
        f" and {recorded('served', '24h')} >= 1000",
        f"{NAME}: {{{{ $value | humanize }}}} labels in a day",
        severity="info",
        lasts="6h",
    ),
    Alert(
        "PredictionsFew",
        "A day has less than a tenth of the predictions of the week's days: callers left, or counting fails.",
        f"{recorded('served', '24h')} < 0.1 * {recorded('served', '7d')} / 7"
        f" and {recorded('served', '7d')} >= 1000 and {_PUBLISHED}",
        f"{NAME}: {{{{ $value | humanize }}}} predictions in a day, less than a tenth of before",
        lasts="1h",
    ),
    Alert(
        "LabelRateMoved",
        "If the outcome decides what is labelled, no number holds.",
        f"{SAME} (calib_label_rate_moved) == 1",
        f"{NAME}: labels come at another rate than the week before",
        lasts="1h",
    ),
    Alert(
        "LabelsImmature",
        "Labels come, and nearly none counts: how long they take is not known, or is long.",
        f"{watch_window('immature_share', '7d')} > 0.9 and {recorded('labels', '7d')} >= 100",
        f"{NAME}: {SHARE} of a week's predictions wait for their labels",
        severity="info",
        lasts="1d",
    ),
    Alert(
        "CoverageLow",
        "The numbers are true of the covered part alone.",
        f"{_COVERAGE} < 0.5 and {recorded('labels', '24h')} >= 100",
        f"{NAME}: labels speak of {SHARE} of the predictions",
        severity="info",
        lasts="6h",
    ),
    Alert(
        "LabelsRefused",
        "More than 5 % of labels, without duplicates and labels that were not asked for.",
        f"{_REFUSED} > 0.05 * (({_COUNTED} or {_REFUSED} * 0) + {_REFUSED}) and {_REFUSED} >= 20",
        "{{ $value | humanize }} labels were refused in the last hour",
        lasts="5m",
    ),
    Alert(
        "ReceiptsForged",
        "Keys that differ between hosts, or somebody who tries.",
        went_up("calib_feedback_refused_total{reason='bad_signature'}", "1h", drop=", reason") + " >= 5",
        "{{ $value | humanize }} receipts with a wrong signature in the last hour",
        severity="critical",
    ),
    Alert(
        "KeysUnknown",
        "A key that signs on one host and is lacking on another, or that was retired too early.",
        went_up("calib_feedback_refused_total{reason='unknown_key'}", "1h", drop=", reason") + " >= 5",
        "{{ $value | humanize }} labels of receipts with an unknown key were refused in the last hour",
    ),
)


# --- programs --------------------------------------------------------------------------------------------

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


def alerts(options: MonitoringOptions) -> tuple[Alert, ...]:
    """Those whose numbers are recorded."""
    every = (*calibration_alerts(options), *CONTRACT_ALERTS, *LABEL_ALERTS, *program_alerts(options.jobs))
    return tuple(one for one in every if one.windows <= set(options.windows))


def alerts_file(options: MonitoringOptions) -> str:
    """The file."""
    rules = "".join(one.yaml(options.runbooks) for one in alerts(options))
    return (
        f"# Written by calib-serve export monitoring.\ngroups:\n  - name: calib_alerts\n    rules:\n{rules}"
    )

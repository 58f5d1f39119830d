#!/usr/bin/env python3
"""Write ``alerts.yml``. Each alert requires statistical evidence; docs/monitoring.md says what to do.

    python deploy/prometheus/make_alerts.py            # writes alerts.yml beside this file
    python deploy/prometheus/make_alerts.py --check    # exit 1 if alerts.yml is not up to date
    python deploy/prometheus/make_alerts.py --runbook https://wiki.example/calibration

Where ``calib-serve watch`` counts the predictions, alerts read its windows: they hold mature labels alone,
and its intervals know which labels belong together. Elsewhere they read the recorded numbers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from make_rules import REPLICA, SAME, SUM

HERE = Path(__file__).parent

RUNBOOK = "docs/monitoring.md"
"""Where the runbooks are; an alert's own begins at its name."""

TOLERANCE = 0.02
"""The gap between confidence and accuracy that is no error."""

SIGMAS = 4
"""Standard errors beyond it."""

_NAME = "{{ $labels.model }} {{ $labels.version }}"
_SHARE = "{{ $value | humanizePercentage }}"


@dataclass(frozen=True)
class Alert:
    """One rule of alerts.yml."""

    name: str
    says: str
    expr: str
    summary: str
    severity: str = "warning"
    lasts: str = ""
    window: str = ""

    def text(self, runbook: str) -> str:
        """Its YAML."""
        labels = f"severity: {self.severity}" + (f', window: "{self.window}"' if self.window else "")
        return (
            f"      # {self.says}\n      - alert: {self.name}\n        expr: >-\n          {self.expr}\n"
            + (f"        for: {self.lasts}\n" if self.lasts else "")
            + f"        labels: {{{labels}}}\n        annotations:\n"
            f"          summary: {json.dumps(self.summary)}\n"
            f"          runbook_url: {runbook}#{self.name.lower()}\n"
        )


def window(name: str, over: str = "24h") -> str:
    """What watch says of its window; all its replicas say the same."""
    return f"max without ({REPLICA}, window) (calib_window_{name}{{window='{over}'}})"


def went_up(counter: str, over: str, *, drop: str = "") -> str:
    """By how much a counter went up, over replicas and the labels to ``drop``."""
    return f"{SUM[:-1]}{drop}) (increase({counter}[{over}]))"


_WATCHED = f"{window('predictions')} > 0"
_GAP = f"({window('gap')} and {_WATCHED} or model_version:calib_signed_gap:24h)"
_COVERAGE = f"({window('coverage')} and {_WATCHED} or model_version:calib_coverage:24h)"
# A scrape that fails once must not page twice.
_OPEN = f"({SAME} (last_over_time(calib_incidents_open[15m])) > 0)"
_SLICE, _SLICE_ERROR = f"{SAME} (calib_slice_gap)", f"{SAME} (calib_slice_gap_error)"
_SOURCE, _SOURCE_ERROR = (
    f"{SAME} (calib_source_gap_difference)",
    f"{SAME} (calib_source_gap_difference_error)",
)
_REFUSED = went_up("calib_feedback_refused_total{reason!~'duplicate|not_wanted'}", "1h", drop=", reason")
_COUNTED = "sum without (model, version) (model_version:calib_labels:1h)"

_ROLLBACKS = "calib_ledger_rollbacks_total"

ALERTS = (
    Alert(
        "CalibrationErrorHigh",
        "The whole interval of the error lies above the tolerance.",
        f"{window('ece_low')} > {TOLERANCE} and {_WATCHED}",
        f"{_NAME}: calibration error of at least {_SHARE} over 24 hours",
        lasts="5m",
        window="24h",
    ),
    # Not where watch still waits for the first mature labels: wrong ones may be told sooner than right ones.
    Alert(
        "CalibrationErrorHigh",
        "More than noise explains and more than the tolerance, on enough labels of most predictions.",
        f"model_version:calib_ece:1h"
        f" > model_version:calib_noise_floor:1h + {SIGMAS} * model_version:calib_ece_sigma:1h"
        f" and model_version:calib_debiased_l2_squared:1h > {round(TOLERANCE**2, 12)}"
        " and model_version:calib_labels:1h >= 500 and model_version:calib_coverage:1h >= 0.5"
        f" unless ({_WATCHED} or {window('immature_share')} == 1)",
        f"{_NAME}: ECE {_SHARE} over the last hour",
        lasts="5m",
        window="1h",
    ),
    Alert(
        "CalibrationDrift",
        "Fires as long as an incident is open, however often the detector alarms. Its value is the gap.",
        f"{_GAP} and {_OPEN} or {_OPEN} * 0",
        f"{_NAME}: calibration has drifted, {{{{ if gt $value 0.0 }}}}overconfident by {_SHARE}"
        f"{{{{ else if lt $value 0.0 }}}}underconfident, confidence less accuracy is {_SHARE}"
        "{{ else }}by how much is not known yet{{ end }}",
    ),
    Alert(
        "ClassOrSegmentOff",
        "The gap of a class or segment, which others may hide.",
        f"{_SLICE} > {TOLERANCE} + {SIGMAS} * {_SLICE_ERROR}"
        f" or {_SLICE} < -({TOLERANCE} + {SIGMAS} * {_SLICE_ERROR})",
        f"{_NAME}: confidence less accuracy is {_SHARE} in {{{{ $labels.kind }}}} {{{{ $labels.slice }}}}",
        lasts="5m",
    ),
    Alert(
        "CalibrationSourceDiffers",
        "Who sends labels that say something else than the others do can bend every number.",
        f"{_SOURCE} > {TOLERANCE} + {SIGMAS} * {_SOURCE_ERROR}"
        f" or {_SOURCE} < -({TOLERANCE} + {SIGMAS} * {_SOURCE_ERROR})",
        f"{_NAME}: by labels of {{{{ $labels.source }}}} the gap is {_SHARE} off that of all others",
        lasts="15m",
    ),
    Alert(
        "LabelsMissing",
        "`unless`, not `== 0`: a label counter that was never created has no value to compare.",
        "model_version:calib_served:24h >= 1000 unless model_version:calib_labels:24h > 0",
        f"{_NAME}: no label arrived in a day",
        lasts="1h",
    ),
    Alert(
        "LabelRateMoved",
        "If the outcome decides what is labelled, no number holds.",
        f"{SAME} (calib_label_rate_moved) == 1",
        f"{_NAME}: labels come at another rate than the week before",
        lasts="1h",
    ),
    Alert(
        "LabelsImmature",
        "Labels come, and nearly none counts: how long they take is not known, or is long.",
        f"{window('immature_share', '7d')} > 0.9 and model_version:calib_labels:7d >= 100",
        f"{_NAME}: {_SHARE} of a week's predictions wait for their labels",
        severity="info",
        lasts="1d",
    ),
    Alert(
        "CoverageLow",
        "The numbers are true of the covered part alone.",
        f"{_COVERAGE} < 0.5 and model_version:calib_labels:24h >= 100",
        f"{_NAME}: labels speak of {_SHARE} of the predictions",
        severity="info",
        lasts="6h",
    ),
    Alert(
        "LabelsRefused",
        "More than 5 %. A client's retries make duplicates; labels not wanted were not asked for.",
        f"{_REFUSED} > 0.05 * (({_COUNTED} or {_REFUSED} * 0) + {_REFUSED}) and {_REFUSED} >= 20",
        "{{ $value | humanize }} labels were refused in the last hour",
        lasts="5m",
    ),
    Alert(
        "ReceiptsForged",
        "Keys that differ, or somebody who tries.",
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
    Alert(
        "MonitorErrors",
        "By stage.",
        went_up("calib_monitor_errors_total", "15m") + " > 0",
        "The monitoring itself failed at {{ $labels.stage }}",
    ),
    Alert(
        "CalibrationCheckFailing",
        "What counting rests on, looked at by the program itself; on one replica or all.",
        f"min without ({REPLICA}) (calib_check_ok) == 0",
        "The check {{ $labels.check }} of a running program fails",
        lasts="2m",
    ),
    Alert(
        "LedgerWentBack",
        "A process that found it when it started counts it from its first scrape.",
        f"{went_up(_ROLLBACKS, '1h')} > 0 or {SAME} ({_ROLLBACKS} unless {_ROLLBACKS} offset 1h) > 0",
        "The ledger went back to an earlier state: labels that were acknowledged are missing",
    ),
    Alert(
        "InvalidOutputs",
        "A single one is an error of the model.",
        went_up("calib_invalid_outputs_total", "15m") + " > 0",
        f"{_NAME} answers NaN or infinity",
        severity="critical",
    ),
    Alert(
        "Uncalibrated",
        "Such an answer holds the model's own confidence, and no receipt.",
        went_up("calib_uncalibrated_total", "15m") + " > 0",
        f"{_NAME} answers without its calibration",
        severity="critical",
    ),
    Alert(
        "ConfidenceShift",
        "Needs no label. 0.2 is the customary threshold of the population stability index.",
        "model_version:calib_confidence_psi:1h > 0.2 and model_version:calib_served:1h >= 500",
        f"{_NAME}: confidences are not distributed as when it was calibrated",
        lasts="15m",
    ),
)


def text(runbook: str = RUNBOOK) -> str:
    """The file."""
    rules = "".join(alert.text(runbook) for alert in ALERTS)
    return (
        "# Written by make_alerts.py, where the tolerance and the link to the runbooks stand once.\n"
        f"groups:\n  - name: calib_alerts\n    rules:\n{rules}"
    )


def main(arguments: list[str]) -> int:
    """Write or check the file."""
    path = HERE / "alerts.yml"
    if arguments == ["--check"]:
        return 0 if path.exists() and path.read_text("utf-8") == text() else 1
    if arguments and (len(arguments) != 2 or arguments[0] != "--runbook"):
        print(__doc__)
        return 2
    path.write_text(text(*arguments[1:]), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

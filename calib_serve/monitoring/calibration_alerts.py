"""Alerts of calibration itself: each asks for statistical evidence beyond a tolerance.

Where ``calib-serve watch`` counts the predictions, they read its windows: those hold mature labels alone, and
its intervals know which labels belong together. Elsewhere they read the recorded numbers.
"""

from __future__ import annotations

import math

from calib_serve.monitoring.alert import NAME, SHARE, SINCE, Alert, bins_off, gap_told
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.queries import SAME, recorded, watch_window

__all__ = ["HALF_NORMAL", "WATCHED", "calibration_alerts"]

WATCHED = f"{watch_window('predictions', '24h')} > 0"
_GAP = f"({watch_window('gap', '24h')} and {WATCHED} or {recorded('signed_gap', '24h')})"
# A scrape that fails once must not page twice.
_OPEN = f"({SAME} (last_over_time(calib_incidents_open[15m])) > 0)"
_SO_FAR = f"{SAME} (calib_incident_gap)"
HALF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""The ECE's standard deviation over the gap's standard error: half-normal gaps, bins independent."""


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
        f"{watch_window('ece_low', '24h')} > {tolerance} and {WATCHED}",
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

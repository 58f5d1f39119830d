"""The Prometheus series we publish: one list that emitters, rules, dashboards and tests share.

Every counter of a (model, version, bin) starts at 0 for every bin as soon as the model is
loaded: a bin that was never created drops out of PromQL joins, and hides its gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SEGMENTS", "SERIES", "WATCH", "Series"]


@dataclass(frozen=True)
class Series:
    """One metric family; ``labels`` in the order TorchServe's channel sends them."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


_BIN = ("model", "version", "bin")
_MODEL = ("model", "version")

SERIES: tuple[Series, ...] = (
    Series("calib_predictions_total", "counter", _BIN, "Predictions served."),
    Series("calib_predictions_confidence_total", "counter", _BIN, "Sum of their top-1 confidences."),
    Series("calib_feedback_total", "counter", _BIN, "Labels counted."),
    Series(
        "calib_feedback_confidence_total", "counter", _BIN, "Sum of the confidences of labelled predictions."
    ),
    Series("calib_feedback_correct_total", "counter", _BIN, "Labelled predictions that were right."),
    Series("calib_feedback_confidence_squared_total", "counter", _MODEL, "Sum of squared confidences."),
    Series(
        "calib_feedback_confidence_correct_total", "counter", _MODEL, "Sum of confidences that were right."
    ),
    Series("calib_feedback_refused_total", "counter", ("reason",), "Labels refused, by reason."),
    Series("calib_invalid_outputs_total", "counter", _MODEL, "Model outputs with NaN or infinity."),
    Series("calib_monitor_errors_total", "counter", ("stage",), "Failures of the monitoring itself."),
    Series("calib_reference_share", "gauge", _BIN, "Share of confidences in the artifact's reference."),
    Series("calib_drift_alarms_total", "counter", _MODEL, "Alarms of the drift detector."),
    Series("calib_drift_log_evidence", "gauge", _MODEL, "Natural log of the drift detector's statistic."),
    Series("calib_drift_log_threshold", "gauge", _MODEL, "Where the drift detector alarms, same scale."),
)

_SEGMENT = ("model", "version", "segment", "bin")

SEGMENTS: tuple[Series, ...] = (
    Series("calib_segment_predictions_total", "counter", _SEGMENT, "Predictions served, by segment."),
    Series("calib_segment_feedback_total", "counter", _SEGMENT, "Labels counted, by segment."),
    Series("calib_segment_feedback_confidence_total", "counter", _SEGMENT, "Their confidences, by segment."),
    Series("calib_segment_feedback_correct_total", "counter", _SEGMENT, "Right ones, by segment."),
)
"""Published by ``calib-serve watch`` for versions whose predictions or labels name a segment."""

WATCH: tuple[Series, ...] = (
    Series(
        "calib_shift_alarms_total", "counter", _MODEL, "Alarms of the label-free confidence shift detector."
    ),
    Series("calib_shift_log_evidence", "gauge", _MODEL, "Natural log of that detector's statistic."),
    Series(
        "calib_expected_accuracy", "gauge", _MODEL, "Accuracy to expect from confidences, without labels."
    ),
    Series("calib_expected_accuracy_error", "gauge", _MODEL, "Its standard error."),
    Series("calib_request_seconds_total", "counter", ("route",), "Seconds spent answering."),
    Series("calib_requests_total", "counter", ("route", "status"), "Requests answered."),
)
"""Published by ``calib-serve watch`` alone."""

"""The Prometheus series that are published, declared once for emitters, ledgers, rules, dashboards and tests.

To add a sum over predictions or labels, add one ``Sum`` to ``SUMS``, before the delay's. Ledgers store it;
TorchServe, Triton and ``calib-serve watch`` publish it if it says so.
``handlers/metrics.yaml`` is generated from here; ``calib_serve.torchserve.metrics_file`` says how.

Every counter of a server starts at 0 for every bin as soon as the model is loaded: a bin that was never
created drops out of PromQL joins, and hides its gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

_BIN = ("model", "version", "bin")
_MODEL = ("model", "version")

LEDGER_LABELS = ("ledger", "edition")
"""The last labels of what is read from a ledger: its name, and how often its sums went down."""

_OF_LEDGER = (*_MODEL, *LEDGER_LABELS)

DELAYS: tuple[float, ...] = tuple(float(round(2 ** (k / 2))) for k in range(2, 47))
"""Upper ends of the steps of the delay but the last, which has none: 2, 3, 4, 6, ... seconds to 97 days."""

_CLAUSE = (*_MODEL, "clause")
_WINDOW = (*_MODEL, "window")
_SLICE = (*_MODEL, "kind", "slice", "window")


@dataclass(frozen=True)
class Series:
    """One metric family; ``labels`` in the order TorchServe's channel sends them."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str

    @property
    def in_torchserve(self) -> Literal["counter", "gauge"]:
        """The kind in TorchServe, which adds to counters: an absolute sum is a gauge there."""
        return "gauge" if self.labels[-2:] == LEDGER_LABELS else self.kind


@dataclass(frozen=True)
class Sum:
    """A number that adds up ``adds(confidence, correct, weight)`` over predictions or labels.

    ``adds`` takes numbers or arrays; ``weight`` is one over the probability with which a label was asked for.
    ``correct`` is 0 for predictions, where it is not known, and their weight is 1. ``per``: one sum for each
    confidence bin, or for each step of the delay from prediction to label.
    ``published`` as a counter; the others stay in the ledger, for intervals and windows. ``in_windows``:
    published by window and bin, for rules that combine ledgers.
    """

    name: str
    help: str
    of: Literal["predictions", "labels"]
    adds: Callable[[Any, Any, Any], Any]
    per: Literal["bin", "delay"] = "bin"
    published: bool = False
    in_windows: bool = False

    @property
    def series(self) -> Series:
        """The counter of the sum: by bin where servers count it, over all bins where ledgers do."""
        return Series(self.name, "counter", _OF_LEDGER if self.of == "labels" else _BIN, self.help)

    @property
    def short(self) -> str:
        """Its name in the label ``sum`` of ``calib_window_sums``, and in the ledger's tables."""
        return self.name.removeprefix("calib_").removesuffix("_total")


# Their order is that of ``Sums.vector``; the delay's, which has steps and no bins, is the last.
SUMS: tuple[Sum, ...] = (
    Sum(
        "calib_predictions_total",
        "Predictions served.",
        of="predictions",
        adds=lambda c, _y, _w: c**0,
        in_windows=True,
        published=True,
    ),
    Sum(
        "calib_predictions_confidence_total",
        "Sum of their top-1 confidences.",
        of="predictions",
        adds=lambda c, _y, _w: c,
        published=True,
    ),
    Sum(
        "calib_feedback_total",
        "Labels counted.",
        of="labels",
        adds=lambda _c, _y, w: w**0,
        in_windows=True,
        published=True,
    ),
    Sum(
        "calib_feedback_weight_total",
        "Sum of the weights of labels: one over the chance of being asked for; 1 where all are.",
        of="labels",
        adds=lambda _c, _y, w: w,
        in_windows=True,
    ),
    Sum(
        "calib_feedback_confidence_total",
        "Weighted sum of the confidences of labelled predictions.",
        of="labels",
        adds=lambda c, _y, w: w * c,
        in_windows=True,
    ),
    Sum(
        "calib_feedback_correct_total",
        "Weighted sum of the labelled predictions that were right.",
        of="labels",
        adds=lambda _c, y, w: w * y,
        in_windows=True,
    ),
    Sum(
        "calib_feedback_squared_error_total",
        "Weighted sum of (confidence - right)^2.",
        of="labels",
        adds=lambda c, y, w: w * (c - y) ** 2,
    ),
    Sum(
        "calib_feedback_noise_total",
        "Sum of weight^2 confidence (1 - confidence): what a calibrated model's gaps vary by.",
        of="labels",
        adds=lambda c, _y, w: w * w * c * (1 - c),
        in_windows=True,
    ),
    Sum(
        "calib_feedback_weight_squared",
        "Sum of weight^2.",
        of="labels",
        adds=lambda _c, _y, w: w * w,
    ),
    Sum(
        "calib_feedback_gap_weighted",
        "Sum of weight^2 (confidence - right).",
        of="labels",
        adds=lambda c, y, w: w * w * (c - y),
    ),
    Sum(
        "calib_feedback_gap_squared",
        "Sum of weight^2 (confidence - right)^2.",
        of="labels",
        adds=lambda c, y, w: (w * (c - y)) ** 2,
    ),
    Sum(
        "calib_feedback_correct_weighted",
        "Sum of weight^2 over the right ones.",
        of="labels",
        adds=lambda _c, y, w: w * w * y,
    ),
    # Each label counted as one: what is known needs no weights.
    *(
        Sum(f"calib_feedback_{name}", told, of="labels", adds=adds)
        for name, told, adds in (
            ("right", "Labelled predictions that were right.", lambda _c, y, _w: y),
            ("gap", "Sum of confidence - right.", lambda c, y, _w: c - y),
            ("error", "Sum of (confidence - right)^2.", lambda c, y, _w: (c - y) ** 2),
            ("chance", "Sum of confidence (1 - confidence).", lambda c, _y, _w: c * (1 - c)),
        )
    ),
    Sum(
        "calib_feedback_delay",
        "Labels by the time from prediction to label.",
        of="labels",
        adds=lambda _c, _y, w: w**0,
        per="delay",
    ),
)

PUBLISHED: tuple[Sum, ...] = tuple(one for one in SUMS if one.published)
"""The sums that servers and ``calib-serve watch`` publish as counters."""


SERIES: tuple[Series, ...] = (
    *(one.series for one in PUBLISHED),
    Series(
        "calib_window_sums",
        "gauge",
        (*_BIN, "window", "sum", "ledger"),
        "Sums of a window: predictions up to now, and the labels that its numbers are made of.",
    ),
    Series("calib_window_provisional", "gauge", _WINDOW, "1: it holds labels that are not mature; 0: none."),
    Series("calib_feedback_accepted_total", "counter", _MODEL, "Labels that this process counted."),
    Series("calib_feedback_corrected_total", "counter", _MODEL, "Labels that took the place of others here."),
    Series("calib_feedback_refused_total", "counter", ("reason",), "Labels refused, by reason."),
    Series(
        "calib_invalid_outputs_total", "counter", _MODEL, "Model outputs that are no prediction, such as NaN."
    ),
    Series("calib_monitor_errors_total", "counter", ("stage",), "Failures of the monitoring itself."),
    Series("calib_reference_share", "gauge", _BIN, "Share of confidences in the artifact's reference."),
    Series("calib_drift_alarms_total", "counter", _OF_LEDGER, "Alarms of the drift detector."),
    Series("calib_drift_log_evidence", "gauge", _MODEL, "Natural log of the drift detector's statistic."),
    Series("calib_drift_log_threshold", "gauge", _MODEL, "Where the drift detector alarms, same scale."),
    Series("calib_incidents_open", "gauge", _MODEL, "Drift incidents that are open."),
    Series("calib_feedback_late_total", "counter", _OF_LEDGER, "Labels too late for the drift detector."),
    Series("calib_maturity_seconds", "gauge", _MODEL, "Age at which the labels of a prediction are in."),
    Series("calib_check_ok", "gauge", ("check",), "1: this check of the running program is well; 0: not."),
)
"""Published by TorchServe's workers and by ``calib-serve watch``."""

WORKERS: tuple[Series, ...] = (
    Series("calib_uncalibrated_total", "counter", _MODEL, "Requests answered without calibration."),
    Series(
        "calib_unmatched_total", "counter", (*_MODEL, "reason"), "Predictions without receipt, by the reply."
    ),
)
"""Published by TorchServe's workers, the first by ``calib-serve gateway``, too."""

GATEWAY: tuple[Series, ...] = (
    Series(
        "calib_tags_dropped_total",
        "counter",
        ("model", "reason"),
        "Requests whose segment, group or id was not believed: no token, or a wrong one.",
    ),
)
"""Published by ``calib-serve gateway`` alone."""

WATCH: tuple[Series, ...] = (
    *(
        Series(f"calib_window_{name}", "gauge", _WINDOW, told)
        for name, told in (
            ("begin_timestamp_seconds", "When the window begins."),
            ("predictions", "Its predictions: mature ones, or all while it is provisional."),
            ("accuracy", "Accuracy of the window's predictions, estimated from labels."),
            ("gap", "Mean confidence minus accuracy."),
            ("ece", "Expected calibration error, the plain one over bins."),
            ("noise_floor", "The ECE that a calibrated model would show on these labels, by chance alone."),
            ("debiased_ece_low", "Lower 95 % end of what of the ECE is no chance."),
            ("debiased_ece_high", "Upper 95 % end of what of the ECE is no chance."),
            ("label_share", "Labels over predictions."),
            ("confidence_psi", "Stability index of all confidences up to now against the reference."),
            ("coverage", "Share of predictions in bins with enough labels."),
            ("immature_share", "Share of predictions since the window began whose labels are not in."),
            ("design_effect", "How much more gaps vary than with independent labels."),
            (
                "verdict",
                "1: confidence is off; 0.5: no error found; 0: within the tolerance; absent: not known.",
            ),
        )
    ),
    Series("calib_slice_gap", "gauge", _SLICE, "Mean confidence minus accuracy of a segment or class."),
    Series("calib_slice_gap_error", "gauge", _SLICE, "Its standard error."),
    Series(
        "calib_source_gap_difference",
        "gauge",
        (*_MODEL, "source"),
        "Gap of a source's labels over 24 h less that of all others at the same confidences.",
    ),
    Series("calib_source_gap_difference_error", "gauge", (*_MODEL, "source"), "Its standard error."),
    Series("calib_incident_gap", "gauge", _MODEL, "Gap since the onset of the drift incident that is open."),
    Series("calib_windows_age_seconds", "gauge", (), "Age of the oldest window that is published."),
    Series("calib_label_rate_moved", "gauge", _MODEL, "1: labels come at another rate than the week before."),
    Series(
        "calib_batches_unknown_total",
        "counter",
        ("batch",),
        "Batches of which is unknown if they were counted.",
    ),
    Series("calib_versions_left_out", "gauge", (), "Versions without series of their own: told as 'other'."),
    Series("calib_prediction_ids_total", "counter", ("fate",), "Ids of predictions, by what became of them."),
    Series("calib_process_start_timestamp_seconds", "gauge", (), "When this process began to publish."),
)
"""Published by ``calib-serve watch`` alone."""


CONTRACTS: tuple[Series, ...] = (
    Series("calib_contract_promise", "gauge", _CLAUSE, "What a clause of the contract promises."),
    Series("calib_contract_value", "gauge", _CLAUSE, "What it is over the clause's time, by labels."),
    Series("calib_contract_low", "gauge", _CLAUSE, "Lower end of its 95 % confidence sequence."),
    Series("calib_contract_high", "gauge", _CLAUSE, "Upper end of its 95 % confidence sequence."),
    Series("calib_contract_state", "gauge", _CLAUSE, "1: kept; 0: not yet known; -1: broken."),
    Series("calib_contract_budget_left", "gauge", _CLAUSE, "Share of the error budget that is left."),
    Series("calib_contract_burn_rate", "gauge", (*_CLAUSE, "window"), "Errors over those promised."),
    Series("calib_contract_burn_rate_low", "gauge", (*_CLAUSE, "window"), "Its lower 95 % end."),
    Series("calib_contract_runs_out_seconds", "gauge", _CLAUSE, "Until the budget is spent, at this rate."),
)
"""Of versions with a contract, published by ``calib-serve watch``."""

_ALL = (*SERIES, *WORKERS, *GATEWAY, *WATCH, *CONTRACTS)
BY_NAME: dict[str, Series] = {series.name: series for series in _ALL}

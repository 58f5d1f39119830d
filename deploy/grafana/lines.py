"""The dashboard's panels of lines over time."""

from __future__ import annotations

from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.models import dashboard as m
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from queries import (
    CONFIDENCE,
    LEAST,
    SUM,
    VERSION,
    answer_time,
    gauge,
    number,
    recorded,
    watch_window,
    windowed,
)

SOURCE = m.DataSourceRef(type_val="prometheus", uid="${datasource}")
WHERE = "{{namespace}} {{env}} {{tenant}}"


def query(expression: str, legend: str = WHERE, *, rows: bool = False) -> prometheus.Dataquery:
    """A range query, or an instant one for a table."""
    target = prometheus.Dataquery().expr(expression).legend_format(legend)
    return target.instant().format(PromQueryFormat.TABLE) if rows else target.range()


def curves(title: str, says: str, lines: dict[str, str], *, unit: str = "percentunit"):
    """A panel of lines over time, by their names."""
    panel = timeseries.Panel().title(title).description(says).datasource(SOURCE).unit(unit).span(12).height(8)
    for name, expression in lines.items():
        panel = panel.with_target(query(expression, f"{name} {WHERE}"))
    return panel


def errors():
    """The numbers of the window over time."""
    plain = f"{recorded('noise_floor')} + 4 * {recorded('ece_sigma')} unless {windowed('ece')}"
    return (
        curves(
            "ECE, its interval and its noise floor",
            "Watch corrects the ECE for noise and gives an interval. The recorded one is to be compared with "
            "its floor: alarming is 4 sigma above it, not an ECE alone.",
            {
                "ECE": number("ece"),
                "noise floor": number("noise_floor"),
                "low": windowed("ece_low"),
                "high": windowed("ece_high"),
                "floor + 4 sigma": plain,
            },
        ),
        curves(
            "Confidence and accuracy",
            "The gap between the first two is the calibration gap.",
            {
                "confidence": CONFIDENCE,
                "accuracy": number("accuracy"),
                "confidence of all predictions": recorded("served_confidence"),
            },
        ),
        curves(
            "Gaps",
            "Above zero is overconfident. The largest gap is over bins with at least 20 labels.",
            {"gap": number("signed_gap", "gap"), "largest gap": recorded("mce")},
        ),
        curves(
            "What labels cover",
            "Coverage: the share of predictions in bins with enough labels. Immature: whose labels may be on "
            "their way; they are in no window of watch.",
            {
                "coverage": number("coverage"),
                "labels per prediction": recorded("label_share"),
                "immature": watch_window("immature_share"),
            },
        ),
    )


def detectors():
    """Drift of calibration and of confidences over time."""
    return (
        curves(
            "Drift evidence",
            "Natural log of the detector's statistic and where it alarms; it starts afresh after an alarm.",
            {"evidence": gauge("drift_log_evidence"), "threshold": gauge("drift_log_threshold")},
            unit="none",
        ),
        curves(
            "Incidents and alarms",
            "An incident lasts until calibration is back; the detector alarms again and again meanwhile.",
            {
                "open": gauge("incidents_open"),
                "incidents": gauge("incidents_total"),
                "alarms": gauge("drift_alarms_total"),
            },
            unit="short",
        ),
        curves(
            "Confidence shift (PSI)",
            "Against the artifact's reference, without labels; above 0.2 is a shift.",
            {"PSI": recorded("confidence_psi")},
            unit="none",
        ),
        curves(
            "Labels and the detector",
            "Labels that wait until those of earlier predictions are in; those that came too late for it.",
            {"waiting": gauge("feedback_waiting"), "late": gauge("feedback_late_total")},
            unit="short",
        ),
    )


def workings():
    """Labels refused, answers and failures over time."""
    watch = answer_time("calib_request_seconds_total", "calib_requests_total", ", status")
    torchserve = answer_time("ts_inference_latency_microseconds", "ts_inference_requests_total")
    return (
        curves(
            "Labels refused, over the window",
            "By reason, of all models.",
            {"{{reason}}": f"{SUM} (increase(calib_feedback_refused_total[$window]))"},
            unit="short",
        ),
        curves(
            "Answer time",
            "Mean seconds a request, of watch by route and of TorchServe by model.",
            {"watch {{route}}": watch, "{{model_name}} {{model_version}}": f"{torchserve} / 1e6"},
            unit="s",
        ),
        curves(
            "Trouble",
            "Failures of the monitoring itself, outputs with NaN or infinity, answers without calibration.",
            {
                "failed at {{stage}}": f"{SUM} (calib_monitor_errors_total)",
                "invalid outputs": f"{SUM} (calib_invalid_outputs_total{{{VERSION}}})",
                "uncalibrated": f"{SUM} (calib_uncalibrated_total{{{VERSION}}})",
                "not known whether counted: {{batch}}": f"{SUM} (calib_batches_unknown_total)",
            },
            unit="short",
        ),
        curves(
            "Checks of running programs",
            "1: well on every replica; 0: not on one of them. /healthz and the page of watch say why.",
            {"{{check}}": f"{LEAST} (calib_check_ok)"},
            unit="short",
        ),
    )

"""The dashboard's panels of lines over time."""

from __future__ import annotations

from calib_serve.monitoring.calibration_alerts import HALF_NORMAL
from calib_serve.monitoring.chosen import CONFIDENCE, VERSION, answer_time, gauge, number, told, windowed
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.panels import Panel, curves
from calib_serve.monitoring.queries import LEAST, SUM

__all__ = ["detectors", "errors", "workings"]


def errors(options: MonitoringOptions) -> tuple[Panel, ...]:
    """The numbers of the window over time."""
    limit = f"{told('noise_floor')} + {options.sigmas * HALF_NORMAL:.6g} * {told('gap_error')}"
    return (
        curves(
            "ECE, its interval and its noise floor",
            "Watch corrects the ECE for noise and gives an interval. The recorded one is to be compared with "
            f"its floor: alarming is {options.sigmas:g} sigma above it, not an ECE alone.",
            {
                "ECE": number("ece"),
                "noise floor": number("noise_floor"),
                "low": windowed("ece_low"),
                "high": windowed("ece_high"),
                f"floor + {options.sigmas:g} sigma": f"{limit} unless {windowed('ece')}",
            },
        ),
        curves(
            "Confidence and accuracy",
            "The gap between the first two is the calibration gap.",
            {
                "confidence": CONFIDENCE,
                "accuracy": number("accuracy"),
                "confidence of all predictions": told("served_confidence"),
            },
        ),
        curves(
            "Gaps",
            "Above zero is overconfident. The largest gap is over bins with at least 20 labels.",
            {"gap": number("signed_gap", "gap"), "largest gap": told("mce")},
        ),
        curves(
            "What labels cover",
            "Coverage: the share of predictions in bins with enough labels. Immature: whose labels may be on "
            "their way; they are in no window of watch.",
            {
                "coverage": number("coverage"),
                "labels per prediction": f"{told('labels')} / ({told('served')} > 0)",
                "immature": windowed("immature_share", anyhow=True),
            },
        ),
    )


def detectors() -> tuple[Panel, ...]:
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
            {"PSI": told("confidence_psi")},
            unit="none",
        ),
        curves(
            "Labels and the detector",
            "Labels that wait until those of earlier predictions are in; those that came too late for it.",
            {"waiting": gauge("feedback_waiting"), "late": gauge("feedback_late_total")},
            unit="short",
        ),
    )


def workings() -> tuple[Panel, ...]:
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

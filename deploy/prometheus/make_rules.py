#!/usr/bin/env python3
"""Write ``rules.yml``: every number, over every window, from one formula each.

    python deploy/prometheus/make_rules.py            # writes rules.yml beside this file
    python deploy/prometheus/make_rules.py --check    # exit 1 if rules.yml is not up to date

N, C, Y are the labels, their confidences and the right predictions of a bin; S sums over bins.
Ratios are taken last, from sums over all replicas: an ECE is never averaged.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
BY_BIN = "sum by (model, version, bin)"
BY_MODEL = "sum by (model, version)"

# "total" reads the counters as they stand: exact, since the servers' ledgers began.
WINDOWS = {"5m": "15s", "1h": "1m", "1d": "5m", "total": "1m"}

PER_BIN = {
    "predictions": "calib_predictions_total",
    "predictions_confidence": "calib_predictions_confidence_total",
    "feedback": "calib_feedback_total",
    "feedback_confidence": "calib_feedback_confidence_total",
    "feedback_correct": "calib_feedback_correct_total",
}
PER_MODEL = {
    "feedback_confidence_squared": "calib_feedback_confidence_squared_total",
    "feedback_confidence_correct": "calib_feedback_confidence_correct_total",
}

_N, _C, _Y = (f"model_version_bin:calib_{name}:{{w}}" for name in list(PER_BIN)[2:])
_P, _PC = (f"model_version_bin:calib_{name}:{{w}}" for name in list(PER_BIN)[:2])
_CC, _CY = (f"model_version:calib_{name}:{{w}}" for name in PER_MODEL)
_LABELS = "(model_version:calib_labels:{w} > 0)"
_CALIBRATED_VARIANCE = f"clamp_min({_C} * (1 - {_C} / ({_N} > 0)), 0)"
_SHARE = f"clamp_min({_P} / on (model, version) group_left () (model_version:calib_served:{{w}} > 0), 1e-4)"
_REFERENCE = "clamp_min(max by (model, version, bin) (calib_reference_share), 1e-4)"

# name: (what it is, formula). Later ones may use earlier ones.
NUMBERS = {
    "labels": ("Labels counted.", f"{BY_MODEL} ({_N})"),
    "served": ("Predictions served.", f"{BY_MODEL} ({_P})"),
    "label_share": (
        "Labels per prediction.",
        "model_version:calib_labels:{w} / (model_version:calib_served:{w} > 0)",
    ),
    "served_confidence": (
        "Mean confidence of all predictions: the accuracy to expect while calibrated.",
        f"{BY_MODEL} ({_PC}) / (model_version:calib_served:{{w}} > 0)",
    ),
    "ece": (
        "Expected calibration error (Naeini 2015).",
        f"{BY_MODEL} (abs({_C} - {_Y})) / {_LABELS}",
    ),
    "noise_floor": (
        "The ECE that label noise alone would show, were the model calibrated.",
        f"{BY_MODEL} (sqrt(0.6366197723675814 * {_CALIBRATED_VARIANCE})) / {_LABELS}",
    ),
    "ece_sigma": (
        "Standard deviation of that ECE: half-normal gaps, bins independent.",
        f"sqrt({BY_MODEL} (0.3633802276324186 * {_CALIBRATED_VARIANCE})) / {_LABELS}",
    ),
    "signed_gap": (
        "Mean confidence minus accuracy: positive when overconfident.",
        f"({BY_MODEL} ({_C}) - {BY_MODEL} ({_Y})) / {_LABELS}",
    ),
    "mce": (
        "Largest gap of a bin with at least 20 labels.",
        f"max by (model, version) (abs({_C} - {_Y}) / ({_N} >= 20))",
    ),
    "accuracy": ("Share of right predictions.", f"{BY_MODEL} ({_Y}) / {_LABELS}"),
    "mean_confidence": ("Mean confidence of labelled predictions.", f"{BY_MODEL} ({_C}) / {_LABELS}"),
    "brier": ("Top-label Brier score, exact.", f"({_CC} - 2 * {_CY} + {BY_MODEL} ({_Y})) / {_LABELS}"),
    "overconfidence_error": (
        "Confidence times its excess over accuracy (Thulasidasan 2019).",
        f"{BY_MODEL} (({_C} / ({_N} > 0)) * clamp_min({_C} - {_Y}, 0)) / {_LABELS}",
    ),
    "debiased_l2_squared": (
        "Mean squared gap less what label noise explains (Kumar 2019); negative below noise.",
        f"{BY_MODEL} (({_N} > 1) * (({_C} / {_N} - {_Y} / {_N}) ^ 2"
        f" - ({_Y} / {_N}) * (1 - {_Y} / {_N}) / ({_N} - 1))) / {_LABELS}",
    ),
    "in_the_large_z": (
        "Calibration in the large: standard normal while calibrated (Cox 1958).",
        f"({BY_MODEL} ({_Y}) - {BY_MODEL} ({_C})) / sqrt({BY_MODEL} ({_C}) - {_CC} > 0)",
    ),
    "confidence_psi": (
        "Population stability index of the confidences against the artifact's reference.",
        f"{BY_MODEL} (({_SHARE} - {_REFERENCE}) * ln({_SHARE} / {_REFERENCE}))",
    ),
}


def rule(record: str, expression: str) -> str:
    return f"      - record: {record}\n        expr: >-\n          {expression}\n"


def sums(window: str) -> str:
    def over(series: str) -> str:
        return series if window == "total" else f"increase({series}[{window}])"

    return "".join(
        rule(f"{level}:calib_{name}:{window}", f"{by} ({over(series)})")
        for level, by, group in (
            ("model_version_bin", BY_BIN, PER_BIN),
            ("model_version", BY_MODEL, PER_MODEL),
        )
        for name, series in group.items()
    )


def numbers(window: str) -> str:
    return "".join(
        f"      # {says}\n" + rule(f"model_version:calib_{name}:{window}", formula.replace("{w}", window))
        for name, (says, formula) in NUMBERS.items()
    )


def text() -> str:
    groups = "".join(
        f"  - name: calib_{window}\n    interval: {interval}\n    rules:\n{sums(window)}{numbers(window)}"
        for window, interval in WINDOWS.items()
    )
    return f"# Written by make_rules.py; change the formulas there.\ngroups:\n{groups}"


def main() -> int:
    path = HERE / "rules.yml"
    if "--check" in sys.argv[1:]:
        return 0 if path.exists() and path.read_text("utf-8") == text() else 1
    path.write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

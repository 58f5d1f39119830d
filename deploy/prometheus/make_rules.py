#!/usr/bin/env python3
"""Write ``rules.yml``: every number, over every window, from one formula each.

    python deploy/prometheus/make_rules.py            # writes rules.yml beside this file
    python deploy/prometheus/make_rules.py --check    # exit 1 if rules.yml is not up to date

Labels are rarely drawn from all predictions alike: unsure ones are reviewed, others are sampled. So labels
only say what holds inside a bin: C is their weighted mean confidence, Y the share of right ones, and V the
variance of C - Y in a calibrated model. Bins are weighed by P, their share of the predictions served, all of
which are counted. Numbers are means over the covered bins, those with at least LEAST labels. Ratios are
taken last, from sums over all replicas: an ECE is never averaged.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent

# What tells the replicas of one deployment apart, as scrapes add it, and the two labels by which processes
# that share a ledger publish their own shares, anew where the ledger went back. All other labels (env,
# namespace, tenant) stay: opposite errors of staging and production must not cancel.
REPLICA = "instance, job, pod, container, endpoint, service, node, hostname, worker, writer, generation"
SUM = f"sum without ({REPLICA})"
SAME = f"max without ({REPLICA})"  # of gauges that all replicas on one ledger publish alike
BINS = "sum without (bin)"

LEAST = 5
"""Labels that a bin must hold: with fewer, their noise itself is not known."""

# The range of ``increase`` and the interval of the rules. Longer ranges read one sample in minutes, not all;
# no interval reaches the five minutes after which Prometheus takes a series for gone.
WINDOWS = {"1h": ("1h", "1m"), "24h": ("24h:2m", "2m"), "7d": ("7d:15m", "4m")}


def counted(name: str) -> str:
    """What a counter went up by in the window, over replicas; {w} and {r} are filled in later."""
    return f"{SUM} (increase(calib_{name}_total[{{r}}]))"


def number(name: str) -> str:
    """A recorded number of a version."""
    return f"model_version:calib_{name}:{{w}}"


W, P, C, Y, V = (
    f"model_version_bin:calib_{name}:{{w}}"
    for name in ("weight", "share", "confidence", "accuracy", "gap_variance")
)
_SERVED = f"({number('served')} > 0)"
_PER_VERSION = "ignoring (bin) group_left ()"
_REFERENCE = f"clamp_min({SAME} (calib_reference_share), 1e-4)"
_SHARE = f"clamp_min({P}, 1e-4)"


def mean(column: str) -> str:
    """The mean of a bin's column over the covered predictions."""
    return f"{BINS} ({P} * {column}) / ({number('coverage')} > 0)"


# series: (what it is, formula). Later ones may use earlier ones.
FIRST = {
    number("labels"): ("Labels counted, each as one.", f"{BINS} ({counted('feedback')})"),
    number("served"): ("Predictions served.", f"{BINS} ({counted('predictions')})"),
    number("design_effect"): (
        "How much more gaps vary than with independent labels, where watch publishes it.",
        f"clamp_min(max without ({REPLICA}, window) (calib_window_design_effect{{window='24h'}}), 1)"
        f" or {number('labels')} * 0 + 1",
    ),
}
PER_BIN = {
    W: ("Weights of labels.", counted("feedback_weight")),
    P: (
        "Share of the predictions served; where none are counted, of the weights of labels.",
        f"{counted('predictions')} / {_PER_VERSION} {_SERVED}"
        f" or {W} / {_PER_VERSION} ({BINS} ({W}) > 0) unless ignoring (bin) {_SERVED}",
    ),
    C: (
        "Mean confidence of labelled predictions, in bins with enough labels.",
        f"{counted('feedback_confidence')} / ({W} > 0) and {counted('feedback')} >= {LEAST}",
    ),
    Y: ("Share of right ones among them.", f"{counted('feedback_correct')} / ({W} > 0) and {C}"),
    V: (
        "Variance of the difference in a calibrated model.",
        f"{counted('feedback_noise')} / ({W} > 0) ^ 2 * {_PER_VERSION} {number('design_effect')} and {C}",
    ),
}
NUMBERS = {
    number("label_share"): ("Labels per prediction.", f"{number('labels')} / {_SERVED}"),
    number("served_confidence"): (
        "Mean confidence of all predictions: the accuracy to expect while calibrated.",
        f"{BINS} ({counted('predictions_confidence')}) / {_SERVED}",
    ),
    number("coverage"): (
        "Share of predictions in bins with enough labels: what the numbers below speak of.",
        f"{BINS} ({P} and {C}) or {BINS} ({P}) * 0",
    ),
    number("ece"): ("Expected calibration error (Naeini 2015).", mean(f"abs({C} - {Y})")),
    number("noise_floor"): (
        "The ECE that label noise alone would show, were the model calibrated.",
        mean(f"sqrt(0.6366197723675814 * {V})"),
    ),
    number("ece_sigma"): (
        "Standard deviation of that ECE: half-normal gaps, bins independent.",
        f"sqrt({BINS} ({P} ^ 2 * 0.3633802276324186 * {V})) / ({number('coverage')} > 0)",
    ),
    number("signed_gap"): (
        "Mean confidence minus accuracy: positive when overconfident.",
        mean(f"({C} - {Y})"),
    ),
    number("in_the_large_z"): (
        "The signed gap in standard errors: standard normal while calibrated (Cox 1958).",
        f"{BINS} ({P} * ({C} - {Y})) / (sqrt({BINS} ({P} ^ 2 * {V})) > 0)",
    ),
    number("mce"): (
        "Largest gap of a bin with at least 20 labels.",
        f"max without (bin) (abs({C} - {Y}) and {counted('feedback')} >= 20)",
    ),
    number("accuracy"): ("Share of right predictions.", mean(Y)),
    number("mean_confidence"): ("Mean confidence of the same predictions.", mean(C)),
    number("brier"): (
        "Top-label Brier score.",
        mean(f"({counted('feedback_squared_error')} / ({W} > 0) and {C})"),
    ),
    number("overconfidence_error"): (
        "Confidence times its excess over accuracy (Thulasidasan 2019).",
        mean(f"{C} * clamp_min({C} - {Y}, 0)"),
    ),
    number("debiased_l2_squared"): (
        "Mean squared gap less what label noise explains (Kumar 2019); negative below noise.",
        mean(f"(({C} - {Y}) ^ 2 - {V})"),
    ),
    number("confidence_psi"): (
        "Population stability index of the confidences against the artifact's reference.",
        f"{BINS} (({_SHARE} - {_REFERENCE}) * ln({_SHARE} / {_REFERENCE})) and {_SERVED}",
    ),
}


def rules(window: str, reads: str) -> str:
    """The rules of one window; ``reads``: the range of ``increase``."""
    return (
        "".join(
            f"      # {says}\n      - record: {series}\n        expr: >-\n          {formula}\n"
            for series, (says, formula) in (FIRST | PER_BIN | NUMBERS).items()
        )
        .replace("{w}", window)
        .replace("{r}", reads)
    )


def text(windows: Mapping[str, tuple[str, str]]) -> str:
    """The file, for windows like ``WINDOWS``."""
    groups = "".join(
        f"  - name: calib_{window}\n    interval: {interval}\n    rules:\n{rules(window, reads)}"
        for window, (reads, interval) in windows.items()
    )
    return f"# Written by make_rules.py; change the formulas there.\ngroups:\n{groups}"


def main() -> int:
    """Write or check the file."""
    path = HERE / "rules.yml"
    if "--check" in sys.argv[1:]:
        return 0 if path.exists() and path.read_text("utf-8") == text(WINDOWS) else 1
    path.write_text(text(WINDOWS), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

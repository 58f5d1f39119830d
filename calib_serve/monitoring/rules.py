"""``rules.yml``: every number, over every window, from one formula each.

Labels are rarely drawn from all predictions alike: unsure ones are reviewed, others are sampled. So labels
only say what holds inside a bin: C is their weighted mean confidence, Y the share of right ones, and V the
variance of C - Y in a calibrated model. Bins are weighed by P, their share of the predictions served, all of
which are counted. Numbers are means over the covered bins, those with at least ``FEWEST`` labels. Ratios are
taken last, from sums over all replicas: an ECE is never averaged.

What a ledger counts never goes down within its ``edition``, and whoever shares it publishes the same: the
greatest of these is recorded first, and what it rose by in a window is a difference, exactly. Predictions
that a server counts itself, in no ledger, begin at 0 with its process: these are what ``increase`` is for.
"""

from __future__ import annotations

from collections.abc import Mapping

from calib_serve.monitoring.queries import (
    LEAST,
    REPLICA,
    SAME,
    SCRAPE,
    SUM,
    WINDOWS,
    bin_column,
    in_ledger,
    recorded,
    watch_window,
)

__all__ = [
    "BURN_WINDOWS", "FEWEST", "SUMMED", "burn", "burn_low", "clause_gauge", "clause_number",
    "recorded_clause_series", "recorded_series", "rules_file",
]  # fmt: skip

FEWEST = 5
"""Labels that a bin must hold: with fewer, their noise itself is not known."""

_BINS = "sum without (bin)"


SUMMED = (
    "predictions", "predictions_confidence", "feedback", "feedback_weight", "feedback_confidence",
    "feedback_correct", "feedback_squared_error", "feedback_noise",
)  # fmt: skip
"""What the numbers are made of."""


def _counted(name: str) -> str:
    """What was counted in the window, in all ledgers and beside them; {w} and {r} are filled in later."""
    there = in_ledger(name)
    rose = f"{there} - min_over_time({there}[{{r}}])"
    if name.startswith("feedback"):  # labels are counted in ledgers alone
        return f"{SUM} ({rose})"
    return f"{SUM} ({rose} or increase(calib_{name}_total{{ledger=''}}[{{r}}]))"


def _number(name: str) -> str:
    return recorded(name, "{w}")


_W, _P, _C, _Y = (bin_column(name, "{w}") for name in ("weight", "share", "confidence", "accuracy"))
_SERVED = f"({_number('served')} > 0)"
_PER_VERSION = "ignoring (bin) group_left ()"
_REFERENCE = f"clamp_min({SAME} (calib_reference_share), 1e-4)"
_SHARE = f"clamp_min({_P}, 1e-4)"
# How much more gaps vary than with independent labels, where watch publishes it.
_EFFECT = f"(clamp_min({watch_window('design_effect', '24h')}, 1) or {_number('labels')} * 0 + 1)"
_V0 = f"({_counted('feedback_noise')} / ({_W} > 0) ^ 2 * {_PER_VERSION} {_EFFECT})"
_V = f"({_V0} and {_C})"
_GAP = f"abs({_counted('feedback_confidence')} - {_counted('feedback_correct')}) / ({_W} > 0)"


def _mean(column: str) -> str:
    """The mean of a bin's column over the covered predictions."""
    return f"{_BINS} ({_P} * {column}) / ({_number('coverage')} > 0)"


def _plain_mean(column: str) -> str:
    """The mean of a bin's column over the predictions of all bins with any label."""
    return f"{_BINS} ({_P} * ({column})) / ({_BINS} ({_P} and {_W} > 0) > 0)"


# series: (what it is, formula). Later ones may use earlier ones.
_FIRST = {
    _number("labels"): ("Labels counted, each as one.", f"{_BINS} ({_counted('feedback')})"),
    _number("served"): ("Predictions served.", f"{_BINS} ({_counted('predictions')})"),
}
_PER_BIN = {
    _W: ("Weights of labels.", _counted("feedback_weight")),
    _P: (
        "Share of the predictions served; where none are counted, of the weights of labels.",
        f"{_counted('predictions')} / {_PER_VERSION} {_SERVED}"
        f" or {_W} / {_PER_VERSION} ({_BINS} ({_W}) > 0) unless ignoring (bin) {_SERVED}",
    ),
    _C: (
        "Mean confidence of labelled predictions, in bins with enough labels.",
        f"{_counted('feedback_confidence')} / ({_W} > 0) and {_counted('feedback')} >= {FEWEST}",
    ),
    _Y: ("Share of right ones among them.", f"{_counted('feedback_correct')} / ({_W} > 0) and {_C}"),
}
_NUMBERS = {
    _number("served_confidence"): (
        "Mean confidence of all predictions: the accuracy to expect while calibrated.",
        f"{_BINS} ({_counted('predictions_confidence')}) / {_SERVED}",
    ),
    _number("coverage"): (
        "Share of predictions in bins with enough labels: what the numbers below speak of.",
        f"{_BINS} ({_P} and {_C}) or {_BINS} ({_P}) * 0",
    ),
    _number("ece"): ("Expected calibration error (Naeini 2015).", _plain_mean(_GAP)),
    _number("noise_floor"): (
        "The ECE that a calibrated model would show on these labels, by chance alone.",
        _plain_mean(f"sqrt(0.6366197723675814 * {_V0})"),
    ),
    _number("gap_error"): (
        "Standard error of the signed gap of a calibrated model.",
        f"sqrt({_BINS} ({_P} ^ 2 * {_V})) / ({_number('coverage')} > 0)",
    ),
    _number("signed_gap"): (
        "Mean confidence minus accuracy: positive when overconfident.",
        _mean(f"({_C} - {_Y})"),
    ),
    _number("mce"): (
        "Largest gap of a bin with at least 20 labels.",
        f"max without (bin) (abs({_C} - {_Y}) and {_counted('feedback')} >= 20)",
    ),
    _number("accuracy"): ("Share of right predictions.", _mean(_Y)),
    _number("brier"): (
        "Top-label Brier score.",
        _mean(f"({_counted('feedback_squared_error')} / ({_W} > 0) and {_C})"),
    ),
    _number("confidence_psi"): (
        "Population stability index of the confidences against the artifact's reference.",
        f"{_BINS} (({_SHARE} - {_REFERENCE}) * ln({_SHARE} / {_REFERENCE})) and {_SERVED}",
    ),
}
_HOUR_ALONE = {
    _number("debiased_l2_squared"): (
        "Mean squared gap less what label noise explains (Kumar 2019); negative below noise.",
        _mean(f"(({_C} - {_Y}) ^ 2 - {_V})"),
    ),
}
"""Of the shortest window, for its alert."""


def _formulas(window: str) -> Mapping[str, tuple[str, str]]:
    return _FIRST | _PER_BIN | _NUMBERS | (_HOUR_ALONE if window == "1h" else {})


def recorded_series(windows: tuple[str, ...] = tuple(WINDOWS), *, bins: int = 15) -> int:
    """How many series the rules record for a model version with labels in every bin.

    >>> recorded_series(("24h",), bins=10)  # four columns and twelve numbers
    52
    """
    return sum(
        bins if series.startswith("model_version_bin:") else 1
        for window in windows
        for series in _formulas(window)
    )


# Every ``calib-serve watch`` on a ledger publishes the same numbers of a clause. Rules keep one of them: that
# which says worse where two scrapes are of different moments.

BURN_WINDOWS = ("5m", "30m", "1h", "6h", "3d")
"""Of burn rates, shortest first; all but the first two are long windows, which need evidence."""

_LONG = BURN_WINDOWS[2:]


def clause_number(name: str) -> str:
    """A recorded number of a clause.

    >>> clause_number("state")
    'model_version_clause:calib_contract_state'
    """
    return f"model_version_clause:calib_contract_{name}"


def burn(window: str) -> str:
    """How many times as fast as promised the budget is spent."""
    return clause_number(f"burn_rate:{window}")


def burn_low(window: str) -> str:
    """The least burn rate that the labels of the window leave, by their 95 % interval."""
    return clause_number(f"burn_rate_low:{window}")


def clause_gauge(name: str, *, more: str = "") -> str:
    """A gauge of clauses, which all replicas on one ledger publish alike; ``more``: a selector in braces."""
    return f"{SAME} (calib_contract_{name}{more})"


def _of_window(name: str, window: str) -> str:
    return f"max without ({REPLICA}, window) (calib_contract_{name}{{window='{window}'}})"


def _clause_formulas() -> Mapping[str, tuple[str, str]]:
    """series: (what it is, formula)."""
    return {
        clause_number("state"): (
            "1: kept; 0: not yet known; -1: broken.",
            f"{LEAST} (calib_contract_state)",
        ),
        clause_number("budget_spent"): (
            "Share of the error budget that is spent; above 1: overspent.",
            f"1 - {LEAST} (calib_contract_budget_left)",
        ),
        **{
            burn(window): (
                "Burn rate: 1 spends the budget in just its time.",
                _of_window("burn_rate", window),
            )
            for window in BURN_WINDOWS
        },
        **{
            burn_low(window): ("The least that its labels leave, 95 %.", _of_window("burn_rate_low", window))
            for window in _LONG
        },
    }


def recorded_clause_series() -> int:
    """How many series the rules record for a clause of a contract.

    >>> recorded_clause_series()
    10
    """
    return len(_clause_formulas())


def _contract_rules() -> str:
    """The group, as YAML."""
    rules = "".join(
        f"      # {says}\n      - record: {series}\n        expr: >-\n          {formula}\n"
        for series, (says, formula) in _clause_formulas().items()
    )
    return f"  - name: calib_contracts\n    interval: 1m\n    rules:\n{rules}"


def _ledger_rules() -> str:
    """The group of what the other groups read, as YAML."""
    rules = "".join(
        f"      - record: {in_ledger(name)}\n        expr: >-\n"
        f"          max without ({SCRAPE}) (calib_{name}_total{{ledger!=''}})\n"
        for name in SUMMED
    )
    return f"  - name: calib_ledgers\n    interval: 30s\n    rules:\n{rules}"


def _rules(window: str, reads: str) -> str:
    """The rules of one window; ``reads``: the range of ``increase``."""
    return (
        "".join(
            f"      # {says}\n      - record: {series}\n        expr: >-\n          {formula}\n"
            for series, (says, formula) in _formulas(window).items()
        )
        .replace("{w}", window)
        .replace("{r}", reads)
    )


def rules_file(windows: Mapping[str, tuple[str, str]] = WINDOWS) -> str:
    """The file, for windows like ``WINDOWS``."""
    groups = "".join(
        f"  - name: calib_{window}\n    interval: {interval}\n    rules:\n{_rules(window, reads)}"
        for window, (reads, interval) in windows.items()
    )
    head = "# Written by calib-serve export monitoring.\ngroups:\n"
    return f"{head}{_ledger_rules()}{groups}{_contract_rules()}"

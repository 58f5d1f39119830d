"""Cases for ``promtool test rules``: series of known predictions and labels, and what must come of them.

Recorded numbers are computed by numpy from the predictions themselves. An alert is given what it reads as it
is, so that every bound is met to the digit: each fires just above it and not just below, after its ``for``,
and ends. Worlds of one case are told apart by a label ``env``, which no rule may drop; gauges and counters
come from two replicas, which differ in every label that rules must drop.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rules_by_numpy import BINS, bins_by_numpy, bins_of, by_numpy

from calib_serve.monitoring import REPLICA_LABELS, MonitoringOptions
from calib_serve.monitoring.alerts import alerts
from calib_serve.monitoring.queries import in_ledger
from calib_serve.monitoring.rules import SUMMED
from calib_serve.watch.series import CONTRACTS, LEDGER_LABELS, SERIES, SUMS, WATCH, WORKERS

ALERTS = alerts(MonitoringOptions())
DECLARED = {series.name: series.labels for series in (*SERIES, *WORKERS, *WATCH, *CONTRACTS)}
LABELS = {
    "model": "m", "version": "1", "bin": "3", "clause": "act", "kind": "class", "slice": "7",
    "source": "lab", "stage": "ledger", "check": "clock",
}  # fmt: skip
OTHER_WINDOW = {"24h": "7d", "7d": "24h"}


@dataclass(frozen=True, eq=False)
class Case:
    """One test of promtool: ``asks`` holds its questions by kind."""

    name: str
    about: frozenset[str]
    step: int
    series: tuple[tuple[str, str], ...]
    asks: Mapping[str, list[dict[str, Any]]]
    files: tuple[str, ...] = ("alerts.yml",)
    evaluated: int = 0
    """Minutes between two evaluations, where they are not the ``step`` between two samples."""

    def test(self) -> dict[str, Any]:
        """Return the test as promtool reads it."""
        series = [{"series": name, "values": values} for name, values in self.series]
        test = {"name": self.name, "interval": f"{self.step}m", "input_series": series, **self.asks}
        head = {"rule_files": list(self.files), "evaluation_interval": f"{self.evaluated or self.step}m"}
        return {**head, "tests": [test]}


def promtool(case: Case, texts: Mapping[str, str]) -> str:
    """Run a case with the rules that it is about, of the files ``texts``; return complaints, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for file in case.files:
            groups = yaml.load(texts[file], yaml.CSafeLoader)["groups"]
            kept = [
                {**group, "rules": rules}
                for group in groups
                if (
                    rules := [
                        one for one in group["rules"] if one.get("alert", one.get("record")) in case.about
                    ]
                )
            ]
            _write(Path(folder, file), {"groups": kept})
        _write(Path(folder, "case.yml"), case.test())
        done = subprocess.run(
            ["promtool", "test", "rules", "case.yml"], cwd=folder, check=False, capture_output=True, text=True
        )
    return (done.stdout + done.stderr or "failed") if done.returncode else ""


def _write(path: Path, whole: Any) -> None:
    text = yaml.dump(whole, Dumper=yaml.CSafeDumper, width=1_000_000, allow_unicode=True, sort_keys=False)
    path.write_text(text, "utf-8")


def cases() -> list[Case]:
    """Return all cases."""
    return [*ledger_cases(), *number_cases(), *clause_cases(), *map(row_case, ROWS), *ONE_BY_ONE, *TEXTS]


def selector(name: str, **labels: str) -> str:
    """Return ``name{label="value",...}``; ``name`` may come with some in braces."""
    name, _, own = name.partition("{")
    told = [own.rstrip("}").replace("'", '"')] if own else []
    return f"{name}{{{','.join([*told, *(f'{key}={json.dumps(value)}' for key, value in labels.items())])}}}"


def replica(letter: str) -> dict[str, str]:
    return dict.fromkeys(REPLICA_LABELS, letter)


def of(letter: str, name: str) -> str:
    """Return ``name`` as one replica publishes it."""
    bare, _, own = name.partition("{")
    told = ",".join(f"{label}='{letter}'" for label in REPLICA_LABELS)
    return f"{bare}{{{own.rstrip('}') + ',' if own else ''}{told}}}"


def wanted(samples: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"labels": labels, "value": float(value)} for labels, value in samples]


# --- recorded numbers --------------------------------------------------------------------------------------

WINDOWS = {"1h": (1, 60), "24h": (2, 720), "7d": (15, 672)}
"""Minutes from sample to sample, and how many of them."""
HOUR_ALONE = "debiased_l2_squared"
NUMBERS = (
    "labels", "served", "served_confidence", "coverage", "ece", "noise_floor", "gap_error", "signed_gap",
    "mce", "accuracy", "brier", "confidence_psi", HOUR_ALONE,
)  # fmt: skip
COLUMNS = ("weight", "share", "confidence", "accuracy")


@dataclass(frozen=True, eq=False)
class World:
    """Predictions of one version: ``served`` and ``labelled`` say how often each counts as what.

    ``served`` is NaN in bins whose predictions no counter counts.
    """

    name: str
    c: np.ndarray
    y: np.ndarray
    w: np.ndarray
    served: np.ndarray
    labelled: np.ndarray
    reference: np.ndarray | None = None
    effect: float | None = None

    @property
    def numbers(self) -> Mapping[str, float]:
        return by_numpy(
            self.c, self.y, self.w, self.labelled, self.reference,
            served=self.served, effect=self.effect or 1.0,
        )  # fmt: skip

    @property
    def bins(self) -> Mapping[str, np.ndarray]:
        return bins_by_numpy(self.c, self.y, self.w, self.labelled, served=self.served)


def world(
    name: str, labels: Mapping[int, float], served: Mapping[int, float],
    gaps: float | Mapping[int, float] = 0.1, *, weight: float = 1.0,
    reference: Mapping[int, float] | None = None, seed: int = 0, **more: Any,
) -> World:  # fmt: skip
    """Draw predictions: ``labels`` and ``served`` of each bin, which is off by ``gaps``; 40 rows a bin."""
    rng = np.random.default_rng(seed)
    b = np.repeat(sorted({*labels, *served}), 40)
    c = (b + rng.uniform(0.05, 0.95, len(b))) / BINS
    off = np.array([gaps if isinstance(gaps, float) else gaps.get(int(k), 0.0) for k in b])
    y = (rng.random(len(b)) < np.clip(c - off, 0, 1)).astype(float)
    w = weight * np.where(rng.random(len(b)) < 0.5, 1.0, 4.0)
    often = [np.array([of.get(int(k), 0) / 40 for k in b]) for of in (served, labels)]
    shares = None
    if reference is not None:
        shares = np.full(BINS, np.nan)
        shares[list(reference)] = list(reference.values())
    return World(name, c, y, w, *often, reference=shares, **more)


_FLAT = dict.fromkeys((2, 5, 8), 0.0)
WORLDS = (
    # Bin 8 is off the most, and has 19 labels; bin 10, the next, has 21. Bin 14 lacks a counter.
    world(
        "plain", {2: 300, 5: 120, 8: 19, 10: 21, 13: 4.8, 14: 30},
        {2: 500, 5: 900, 8: 250, 10: 150, 13: 3000, 14: math.nan},
        {2: -0.2, 5: 0.1, 8: 0.6, 10: 0.5}, effect=2.0,
        reference={2: 0.1, 5: 0.2, 8: 0.3, 10: 0.15, 13: 0.25},
    ),
    # Labels that few need are five; an effect below 1 is none.
    world("few", {1: 40, 5: 5.2, 9: 4.8}, {1: 600, 5: 200, 9: 200, 12: 50}, 0.2, effect=0.5),
    # A bin without predictions, and one without any in the reference.
    world("narrow", {3: 60}, {3: 70, 7: 0, 11: 30}, reference={3: 0.5, 7: 0.49999, 11: 0.00001}),
    # Labels speak of 4 in 1,000 predictions.
    world("sliver", {4: 30}, {4: 4, 14: 996}, -0.3),
    world(
        "labels alone", {2: 90, 7: 30, 12: 25}, dict.fromkeys((2, 7, 12), math.nan), weight=3.0, effect=1.3
    ),
    world("counted elsewhere", {2: 90, 7: 30, 12: 25}, {3: 0}, reference={2: 0.5, 3: 0.5}),
    # The labelled predictions were served before the window.
    world("unserved", {6: 50}, {6: 0, 9: 80}, 0.2),
    world("uncovered", {6: 4.8}, {6: 80, 9: 80}),
    world("idle", _FLAT, _FLAT, reference={2: 0.5, 5: 0.3, 8: 0.2}),
    world("tiny", {0: 8, 1: 6}, {0: 0.001, 1: 0.003}, weight=0.0005, reference={0: 0.5, 1: 0.5}),
)  # fmt: skip


def number_cases() -> Iterator[Case]:
    """Every world in every window: promtool reads no more than 10,000 samples at once, so one a case."""
    for window, (step, many) in WINDOWS.items():
        for one in WORLDS:
            asks, about = [], set()
            for name in NUMBERS if window == "1h" else [name for name in NUMBERS if name != HOUR_ALONE]:
                samples = [("", one.numbers[name])] if name in one.numbers else []
                asks.append(_recorded(f"model_version:calib_{name}:{window}", samples))
                about.add(f"model_version:calib_{name}:{window}")
            for name in COLUMNS:
                found = [(f'bin="{k}"', value) for k, value in enumerate(one.bins[name]) if value == value]
                asks.append(_recorded(f"model_version_bin:calib_{name}:{window}", found))
                about.add(f"model_version_bin:calib_{name}:{window}")
            asks = [{"eval_time": f"{2 * step * many}m", **ask} for ask in asks]
            yield Case(
                f"{window}: {one.name}", frozenset(about), step, tuple(_counters(one, many)),
                {"promql_expr_test": asks}, files=("rules.yml",), evaluated=step * many,
            )  # fmt: skip


def _recorded(series: str, samples: list[tuple[str, float]]) -> dict[str, Any]:
    """Ask for a number of the version to six places, and so for its labels."""
    found = []
    for labels, value in samples:
        told = ",".join(part for part in ('env="a",model="m",version="1"', labels) if part)
        found.append((f"{{{told}}}", math.floor(value * 1e6 + 0.5) / 1e6))
    return {"expr": f"round({series}, 1e-6)", "exp_samples": wanted(found)}


def _counters(one: World, many: int) -> Iterator[tuple[str, str]]:
    """Yield what two ledgers hold; one of predictions is none, and restarts in the middle of the window."""
    b, own = bins_of(one.c), {"model": "m", "version": "1", "env": "a"}
    sums = [total for total in SUMS if total.published and total.per == "bin"]
    for k in np.unique(b):
        on = b == k
        for total in sums:
            often = one.served if total.of == "predictions" else one.labelled
            if np.isnan(often[on]).any():
                continue
            each = total.adds(one.c[on], one.y[on] * (total.of == "labels"), _weight(total, one.w[on]))
            rise = float((often[on] * each).sum())
            for letter, part in (("a", 0.75), ("b", 0.25)):
                beside = letter == "b" and total.of == "predictions"
                name = total.name if beside else in_ledger(total.name.split("_", 1)[1].removesuffix("_total"))
                where = set(REPLICA_LABELS) - set(LEDGER_LABELS) if beside else LEDGER_LABELS
                values = _rising(rise * part, many, restarts=beside)
                yield selector(name, **own, bin=str(k), **dict.fromkeys(sorted(where), letter)), values
        if one.reference is not None and not np.isnan(one.reference[k]):
            yield from _gauge("calib_reference_share", float(one.reference[k]), 2 * many, bin=str(k))
    if one.effect:
        yield from _gauge("calib_window_design_effect", one.effect, 2 * many, window="24h")
        yield from _gauge("calib_window_design_effect", 5.0, 2 * many, window="7d")


def ledger_cases() -> Iterator[Case]:
    """Of each ledger and edition, the greatest of what is published: two replicas share one of them."""
    for name in SUMMED:
        series, labels = in_ledger(name), {**MODEL, "env": "a", "bin": "3"}
        scrape = set(REPLICA_LABELS) - set(LEDGER_LABELS)
        given = [
            (
                selector(f"calib_{name}_total", **labels, **ledger, **dict.fromkeys(scrape, letter)),
                f"{value}x5",
            )
            for letter, ledger, value in (
                ("a", {"ledger": "one", "edition": "1"}, 7),
                ("b", {"ledger": "one", "edition": "1"}, 9),
                ("a", {"ledger": "one", "edition": "2"}, 3),
                ("c", {"ledger": "two", "edition": "1"}, 5),
                ("d", {}, 100),
            )
        ]
        found = [
            (
                f'{series}{{bin="3",edition="{edition}",env="a",ledger="{ledger}",model="m",version="1"}}',
                value,
            )
            for ledger, edition, value in (("one", "1", 9), ("one", "2", 3), ("two", "1", 5))
        ]
        ask = {"expr": series, "eval_time": "3m", "exp_samples": wanted(found)}
        yield Case(
            series, frozenset({series}), 1, tuple(given), {"promql_expr_test": [ask]}, files=("rules.yml",)
        )


def _weight(total: Any, w: np.ndarray) -> np.ndarray:
    return w if total.of == "labels" else np.ones_like(w)


def _gauge(name: str, value: float, many: int, **labels: str) -> Iterator[tuple[str, str]]:
    """Yield a gauge of two replicas, of which the larger counts."""
    for letter, part in (("a", 1.0), ("b", 0.7)):
        own = {"model": "m", "version": "1", "env": "a", **labels, **replica(letter)}
        yield selector(name, **own), f"{value * part!r}x{many}"


def _rising(total: float, many: int, *, restarts: bool) -> str:
    """Return samples of a counter that rises by ``total`` in the window, and by twice as much before it."""
    step = total / many
    before = f"0+{2 * step!r}x{many - 1} "
    if not restarts:
        return f"{before}{2 * total!r}+{step!r}x{many}"
    half = many // 2
    return f"{before}{2 * total!r}+{step!r}x{half} {step!r}+{step!r}x{many - half - 1}"


def clause_cases() -> Iterator[Case]:
    """Of clauses, each number is the worse one of two replicas."""
    gauges = {
        "state": ("calib_contract_state", (1, 0), 0),
        "budget_spent": ("calib_contract_budget_left", (0.3, 0.2), 0.8),
    }
    for window in ("5m", "30m", "1h", "6h", "3d"):
        gauges[f"burn_rate:{window}"] = (f"calib_contract_burn_rate{{window='{window}'}}", (3, 5), 5)
        if window in ("1h", "6h", "3d"):
            name = f"calib_contract_burn_rate_low{{window='{window}'}}"
            gauges[f"burn_rate_low:{window}"] = (name, (2, 4), 4)
    for name, (gauge, values, expected) in gauges.items():
        series, own = f"model_version_clause:calib_contract_{name}", {"env": "a", "clause": "act", **MODEL}
        given = [
            (selector(gauge, **own, **replica(letter)), f"{value}x5")
            for letter, value in zip("ab", values, strict=True)
        ]
        if "window" in gauge:
            other = re.sub(r"'\w+'", "'24h'", gauge)
            given.append((selector(other, **own, **replica("a")), "9x5"))
        labels = '{clause="act",env="a",model="m",version="1"}'
        ask = {
            "expr": f"round({series}, 1e-6)",
            "eval_time": "3m",
            "exp_samples": wanted([(labels, expected)]),
        }
        yield Case(
            series, frozenset({series}), 1, tuple(given), {"promql_expr_test": [ask]}, files=("rules.yml",)
        )


MODEL = {"model": "m", "version": "1"}

# --- alerts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class If:
    """What an alert asks of one series: met just beyond ``bound``, or at it where it may be met.

    ``also_without``: the alert fires where there is no such series, too. ``near``: the bound is computed by
    the rule, and so not known to the digit.
    """

    series: str
    op: str
    bound: float
    also_without: bool = False
    near: bool = False

    @property
    def values(self) -> tuple[float, float]:
        """Return a value that just meets it and one that just does not."""
        nearly = max(abs(self.bound) * 1e-3, 1e-3) if not self.near else 1e-3 * abs(self.bound)
        up = 1 if self.op in (">", ">=") else -1
        if self.op == "==":
            return self.bound, self.bound + nearly
        if self.near:
            return self.bound + up * nearly, self.bound - up * nearly
        inside = 0 if self.op in (">=", "<=") else up
        return self.bound + inside * nearly, self.bound - (0 if inside else up) * nearly


Values = Mapping[str, float | str]


@dataclass(frozen=True)
class Row:
    """An alert and when it fires: after ``lasts`` minutes of all ``ifs``, and in the worlds of ``fires``.

    ``given`` is there in every world. ``quiet``: further worlds in which it must not fire; both change what
    just fires, and take away a series by ``None``; a string is in promtool's own notation. ``keeps``: minutes
    for which it fires on where its series are gone; ``over``: minutes in which counters must have risen.
    """

    alert: str
    severity: str
    lasts: int
    ifs: tuple[If, ...]
    window: str = ""
    given: Values = field(default_factory=dict)
    fires: Mapping[str, Mapping[str, float | str | None]] = field(default_factory=dict)
    quiet: Mapping[str, Mapping[str, float | str | None]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=lambda: MODEL)
    step: int = 1
    keeps: int = 0
    over: int = 0


CLAUSE = {**MODEL, "clause": "act"}
CLAUSES = "model_version_clause:calib_contract_"
SIGMAS = 4 * math.sqrt(1 - 2 / math.pi)
"""Four standard errors of a gap, in errors of an ECE: its bins' gaps are half-normal."""
HOUR, DAY, WEEK = (f"model_version:calib_{{}}:{window}" for window in WINDOWS)
COUNTED = If("calib_window_predictions{window='24h'}", ">", 0)
REFUSED, UNREAD = (
    "calib_feedback_refused_total{reason='expired'}",
    "calib_feedback_refused_total{reason='duplicate'}",
)
_BEFORE = "0x3 {0}x65 {1}x300"
"""Refused in the hour before, and now."""
SCRAPED = {"job": "calib-serve-watch", "instance": "a"}
_ENDS = "_x3 1x1 _x90"
_SERVING = {"calib_predictions_total": 5}


def _off(alert: str, series: str, lasts: int, labels: Mapping[str, str]) -> Row:
    """Return the row of a gap that is off by four errors more than .02, to either side."""
    error = f"{series}_error"
    return Row(
        alert, "warning", lasts, (If(series, ">", 0.02 + 4 * 0.01, near=True),), given={error: 0.01},
        fires={"under": {series: -0.0601}},
        quiet={
            "nearly under": {series: -0.0599},
            "just the tolerance": {series: 0.02, error: 0},
            "just the tolerance, under": {series: -0.02, error: 0},
            "without an error": {error: None},
        },
        labels={**MODEL, **labels},
    )  # fmt: skip


def _burning(rate: float, long: str, short: str, severity: str) -> Row:
    return Row(
        "ContractBurning", severity, 0,
        (
            If(f"{CLAUSES}burn_rate_low:{long}", ">", rate),
            If(f"{CLAUSES}burn_rate:{short}", ">", rate, also_without=True),
        ),
        window=long, given={f"{CLAUSES}burn_rate:{long}": 2 * rate}, labels=CLAUSE,
        quiet={"without a rate": {f"{CLAUSES}burn_rate:{long}": None}},
    )  # fmt: skip


def _counted(alert: str, severity: str, series: str, labels: Mapping[str, str]) -> Row:
    return Row(alert, severity, 0, (If(series, ">", 0),), labels=labels, over=15)


def _receipts(alert: str, severity: str, reason: str) -> Row:
    series = f"calib_feedback_refused_total{{reason='{reason}'}}"
    return Row(
        alert, severity, 0, (If(series, ">=", 5),), labels={}, over=60,
        quiet={"others": {series: 0, REFUSED: 50}},
    )  # fmt: skip


ROWS = (
    Row(
        "CalibrationErrorHigh", "warning", 5,
        (If("calib_window_debiased_ece_low{window='24h'}", ">", 0.02), COUNTED), window="24h",
    ),
    Row(
        "CalibrationErrorHigh", "warning", 5,
        (
            If(HOUR.format("ece"), ">", 0.01 + SIGMAS * 0.01, near=True),
            If(HOUR.format("debiased_l2_squared"), ">", 0.0004, near=True),
            If(HOUR.format("labels"), ">=", 500),
            If(HOUR.format("coverage"), ">=", 0.5),
        ),
        window="1h", given={HOUR.format("noise_floor"): 0.01, HOUR.format("gap_error"): 0.01},
        fires={
            "not counted": {COUNTED.series: 0},
            "counted over a week": {"calib_window_predictions{window='7d'}": 5, COUNTED.series: 0},
            "most wait": {"calib_window_immature_share{window='24h'}": 0.95},
            "all of a week wait": {"calib_window_immature_share{window='7d'}": 1},
        },
        quiet={
            "counted": {COUNTED.series: 0.005},
            "all wait": {"calib_window_immature_share{window='24h'}": 1},
            "all counted": {COUNTED.series: 0.005, "calib_window_immature_share{window='24h'}": 0.1},
            "no gap": {HOUR.format(name): 0 for name in ("ece", "noise_floor", "gap_error")},
            "just the tolerance": {HOUR.format("debiased_l2_squared"): 0.0004},
        },
    ),
    Row(
        "CalibrationDrift", "warning", 0, (If("calib_incidents_open", ">", 0),), keeps=15,
        fires={
            "another before": {"calib_incidents_open": "0x1 2x3 stale"},
            # The gap is there for longer than the incident.
            "with a gap": {"calib_incidents_open": _ENDS, "calib_incident_gap": "0.1x90"},
            "by a window": {
                "calib_incidents_open": _ENDS,
                "calib_window_gap{window='24h'}": "0.1x90",
                COUNTED.series: "9x90",
            },
            "by sums": {"calib_incidents_open": _ENDS, DAY.format("signed_gap"): "0.1x90"},
        },
        quiet={
            "a gap": {"calib_incidents_open": 0, "calib_incident_gap": 0.1},
            "a window": {
                "calib_incidents_open": 0, "calib_window_gap{window='24h'}": 0.1, COUNTED.series: 9,
            },
            "sums": {"calib_incidents_open": 0, DAY.format("signed_gap"): 0.1},
            "a gap alone": {"calib_incidents_open": None, "calib_incident_gap": 0.1},
        },
    ),
    _off("ClassOrSegmentOff", "calib_slice_gap", 5, {"kind": "class", "slice": "7"}),
    _off("CalibrationSourceDiffers", "calib_source_gap_difference", 15, {"source": "lab"}),
    Row(
        "ConfidenceShift", "warning", 15,
        (If(HOUR.format("confidence_psi"), ">", 0.2), If(HOUR.format("served"), ">=", 500)),
    ),
    Row(
        "ContractBroken", "critical", 0, (If(f"{CLAUSES}state", "==", -1),), keeps=15, labels=CLAUSE,
        quiet={"kept": {f"{CLAUSES}state": 1}, "mended": {f"{CLAUSES}state": "-1x1 1x40"}},
    ),
    _burning(14.4, "1h", "5m", "critical"),
    _burning(6, "6h", "30m", "critical"),
    _burning(1, "3d", "6h", "warning"),
    Row(
        "ContractBudgetGone", "warning", 60, (If(f"{CLAUSES}budget_spent", ">=", 1),), labels=CLAUSE,
        given={f"{CLAUSES}state": 0}, fires={"without a state": {f"{CLAUSES}state": None}},
        quiet={"broken": {f"{CLAUSES}state": -1}},
    ),
    Row(
        "ContractBudgetRunsOut", "warning", 60,
        (
            If("calib_contract_runs_out_seconds", "<", 3 * 86_400),
            If(f"{CLAUSES}budget_spent", ">", 0.5),
        ),
        labels=CLAUSE, fires={"nearly spent": {f"{CLAUSES}budget_spent": 0.999}},
        quiet={"spent": {f"{CLAUSES}budget_spent": 1}},
    ),
    Row(
        "ContractNotKnown", "warning", 1440, (If(DAY.format("served"), ">=", 1000),), step=10,
        given={"calib_contract_promise": 0.98}, labels=CLAUSE,
        quiet={"known": {"calib_contract_value": 0}, "no contract": {"calib_contract_promise": None}},
    ),
    Row(
        "LabelsMissing", "warning", 60,
        (If(DAY.format("served"), ">=", 1000), If(DAY.format("labels"), "<=", 0, also_without=True)),
        window="24h", quiet={"a little": {DAY.format("labels"): 0.005}},
    ),
    Row(
        "LabelsMissing", "warning", 60,
        (
            If(WEEK.format("served"), ">=", 1000),
            If(WEEK.format("labels"), "<=", 0, also_without=True),
            If(DAY.format("served"), "<", 1000, also_without=True),
        ),
        window="7d",
    ),
    Row(
        "LabelsFew", "info", 360,
        (If(DAY.format("labels"), "<", 200), If(DAY.format("served"), ">=", 1000)), step=5,
        fires={"a light one": {DAY.format("labels"): 0.005}}, quiet={"none": {DAY.format("labels"): 0}},
    ),
    Row(
        "PredictionsFew", "warning", 60,
        (If(DAY.format("served"), "<", 0.1 * 1000 / 7, near=True), If(WEEK.format("served"), ">=", 1000)),
        given=_SERVING,
        quiet={
            "gone": {"calib_predictions_total": None},
            "few in the week": {DAY.format("served"): 1, WEEK.format("served"): 999},
            "a tenth": {DAY.format("served"): 100, WEEK.format("served"): 7000},
        },
    ),
    Row("LabelRateMoved", "warning", 60, (If("calib_label_rate_moved", "==", 1),)),
    Row(
        "LabelsImmature", "info", 1440,
        (If("calib_window_immature_share{window='7d'}", ">", 0.9), If(WEEK.format("labels"), ">=", 100)),
        step=10,
    ),
    Row(
        "CoverageLow", "info", 360,
        (If("calib_window_coverage{window='24h'}", "<", 0.5), If(DAY.format("labels"), ">=", 100), COUNTED),
        step=5, given={DAY.format("coverage"): 0.9},
        fires={"by sums": {"calib_window_coverage{window='24h'}": None, DAY.format("coverage"): 0.499}},
        quiet={
            "by sums, enough": {"calib_window_coverage{window='24h'}": None, DAY.format("coverage"): 0.5},
            "sums of which watch knows better": {
                "calib_window_coverage{window='24h'}": 0.9, DAY.format("coverage"): 0.1,
            },
        },
    ),
    Row(
        "LabelsRefused", "warning", 5, (If(REFUSED, ">=", 20),), labels={}, over=60,
        given={HOUR.format("labels"): 370},
        fires={
            "no label": {HOUR.format("labels"): None},
            "two reasons": {REFUSED: 12, REFUSED.replace("expired", "bad_label"): 8},
            "many before": {REFUSED: _BEFORE.format(1000, 1020)},
            "many sent twice": {UNREAD: 900},
        },
        quiet={
            "one in twenty": {HOUR.format("labels"): 382},
            "one in twenty, and many before": {REFUSED: _BEFORE.format(100, 120), HOUR.format("labels"): 395},
            "one in twenty, and many sent twice": {HOUR.format("labels"): 385, UNREAD: 900},
            "few, and many before": {REFUSED: _BEFORE.format(100, 119), HOUR.format("labels"): 10},
            "few, and many sent twice": {REFUSED: 19, HOUR.format("labels"): 10, UNREAD: 900},
            "another model's labels": {HOUR.format("labels") + "{model='n',version='2'}": 100},
            "sent twice": {REFUSED: 0, UNREAD: 900},
            "not wanted": {REFUSED: 0, "calib_feedback_refused_total{reason='not_wanted'}": 900},
        },
    ),
    _receipts("ReceiptsForged", "critical", "bad_signature"),
    _receipts("KeysUnknown", "warning", "unknown_key"),
    Row(
        "MonitorDown", "warning", 5, (If("up", "==", 0),), labels=SCRAPED,
        quiet={"of others": {"up": None, "up{job='node',instance='b'}": 0}},
    ),
    Row("MonitorStale", "warning", 5, (If("calib_windows_age_seconds", ">", 900),), labels={}),
    _counted("MonitorErrors", "warning", "calib_monitor_errors_total", {"stage": "ledger"}),
    Row(
        "CalibrationCheckFailing", "warning", 2, (If("calib_check_ok", "==", 0),),
        labels={"check": "clock"},
    ),
    _counted("InvalidOutputs", "critical", "calib_invalid_outputs_total", MODEL),
    _counted("Uncalibrated", "critical", "calib_uncalibrated_total", MODEL),
)  # fmt: skip

PLAIN = {
    "up": ("job", "instance"),
    "prometheus_rule_group_last_evaluation_timestamp_seconds": ("rule_group",),
}
SMALLER_COUNTS = {"calib_check_ok"}


def published(name: str, env: str, values: float | str, **timeline: Any) -> Iterator[tuple[str, str]]:
    """Yield a series with its own labels and ``env``; gauges and counters come from two replicas."""
    bare = name.partition("{")[0]
    told = set(re.findall(r"(\w+)=", name))
    if bare.startswith("model_version"):
        labels = {"model", "version"} | set(re.findall(r"^model_version_(\w+):", bare))
        parts = [({}, values)]
    elif bare in PLAIN or isinstance(values, str):
        labels, parts = set(PLAIN.get(bare) or DECLARED[bare]), [({}, values)]
    else:
        labels = set(DECLARED[bare])
        other = values + (1 if bare in SMALLER_COUNTS else -1) * (abs(values) / 2 + 0.01)
        both = (0.75 * values, 0.25 * values) if bare.endswith("_total") else (values, other)
        parts = [(replica(letter), part) for letter, part in zip("ab", both, strict=True)]
    own = {label: (SCRAPED | LABELS)[label] for label in sorted(labels - told - {"window", "reason"})}
    for more, part in parts:
        yield (
            selector(name, env=env, **own, **more),
            part if isinstance(part, str) else over_time(part, bare, **timeline),
        )


def over_time(value: float, name: str, *, start: int, end: int, forever: bool, over: int) -> str:
    """Return samples: counters rise at the start, all else is there from the start to the end."""
    if over and name.endswith("_total"):
        return f"0x{start - 1} {value!r}x{end}"
    return f"{value!r}x{end + 60}" if over or forever else f"_x{start} {value!r}x{end - start - 1} stale"


def worlds(row: Row) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the worlds in which an alert fires and those in which it does not: series and their values."""
    base = {**row.given, **{one.series: one.values[0] for one in row.ifs}}
    fires, quiet = {"just": base}, {}
    for one in row.ifs:
        quiet[f"not {one.series} {one.op} {one.bound:g}"] = {**base, one.series: one.values[1]}
        (fires if one.also_without else quiet)[f"without {one.series}"] = {**base, one.series: None}
    for found, more in ((fires, row.fires), (quiet, row.quiet)):
        found |= {name: {**base, **changed} for name, changed in more.items()}
    # Another window says the contrary.
    for found, contrary in ((fires, 1), (quiet, 0)):
        for one in row.ifs:
            if window := re.search(r"(?<=window=')\w+", one.series):
                other = one.series.replace(window[0], OTHER_WINDOW[window[0]])
                for values in found.values():
                    values.setdefault(other, one.values[contrary])
    return fires, quiet


def row_case(row: Row) -> Case:
    """Return the case of a row."""
    fires, quiet = worlds(row)
    start = row.over + 10 if row.over else 3
    end = start + row.lasts // row.step + 2
    asked: dict[int, list[str]] = {}
    if row.lasts:
        asked[row.step * start + row.lasts - row.step] = []
    asked[row.step * start + row.lasts] = list(fires)
    if row.over:
        asked |= {start + row.over - 2: list(fires), start + row.over + 1: []}
    elif row.keeps:
        asked |= {end - 2 + row.keeps: list(fires), end + 1 + row.keeps: []}
    else:
        asked[row.step * end] = []
    series = [
        pair
        for worlds_, forever in ((fires, False), (quiet, True))
        for env, values in worlds_.items()
        for name, value in values.items()
        if value is not None
        for pair in published(
            name, env, value, start=start, end=end + row.over, forever=forever, over=row.over
        )
    ]  # fmt: skip
    return firing(row.alert, row.severity, row.step, series, asked, window=row.window, labels=row.labels)


def firing(
    alert: str, severity: str, step: int, series: list[tuple[str, str]], asked: Mapping[int, list[str]],
    *, window: str = "", labels: Mapping[str, str] = MODEL,
) -> Case:  # fmt: skip
    """Return a case that asks in which worlds the alert fires, after so many minutes."""
    own = {"alertname": alert, "alertstate": "firing", "severity": severity}
    expression = selector("ALERTS", **own, window=window)
    own |= {"window": window} if window else {}
    asks = [
        {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": wanted([(selector("ALERTS", **own, **labels, env=env), 1) for env in envs]),
        }
        for minute, envs in asked.items()
    ]
    name = f"{alert} {window}".strip()
    return Case(name, frozenset({alert}), step, tuple(series), {"promql_expr_test": asks})


def alone(alert: str, severity: str, series: list[tuple[str, str]], asked: Mapping[int, int]) -> Case:
    """Return a case of an alert without labels of its own: whether it fires, after so many minutes."""
    fired = selector("ALERTS", alertname=alert, alertstate="firing", severity=severity)
    asks = [
        {
            "expr": selector("ALERTS", alertname=alert, alertstate="firing"),
            "eval_time": f"{minute}m",
            "exp_samples": wanted([(fired, 1)] * there),
        }
        for minute, there in asked.items()
    ]
    return Case(f"{alert} alone", frozenset({alert}), 1, tuple(series), {"promql_expr_test": asks})


def _given(envs: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    return [
        pair
        for env, values in envs.items()
        for name, each in values.items()
        for pair in published(name, env, each)
    ]


_STATE, _LABELLED = f"{CLAUSES}state", "calib_contract_labels"
_FEW = {of("a", "calib_predictions_total"): "5x900"}
_RISING = {_STATE: "0x61", of("a", _LABELLED): "10+1x61", of("b", _LABELLED): "5x61"}


def _evaluated(letter: str, group: str = "calib_24h") -> str:
    series = "prometheus_rule_group_last_evaluation_timestamp_seconds"
    return of(letter, f"{series}{{rule_group='rules.yml;{group}'}}")


ONE_BY_ONE = (
    # The contract was there for half an hour, a day before.
    firing(
        "ContractGone", "warning", 5,
        _given({
            "gone": {_STATE: "0x6 _x900", **_FEW},
            "there": {_STATE: "0x900", **_FEW},
            "never there": _FEW,
            "with its version": {_STATE: "0x6 _x900"},
        }),
        {1450: [], 1455: ["gone"], 1465: ["gone"], 1485: []}, labels=CLAUSE,
    ),
    firing(
        "ContractNotKnown", "info", 360,
        _given({
            "doubtful": _RISING,
            "decided long ago": {**_RISING, _STATE: "1 0x60"},
            "broken since": {**_RISING, _STATE: "0x1 -1 0x59"},
            "broken now": {**_RISING, _STATE: "0x55 -1 0x9"},
            "without labels": {**_RISING, of("a", _LABELLED): "10x61"},
        }),
        {55 * 360: [], 57 * 360: ["decided long ago", "doubtful"],
         59 * 360: ["broken since", "decided long ago", "doubtful"]},
        window="14d", labels=CLAUSE,
    ),
    # At a quarter of an hour the group was evaluated 900 seconds ago.
    firing(
        "RulesStale", "warning", 1,
        _given({
            "stands": {_evaluated("a"): "0x99"},
            "one of two": {_evaluated("a"): "0+60x99", _evaluated("b"): "0x99"},
            "evaluated": {_evaluated("a"): "0+60x99"},
            "of others": {_evaluated("a", "others"): "0x99"},
        }),
        {20: [], 21: ["one of two", "stands"]}, labels={"rule_group": "rules.yml;calib_24h"},
    ),
    alone(
        "MonitorAbsent", "critical", [('up{job="node"}', "1x40"), ('up{job="triton"}', "1x9 stale")],
        {19: 0, 20: 1},
    ),
    firing(
        "MonitorAbsent", "critical", 5,
        [
            ('up{job="torchserve"}', "1x400"),
            (selector(HOUR.format("served"), env="gone", **MODEL), "100x287 stale"),
            (selector(HOUR.format("served"), env="one of two", **MODEL), "100x287 stale"),
            (selector(HOUR.format("served"), env="one of two", model="m", version="2"), "100x400"),
            (selector(HOUR.format("served"), env="both", **MODEL), "100x287 stale"),
            (selector(HOUR.format("served"), env="both", model="n", version="1"), "100x287 stale"),
        ],
        {1440 + 5: [], 1440 + 10: ["both", "gone"]}, labels={},
    ),
    alone("CalibrationWatchdog", "none", [], {1: 1}),
)  # fmt: skip

# --- texts -------------------------------------------------------------------------------------------------


def says(
    alert: str, minute: int, told: list[tuple[Mapping[str, str], str, str]], window: str = ""
) -> dict[str, Any]:
    """Ask what an alert says: for each that fires its labels, summary, and what follows its fixed words."""
    (one,) = [one for one in ALERTS if one.name == alert and one.window == window]
    link = f"docs/monitoring.md#{alert.lower()}"
    own = {"severity": one.severity, **({"window": window} if window else {})}
    found = [
        {
            "exp_labels": {**own, **labels},
            "exp_annotations": {
                "summary": summary, "description": f"{one.says}{text} Runbook: {link}", "runbook_url": link,
            },
        }
        for labels, summary, text in told
    ]  # fmt: skip
    return {"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": found}


def texts(name: str, step: int, series: list[tuple[str, str]], *asks: dict[str, Any]) -> Case:
    about = frozenset(ask["alertname"] for ask in asks)
    return Case(f"what is said: {name}", about, step, tuple(series), {"alert_rule_test": list(asks)})


def _for_long(envs: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """Return series that are there for a hundred samples."""
    timeline = {"start": 1, "end": 100, "forever": True, "over": 0}
    return [
        pair
        for env, values in envs.items()
        for name, value in values.items()
        for pair in published(name, env, value, **timeline)
    ]


def _at(env: str, **labels: str) -> dict[str, str]:
    return {**MODEL, "env": env, **labels}


_GAP_BINS = {"calib_incident_bin_gap{bin='3'}": -0.1, "calib_incident_bin_gap{bin='5'}": 0.2}
_DAY_BINS = {
    f"model_version_bin:calib_{column}:24h{{bin='{b}'}}": value
    for b, confidence, accuracy in ((1, 0.915, 0.94), (2, 0.5, 0.51), (3, 0.7, 0.675))
    for column, value in (("confidence", confidence), ("accuracy", accuracy))
}
_ERROR = {name: value for row in ROWS[1:2] for name, value in worlds(row)[0]["just"].items()}
# Of two replicas, and none was open some minutes ago.
_OPEN = {of("a", "calib_incidents_open"): "0x5 1x99", of("b", "calib_incidents_open"): "0x99"}
_ONSET = {"calib_incident_onset_timestamp_seconds": 1200}
_CLAUSE_NUMBERS = {
    "calib_contract_promise": 0.98, "calib_contract_value": 0.962, "calib_contract_low": 0.951,
    "calib_contract_high": 0.9712, "calib_contract_budget_left": 0.9, "calib_contract_runs_out_seconds": 7200,
}  # fmt: skip
_STANDS = (
    " Promised: 98%. Over its time: 96.2%. Since it is watched, at least 95.1% and at most 97.12% (95 %,"
    " at any time). Budget left: 90%. It is spent in 2h 0m 0s at this rate."
)


_LAST = " The last one came about 1970-01-01 {}:00:00 +0000 UTC."


def _contract(**numbers: float) -> dict[str, dict[str, float]]:
    """Return the numbers of a clause in one environment, and none but the state in another."""
    own = {CLAUSES + name.replace("__", ":"): value for name, value in numbers.items()}
    return {"told": {**own, **_CLAUSE_NUMBERS}, "silent": own}


def _both(alert: str, minute: int, summary: str, window: str = "") -> dict[str, Any]:
    told = [(_at(env, clause="act"), summary, text) for env, text in (("told", _STANDS), ("silent", ""))]
    return says(alert, minute, told, window)


TEXTS = (
    texts(
        "the calibration error, by sums", 1,
        _for_long({
            "over": {**_ERROR, HOUR.format("ece"): 0.2, HOUR.format("signed_gap"): 0.1, **_DAY_BINS},
            "under": {**_ERROR, HOUR.format("ece"): 0.2, HOUR.format("signed_gap"): -0.1, **_GAP_BINS},
        }),
        says(
            "CalibrationErrorHigh", 10,
            [
                (_at("over"), "m 1: ECE 20% over the last hour",
                 " Over all, overconfident, confidence less accuracy is 10%."
                 " By bin, confidence less accuracy: 3 (2.5%) 1 (-2.5%)."),
                (_at("under"), "m 1: ECE 20% over the last hour",
                 " Over all, underconfident, confidence less accuracy is -10%."
                 " By bin, confidence less accuracy: 5 (20%) 3 (-10%)."),
            ],
            "1h",
        ),
    ),
    texts(
        "drift: the gap of the incident, else of the window, else of the sums", 1,
        _for_long({
            "incident": {**_OPEN, **_ONSET, **_GAP_BINS, "calib_incident_gap": -0.2,
                         "calib_window_gap{window='24h'}": 0.3, COUNTED.series: 0.005},
            "window": {**_OPEN, **_DAY_BINS, "calib_window_gap{window='24h'}": 0.3, COUNTED.series: 0.005,
                       "calib_window_gap{window='7d'}": 0.5, DAY.format("signed_gap"): 0.1},
            "sums": {**_OPEN, "calib_window_gap{window='24h'}": 0.3, COUNTED.series: 0,
                     "calib_window_predictions{window='7d'}": 9, DAY.format("signed_gap"): 0.1},
            "nothing": _OPEN,
        }),
        says(
            "CalibrationDrift", 10,
            [
                (_at("incident"),
                 "m 1: calibration has drifted, underconfident, confidence less accuracy is -20%",
                 " It began about 1970-01-01 00:20:00 +0000 UTC."
                 " By bin, confidence less accuracy: 5 (20%) 3 (-10%)."),
                (_at("window"), "m 1: calibration has drifted, overconfident by 30%",
                 " By bin, confidence less accuracy: 3 (2.5%) 1 (-2.5%)."),
                (_at("sums"), "m 1: calibration has drifted, overconfident by 10%", ""),
                (_at("nothing"), "m 1: calibration has drifted, by how much is not known yet", ""),
            ],
        ),
    ),
    texts(
        "a class and a source", 1,
        _for_long({
            "a": {"calib_slice_gap": 0.2, "calib_slice_gap_error": 0.01,
                  "calib_source_gap_difference": -0.2, "calib_source_gap_difference_error": 0.01},
        }),
        says("ClassOrSegmentOff", 10, [
            (_at("a", kind="class", slice="7"), "m 1: confidence less accuracy is 20% in class 7", ""),
        ]),
        says("CalibrationSourceDiffers", 20, [
            (_at("a", source="lab"), "m 1: by labels of lab the gap is -20% off that of all others", ""),
        ]),
    ),
    texts(
        "a broken contract", 1, _for_long(_contract(state=-1)),
        _both("ContractBroken", 5, "m 1: the contract is broken, act"),
    ),
    texts(
        "the last label of each environment", 60,
        _given({
            "a": {DAY.format("served"): "1000x99", DAY.format("labels"): "5x30 0x60"},
            "b": {DAY.format("served"): "1000x99", DAY.format("labels"): "5x40 0x60"},
            "never": {DAY.format("served"): "1000x99"},
        }),
        says(
            "LabelsMissing", 60 * 50,
            [
                (_at("a"), "m 1: no label arrived in a day", _LAST.format("06")),
                (_at("b"), "m 1: no label arrived in a day", _LAST.format("16")),
                (_at("never"), "m 1: no label arrived in a day", ""),
            ],
            "24h",
        ),
    ),
)  # fmt: skip

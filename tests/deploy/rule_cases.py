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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rules_by_numpy import BINS, bins_by_numpy, bins_of, by_numpy

from calib_serve.core.bins import psi
from calib_serve.receipts.series import CONTRACTS, LEDGER_LABELS, SERIES, SUMS, WATCH, WORKERS

DECLARED = {series.name: series.labels for series in (*SERIES, *WORKERS, *WATCH, *CONTRACTS)}
LABELS = {
    "model": "m", "version": "1", "bin": "3", "clause": "act", "kind": "class", "slice": "7",
    "source": "lab", "stage": "ledger", "check": "clock",
}  # fmt: skip
REPLICA_LABELS = (
    "instance", "job", "pod", "container", "endpoint", "service", "node", "hostname", "Hostname", "worker",
    "pod_template_hash", "kubernetes_pod_name", "controller_revision_hash",
    "statefulset_kubernetes_io_pod_name", "service_instance_id", "app", *LEDGER_LABELS,
)  # fmt: skip
"""What a scrape may add that nobody said: of targets, pods, rollouts and collectors."""
SUMMED = tuple(one.short for one in SUMS if one.in_windows)


@dataclass(frozen=True, eq=False)
class Case:
    """One test of promtool: ``asks`` holds its questions by kind."""

    name: str
    about: frozenset[str]
    step: float
    series: tuple[tuple[str, str], ...]
    asks: Mapping[str, list[dict[str, Any]]]
    files: tuple[str, ...] = ("alerts.yml",)
    evaluated: int = 0
    """Minutes between two evaluations, where they are not the ``step`` between two samples."""
    window: str = "24h"
    """That of the rules."""

    def test(self) -> dict[str, Any]:
        """Return the test as promtool reads it."""
        series = [{"series": name, "values": values} for name, values in self.series]
        test = {"name": self.name, "interval": f"{60 * self.step:.0f}s", "input_series": series, **self.asks}
        head = {
            "rule_files": list(self.files),
            "evaluation_interval": f"{60 * (self.evaluated or self.step):.0f}s",
        }
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
    return [
        ledger_case(), empty_bin_case(), taken_back_case(), rollout_case(), *counter_cases(), *hour_cases(),
        *number_cases(), *watch_cases(), *verdict_cases(), *map(row_case, ROWS), *ONE_BY_ONE,
    ]  # fmt: skip


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

WINDOWS = {"24h": (4, 360), "7d": (30, 336)}
"""Minutes from sample to sample, and how many of them."""
NUMBERS = (
    "labels", "served", "coverage", "ece", "noise_floor", "signed_gap", "accuracy", "confidence_psi",
    "verdict",
)  # fmt: skip
COLUMNS = ("share", "gap", "accuracy", "variance")


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
        return bins_by_numpy(
            self.c, self.y, self.w, self.labelled, served=self.served, effect=self.effect or 1.0
        )


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
    # Five labels cover a bin; an effect below 1 is none.
    world("few", {1: 40, 5: 5, 9: 4.8}, {1: 600, 5: 200, 9: 200, 12: 50}, 0.2, effect=0.5),
    # A bin without predictions, and one without any in the reference.
    world("narrow", {3: 60}, {3: 70, 7: 0, 11: 30}, reference={3: 0.5, 7: 0.49999, 11: 0.00001}),
    # Labels speak of 4 in 1,000 predictions.
    world("sliver", {4: 30}, {4: 4, 14: 996}, -0.3),
    world(
        "labels alone", {2: 90, 7: 30, 12: 25}, dict.fromkeys((2, 7, 12), math.nan), weight=3.0, effect=1.3
    ),
    world("counted elsewhere", {2: 90, 7: 30, 12: 25}, {3: 0}, reference={2: 0.5, 3: 0.5}),
    world("tiny labels alone", {2: 6}, {2: math.nan}, weight=0.0005),
    world("tiny, and counted elsewhere", {2: 9}, {2: math.nan, 3: 0.004}),
    # The labelled predictions were served before the window.
    world("unserved", {6: 50}, {6: 0, 9: 80}, 0.2),
    world("uncovered", {6: 4.8}, {6: 80, 9: 80}),
    world("idle", _FLAT, _FLAT, reference={2: 0.5, 5: 0.3, 8: 0.2}),
    world("tiny", {0: 8, 1: 6}, {0: 0.001, 1: 0.003}, weight=0.0005, reference={0: 0.5, 1: 0.5}),
)  # fmt: skip


def number_cases() -> Iterator[Case]:
    """Every world over a day, and one in the other windows: what follows from the sums of bins."""
    for window in WINDOWS:
        for one in WORLDS if window == "24h" else WORLDS[:1]:
            asks, about = [], set()
            for name in NUMBERS:
                samples = [("", one.numbers[name])] if name in one.numbers else []
                asks.append(_recorded(f"model_version:calib_{name}:{window}", samples))
                about.add(f"model_version:calib_{name}:{window}")
            for name in COLUMNS:
                found = [(f'bin="{k}"', value) for k, value in enumerate(one.bins[name]) if value == value]
                asks.append(_recorded(f"model_version_bin:calib_{name}:{window}", found))
                about.add(f"model_version_bin:calib_{name}:{window}")
            yield Case(
                f"{window}: {one.name}", frozenset(about), 1, tuple(_sums(one, window)),
                {"promql_expr_test": [{"eval_time": "3m", **ask} for ask in asks]}, files=("rules.yml",),
                window=window,
            )  # fmt: skip


def _recorded(series: str, samples: list[tuple[str, float]]) -> dict[str, Any]:
    """Ask for a number of the version to six places, and so for its labels."""
    found = []
    for labels, value in samples:
        told = ",".join(part for part in ('env="a",model="m",version="1"', labels) if part)
        found.append((f"{{{told}}}", math.floor(value * 1e6 + 0.5) / 1e6))
    return {"expr": f"round({series}, 1e-6)", "exp_samples": wanted(found)}


def _sums(one: World, window: str) -> Iterator[tuple[str, str]]:
    """Yield what was counted in each bin, and gauges of two replicas."""
    b, own = bins_of(one.c), {**MODEL, "env": "a"}
    for k in np.unique(b):
        on = b == k
        for total in (each for each in SUMS if each.in_windows):
            often = one.served if total.of == "predictions" else one.labelled
            if np.isnan(often[on]).any():
                continue
            each = total.adds(one.c[on], one.y[on] * (total.of == "labels"), _weight(total, one.w[on]))
            series = selector(f"model_version_bin:calib_sums:{window}", sum=total.short, bin=str(k), **own)
            yield series, f"{float((often[on] * each).sum())!r}x5"
        if one.reference is not None and not np.isnan(one.reference[k]):
            yield from _gauge("calib_reference_share", float(one.reference[k]), 5, bin=str(k))
    if one.effect:
        yield from _gauge("calib_window_design_effect", one.effect, 5, window=window)
        yield from _gauge("calib_window_design_effect", 5.0, 5, window="5m")


def counter_cases() -> Iterator[Case]:
    """What a server counts itself, in one bin: its rise, and what it stands at if it began in the window."""
    for window, (step, many) in WINDOWS.items():
        series = f"model_version_bin:calib_counted:{window}"
        own = {**MODEL, "bin": "3"}
        beside = dict.fromkeys(sorted(set(REPLICA_LABELS) - set(LEDGER_LABELS)), "c")
        began, half = 2 * many - many // 3, many // 2
        # Twice as much before the window; a pair of Prometheus, which is no second server; a young server, of
        # which increase() would say more than it ever counted.
        before = f"0+{80.0 / many!r}x{many - 1}"
        restarts = f"{before} 80+{40.0 / many!r}x{half} {40.0 / many!r}+{40.0 / many!r}x{many - half - 1}"
        worlds_ = {
            "rising": f"{before} 80+{40.0 / many!r}x{many}",
            "restarting": restarts,
            "young": f"_x{began} 0+3x{many}",
            "in a ledger": f"0+1x{2 * many}",
        }
        given = [
            (
                selector(
                    "calib_predictions_total", env=env, **own, **beside, prometheus_replica=copy,
                    **({"ledger": "d", "edition": "1"} if env == "in a ledger" else {}),
                ),
                values,
            )
            for env, values in worlds_.items()
            for copy in "ab"
        ]  # fmt: skip
        found = {"rising": 40, "restarting": 40, "young": 3 * (2 * many - began)}
        ask = {"expr": f"round({series}, 1e-6)", "eval_time": f"{2 * step * many}m", "exp_samples": wanted(
            [(selector("", env=env, **own), value) for env, value in found.items()]
        )}  # fmt: skip
        yield Case(
            f"{series}, what rose", frozenset({series}), step, tuple(given), {"promql_expr_test": [ask]},
            files=("rules.yml",), evaluated=step * many, window=window,
        )  # fmt: skip
    yield _restarts()
    # In the first minutes the day has one sample, and the last quarter of an hour several.
    series = "model_version_bin:calib_sums:24h"
    given = [(selector("calib_predictions_total", **MODEL, bin="3", env="a", instance="x"), "0 3 7x9")]
    found = [({**MODEL, "bin": "3", "env": "a", "sum": "predictions"}, 7)]
    yield _value("counted in the first minutes", series, given, found, minute=3)


def _restarts() -> Case:
    """Two predictions a second by servers that live ten minutes: one place, or pods of new names, to 1.5 %.

    What came after the last scrape of each is lost, 1.25 %.
    """
    life, lives = "15+30x39", 144
    recorded, own = "model_version_bin:calib_counted:24h", {**MODEL, "bin": "3"}
    given = [(selector("calib_predictions_total", env="a", **own), " ".join([life] * lives))]
    given += [
        (selector("calib_predictions_total", env="b", pod=str(i), **own), f"_x{40 * i - 1} {life} stale")
        if i
        else (selector("calib_predictions_total", env="b", pod="0", **own), f"{life} stale")
        for i in range(lives)
    ]
    ask = {
        "expr": f"abs({recorded} / {lives * 1200} - 1) < bool 0.015",
        "eval_time": f"{lives * 10}m",
        "exp_samples": wanted([(selector("", env=env, **own), 1) for env in "ab"]),
    }
    return Case(
        "servers that live ten minutes", frozenset({recorded}), 0.25, tuple(given),
        {"promql_expr_test": [ask]}, files=("rules.yml",), evaluated=lives * 10,
    )  # fmt: skip


def rollout_case() -> Case:
    """A new pod takes over the ledger: the windows go on, and nothing is absent."""
    day, labels, series = 1440, {**MODEL, "bin": "3", "env": "a", "ledger": "one", "window": "24h"}, []
    for letter, values in ("a", f"144x{day - 1} stale"), ("b", f"_x{day - 1} 144x{day}"):
        pod = {label: letter for label in REPLICA_LABELS if label not in (*LEDGER_LABELS, "job")}
        for name in SUMMED:
            series.append((selector("calib_window_sums", **labels, sum=name, **pod), values))
        state = values.replace("144x", "1x")
        series.append((selector("calib_contract_state", **MODEL, env="a", clause="act", **pod), state))
        series.append((selector("up", job="calib-serve-watch", **pod), state))
    recorded = ("model_version:calib_served:24h", "model_version_bin:calib_sums:24h")
    ask = {"expr": recorded[0], "eval_time": f"{day + 180}m", "exp_samples": wanted(
        [(selector(recorded[0], **MODEL, env="a"), 144)]
    )}  # fmt: skip
    return Case(
        "a rollout", frozenset({*recorded, "MonitorAbsent"}), 1, tuple(series),
        {
            "promql_expr_test": [ask],
            "alert_rule_test": [
                {"eval_time": f"{day + minute}m", "alertname": "MonitorAbsent", "exp_alerts": []}
                for minute in (30, 180, 1200)
            ],
        },
        files=("rules.yml", "alerts.yml"),
    )  # fmt: skip


def ledger_case() -> Case:
    """Of each ledger the greatest of what is published, and all ledgers and counters together."""
    series, labels = "model_version_bin:calib_sums:24h", {**MODEL, "env": "a", "bin": "3"}
    scrape = set(REPLICA_LABELS) - set(LEDGER_LABELS)
    given = [
        (
            selector(
                "calib_window_sums", **labels, window=window, sum=name, ledger=ledger,
                **dict.fromkeys(scrape, letter),
            ),
            f"{value + 10 * i}x5",
        )
        for i, name in enumerate(SUMMED)
        for letter, ledger, window, value in (
            ("a", "one", "24h", 7), ("b", "one", "24h", 9), ("c", "two", "24h", 5), ("a", "one", "7d", 90),
        )
    ]  # fmt: skip
    given.append((selector("model_version_bin:calib_counted:24h", **labels), "100x5"))
    # A third ledger, whose labels weigh 1 each, and so as much as there are.
    alone = {"sum": "feedback", "window": "24h", "ledger": "three", **labels}
    given.append((selector("calib_window_sums", **alone), "1000x5"))
    also = {"predictions": 100, "feedback": 1000, "feedback_weight": 1000}
    found = [({"sum": name, **labels}, 14 + 20 * i + also.get(name, 0)) for i, name in enumerate(SUMMED)]
    return _value(series, series, given, found)


def empty_bin_case() -> Case:
    """A bin of the reference that no ledger publishes is one without predictions."""
    series, own = "model_version:calib_confidence_psi:24h", {**MODEL, "env": "a"}
    given = [(selector("model_version:calib_served:24h", **own), "10x5")]
    for name, shares in (("model_version_bin:calib_share:24h", (5, 5)), ("calib_reference_share", (5, 3, 2))):
        given += [
            (selector(name, **own, bin=str(3 + i)), f"{share / 10!r}x5") for i, share in enumerate(shares)
        ]
    return _value("of an empty bin", series, given, [(own, psi([5, 5, 0], [5, 3, 2]))])


def taken_back_case() -> Case:
    """Labels of one version are taken back: at the next evaluation they are gone, and others stay."""
    recorded = ("model_version_bin:calib_sums:24h", "model_version:calib_labels:24h")
    given = [
        (
            selector(
                "calib_window_sums", model="m", version=version, env="a", bin=str(bin_), window="24h",
                sum="feedback", ledger="one", instance="x",
            ),
            values,
        )
        for version, bin_, values in (
            ("1", 3, "4900x20"), ("1", 4, "100x20"), ("2", 3, "900x5 0x15"), ("2", 4, "7x20"),
            ("named later", 3, "_x6 20216x14"),
        )
    ]  # fmt: skip
    asks = [
        {
            "expr": recorded[1],
            "eval_time": f"{minute}m",
            "exp_samples": wanted(
                [(selector(recorded[1], model="m", version=v, env="a"), n) for v, n in found.items()]
            ),
        }
        for minute, found in (
            (0, {"1": 5000, "2": 907}),
            (5, {"1": 5000, "2": 907}),
            (6, {"1": 5000, "2": 7, "named later": 20216}),
            (19, {"1": 5000, "2": 7, "named later": 20216}),
        )
    ]
    return Case(
        "taken back", frozenset(recorded), 1, tuple(given), {"promql_expr_test": asks}, files=("rules.yml",)
    )


def hour_cases() -> Iterator[Case]:
    """Labels of an hour: refused on two replicas for a fault; counted in two ledgers, in all bins."""
    env = {"env": "a"}
    given = [
        (of(letter, f"calib_feedback_refused_total{{env='a',reason='{reason}'}}"), f"0x69 {many}x99")
        for letter, reason, many in (
            ("a", "expired", 5), ("b", "expired", 2), ("a", "duplicate", 50), ("a", "not_wanted", 50),
            ("b", "late", 3),
        )
    ]  # fmt: skip
    for minute, expired, late in ((120, 7, 3), (150, 0, 0)):
        yield _value(
            f"refused in an hour, after {minute}", "calib_labels_refused:1h", given,
            [({**env, "reason": "expired"}, expired), ({**env, "reason": "late"}, late)], minute=minute,
        )  # fmt: skip
    given = [
        (of(letter, f"calib_feedback_accepted_total{{env='a',model='{model}',version='1'}}"), f"0x69 {n}x99")
        for letter, model, n in (("a", "m", 5), ("b", "m", 12), ("a", "n", 7))
    ]
    for minute, many in ((120, 24), (150, 0)):
        yield _value(
            f"counted in an hour, after {minute}",
            "calib_labels_counted:1h",
            given,
            [(env, many)],
            minute=minute,
        )


def _weight(total: Any, w: np.ndarray) -> np.ndarray:
    return w if total.of == "labels" else np.ones_like(w)


def _gauge(name: str, value: float, many: int, **labels: str) -> Iterator[tuple[str, str]]:
    """Yield a gauge of two replicas, of which the larger counts."""
    for letter, part in (("a", 1.0), ("b", 0.7)):
        own = {"model": "m", "version": "1", "env": "a", **labels, **replica(letter)}
        yield selector(name, **own), f"{value * part!r}x{many}"


OF_WATCH = {
    "coverage": "coverage", "accuracy": "accuracy", "signed_gap": "gap", "ece": "ece",
    "noise_floor": "noise_floor", "verdict": "verdict", "confidence_psi": "confidence_psi",
}  # fmt: skip
"""The number of a window that the watch publishes, by its recorded name."""


def watch_cases() -> Iterator[Case]:
    """The watch's number where it counts predictions: the greater of two replicas, of this window alone."""
    for name, theirs in OF_WATCH.items():
        series, own = f"model_version:calib_{name}:24h", {**MODEL, "env": "a"}
        given = [
            (selector(f"calib_window_{theirs}", **own, window=window, **replica(letter)), f"{value}x5")
            for window, letter, value in (("24h", "a", 0.25), ("24h", "b", 0.5), ("7d", "b", 0.75))
        ]
        given += [
            (selector("model_version:calib_watched:24h", **own), "9x5"),
            (selector(f"calib_window_{theirs}", **MODEL, env="unwatched", window="24h"), "0.5x5"),
        ]
        yield _value(f"{name} of the watch", series, given, [(own, 0.5)])
    ledgers = {"one": "a", "two": "ab", "never": "a", "another window": "a", "another, without a label": "ac"}
    given = []
    for env, names in ledgers.items():
        for letter in names:
            own = {**MODEL, "env": env, "ledger": letter, "window": "24h", "bin": "3"}
            given += [
                (selector("calib_window_sums", **own, sum=s), f"{5 * (letter != 'c')}x5") for s in SUMMED
            ]
        window = "7d" if env == "another window" else "24h"
        for letter, value in ("a", 0), ("b", 0 if env == "never" else 7):
            own = {**MODEL, "env": env, "window": window, **replica(letter)}
            given.append((selector("calib_window_predictions", **own), f"{value}x5"))
    yield _value(
        "where the watch knows all", "model_version:calib_watched:24h", given,
        [({**MODEL, "env": env}, 7) for env in ("one", "another, without a label")],
    )  # fmt: skip


def _value(
    name: str, series: str, given: list[tuple[str, str]], found: list[tuple[Mapping[str, str], float]],
    minute: int = 3,
) -> Case:  # fmt: skip
    """Return a case that asks for a recorded series: the labels and value of each."""
    samples = wanted([(selector(series, **labels), value) for labels, value in found])
    ask = {"expr": series, "eval_time": f"{minute}m", "exp_samples": samples}
    return Case(name, frozenset({series}), 1, tuple(given), {"promql_expr_test": [ask]}, files=("rules.yml",))


def verdict_cases() -> Iterator[Case]:
    """By counters: off beyond four errors and the tolerance, unknown with few labels, and never within it."""
    series, error = "model_version:calib_verdict:24h", 0.8 * 0.01
    numbers = {"ece": 0.2, "noise_floor": 0.01, "labels": 500, "coverage": 0.8}
    bound = 0.01 + SIGMAS * error / 0.8
    gap = 0.02 * math.sqrt(1 + 0.0001 / 0.0004)
    worlds_ = {
        "off": ({}, {}, 1),
        "just off": ({"ece": bound * 1.001}, {}, 1),
        "chance": ({"ece": bound * 0.999}, {}, 0.5),
        "just beyond the tolerance": ({}, {"gap": gap * 1.001}, 1),
        "within the tolerance": ({}, {"gap": -gap * 0.999}, 0.5),
        "within the tolerance, over": ({}, {"gap": gap * 0.999}, 0.5),
        "at chance": ({"ece": 0.01}, {"variance": 0.0}, 0.5),
        "chance of two bins": ({"ece": 0.01 + SIGMAS * 0.006, "two": 1}, {"share": 0.4}, 0.5),
        "beyond the tolerance in two bins": ({"two": 1}, {"share": 0.4, "gap": math.sqrt(0.0007)}, 1),
        "neither": ({"ece": 0}, {"gap": 0}, 0.5),
        "few": ({"labels": 499}, {}, None),
        "half": ({"coverage": 0.5, "ece": 0.9}, {}, 1),
        "less than half": ({"coverage": 0.49}, {}, None),
        "watched": ({"watched": 1}, {}, None),
        "waiting": ({"provisional": 1}, {}, None),
        "not waiting": ({"provisional": 0}, {}, 1),
        "another bin without enough labels": ({"uncovered": 1}, {}, 1),
    }
    given, found = [], []
    for env, (changed, of_bin, verdict) in worlds_.items():
        own = {**MODEL, "env": env}
        bins = {"share": 0.8, "gap": 0.1, "variance": 0.0001, "accuracy": 0.7, **of_bin}
        for name, value in (numbers | changed).items():
            if name in numbers:
                given.append((selector(f"model_version:calib_{name}:24h", **own), f"{value!r}x5"))
        for name, value in bins.items():
            given.append((selector(f"model_version_bin:calib_{name}:24h", **own, bin="3"), f"{value!r}x5"))
        if "two" in changed:
            for name, value in bins.items():
                series_ = selector(f"model_version_bin:calib_{name}:24h", **own, bin="5")
                given.append((series_, f"{value!r}x5"))
        if "uncovered" in changed:
            for name, value in (("share", 0.2), ("gap", 0.0), ("variance", 0.5)):
                given.append((selector(f"model_version_bin:calib_{name}:24h", **own, bin="4"), f"{value}x5"))
        if "watched" in changed:
            given.append((selector("model_version:calib_watched:24h", **own), "9x5"))
        given.append((selector("calib_window_provisional", **own, window="7d"), "1x5"))
        for letter, part in ("a", 1), ("b", 0):
            if "provisional" in changed:
                waits = selector("calib_window_provisional", **own, window="24h", **replica(letter))
                given.append((waits, f"{part * changed['provisional']}x5"))
        found += [] if verdict is None else [(own, verdict)]
    yield _value("verdict of counters", series, given, found)


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
SIGMAS = 4 * math.sqrt(1 - 2 / math.pi)
"""Four standard errors of a gap, in errors of an ECE: its bins' gaps are half-normal."""
DAY = "model_version:calib_{}:24h"
REFUSED, COUNTED = "calib_labels_refused:1h{reason='expired'}", "calib_labels_counted:1h"
SCRAPED = {"job": "calib-serve-watch", "instance": "a"}
_ENDS = "_x3 1x1 _x90"
_SLICE = "calib_slice_gap{}{{window='{}'}}"
BURNS = ((14.4, "1h", "5m", "critical"), (6, "6h", "30m", "critical"), (1, "3d", "6h", "warning"))
"""(burn rate, long window, short window, severity)."""


LEAST, MOST = (
    "calib_window_debiased_ece_low{{window='24h'}}".format(),
    "calib_window_debiased_ece_high{{window='{}'}}",
)


def _off(alert: str, series: str, lasts: int, labels: Mapping[str, str], *, error: str, **more: Any) -> Row:
    """Return the row of a gap that is off by four errors more than .02, to either side."""
    return Row(
        alert, "warning", lasts, (If(series, ">", 0.02 + 4 * 0.01, near=True),), given={error: 0.01},
        fires={"under": {series: -0.0601}, **more.get("fires", {})},
        quiet={
            **more.get("quiet", {}),
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
            If(f"calib_contract_burn_rate_low{{window='{long}'}}", ">", rate),
            If(f"calib_contract_burn_rate{{window='{short}'}}", ">", rate, also_without=True),
        ),
        window=long, labels=CLAUSE,
        fires={"slow by its own rate": {f"calib_contract_burn_rate{{window='{long}'}}": 0.5}},
    )  # fmt: skip


ROWS = (
    Row(
        "CalibrationErrorHigh", "warning", 5, (If(DAY.format("verdict"), "==", 1),),
        given={DAY.format("ece"): 0.1, LEAST: 0.05, MOST.format("1h"): 0.06},
        fires={
            "without an interval": {LEAST: None},
            "without a shorter window": {MOST.format("1h"): None},
            "as large in an hour": {MOST.format("1h"): 0.0501},
            "of another window": {MOST.format("7d"): 0.001},
            "for a provisional hour": {
                MOST.format("1h"): 0.001, "calib_window_provisional{window='1h'}": 1,
            },
        },
        quiet={
            "no error found": {DAY.format("verdict"): 0.5},
            "no ECE": {DAY.format("ece"): None},
            "over for an hour": {MOST.format("1h"): 0.0499},
            "over for minutes": {MOST.format("5m"): 0.0499},
            "within the tolerance": {LEAST: 0.001, MOST.format("5m"): 0.0199},
        },
    ),
    Row(
        "CalibrationDrift", "warning", 0, (If("calib_incidents_open", ">", 0),), keeps=15,
        fires={
            "another before": {"calib_incidents_open": "0x1 2x3 stale"},
            # The gap is there for longer than the incident.
            "with a gap": {"calib_incidents_open": _ENDS, "calib_incident_gap": "0.1x90"},
            "by a window": {"calib_incidents_open": _ENDS, DAY.format("signed_gap"): "0.1x90"},
        },
        quiet={
            "a gap": {"calib_incidents_open": 0, "calib_incident_gap": 0.1},
            "a window": {"calib_incidents_open": 0, DAY.format("signed_gap"): 0.1},
            "a gap alone": {"calib_incidents_open": None, "calib_incident_gap": 0.1},
        },
    ),
    _off(
        "ClassOrSegmentOff", _SLICE.format("", "24h"), 5, {"kind": "class", "slice": "7"},
        error=_SLICE.format("_error", "24h"),
        fires={"as far in an hour": {_SLICE.format("", "1h"): -0.021, _SLICE.format("_error", "1h"): 0.01}},
        quiet={"over for an hour": {_SLICE.format("", "1h"): -0.019, _SLICE.format("_error", "1h"): 0.01}},
    ),
    Row(
        "ConfidenceShift", "warning", 15,
        (If(DAY.format("confidence_psi"), ">", 0.2), If(DAY.format("served"), ">=", 500)),
        fires={"for an hour": {"calib_window_confidence_psi{window='1h'}": 0.201}},
        quiet={"over for an hour": {"calib_window_confidence_psi{window='1h'}": 0.2}},
    ),
    Row(
        "ContractBroken", "critical", 0, (If("calib_contract_state", "==", -1),), keeps=15, labels=CLAUSE,
        quiet={"kept": {"calib_contract_state": 1}, "mended": {"calib_contract_state": "-1x1 1x40"}},
    ),
    *(_burning(*one) for one in BURNS),
    Row(
        "LabelsMissing", "warning", 60,
        (If(DAY.format("served"), ">=", 1000), If(DAY.format("labels"), "<=", 0, also_without=True)),
        quiet={"a little": {DAY.format("labels"): 0.005}},
    ),
    Row("LabelsSuspect", "warning", 60, (If("calib_label_rate_moved", "==", 1),)),
    _off(
        "LabelsSuspect", "calib_source_gap_difference", 60, {"source": "lab"},
        error="calib_source_gap_difference_error",
    ),
    Row(
        "LabelsRefused", "warning", 5, (If(REFUSED, ">=", 20),), labels={"reason": "expired"},
        given={COUNTED: 379},
        fires={
            "no label": {COUNTED: None},
        },
        quiet={"one in twenty": {COUNTED: 380}},
    ),
    *(
        Row(
            "LabelsRefused", severity, 5,
            (If(REFUSED.replace("expired", reason), ">=", 5),), labels={"reason": reason},
            given={COUNTED: 900},
        )
        for reason, severity in (("bad_signature", "critical"), ("unknown_key", "warning"))
    ),
    *(
        Row(
            "AnswersUncalibrated", "critical", 0, (If(series, ">", 0),), labels={**MODEL, "answers": answers},
            over=15,
        )
        for series, answers in (
            ("calib_invalid_outputs_total", "NaN or infinity"),
            ("calib_uncalibrated_total", "without its calibration"),
        )
    ),
    Row(
        "MonitorDown", "warning", 5, (If("up", "==", 0),), labels=SCRAPED,
        quiet={"of others": {"up": None, "up{job='node',instance='b'}": 0}},
    ),
    Row("MonitorFailing", "warning", 2, (If("calib_check_ok", "==", 0),), labels={"check": "clock"}),
    Row(
        "MonitorFailing", "warning", 2, (If("calib_monitor_errors_total", ">", 0),), over=15,
        labels={"stage": "ledger"},
    ),
    Row("MonitorFailing", "warning", 2, (If("calib_windows_age_seconds", ">", 900),), labels={}),
)  # fmt: skip

PLAIN = {
    "calib_process_start_timestamp_seconds": ("job", "instance"),
    "calib_predictions_total{exported_version='1'}": ("job", "instance"),
    "up": ("job", "instance"),
    "prometheus_rule_group_last_evaluation_timestamp_seconds": ("rule_group",),
}
SMALLER_COUNTS = {"calib_check_ok", "calib_contract_state"}


def published(name: str, env: str, values: float | str, **timeline: Any) -> Iterator[tuple[str, str]]:
    """Yield a series with its own labels and ``env``; gauges and counters come from two replicas."""
    bare = name.partition("{")[0]
    told = set(re.findall(r"(\w+)=", name))
    if bare.startswith("model_version"):
        labels, parts = {"model", "version"}, [({}, values)]
    elif bare.startswith("calib_labels_"):
        labels, parts = set(), [({}, values)]
    elif (plain := PLAIN.get(name) or PLAIN.get(bare)) or isinstance(values, str):
        labels, parts = set(plain or DECLARED[bare]), [({}, values)]
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
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> Case:  # fmt: skip
    """Return a case that asks in which worlds the alert fires, after so many minutes; ``names``: with which
    labels but ``env``.
    """
    own = {"alertname": alert, "alertstate": "firing", "severity": severity}
    expression = selector("ALERTS", **own, window=window)
    own |= {"window": window} if window else {}
    asks = [
        {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": wanted(
                [
                    (selector("ALERTS", **own, **labels, **((names or {}).get(env) or {"env": env})), 1)
                    for env in envs
                ]
            ),
        }
        for minute, envs in asked.items()
    ]
    name = " ".join([alert, window, *(value for key, value in labels.items() if key not in MODEL)])
    return Case(name, frozenset({alert}), step, tuple(series), {"promql_expr_test": asks})


def alone(
    alert: str, severity: str, series: list[tuple[str, str]], asked: Mapping[int, int], **labels: str
) -> Case:  # fmt: skip
    """Return a case of an alert without labels of its own: whether it fires, after so many minutes."""
    fired = selector("ALERTS", alertname=alert, alertstate="firing", severity=severity, **labels)
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


def of_target(name: str, env: str, **labels: str) -> str:
    """Return a series of one version, as it is scraped at target ``i``."""
    return selector(name, env=env, job="j", instance="i", **labels)


_STATE = "calib_contract_state"


def _evaluated(letter: str, group: str = "calib_numbers") -> str:
    series = "prometheus_rule_group_last_evaluation_timestamp_seconds"
    return of(letter, f"{series}{{rule_group='rules.yml;{group}'}}")


ONE_BY_ONE = (
    # Together they are enough, and each that was refused is named.
    Case(
        "LabelsRefused for two reasons", frozenset({"LabelsRefused"}), 1,
        (
            ("calib_labels_counted:1h", "300x9 _x20"),
            *(
                (f"calib_labels_refused:1h{{reason='{reason}'}}", f"{many}x9 _x20")
                for reason, many in (("expired", 12), ("bad_label", 8), ("late", 0))
            ),
        ),
        {"promql_expr_test": [
            {
                "expr": "count without (reason) (ALERTS{alertstate='firing'})", "eval_time": f"{minute}m",
                "exp_samples": wanted([(
                    selector("", alertname="LabelsRefused", alertstate="firing", severity="warning"), 2
                )] * fires),
            }
            for minute, fires in ((4, 0), (5, 1), (15, 0))
        ]},
    ),
    # No other window burns.
    Case(
        "ContractBurning of other windows", frozenset({"ContractBurning"}), 1,
        tuple(
            (f"calib_contract_burn_rate_low{{window='{window}'}}", "99x5")
            for window in ("5m", "30m", "24h", "7d")
        ),
        {"promql_expr_test": [{"expr": "ALERTS", "eval_time": "3m", "exp_samples": []}]},
    ),
    # More than a share of 0.02, and ten at least, of any reason and replica.
    firing(
        "RepliesUnmatched", "warning", 1,
        _given({
            name: {
                of("a", "calib_unmatched_total{reason='number'}"): f"0x20 {some}x60",
                of("b", "calib_unmatched_total{reason='nothing'}"): f"0x20 {more}x60",
                of("a", "calib_predictions_total"): f"0x20 {signed}x60",
            }
            for name, some, more, signed in (
                ("just", 6, 5, 538), ("share", 6, 5, 539), ("few", 6, 3, 5), ("ten", 10, 0, 0),
                ("none", 0, 0, 9),
            )
        }),
        {24: [], 27: ["just", "ten"], 37: []},
    ),
    # At a quarter of an hour the group was evaluated 900 seconds ago, and for two minutes nothing is said.
    firing(
        "MonitorFailing", "warning", 1,
        _given({
            "stands": {_evaluated("a"): "0x39 2400x9"},
            "one of two": {_evaluated("a"): "0+60x99", _evaluated("b"): "0x39 2400x9"},
            "evaluated": {_evaluated("a"): "0+60x99"},
            "of others": {_evaluated("a", "others"): "0x99"},
        }),
        {17: [], 18: ["one of two", "stands"], 39: ["one of two", "stands"], 41: []},
        labels={"rule_group": "rules.yml;calib_numbers"},
    ),
    alone(
        "MonitorFailing", "warning",
        [
            (selector(f"calib_window_provisional{{window='{window}'}}", **MODEL, instance="x"), values)
            for window, values in (("5m", "0x40"), ("24h", "0x9 stale _x15 0x9"))
        ],
        {9: 0, 11: 0, 12: 1, 25: 1, 26: 0}, **MODEL, window="24h",
    ),
    alone(
        "MonitorAbsent", "critical",
        [('up{job="node"}', "1x40"), ('up{job="calib-serve-watch"}', "1x9 stale _x15 1x9")],
        {24: 0, 25: 1, 26: 0}, job="calib-serve-watch",
    ),
    # A watch of another namespace counts this server's labels; not where that serves itself, nor where the
    # server's own has a watch.
    replace(firing(
        "LabelsMissing", "warning", 1,
        [
            pair
            for env, model, there, elsewhere in (
                ("watch elsewhere", "a", (1500, None), (None, 9)),
                ("watch elsewhere, predictions at 0", "b", (1500, None), (0, 9)),
                ("watch elsewhere, without labels", "c", (1500, None), (None, 0)),
                ("staging without a watch", "d", (1500, None), (5000, 9)),
                ("staging with a watch", "e", (1500, 0), (None, 9)),
            )
            for where, (served, labels) in ((env, there), (f"not {env}", elsewhere))
            for name, value in (("served", served), ("labels", labels)) if value is not None
            for pair in [(selector(DAY.format(name), env=where, model=model, version="1"), f"{value}x69 _x9")]
        ],
        {59: [], 60: ["c", "d", "e"], 75: []},
        labels={"version": "1"}, names={
            "c": {"env": "watch elsewhere, without labels", "model": "c"},
            "d": {"env": "staging without a watch", "model": "d"},
            "e": {"env": "staging with a watch", "model": "e"},
        },
    ), name="LabelsMissing, a watch elsewhere"),
    # Two processes in turn; one that ends once and one that begins anew are none.
    firing(
        "TargetMixed", "warning", 1,
        [
            (of_target("calib_predictions_total", "in turn", bin="3"), "9 5 " * 10 + "5x40"),
            (of_target("calib_predictions_total", "ended twice", bin="3"), "9 5 6 2 4x40"),
            (of_target("calib_predictions_total", "counts", bin="3"), "0+7x40"),
            (of_target("calib_predictions_total", "one ledger", bin="3", ledger="a"), "9 5 " * 10 + "5x40"),
            (of_target("calib_process_start_timestamp_seconds", "watches"), "100 200 " * 10 + "200x40"),
            (of_target("calib_process_start_timestamp_seconds", "started again"), "100 100 200 200 300x40"),
        ],
        {7: [], 12: ["in turn", "watches"], 45: []}, labels={"job": "j", "instance": "i"},
    ),
    firing(
        "TargetMixed", "warning", 1,
        [
            (of_target("calib_predictions_total", name, bin="3", **{hidden: "7"}), "1x20 stale")
            for name, hidden in (("a", "exported_version"), ("b", "exported_model"), ("c", "exported_job"))
        ],
        {4: [], 6: ["a", "b"], 30: []}, labels={"job": "j", "instance": "i", "hidden": "version"},
    ),
    # A pod's label took the place of the version, and its rollout that of the pod's label.
    Case(
        "MonitorAbsent, a rollout of a hidden version", frozenset({"MonitorAbsent"}), 5,
        (
            ('up{job="calib-serve-watch"}', "1x700"),
            *(
                (selector(name, model="m", version=pod, env="a", **more), values)
                for pod, values in (("r1", "1x100 _x600"), ("r2", "_x100 1x600"))
                for name, more in ((_STATE, {"clause": "act", "exported_version": "1"}),)
            ),
            (selector(DAY.format("served"), model="m", version="r1", env="a"), "1x700"),
        ),
        {"alert_rule_test": [
            {"eval_time": f"{5 * k}m", "alertname": "MonitorAbsent", "exp_alerts": []}
            for k in (110, 300, 350, 380)
        ]},
    ),
    firing(
        "MonitorAbsent", "critical", 5,
        [
            ('up{job="calib-serve-watch"}', "1x400"),
            (selector(DAY.format("served"), env="gone", **MODEL), "100x287 _x10 100x9"),
            (selector(DAY.format("served"), env="one of two", **MODEL), "100x287 stale"),
            (selector(DAY.format("served"), env="one of two", model="m", version="2"), "100x400"),
            (selector(DAY.format("served"), env="both", **MODEL), "100x287 _x10 100x9"),
            (selector(DAY.format("served"), env="both", model="n", version="1"), "100x287 stale"),
        ],
        {1440 + 10: [], 1440 + 20: ["both", "gone"], 1440 + 50: []}, labels={},
    ),
    # The contract was there for half an hour, a day before.
    firing(
        "MonitorAbsent", "critical", 5,
        [
            ('up{job="calib-serve-watch"}', "1x400"),
            *_given({
                "gone": {of("a", _STATE): "0x6 _x900", DAY.format("served"): "5x900"},
                # Replicas of another name publish the same.
                "there": {
                    of("a", _STATE): "0x6 _x900", of("b", _STATE): "_x6 0x900", DAY.format("served"): "5x900",
                },
                "never there": {DAY.format("served"): "5x900"},
            }),
            # A version that was taken away is not missed where its environment goes on.
            (selector(_STATE, env="there", model="m", version="0", clause="act"), "0x6 _x900"),
        ],
        {1450: [], 1455: ["gone"], 1465: ["gone"], 1485: []}, labels=CLAUSE,
    ),
)  # fmt: skip

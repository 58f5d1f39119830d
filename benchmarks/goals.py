"""Every benchmark and its goals: the one place where goals are written down.

A goal reads the benchmark's result (results/NAME.json) and gives one number, the worst case where there are
many, which must be at most or at least what is stated, beside the peer or the promise that is named. No goal
is in seconds, as these are another machine's elsewhere: the unit of a time is work that the same run has
measured, a peer's or the least that the task takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import deployment

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """``measured`` of a result against one of the two bounds; ``show`` formats both.

    ``beside`` names the peer, or the promise, that decides. ``needs``: packages of peers; where one could not
    be installed, the goal is not measured. ``reason`` is shown where the goal is missed.
    """

    says: str
    measured: Callable[[Result], float]
    beside: str
    at_most: float = math.inf
    at_least: float = -math.inf
    show: str = "{:.3g}"
    reason: str = ""
    needs: tuple[str, ...] = ()

    def met(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most

    @property
    def bound(self) -> str:
        if math.isfinite(self.at_most):
            return f"≤\N{NO-BREAK SPACE}{self.show.format(self.at_most)}"
        return f"≥\N{NO-BREAK SPACE}{self.show.format(self.at_least)}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One file of this folder, with the options and the minutes of its part in `make bench`.

    Minutes are of two quiet cores of the Xeon that the page names.
    ``alone``: it measures times, so nothing else may run beside it. ``quick``: `make bench-quick` runs it.
    ``programs`` must be on the path; ``environment`` names the pins that its peers are installed from.
    """

    name: str
    goals: tuple[Goal, ...]
    minutes: float
    options: tuple[str, ...] = ()
    alone: bool = False
    quick: bool = True
    needs_data: bool = False
    programs: tuple[str, ...] = ()
    environment: str = ""


PAPERS = (
    *("train_losses", "toy_gaussians", "confidence_branches", "published_networks"),
    *("neural_clamping", "neural_clamping_starts", "neural_clamping_speed"),
    *("masked_head", "head_networks", "mac_cal"),
)
"""Files that measure the tables of docs/papers, and have no goals: hours, and run by hand."""


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


# --- how a result is read --------------------------------------------------------------------------

TEMPERATURES = ("probmetrics", "netcal", "scikit-learn", "torch-uncertainty")
STRUCTURED = {
    "structured-vector": ("probmetrics svs",),
    "structured-matrix": ("probmetrics sms",),
    "dirichlet-odir, seven lambdas": ("torch-uncertainty odir", "dirichletcal odir"),
}
"""Methods of many numbers in fit_outputs, with their peers."""


def against(
    ours: str, peers: tuple[str, ...], key: str, *, as_good: bool = False
) -> Callable[[Result], float]:
    """The largest ratio over the sets of ours to the best peer in ``key``.

    ``as_good``: only peers that end within 0.1 % of our NLL or below count; a fit that has not converged
    is fast.
    """

    def worst(r: Result) -> float:
        ratios = []
        for fits in r["sets"].values():
            mine = fits.get(f"ours: {ours}", {})
            rivals = [fits[p] for p in peers if key in fits.get(p, {})]
            if as_good:
                rivals = [p for p in rivals if p["nll"] <= 1.001 * mine["nll"]]
            if key in mine and rivals:
                ratios.append(mine[key] / min(p[key] for p in rivals))
        return max(ratios)

    return worst


ONE_POINT = 0.01
SEQUENTIAL = ("CUSUM", "Page-Hinkley", "ADWIN")


def against_best_rival(rivals: tuple[str, ...]) -> Callable[[Result], float]:
    """Our median delay over the best rival's, the most of all streams and changes that are not tolerated."""

    def worst(r: Result) -> float:
        ratios = []
        for setting in r["settings"]:
            rows = {name: row["delays"] for name, row in setting["rows"].items() if row}
            others = [row for name, row in rows.items() if name.startswith(rivals)]
            for change, ours in rows["this detector"].items():
                if setting["tolerance"] != ONE_POINT or change in setting["within"]:
                    continue
                best = min(row[change]["median"] or math.inf for row in others)
                ratios.append((ours["median"] or math.inf) / best)
        return max(ratios)

    return worst


REPAIRED = (
    *("uniform", "review queue", "review queue, chances not known", "by class", "by budget"),
    *("groups of 5", "groups of 20"),
)
"""Ways to select labels. Unknown chances that go with what is wrong are left out: nothing repairs these."""


def held(r: Result, number: str) -> list[float]:
    """How often intervals hold the truth, for each way to select labels, over all drawn models."""
    return [mean(row["ours"][number]["coverage"] for row in r["drawn"][one].values()) for one in REPAIRED]


def served(r: Result, key: str) -> list[float]:
    """Ratios of ResNet-20, a network of 40 million multiplications, in TorchServe."""
    return [row[key] for row in r["rows"] if row["model"] == "resnet20"]


WIDE = ("mce", "ace")
"""In interval_coverage, of nearly empty bins: an interval may hold the truth too often, never too seldom."""

_SCRIPT = "a script of pandas and scikit-learn, without intervals"


def by_source_rows(r: Result) -> list[dict[str, float]]:
    return [row for rows in r["sets"].values() for row in rows.values()]


# --- the goals -------------------------------------------------------------------------------------

BENCHMARKS = (
    Benchmark(
        name="metrics",
        minutes=1.7,
        alone=True,
        quick=False,
        environment="requirements-metrics.txt",
        goals=(
            Goal(
                says="every shared metric: times faster, the least",
                measured=lambda r: min(
                    metric["times_faster"]
                    for size in r["sizes"].values()
                    for metric in size["metrics"].values()
                ),
                beside="the fastest of six packages",
                at_least=1.0,
                show="{:.2f}",
                reason="the NLL of 20,000 x 10: .31 ms, as torch-uncertainty's, which checks no input; every "
                "other metric is faster",
                needs=(
                    *("torchmetrics", "netcal", "uncertainty-calibration"),
                    *("torch-uncertainty", "relplot", "probmetrics"),
                ),
            ),
        ),
    ),
    Benchmark(
        name="large",
        minutes=0.6,
        options=("--repeats", "1"),
        alone=True,
        goals=(
            Goal(
                says="ten million rows: memory of `evaluate` and `fit` over the file's size",
                measured=lambda r: max(command["times_file"] for command in r["commands"].values()),
                beside="the file",
                at_most=1.3,
                show="{:.2f}",
                reason="`fit`, 1.6 to 1.8 from run to run: the scores as they came are 1.0, numbers a row "
                "of its folds the rest; `evaluate` 1.27, of which 1.21 are scores, confidences and bins",
            ),
            Goal(
                says="their time over a softmax, a sum and a sort",
                measured=lambda r: max(command["times_numpy"] for command in r["commands"].values()),
                beside="numpy",
                at_most=3.0,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        name="waiting",
        minutes=0.8,
        options=("--repeats", "1"),
        alone=True,
        goals=tuple(
            Goal(
                says=says,
                measured=lambda r, verbs=verbs: max(r["verbs"][verb]["times_script"] for verb in verbs),
                beside=beside,
                at_most=at_most,
                show="{:.2f}",
                reason=reason,
            )
            for says, verbs, beside, at_most, reason in (
                (
                    "`evaluate` of 20,000 x 10, CSV and npz, whole process: processor time",
                    ("evaluate, csv", "evaluate, npz"),
                    _SCRIPT,
                    0.7,
                    "imports",
                ),
                (
                    "the same of a million rows, CSV and Parquet",
                    ("evaluate, csv, rows", "evaluate, parquet, rows"),
                    _SCRIPT,
                    1.0,
                    "the CSV: half a second of parsing in two threads on busy cores, and copies of columns",
                ),
                (
                    "`evaluate --report` of 20,000 x 10",
                    ("report",),
                    _SCRIPT,
                    1.5,
                    "imports, figures, and the draws of labels behind intervals",
                ),
                (
                    "the same with an artifact",
                    ("report, artifact",),
                    _SCRIPT,
                    3.0,
                    "two models are measured, and compared by further draws; the fitters are imported",
                ),
                (
                    "a forest on digits: fit, ECE with interval, plot, ONNX with parity",
                    ("forest",),
                    "CalibratedClassifierCV, skl2onnx, onnxruntime and matplotlib",
                    1.0,
                    "onnx-ir reads each number of the trees four times, and imports sympy: half of 1.1 s; "
                    "`auto` on six forests is .9, imports 1.3",
                ),
            )
        ),
    ),
    Benchmark(
        name="interval_coverage",
        minutes=8,
        options=("--core-minutes", "14"),
        alone=True,  # it takes both cores by itself
        quick=False,
        goals=(
            Goal(
                # Of 109 exact intervals, 552 draws each, the least shows 91.9 or more 19 times in 20.
                says="95 % intervals that hold the truth, the least of 109: metrics but MCE and ACE, cells",
                measured=lambda r: (
                    100 * min(ends[0] for name, ends in r["coverage"].items() if name not in WIDE)
                ),
                beside="known truths",
                at_least=91.0,
                show="{:.1f} %",
                reason="average precision of 200 samples, few of them right, or few wrong: too high in mean",
            ),
            Goal(
                # Of 53 exact tests, 264 draws each, the most shows 9.8 or less 19 times in 20.
                says="changes found at p < .05 where there is none, the most of 53 metrics and models",
                measured=lambda r: 100 * max(p for row in r["level"].values() for p in row.values()),
                beside="known truths",
                at_most=9.5,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        name="verdicts",
        minutes=4.9,
        goals=(
            Goal(
                says='"calibrated" said of a model that is 3 points off, the four worst of 43 kinds',
                measured=lambda r: mean(one["calibrated"] for one in r["off"].values()),
                beside="known truths",
                at_most=0.05,
                show="{:.1%}",
            ),
            Goal(
                says='"calibrated" or "no error found" said of calibrated models, the four worst of 9 kinds',
                measured=lambda r: mean(
                    one["calibrated"] + one["no_error_found"] for one in r["calibrated"].values()
                ),
                beside="known truths",
                at_least=0.95,
                show="{:.1%}",
            ),
            Goal(
                says='"off" said of a calibrated model, the same',
                measured=lambda r: mean(one["off"] for one in r["calibrated"].values()),
                beside="known truths",
                at_most=0.05,
                show="{:.1%}",
            ),
        ),
    ),
    Benchmark(
        name="fit_outputs",
        minutes=2.2,
        options=("--sets", "--sizes", "10000x10,5000x100"),
        alone=True,
        quick=False,
        environment="requirements-fit.txt",
        goals=(
            Goal(
                says="a temperature: time, the most of all sets",
                measured=against("temperature", TEMPERATURES, "seconds", as_good=True),
                beside="the fastest of four peers as good",
                at_most=1.1,
                show="{:.2f}",
                reason="524 samples of two classes: 2.7 ms, mostly what an artifact says beside; on "
                "the others .24 to 1.00",
                needs=TEMPERATURES,
            ),
            Goal(
                says="structured scaling, Dirichlet with ODIR: held-out NLL, the most",
                measured=lambda r: max(against(ours, peers, "nll")(r) for ours, peers in STRUCTURED.items()),
                beside="the peer",
                at_most=1.001,
                show="{:.5f}",
                reason="structured matrix on one set of thirteen: its strength is found by cross-validation, "
                "the peer's is fixed; on the other twelve it is lower, by up to 1.7 %",
                needs=("probmetrics", "torch-uncertainty", "dirichletcal"),
            ),
        ),
    ),
    Benchmark(
        name="choose_outputs",
        minutes=2.6,
        options=("--repeats", "0"),
        quick=False,
        needs_data=True,
        goals=(
            Goal(
                says="`auto`: NLL, the most of sets of 300 samples or more",
                measured=lambda r: r["summary"]["300"]["worst"],
                beside="the best of four methods",
                at_most=1.01,
                show="{:.4f}",
                reason="many classes of few samples: a weak penalty is best where samples differ, and worst "
                "where they resemble each other, and the samples do not show which",
            ),
            Goal(
                says="`auto`: NLL, the most of sets of 50 samples or more",
                measured=lambda r: r["summary"]["50"]["worst"],
                beside="the best of four methods",
                at_most=1.03,
                show="{:.4f}",
                reason="the same sets",
            ),
            Goal(
                says="`auto`: NLL, mean of sets of 300 samples or more",
                measured=lambda r: r["summary"]["300"]["over_matrix"],
                beside="structured matrix",
                at_most=0.998,
                show="{:.4f}",
            ),
        ),
    ),
    Benchmark(
        name="fitting_time",
        minutes=1,
        alone=True,
        goals=(
            Goal(
                says="`auto` of 1,000,000 x 10: processor time over the same with all rows compared",
                measured=lambda r: r["auto"]["ratio"],
                beside="itself",
                at_most=0.2,
                show="{:.2f}",
                reason="most is the fit of the average to a million rows: temperature, offset, path",
            ),
            Goal(
                says="its NLL on new rows less that",
                measured=lambda r: abs(r["auto"]["nll_above"]),
                beside="itself",
                at_most=1e-5,
                show="{:.1e}",
            ),
        ),
    ),
    Benchmark(
        name="sets",
        minutes=0.8,
        options=("--runs", "500", "--splits", "30"),
        quick=False,
        needs_data=True,
        environment="requirements-sets.txt",
        goals=(
            Goal(
                says="prediction sets: mean coverage less the promise, in standard errors, the least",
                measured=lambda r: min(
                    *(row["above_promise_z"] for row in r["coverage"] if "z" in row),
                    r["by_class"]["least_z"],
                    r["groups"]["z"],
                ),
                beside="the promise; MAPIE and crepes agree",
                at_least=-3.5,
                show="{:.2f}",
            ),
            Goal(
                says="abstention at 95 %: thresholds that break their promise, the most of all risks",
                measured=lambda r: max(row["ours"]["broken"] for row in r["risk"]),
                beside="the promise",
                at_most=0.05,
                show="{:.3f}",
            ),
            Goal(
                says="share answered at one promise, the least of six networks",
                measured=lambda r: min(row["ours"] / row["geifman"] for row in r["real"].values()),
                beside="Geifman and El-Yaniv",
                at_least=1.0,
                show="{:.3f}",
            ),
        ),
    ),
    Benchmark(
        name="open_set",
        minutes=0.4,
        options=("--draws", "40"),
        quick=False,
        needs_data=True,
        goals=(
            Goal(
                says="known samples refused: mean share less the promise, in standard errors, the most",
                measured=lambda r: max(row["above_promise_z"] for row in r["promise"].values()),
                beside="the promise",
                at_most=3.5,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        name="prior_shift",
        minutes=1.2,
        options=("--resamples", "40", "--images", "1000"),
        needs_data=True,
        goals=(
            Goal(
                says="95 % intervals of class shares, by counts, that hold the truth, the least of all sets",
                measured=lambda r: 100 * min(row["covered by counts"] for row in r["label_shift"].values()),
                beside="known truths",
                at_least=93.0,
                show="{:.1f} %",
            ),
            Goal(
                says="unmoved class shares called moved at a level of 1 %, the mean of all sets",
                measured=lambda r: (
                    100 * mean(row["unmoved called moved"] for row in r["label_shift"].values())
                ),
                beside="the level",
                at_most=2.0,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        name="by_source",
        minutes=0.15,
        options=("--seeds", "1"),
        needs_data=True,
        goals=(
            Goal(
                says="held-out NLL of a calibration by source, mean of all sets and methods",
                measured=lambda r: mean(row["ratio to the better"] for row in by_source_rows(r)),
                beside="the better of one for all and one for each",
                at_most=1.0,
                show="{:.4f}",
            ),
            Goal(
                says="held-out NLL of a calibration by source, the worst of all sets and methods",
                measured=lambda r: max(row["ratio to the better"] for row in by_source_rows(r)),
                beside="the better of one for all and one for each",
                at_most=1.0,
                show="{:.4f}",
                reason="15 of 39 rows are above 1: where sources hardly differ, estimating by how much costs "
                "what it gains; the worst has 1,000 rows in 5 sources of a model that is calibrated already",
            ),
        ),
    ),
    Benchmark(
        name="fusion_overhead",
        minutes=2.2,
        options=("--seconds", "2", "--rounds", "2"),
        alone=True,
        goals=(
            Goal(
                says="time of a graph with its calibration inside, median of 22 rows",
                measured=lambda r: r["median_ratio"],
                beside="the raw graph",
                at_most=1.005,
                show="{:.4f}",
            ),
        ),
    ),
    Benchmark(
        name="choices",
        minutes=0.15,
        options=("--draws", "100", "--seconds", "0.5", "--rounds", "2"),
        quick=False,
        needs_data=True,
        goals=(
            Goal(
                says="decisions: promises at 90 % that are kept, the mean of 24 sets and goals",
                measured=lambda r: sum(row["kept"] for row in r["promises"]) / len(r["promises"]),
                beside="the promise",
                at_least=0.9,
                show="{:.3f}",
            ),
            Goal(
                says="decisions: promises at 90 % that are kept, the least of 24 sets and goals",
                measured=lambda r: min(row["kept"] for row in r["promises"]),
                beside="the promise, less three standard errors of 200 draws",
                at_least=0.836,
                show="{:.3f}",
            ),
            Goal(
                says="decisions: mean cost after a calibration on 5,000 samples, the most of eight problems",
                measured=lambda r: max(row["calibrated"] for row in r["hindsight"]["drawn"]),
                beside="the best threshold in hindsight",
                at_most=1.02,
                show="{:.4f}",
            ),
            Goal(
                says="decisions: the same on real logits, over that of perfect probabilities, the most",
                measured=lambda r: max(
                    row["ratio"] / row["if_perfect"] for row in r["hindsight"]["real"].values()
                ),
                beside="the best threshold in hindsight",
                at_most=1.02,
                show="{:.4f}",
                reason="of one network, whose classes against the rest a beta calibration does not fit",
            ),
            Goal(
                says="decisions: time of a ResNet-20 that decides by costs, the most of two rows",
                measured=lambda r: max(row["deciding"] for row in r["overhead"]),
                beside="the graph of probabilities",
                at_most=1.02,
                show="{:.4f}",
            ),
        ),
    ),
    Benchmark(
        name="decisions_overhead",
        minutes=1.5,
        options=("--seconds", "1", "--rounds", "3"),
        alone=True,
        goals=(
            Goal(
                says="time of a graph with prediction sets and abstention, median of 20 rows",
                measured=lambda r: r["median_ratio"],
                beside="the graph of probabilities",
                at_most=1.02,
                show="{:.4f}",
            ),
        ),
    ),
    Benchmark(
        name="serving",
        minutes=2.3,
        options=("--rounds", "4", "--seconds", "1"),
        alone=True,
        goals=(
            Goal(
                says="TorchServe, ResNet-20: throughput with calibration, receipts and counters, the least",
                measured=lambda r: min(served(r, "throughput_ratio")),
                beside="a bare handler",
                at_least=0.98,
                show="{:.3f}",
            ),
            Goal(
                says="TorchServe, ResNet-20: p99, the most",
                measured=lambda r: max(served(r, "p99_ratio")),
                beside="a bare handler",
                at_most=1.05,
                show="{:.3f}",
                reason="the second slowest of 120 requests of a second, in rounds from .81 to 1.49; of other "
                "rows .75 to .96",
            ),
        ),
    ),
    Benchmark(
        name="reporter_servers",
        minutes=1.6,
        options=("--seconds", "2", "--rounds", "4"),
        alone=True,
        goals=(
            Goal(
                says="FastAPI and LitServe, a model of 1 ms: throughput with a Reporter, the least",
                measured=lambda r: min(
                    of["a_second"]["reported/calibrated"]["median"] for of in r["servers"].values()
                ),
                beside="the server without",
                at_least=0.98,
                show="{:.3f}",
                reason="LitServe on two busy cores, in rounds from .65 to 1.14; FastAPI .99",
            ),
            Goal(
                says="predictions counted over those that were answered",
                measured=lambda r: min(found["counted"] / found["asked"] for found in r["servers"].values()),
                beside="the clients' count",
                at_least=1.0,
                show="{:.3f}",
            ),
        ),
    ),
    Benchmark(
        name="gateway",
        minutes=1.1,
        options=("--rounds", "4", "--seconds", "1"),
        alone=True,
        goals=(
            Goal(
                says="gateway, a model of 1 ms, 32 connections: throughput, the least of three protocols",
                measured=lambda r: min(
                    row["throughput_ratio"] for row in r["rows"] if row["connections"] > 1
                ),
                beside="the server alone",
                at_least=0.9,
                show="{:.3f}",
                reason="that is gRPC, of which a core passes on 600 a second; JSON and binary reach .94",
            ),
        ),
    ),
    Benchmark(
        name="monitor",
        minutes=0.8,
        alone=True,
        goals=(
            Goal(
                says="a served prediction counted and signed, one a batch",
                measured=lambda r: r["cost"]["a served prediction, 1 a batch"]["hmacs"],
                beside="HMACs of its receipt",
                at_most=6.0,
                show="{:.1f}",
            ),
            Goal(
                says="a Reporter's prediction, one a call",
                measured=lambda r: r["cost"]["Reporter.served, 1 a call, counted by a registry"]["hmacs"],
                beside="HMACs of its receipt",
                at_most=2.0,
                show="{:.2f}",
                reason="a receipt is 1.0 of it: two hashes, a packed record, base64; calls of numpy, of the "
                "clock and of the process's id .5; the rest is a hundred lines of Python",
            ),
            Goal(
                says="the same, 64 a call",
                measured=lambda r: r["cost"]["Reporter.served, 64 a call, counted by a registry"]["hmacs"],
                beside="HMACs of its receipt",
                at_most=1.1,
                show="{:.2f}",
                reason="a receipt is .95 of it, its nonce and its row's maximum .1 each",
            ),
            Goal(
                says="import of `Reporter`, processor time",
                measured=lambda r: r["import"],
                beside="numpy's import",
                at_most=2.1,
                show="{:.2f}",
                reason="thirty modules of ours without any other package, .07 s; numpy is .06 s of it",
            ),
        ),
    ),
    Benchmark(
        name="labels",
        minutes=1.4,
        options=("--labels", "20000", "--rounds", "3"),
        alone=True,
        programs=("initdb",),
        goals=(
            Goal(
                says="a label verified and durable, 500 a request, SQLite",
                measured=lambda r: r["processes"]["one process, one file"]["hmacs"],
                beside="HMACs of its receipt",
                at_most=10.0,
                show="{:.1f}",
                reason="two thirds are the checks of each item in Python: base64, HMAC, range, slices",
            ),
            Goal(
                says="a label verified and durable, 500 a request, SQLite",
                measured=lambda r: r["bulk"]["SQLite"],
                beside="sqlite3's executemany of its rows",
                at_most=1.5,
                show="{:.1f}",
                reason="the insert is a fifth of it; the rest are the checks of each item, in Python",
            ),
            Goal(
                says="the same on PostgreSQL, with the server's time",
                measured=lambda r: r["bulk"]["PostgreSQL"],
                beside="COPY of its rows",
                at_most=2.0,
                show="{:.1f}",
                reason="the checks of each item, and an index of what is to be summed",
            ),
            Goal(
                says="a label also summed by slice and time, and watched for drift",
                measured=lambda r: r["and watched for drift"]["times_least_cpu"],
                beside="an HMAC and a durable row",
                at_most=4.0,
                show="{:.2f}",
                reason="a row is written when its label comes, and again when it is summed and fed to the "
                "detector; no request waits for these two",
            ),
            Goal(
                says="two processes on one PostgreSQL: labels a second, by processor time",
                measured=lambda r: r["processes"]["two processes, PostgreSQL"]["rise_cpu"],
                beside="one process",
                at_least=1.8,
                show="{:.2f}",
            ),
            Goal(
                says="bytes of a label in PostgreSQL while it is accepted",
                measured=lambda r: r["bytes"]["PostgreSQL"],
                beside="SQLite's 84",
                at_most=270.0,
                show="{:.0f}",
                reason="an update leaves the row of before to a vacuum, which uses its space again",
            ),
        ),
    ),
    Benchmark(
        name="year",
        minutes=0.7,
        options=("--labels", "40000"),
        alone=True,
        programs=("initdb",),
        goals=(
            Goal(
                says="a year of labels: what a scrape, page, label, sweep or opening takes",
                measured=lambda r: max(
                    found["growth"]
                    for kind in ("SQLite", "PostgreSQL")
                    for name, found in r[kind].items()
                    if name not in ("bytes", "all-time page")  # its curve has a point for each day
                ),
                beside="its last quarter at the same traffic",
                at_most=1.3,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        name="soak",
        minutes=1.3,
        options=("--seconds", "60"),
        alone=True,
        quick=False,
        goals=(
            Goal(
                says="under load: predictions and labels not counted, requests failed",
                measured=lambda r: (
                    abs(r["predicted"] - r["counted_predictions"])
                    + abs(r["accepted"] - r["counted_labels"])
                    + r["failed"]
                ),
                beside="the clients' count",
                at_most=0,
                show="{:.0f}",
            ),
        ),
    ),
    Benchmark(
        name="audit",
        minutes=1.1,
        options=("--rounds", "2"),
        alone=True,
        goals=(
            Goal(
                says="an audit of ten million rows that trusts ids, processor time",
                measured=lambda r: r["cost"]["audit, unique_ids"]["ratio"],
                beside="DuckDB's own join, count and sum",
                at_most=1.5,
                show="{:.2f}",
                reason="nine sums by model, version, bin and outcome, in place of three of all",
            ),
        ),
    ),
    Benchmark(
        name="deployment",
        minutes=3.4,
        programs=("prometheus", "promtool"),
        goals=(
            Goal(
                says="versions of 20 replicas whose rules one Prometheus evaluates in time",
                measured=lambda r: deployment.EVERY / r["units"]["rules"]["seconds"],
                beside="their interval",
                at_least=1000.0,
                show="{:,.0f}",
                reason="every 30 seconds, so that a label shows within a minute; every two minutes before",
            ),
        ),
    ),
    Benchmark(
        name="detectors",
        minutes=1.8,
        options=("--streams", "60"),
        quick=False,
        needs_data=True,
        environment="requirements-watch.txt",
        goals=(
            Goal(
                says="drift: median delay at equal false alarms, the most of all changes and streams",
                measured=against_best_rival(SEQUENTIAL),
                beside="the best of CUSUM, Page-Hinkley and ADWIN, each tuned to the change",
                at_most=1.0,
                show="{:.2f}",
                reason="a CUSUM that is given the size of the change is optimal for it; not knowing it, and "
                "watching bins and classes too, costs up to a quarter",
                needs=("river",),
            ),
            Goal(
                says="drift: median delay, the same",
                measured=against_best_rival(("ECE",)),
                beside="the best ECE window",
                at_most=1.0,
                show="{:.2f}",
                reason="errors of 5 points that cancel over a stream's few bins, which 500 labels fill; sees "
                "errors that cancel over classes, and small ones, later",
            ),
            Goal(
                says="run length to a false alarm over the promised one, the least of all streams",
                measured=lambda r: min(row["measured"] / row["promised"] for row in r["run_lengths"]),
                beside="the promise",
                at_least=1.0,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        name="late_labels",
        minutes=1.6,
        options=("--streams", "60"),
        needs_data=True,
        goals=(
            Goal(
                says="run length where labels come late by outcome, in groups or by choice",
                measured=lambda r: min(
                    row["ours"][0] for rows in r["run_lengths"].values() for row in rows.values()
                ),
                beside="the promise",
                at_least=1.0,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        name="refit_gate",
        minutes=1.3,
        options=("--runs", "100", "--changed", "20", "--rivals", "10"),
        needs_data=True,
        goals=(
            Goal(
                says="streams where nothing changed and a refit was deployed, asked 20 times, the most",
                measured=lambda r: (
                    100 * max(s["rules"]["evidence"]["asks"] for s in r["settings"] if not s["changed"])
                ),
                beside="the 5 % stated",
                at_most=6.0,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        name="selection",
        minutes=2.5,
        options=("--streams", "120", "--draws", "60"),
        needs_data=True,
        goals=(
            Goal(
                says="95 % intervals of accuracy, gap and ECE from chosen labels, the least of all ways",
                measured=lambda r: 100 * min(min(held(r, number)) for number in ("accuracy", "gap", "ECE")),
                beside="known truths",
                at_least=93.0,
                show="{:.1f} %",
            ),
            Goal(
                says="forecasts of 50 football matches, minute by minute: intervals of the gap, by groups",
                measured=lambda r: 100 * r["matches"]["with groups"]["ours"]["gap"]["coverage"],
                beside="known truths",
                at_least=93.0,
                show="{:.1f} %",
                reason="50 groups are few to know their spread from; without groups it is one draw in five",
            ),
        ),
    ),
    Benchmark(
        name="contracts",
        minutes=2.5,
        options=("--streams", "80", "--labels", "10000", "--breaches", "30"),
        needs_data=True,
        goals=(
            Goal(
                says='"broken" said of a contract that is kept, the most of all ways to label but one',
                measured=lambda r: (
                    100
                    * max(
                        found["broken"]
                        for case, found in r["said"].items()
                        if not case.endswith("inside a bin")
                    )
                ),
                beside="the 5 % stated",
                at_most=5.0,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        name="shadow",
        minutes=2.6,
        options=("--streams", "12"),
        needs_data=True,
        goals=(
            Goal(
                says="wrong promotions of a shadow that loses 1 % of the NLL, the most of all networks",
                measured=lambda r: 100 * r["summary"]["loses 1 %"]["worst of a network"],
                beside="the 5 % stated",
                at_most=5.0,
                show="{:.1f} %",
            ),
            Goal(
                says="wrong refusals at a gain of 1 % and 20,000 labels, all networks",
                measured=lambda r: 100 * (1 - r["summary"]["gains 1 %"]["ours"]),
                beside="known truths",
                at_most=20.0,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        name="language_models",
        minutes=0.48,
        options=("--rows", "600", "--draws", "3"),
        needs_data=True,
        goals=(
            *(
                Goal(
                    says=f"answers of language models: NLL of {says}, the most of six sets",
                    measured=lambda r, name=name: max(
                        one["maps"][name]["nll"] / one["maps"]["plain"]["nll"] for one in r["sets"].values()
                    ),
                    beside="the probabilities as they are",
                    at_most=1.0,
                    show="{:.3f}",
                    reason=reason,
                )
                for says, name, reason in (
                    ("`auto`", "auto, all", ""),
                    ("a temperature of 50 labels", "temperature, 50", ""),
                    (
                        "batch calibration, without labels",
                        "batch",
                        "on 77 intents, whose mean probabilities are the class shares already; .86 on tweets",
                    ),
                )
            ),
        ),
    ),
)

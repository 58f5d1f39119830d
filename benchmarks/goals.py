"""Every benchmark, and the goals that decide: the one place where goals are written down.

A goal reads the benchmark's result (results/NAME.json) and gives one number, the worst case where there are
many, which must be at most or at least what is stated. ``reason`` is shown where the goal is missed.
No goal is in seconds, nor in anything a second, as these are another machine's elsewhere: the unit of a
time is work that the same run has measured, a peer's or the least that the task takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import deployment

Result = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """``measured`` of the result against one of the two bounds; ``show`` formats both.

    ``peers``: those that ours is compared with; where one is absent, the rest decide nothing.
    """

    says: str
    measured: Callable[[Result], float]
    at_most: float = math.inf
    at_least: float = -math.inf
    show: str = "{:.3g}"
    reason: str = ""
    peers: tuple[str, ...] = ()

    def met(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most

    @property
    def bound(self) -> str:
        if math.isfinite(self.at_most):
            return f"at most {self.show.format(self.at_most)}"
        return f"at least {self.show.format(self.at_least)}"


@dataclass(frozen=True)
class Benchmark:
    """One file of this folder: the options of its full run, and its page in docs/benchmarks.

    One without goals makes tables of papers.

    ``programs`` must be on the path, and ``environment`` names the pins that its peers are made of.
    """

    name: str
    asks: str
    goals: tuple[Goal, ...] = ()
    options: tuple[str, ...] = ()
    needs_data: bool = False
    page: str = ""
    programs: tuple[str, ...] = ()
    environment: str = ""


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


# fit_outputs

TEMPERATURES = ("probmetrics", "netcal", "scikit-learn", "torch-uncertainty")
STRUCTURED = {
    "structured-vector": ("probmetrics svs",),
    "structured-matrix": ("probmetrics sms",),
    "dirichlet-odir, seven lambdas": ("torch-uncertainty odir", "dirichletcal odir"),
}
"""Methods of many numbers, with their peers."""


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


# neural_clamping

OUTPUT_METHODS = ("TS", "TS grid", "VS", "MS-ODIR", "Dir-ODIR")


def above_best_output(network: str, row: str) -> Callable[[Result], float]:
    """Mean ECE over the splits less that of the best output method, in points."""

    def points(r: Result) -> float:
        splits = r["models"][network]["splits"]
        errors = {name: mean(split[name]["ece"] for split in splits) for name in (row, *OUTPUT_METHODS)}
        gap = 100 * (errors[row] - min(errors[name] for name in OUTPUT_METHODS))
        return round(gap, 6)  # two ways to the same temperature differ by float32's rounding

    return points


# masked_head, head_networks


def head(row: str, column: str) -> Callable[[Result], float]:
    return lambda r: mean(split[row][column] for split in r["splits"] if row in split)


HEAD_RIVALS = ("temperature", "vector", "structured-average")


def over_best_output(network: str, column: str) -> Callable[[Result], float]:
    """The tuned head's mean over that of the best output method of each split."""

    def ratio(r: Result) -> float:
        splits = r["networks"][network]["splits"]
        best = mean(min(rows[m][column] for m in HEAD_RIVALS) for rows in splits)
        return mean(rows["tuned head + TS"][column] for rows in splits) / best

    return ratio


# detectors

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


# refit_gate


def labels_until_refit(rival: str) -> Callable[[Result], float]:
    """Median labels over those of another rule, the most of all settings where the temperature changed."""

    def ratio(r: Result) -> float:
        found = []
        for s in r["settings"]:
            if s["changed"] and s["kind"] != "a class doubled":
                ours, other = (s["rules"][rule]["labels"][1] for rule in ("evidence", rival))
                found.append((ours or math.inf) / other if other else 0.0 if ours else math.inf)
        return max(found)

    return ratio


# selection

REPAIRED = (
    *("uniform", "review queue", "review queue, chances not known", "by class", "by budget"),
    *("groups of 5", "groups of 20"),
)
"""Without labels whose unknown chances go with what is wrong: these cannot be repaired."""


def held(r: Result, number: str) -> list[float]:
    """How often intervals hold the truth, for each way to select labels, over all drawn models."""
    return [mean(row["ours"][number]["coverage"] for row in r["drawn"][one].values()) for one in REPAIRED]


# paper_tables


def published_ece(network: str) -> Callable[[Result], float]:
    """The ECE before calibration, in percent, of the table that rebuilds Lin 2025."""

    def found(r: Result) -> float:
        (table,) = [t for t in r["tables"] if t["title"].startswith("Table 1, the cross-entropy column")]
        return next(row[1] for row in table["rows"] if row[0] == network)

    return found


# interval_coverage

WIDE = ("mce", "ace")
"""Of nearly empty bins: an interval may hold the truth too often, never too seldom."""

# choose_outputs

SHIFTED = "pneumonia_cnn_inhouse"
"""Its test part is of another kind than its calibration part: no method is right."""


# contracts


def repaired(case: str) -> bool:
    """Whether what is labelled can be weighed: not where a choice inside a bin is known to nobody."""
    return not case.endswith("inside a bin")


BENCHMARKS = (
    Benchmark(
        "metrics",
        "Is every metric faster than the fastest peer's?",
        (
            Goal(
                "every shared metric, times faster than the fastest peer, the least of all",
                lambda r: min(
                    metric["times_faster"]
                    for size in r["sizes"].values()
                    for metric in size["metrics"].values()
                ),
                at_least=1.0,
                show="{:.2f}",
                peers=(
                    *("torchmetrics", "netcal", "uncertainty-calibration"),
                    *("torch-uncertainty", "relplot", "probmetrics"),
                ),
            ),
        ),
        environment="requirements-metrics.txt",
    ),
    Benchmark(
        "large",
        "What do ten million rows cost, in memory and in time?",
        (
            Goal(
                "memory of `evaluate` and of `fit --method temperature` over the file's size, the most",
                lambda r: max(command["times_file"] for command in r["commands"].values()),
                at_most=3.0,
                show="{:.2f}",
            ),
            Goal(
                "their time over that of numpy's softmax, sum and sort, the most",
                lambda r: max(command["times_numpy"] for command in r["commands"].values()),
                at_most=3.0,
                show="{:.2f}",
            ),
        ),
    ),
    Benchmark(
        "interval_coverage",
        "Do 95 % intervals hold the truth, and do paired tests at 5 % hold their level?",
        (
            Goal(
                "intervals that hold the truth, the least of all metrics but MCE and ACE",
                lambda r: 100 * min(ends[0] for name, ends in r["coverage"].items() if name not in WIDE),
                at_least=93.0,
                show="{:.1f} %",
            ),
            Goal(
                "changes found at .05 where there is none, the most of all metrics",
                lambda r: 100 * max(p for row in r["level"].values() for p in row.values()),
                at_most=7.0,
                show="{:.1f} %",
            ),
        ),
    ),
    Benchmark(
        "fit_outputs",
        "How soon do output calibrators fit, and how well, beside their peers?",
        (
            Goal(
                "a temperature, time over that of the fastest peer as good, the most of all sets",
                against("temperature", TEMPERATURES, "seconds", as_good=True),
                peers=TEMPERATURES,
                at_most=1.0,
                show="{:.2f}",
                reason="at 5,000 x 100 ours and probmetrics take 9 ms each, within the noise of one another",
            ),
            Goal(
                "structured scaling and Dirichlet with ODIR, held-out NLL over the best peer's, the most",
                lambda r: max(against(ours, peers, "nll")(r) for ours, peers in STRUCTURED.items()),
                peers=("probmetrics", "torch-uncertainty", "dirichletcal"),
                at_most=1.0,
                show="{:.5f}",
                reason="the peer floors probabilities before its linear map; ours runs in a served graph as "
                "it is, and mixes the same floor in at the end",
            ),
        ),
        options=("--sets",),
        page="output_calibrators",
        environment="requirements-fit.txt",
    ),
    Benchmark(
        "choose_outputs",
        "Does `--method auto` choose well?",
        (
            *(
                Goal(
                    "NLL of auto over the best of no calibration, a temperature, structured vector and "
                    f"matrix, the most of all sets of {least} samples or more",
                    lambda r, least=least: r["summary"][least]["worst"],
                    at_most=at_most,
                    show="{:.4f}",
                    reason="where classes are many, weak penalties may be best, and look best too where "
                    "samples resemble each other and they are the worst: none is tried that a few samples "
                    "outweigh; 50 samples cannot tell methods apart",
                )
                for least, at_most in (("300", 1.01), ("50", 1.03))
            ),
            Goal(
                "NLL of auto over structured matrix scaling's, mean of all sets of 300 samples or more",
                lambda r: r["summary"]["300"]["over_matrix"],
                at_most=0.998,
                show="{:.4f}",
            ),
            Goal(
                "processor time of auto over that of the peer's default fit, the most of all sizes",
                lambda r: max(of["ratio"] for size in r["times"].values() for of in size.values()),
                peers=("probmetrics",),
                at_most=1.0,
                show="{:.2f}",
                reason="its folds are as many fits, and it measures itself on them",
            ),
        ),
        needs_data=True,
        page="output_calibrators",
        environment="requirements-fit.txt",
    ),
    Benchmark(
        "neural_clamping",
        "Does Neural Clamping beat output methods?",
        (
            Goal(
                "this package's default: ECE less that of the best output method, in points, the most of two",
                lambda r: max(above_best_output(name, "NC (folds)")(r) for name in ("resnet20", "resnet56")),
                at_most=0.0,
                show="{:+.3f}",
                reason="judged on held-out folds, little is left to gain beyond a temperature",
            ),
        ),
        needs_data=True,
        page="neural_clamping",
    ),
    Benchmark(
        "neural_clamping_speed",
        "How much sooner does its loss fall than under the schedules of its paper and its toolkit? Their "
        "objectives at full size are options: the default shift is coarser and judged on held-out folds.",
        (
            Goal(
                "ResNet-20, whole fit, times less processor time than the paper's schedule",
                lambda r: r["schedules"]["paper"]["times_faster"]["cpu_seconds"],
                at_least=5.0,
                show="{:.1f}",
                reason="ours goes on to a lower loss: 26 passes over all images",
            ),
        ),
        needs_data=True,
        page="neural_clamping",
    ),
    Benchmark(
        "neural_clamping_gain",
        "What would make a shift of the input pay beside the best output method?",
        needs_data=True,
        page="neural_clamping",
    ),
    Benchmark(
        "neural_clamping_starts",
        "Do its starts, trainings and folds matter as its paper says?",
        needs_data=True,
        page="neural_clamping",
    ),
    Benchmark(
        "digits_calibrators",
        "Its paper's objective by our solver on a small network with few samples, over seeds.",
        page="neural_clamping",
    ),
    Benchmark(
        "masked_head",
        "Does a head retrained under masks calibrate a real network?",
        (
            Goal(
                "ECE of the default", lambda r: 100 * head("default", "ece")(r), at_most=1.3, show="{:.2f} %"
            ),
        ),
        needs_data=True,
        page="masked_head",
    ),
    Benchmark(
        "head_networks",
        "Which head, and what behind it, is best, beside the best output method of each split?",
        (
            Goal(
                "NLL of the tuned head + TS over the least of three output methods, the most of three",
                lambda r: max(over_best_output(name, "nll")(r) for name in ("digits", "mnist", "resnet20")),
                at_most=1.0,
                show="{:.3f}",
                reason="5,000 labels say no more of 650 weights than a map of 10 logits already has",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "mac_cal",
        "MaC-Cal beside the same head without masks: gamma, shifted images, other first stages",
        needs_data=True,
        page="masked_head",
    ),
    Benchmark(
        "fusion_overhead",
        "Does a calibration inside the model cost anything?",
        (
            Goal(
                "time of the fused graph over the raw one, median of all rows",
                lambda r: r["median_ratio"],
                at_most=1.005,
                show="{:.4f}",
            ),
        ),
        page="fusion",
    ),
    Benchmark(
        "decisions_overhead",
        "What do prediction sets and abstention in the graph cost?",
        (
            Goal(
                "time of the graph that decides over the one that gives probabilities, median of all rows",
                lambda r: r["median_ratio"],
                at_most=1.02,
                show="{:.4f}",
            ),
        ),
    ),
    Benchmark(
        "labels",
        "What does it cost to verify a label and count it durably?",
        (
            Goal(
                "a label also summed by slice and time, and watched for drift, processor time, over the "
                "least it takes: an HMAC and a row in a durable transaction",
                lambda r: r["and watched for drift"]["times_least_cpu"],
                at_most=4.0,
                show="{:.2f}",
                reason="each label is a row that anybody can query, written when it comes and twice more "
                "when it is summed and fed; no request waits for these two",
            ),
            Goal(
                "a label verified and durable, 500 a request, in HMACs of its receipt, SQLite",
                lambda r: r["processes"]["one process, one file"]["hmacs"],
                at_most=10.0,
                show="{:.1f}",
                reason="a row of twenty columns and its three indexes is most of it",
            ),
            Goal(
                "labels a second of two processes on one PostgreSQL over those of one, by processor time",
                lambda r: r["processes"]["two processes, PostgreSQL"]["rise_cpu"],
                at_least=1.8,
                show="{:.2f}",
            ),
            Goal(
                "labels a second of two processes on one file over those of one, by processor time",
                lambda r: r["processes"]["two processes, one file"]["rise_cpu"],
                at_least=1.7,
                show="{:.2f}",
                reason="one writes at a time, and looks for its turn meanwhile",
            ),
            Goal(
                "bytes of a label in PostgreSQL while it is accepted",
                lambda r: r["bytes"]["PostgreSQL"],
                at_most=270.0,
                show="{:.0f}",
                reason="an update leaves the row of before to a vacuum, which uses its space again",
            ),
        ),
        page="serving",
        programs=("initdb",),
    ),
    Benchmark(
        "serving",
        "What do calibration, receipts and monitoring cost in TorchServe?",
        (
            Goal(
                "throughput over that of a bare handler, the least of both models and all settings",
                lambda r: min(row["throughput_ratio"] for row in r["rows"]),
                at_least=0.98,
                show="{:.3f}",
                reason="where the model itself takes a hundredth of a millisecond, the receipt and the "
                "larger reply are a part of every request that can be seen",
            ),
            Goal(
                "p99 over that of a bare handler, the most of both models and all settings",
                lambda r: max(row["p99_ratio"] for row in r["rows"]),
                at_most=1.05,
                show="{:.3f}",
                reason="as for throughput",
            ),
        ),
        page="serving",
    ),
    Benchmark(
        "reporter_servers",
        "What does a Reporter take of FastAPI and LitServe, with a model of 1 ms?",
        (
            Goal(
                "throughput with a Reporter over that without, the least of both",
                lambda r: min(
                    of["a_second"]["reported/calibrated"]["median"] for of in r["servers"].values()
                ),
                at_least=0.98,
                show="{:.3f}",
                reason="servers, clients and watch shared two cores, which the server alone fills: there "
                "each microsecond counts",
            ),
            Goal(
                "predictions that the watch counted over those that were answered",
                lambda r: min(found["counted"] / found["asked"] for found in r["servers"].values()),
                at_least=1.0,
                show="{:.3f}",
            ),
        ),
    ),
    Benchmark(
        "gateway",
        "What does `calib-serve gateway` add before a server of the Open Inference Protocol?",
        (
            Goal(
                "throughput over that of the server alone, by 32 connections, the least",
                lambda r: min(row["throughput_ratio"] for row in r["rows"] if row["connections"] > 1),
                at_least=0.9,
                show="{:.3f}",
                reason="the gateway's own limit: the table has its requests a second of processor time",
            ),
        ),
        page="serving",
    ),
    Benchmark(
        "soak",
        "Does anything grow in ten minutes at load?",
        (
            Goal(
                "predictions and labels not counted, requests failed",
                lambda r: (
                    abs(r["predicted"] - r["counted_predictions"])
                    + abs(r["accepted"] - r["counted_labels"])
                    + r["failed"]
                ),
                at_most=0,
                show="{:.0f}",
            ),
        ),
        page="serving",
    ),
    Benchmark(
        "detectors",
        "How many labels does it take to notice that calibration changed, at equal rates of false alarms?",
        (
            *(
                Goal(
                    f"median delay over that of the best {says}, the most of all changes and streams",
                    against_best_rival(rivals),
                    peers=("river",) if rivals == SEQUENTIAL else (),
                    at_most=1.0,
                    show="{:.2f}",
                    reason=reason,
                )
                for says, rivals, reason in (
                    (
                        "of CUSUM, Page-Hinkley and ADWIN",
                        SEQUENTIAL,
                        "a CUSUM that is told the size of the change is optimal for it, and the rivals have "
                        "one for each size; not knowing it, and watching bins and classes as well, costs up "
                        "to a quarter",
                    ),
                    (
                        "ECE window",
                        ("ECE",),
                        "errors of 5 points that cancel over the few bins of the baseball stream: a window "
                        "of 500 labels fills these bins; it sees errors that cancel over classes, and small "
                        "ones, later than this detector",
                    ),
                )
            ),
            Goal(
                "measured run length to a false alarm over the promised one, the least of all streams",
                lambda r: min(row["measured"] / row["promised"] for row in r["run_lengths"]),
                at_least=1.0,
                show="{:.2f}",
            ),
        ),
        needs_data=True,
        environment="requirements-watch.txt",
    ),
    Benchmark(
        "late_labels",
        "Does the promised run length hold for labels that come late by outcome, in groups, or by choice?",
        (
            Goal(
                "labels to a false alarm over the promise, the least of all cases and confidences",
                lambda r: min(row["ours"][0] for rows in r["run_lengths"].values() for row in rows.values()),
                at_least=1.0,
                show="{:.2f}",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "refit_gate",
        "How often does a refit deploy when nothing changed, and how soon when something did?",
        (
            Goal(
                "streams where nothing changed and a refit was deployed, asked 20 times, in points above the "
                "5 % stated, the most of all settings",
                lambda r: (
                    100
                    * (
                        max(s["rules"]["evidence"]["asks"] for s in r["settings"] if not s["changed"])
                        - r["alpha"]
                    )
                ),
                at_most=1.0,
                show="{:+.1f}",
                reason="structured vector scaling has 100 streams a setting: two points are chance",
            ),
            Goal(
                "median labels until a temperature changed by 1.3 is deployed, over those of a t test with "
                "its rate spent over the asks, the most of all settings",
                labels_until_refit("t test"),
                at_most=1.0,
                show="{:.2f}",
                reason="the t test deploys on up to 20 % of streams where nothing changed, four times what "
                "is stated; evidence takes one ask more",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "selection",
        "Do live numbers speak of all predictions, where only some that were chosen have labels?",
        (
            Goal(
                "95 % intervals of accuracy, gap and ECE that hold the truth, the least of all selections",
                lambda r: min(min(held(r, number)) for number in ("accuracy", "gap", "ECE")),
                at_least=0.93,
                show="{:.3f}",
                reason="of the selections, one can be as far off by chance: each has 800 streams",
            ),
            Goal(
                "forecasts of 50 football matches, minute by minute: 95 % intervals of the gap that hold the "
                "truth, by groups",
                lambda r: r["matches"]["with groups"]["ours"]["gap"]["coverage"],
                at_least=0.93,
                show="{:.3f}",
                reason="50 groups are few to know their spread from; as if each minute were by itself, the "
                "intervals hold the truth in one of five draws",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "prior_shift",
        "Are class shares found without labels, and is what is no label shift refused?",
        (
            Goal(
                "95 % intervals of class shares by counts hold the truth, the least of all sets",
                lambda r: 100 * min(row["covered by counts"] for row in r["label_shift"].values()),
                at_least=93.0,
                show="{:.1f} %",
            ),
            Goal(
                "unmoved class shares called moved, the mean of all sets (level 1 %)",
                lambda r: 100 * mean(row["unmoved called moved"] for row in r["label_shift"].values()),
                at_most=2.0,
                show="{:.1f} %",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "sets",
        "Do prediction sets hold the true class, and abstention keep the risk, as often as promised?",
        (
            Goal(
                "mean coverage less the promise in standard errors, the least of all scores, classes, "
                "samples, coverages, ties, classes apart and groups",
                lambda r: min(
                    *(row["above_promise_z"] for row in r["coverage"] if "z" in row),
                    r["by_class"]["least_z"],
                    r["groups"]["z"],
                ),
                at_least=-3.5,
                show="{:.2f}",
                reason="of some forty means one can be as far off by chance",
            ),
            Goal(
                "thresholds of abstention at 95 % that break their promise, the most of all shapes of risk",
                lambda r: max(row["ours"]["broken"] for row in r["risk"]),
                at_most=0.05,
                show="{:.3f}",
            ),
            Goal(
                "share answered over that of Geifman and El-Yaniv's rule, at one promise, the least of six "
                "networks",
                lambda r: min(row["ours"] / row["geifman"] for row in r["real"].values()),
                at_least=1.0,
                show="{:.3f}",
            ),
        ),
        needs_data=True,
        environment="requirements-sets.txt",
    ),
    Benchmark(
        "monitor",
        "What does watching cost a worker, in units of the HMAC that a receipt needs?",
        (
            Goal(
                "a served prediction counted and signed, 1 a batch, in HMACs of its receipt",
                lambda r: r["cost"]["a served prediction, 1 a batch"]["hmacs"],
                at_most=6.0,
                show="{:.1f}",
            ),
        ),
    ),
    Benchmark(
        "audit",
        "What does an audit of logs cost beside the engine's own join, count and sum?",
        (
            Goal(
                "an audit that trusts ids, processor time, over DuckDB's own join, count and sum",
                lambda r: r["cost"]["audit, unique_ids"]["ratio"],
                at_most=1.5,
                show="{:.2f}",
                reason="nine sums by model, version, bin and the fate of the row, in place of three of all",
            ),
        ),
    ),
    Benchmark(
        "deployment",
        "What does a deployment of ten billion predictions a day need?",
        (
            Goal(
                "versions of 20 replicas whose rules one Prometheus evaluates in time",
                lambda r: deployment.EVERY / r["units"]["rules"]["seconds"],
                at_least=1000.0,
                show="{:,.0f}",
                reason="what the sums of a ledger rose by is read from samples of the whole window",
            ),
        ),
        programs=("prometheus", "promtool"),
    ),
    Benchmark(
        "verdicts",
        'Is "calibrated" said of calibrated models, and only of them?',
        (
            Goal(
                '"calibrated" said of a model that is off by 3 points or more, the most of all errors',
                lambda r: max(one["calibrated"] for one in r["off"].values()),
                at_most=0.05,
                show="{:.1%}",
            ),
            Goal(
                '"calibrated" or "no error found" said of calibrated models, the least of all kinds',
                lambda r: min(one["calibrated"] + one["no_error_found"] for one in r["calibrated"].values()),
                at_least=0.95,
                show="{:.1%}",
            ),
            Goal(
                '"off" said of a calibrated model, the most of all',
                lambda r: max(one["off"] for one in r["calibrated"].values()),
                at_most=0.05,
                show="{:.1%}",
            ),
        ),
    ),
    Benchmark(
        "train_losses",
        "Do losses that calibrate in training help where a temperature is fitted afterwards?",
        options=("--fresh",),
        needs_data=True,
        page="papers",
    ),
    Benchmark(
        "toy_gaussians",
        "Which weight of a loss tells the true error best, where the truth is known?",
        page="papers",
    ),
    Benchmark(
        "confidence_branches",
        "Does a learned confidence or a trust score tell wrong predictions better than a probability?",
        needs_data=True,
        page="papers",
    ),
    Benchmark(
        "paper_tables",
        "The papers' tables, rebuilt where the data is at hand.",
        (
            Goal(
                "ECE of kull_resnet110_c10 less the 4.75 % published, in points",
                lambda r: abs(published_ece("kull_resnet110_c10")(r) - 4.75),
                at_most=0.005,
                show="{:.4f}",
            ),
        ),
        needs_data=True,
        page="papers",
    ),
    Benchmark(
        "contracts",
        "How often is a contract that is kept said to be broken, and how soon one that is?",
        (
            Goal(
                '"broken" said of a contract that is kept, most of all ways to label that can be repaired',
                lambda r: max(found["broken"] for case, found in r["said"].items() if repaired(case)),
                at_most=0.05,
                show="{:.3f}",
            ),
            Goal(
                "mean labels until a breach after 10,000 labels that were kept is said, times those of a "
                "binomial test of power 0.9 that is looked at once, most of all",
                lambda r: max(one["times_fixed"]["0.9"] for one in r["breaches"] if one["kept_before"]),
                at_most=1.3,
                show="{:.2f}",
                reason="it may begin at any label, and an error of 5 % over all time has its price; the "
                "binomial test is told when the breach begins",
            ),
        ),
        needs_data=True,
    ),
    Benchmark(
        "shadow",
        "Is a better shadow said to be better, and a worse one not? What does it cost?",
        (
            Goal(
                "wrong promotions of a shadow that loses 1 % of the NLL, most of all networks",
                lambda r: r["summary"]["loses 1 %"]["worst of a network"],
                at_most=0.05,
                show="{:.3f}",
            ),
            Goal(
                "wrong refusals at a gain of 1 % of the NLL and 20,000 labels, all networks",
                lambda r: 1 - r["summary"]["gains 1 %"]["ours"],
                at_most=0.2,
                show="{:.3f}",
            ),
        ),
        needs_data=True,
    ),
)

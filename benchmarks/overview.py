"""What stands first on the page of benchmarks: answers to what users ask, and all goals side by side.

An answer is read from one benchmark's result by name, as a goal is; it is measured, and has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from goals import ONE_POINT, Result, mean

VERDICTS = ("met", "missed", "not measured")


@dataclass(frozen=True)
class Answer:
    """``found`` puts the numbers of ``benchmark``'s result into words."""

    asks: str
    benchmark: str
    found: Callable[[Result], str]


def of_splits(r: Result, network: str, row: str) -> float:
    """Mean ECE over the splits, in percent."""
    return 100 * mean(split[row]["ece"] for split in r["models"][network]["splits"])


def percent(values: Iterable[float]) -> str:
    """``3.3 %``, the largest."""
    return f"{100 * max(values):.1f} %"


def before_and_after(network: str) -> Callable[[Result], str]:
    return lambda r: f"{of_splits(r, network, 'uncalibrated'):.2f} % → {of_splits(r, network, 'TS'):.2f} %"


def served(r: Result, model: str) -> str:
    rows = [row for row in r["rows"] if row["model"] == model]
    throughput, p99 = (
        min(row["throughput_ratio"] for row in rows),
        max(row["p99_ratio"] for row in rows),
    )
    return f"throughput x {throughput:.3f}, p99 x {p99:.3f}, the worst of {len(rows)} settings"


def delay(r: Result, change: str) -> str:
    """The range over streams of the median labels to the alarm, at one point of tolerance."""
    medians = [
        setting["rows"]["this detector"]["delays"][change]["median"]
        for setting in r["settings"]
        if setting["tolerance"] == ONE_POINT and change not in setting["within"]
    ]
    return f"{min(medians):,} to {max(medians):,} labels, the medians of {len(medians)} kinds of streams"


def false_alarms(r: Result) -> str:
    least = min(row["measured"] for row in r["run_lengths"])
    return f"one in {least:,.0f} labels or more, where {r['arl']:,} are promised"


def label_cost(r: Result) -> str:
    alone = r["processes"]["one process, one file"]
    return f"{alone['cpu_us_a_label']:.0f} µs {of_core(r)} ({alone['hmacs']:.1f} HMACs)"


def of_core(r: Result) -> str:
    return f"of a core of {r['run']['machine']['cpu']}"


def receipt_cost(r: Result) -> str:
    one = r["cost"]["a served prediction, 1 a batch"]
    return f"{one['median_us']:.1f} µs {of_core(r)} ({one['hmacs']:.1f} HMACs)"


def wrong_refits(r: Result) -> str:
    shares = [s["rules"]["evidence"]["asks"] for s in r["settings"] if not s["changed"]]
    return f"{percent(shares)} of streams at most, over {len(r['asks'])} asks ({100 * r['alpha']:g} % stated)"


ANSWERS = (
    Answer(
        "ECE of ResNet-20 on CIFAR-10, before and after a temperature",
        "neural_clamping",
        before_and_after("resnet20"),
    ),
    Answer("the same of ResNet-56", "neural_clamping", before_and_after("resnet56")),
    Answer(
        "NLL of `--method auto`, in times of the best of four simple methods'",
        "choose_outputs",
        lambda r: "{mean:.4f} in mean, {worst:.4f} at most, of {sets} sets".format(**r["summary"]["50"]),
    ),
    Answer(
        "time of a model with its calibration fused in, over the model alone",
        "fusion_overhead",
        lambda r: (
            f"x {r['median_ratio']:.4f} (median), x {r['largest_ratio']:.3f} (largest of {len(r['rows'])})"
        ),
    ),
    Answer(
        "the same with prediction sets and abstention in the graph",
        "decisions_overhead",
        lambda r: (
            f"x {r['median_ratio']:.4f} (median), x {r['largest_ratio']:.3f} (largest of {len(r['rows'])})"
        ),
    ),
    Answer(
        "TorchServe with calibration, receipts and counting: ResNet-20",
        "serving",
        lambda r: served(r, "resnet20"),
    ),
    Answer("the same of a linear model", "serving", lambda r: served(r, "linear")),
    Answer("a prediction counted, its receipt signed", "monitor", receipt_cost),
    Answer("bytes of a receipt", "deployment", lambda r: f"{r['units']['receipt_bytes']}"),
    Answer("a label verified, counted and written durably, 500 a request", "labels", label_cost),
    Answer(
        "disk for a label while it is accepted, SQLite and PostgreSQL",
        "labels",
        lambda r: f"{r['bytes']['SQLite']:.0f} and {r['bytes']['PostgreSQL']:.0f} bytes",
    ),
    Answer("drift of 5 points is found after", "detectors", lambda r: delay(r, "5 points")),
    Answer("drift of 10 points is found after", "detectors", lambda r: delay(r, "10 points")),
    Answer("false alarms of drift", "detectors", false_alarms),
    Answer("refits deployed where nothing changed", "refit_gate", wrong_refits),
    Answer(
        "contracts called broken that are kept",
        "contracts",
        lambda r: (
            f"{percent(f['broken'] for c, f in r['said'].items() if not c.endswith('inside a bin'))} at most"
        ),
    ),
    Answer(
        "models called calibrated that are 3 points off",
        "verdicts",
        lambda r: (
            f"{percent(one['calibrated'] for one in r['off'].values())} at most, of {len(r['off'])} kinds"
        ),
    ),
    Answer(
        "shadows promoted that lose 1 % of the NLL",
        "shadow",
        lambda r: f"{percent([r['summary']['loses 1 %']['worst of a network']])} at most of a network",
    ),
)


def answers(results: dict[str, Result | None]) -> list[dict[str, str]]:
    """What was measured for each question; "not measured" where the result or its rows are not kept."""
    told = []
    for answer in ANSWERS:
        result = results[answer.benchmark]
        try:
            said = answer.found(result) if result else "not measured"
        except (KeyError, ValueError):
            said = "not measured"
        told.append({"asks": answer.asks, "measured": said, "benchmark": answer.benchmark})
    return told


def results(told: list[dict[str, str]]) -> list[str]:
    """The table of answers."""
    rows = [
        f"| {one['asks']} | {one['measured']} | [{one['benchmark']}](#{one['benchmark']}) |" for one in told
    ]
    return ["## Results", "", "| | measured | by |", "| --- | --- | --- |", *rows, ""]


def goals(benchmarks: dict[str, Any]) -> list[str]:
    """Each benchmark's goals, met and missed and not measured side by side."""
    every = [goal for each in benchmarks.values() for goal in each["goals"]]
    counts = ", ".join(
        f"{sum(goal['verdict'] == verdict for goal in every)} {verdict}" for verdict in VERDICTS
    )
    lines = ["## Goals", "", f"**Of {len(every)} goals: {counts}.** Reasons are [below](#by-benchmark).", ""]
    lines += [f"| benchmark | {' | '.join(VERDICTS)} |", "| --- | --- | --- | --- |"]
    for name, each in benchmarks.items():
        if not each["goals"]:
            continue
        cells = [
            [short(goal) for goal in each["goals"] if goal["verdict"] == verdict] for verdict in VERDICTS
        ]
        lines.append(f"| [{name}](#{name}) | {' | '.join('<br>'.join(cell) for cell in cells)} |")
    return [*lines, ""]


def short(goal: dict[str, Any]) -> str:
    """``ECE of the default: **1.00 %** (at most 1.30 %)``."""
    measured = f": **{goal['measured']}**" if "measured" in goal else ""
    return f"{goal['goal']}{measured} ({goal['bound']})"

"""What does a deployment of ten billion predictions a day need: stores, series, bytes, cores, money?

Units are measured here: memory a series, disk a sample and processor time a rule of a real Prometheus; bytes
of a receipt and of a scrape. Others are those of benchmarks/monitor.py, labels.py and soak.py. The rest
is arithmetic, line by line, from these and from what the options say of the deployment; prices are options
too, not measurements.
Writes benchmarks/results/deployment.json, and prints the whole table, whose sum docs/deploy.md has.

    python benchmarks/deployment.py [--predictions 1e10] [--labelled 0.01] [--versions 1000] [--replicas 20]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers
import prometheus_cost

from calib_serve.receipts import Keyring

DAY = 86_400
GIB = 2**30
TTL_DAYS, KEPT_DAYS, LONG_DAYS = 30, 15, 365  # receipts, samples of Prometheus, recorded numbers
EVERY = 30  # seconds between evaluations of the rules
PER_REPLICA, PER_VERSION = 51, 138  # series: docs/deploy.md, "The cardinality budget"
HERE = "python benchmarks/deployment.py"


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The units that this program measures."""
    sizes = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def fresh(what: str) -> Path:
            (folder / what).mkdir()
            return folder / what

        for versions in (args.versions_measured // 10, args.versions_measured):
            sizes.append(prometheus_cost.memory(versions, args.scrapes, fresh(f"memory{versions}")))
        disk = prometheus_cost.disk(args.versions_ruled, args.hours, fresh("disk"))
        rules = prometheus_cost.evaluation(
            args.versions_ruled, int(args.replicas), fresh("rules"), rounds=args.rounds
        )
    few, many = sizes
    grown = many["series"] - few["series"]
    return {
        "receipt_bytes": len(Keyring.new().sign(model="digits", version="1.0", predicted=1, confidence=0.9)),
        "bytes_per_series": (many["bytes"] - few["bytes"]) / grown,
        "exposition_bytes_per_series": (many["exposition_bytes"] - few["exposition_bytes"]) / grown,
        "bytes_per_sample": disk,
        "rules": rules,
    }


def of_others() -> dict[str, float]:
    """Units that other benchmarks of this folder measured."""

    def result(name: str) -> dict[str, Any]:
        return json.loads((peers.RESULTS / f"{name}.json").read_text())

    return {
        "prediction_us": result("monitor")["cost"]["a served prediction, 1 a batch"]["median_us"],
        "labels_per_cpu_second": result("labels")["and watched, 50 a request"]["per_cpu_second"],
        "label_bytes": result("labels")["bytes"]["PostgreSQL"],
        "log_bytes": result("soak")["log_bytes_per_prediction"],
    }


@dataclass(frozen=True)
class Line:
    """A row: what is needed, its measured unit, what measures it, times what, and how much that is."""

    what: str
    unit: str
    by: str
    times: str
    amount: str


def lines(units: Mapping[str, Any], other: Mapping[str, float], asked: Mapping[str, float]) -> list[Line]:
    """The rows of the table."""
    served, scraped = _served(units, other, asked), _scraped(units, asked)
    spent = served[1] | scraped[1]
    prices = {name: asked[f"{name}_price"] for name in ("core", "memory", "disk")}
    cores = sum(amount for name, amount in spent.items() if name.startswith("cores"))
    disk = sum(amount for name, amount in spent.items() if name.startswith("disk"))
    money = 2 * cores * prices["core"] + spent["memory"] * prices["memory"] + disk * prices["disk"]
    told = "${core:g} a core, ${memory:g} a GiB of memory, ${disk:g} a GiB of disk, assumed".format(**prices)
    sums = f"2 x {cores:.2f} cores, {spent['memory']:.1f} GiB, {disk:,.0f} GiB"
    return [
        *served[0],
        *scraped[0],
        Line("**all, a month**", told, HERE, sums, f"**${money:,.0f}**"),
    ]


def _served(
    units: Mapping[str, Any], other: Mapping[str, float], asked: Mapping[str, float]
) -> tuple[list[Line], dict[str, float]]:
    """What predictions and labels take."""
    predictions, rate = asked["predictions"], asked["predictions"] / DAY
    labelled, per_label = predictions * asked["labelled"], other["label_bytes"]
    remembered = labelled * TTL_DAYS
    spent = {
        "cores of predictions": rate * other["prediction_us"] / 1e6,
        "cores of labels": labelled / DAY / other["labels_per_cpu_second"],
        "disk of labels": remembered * per_label / GIB,
    }
    counting, verifying, kept = spent.values()
    wire, log = units["receipt_bytes"], other["log_bytes"]
    unit_us, unit_labels = (
        f"{other['prediction_us']:.1f} µs of a core",
        f"{other['labels_per_cpu_second']:,.0f} a core and second",
    )
    return [
        Line(
            "counting predictions",
            unit_us,
            "python benchmarks/monitor.py",
            f"{rate:,.0f} a second",
            f"{counting:.2f} cores",
        ),
        Line(
            "receipts to clients",
            f"{wire} bytes",
            HERE,
            f"{predictions:,.0f}",
            f"{predictions * wire / GIB:,.0f} GiB a day",
        ),
        Line(
            "TorchServe's access log",
            f"{log:.0f} bytes",
            "python benchmarks/soak.py",
            f"{predictions:,.0f}",
            f"{predictions * log / GIB:,.0f} GiB a day",
        ),
        Line(
            "verifying and counting labels",
            unit_labels,
            "python benchmarks/labels.py",
            f"{labelled / DAY:,.0f} a second",
            f"{verifying:.2f} cores",
        ),
        Line(
            f"labels in PostgreSQL, {TTL_DAYS} days",
            f"{per_label:.0f} bytes a label",
            "python benchmarks/labels.py",
            f"{remembered:,.0f}",
            f"{kept:,.0f} GiB",
        ),
    ], spent


def _scraped(units: Mapping[str, Any], asked: Mapping[str, float]) -> tuple[list[Line], dict[str, float]]:
    """What Prometheus takes."""
    versions, per_version = asked["versions"], units["rules"]["recorded_series"]
    of_replicas, of_labels = versions * asked["replicas"] * PER_REPLICA, versions * PER_VERSION
    recorded, published = versions * per_version, of_replicas + of_labels
    a_second = published / prometheus_cost.EVERY
    rules_a_day = versions * per_version * DAY / EVERY
    kept = a_second * DAY + rules_a_day
    samples, long = kept * KEPT_DAYS, rules_a_day * LONG_DAYS
    seconds, byte = units["rules"]["seconds"], units["bytes_per_sample"]
    spent = {
        "memory": (published + recorded) * units["bytes_per_series"] / GIB,
        "disk of samples": samples * byte / GIB,
        "disk of recorded numbers": long * byte / GIB,
        "cores of rules": versions * seconds / EVERY,
    }
    memory, disk, year, cores = spent.values()
    wire = units["exposition_bytes_per_series"]
    budget = "docs/deploy.md"
    return [
        Line(
            "series of predictions",
            f"{PER_REPLICA} a version and replica",
            budget,
            f"{versions * asked['replicas']:,.0f}",
            f"{of_replicas:,.0f}",
        ),
        Line(
            "series of labels, detector and windows",
            f"{PER_VERSION} a version",
            budget,
            f"{versions:,.0f}",
            f"{of_labels:,.0f}",
        ),
        Line(
            "recorded series",
            f"{per_version:.0f} a version",
            HERE,
            f"{versions:,.0f}",
            f"{recorded:,.0f}",
        ),
        Line(
            "memory of Prometheus",
            f"{units['bytes_per_series']:,.0f} bytes a series",
            HERE,
            f"{published + recorded:,.0f}",
            f"{memory:,.1f} GiB",
        ),
        Line(
            "scrapes",
            f"{wire:.0f} bytes a series",
            HERE,
            f"{a_second:,.0f} a second",
            f"{a_second * wire / 2**20:,.1f} MiB a second",
        ),
        Line(f"samples, {KEPT_DAYS} days", f"{byte:.1f} bytes", HERE, f"{samples:,.0f}", f"{disk:,.0f} GiB"),
        Line("recorded numbers alone, a year", f"{byte:.1f} bytes", HERE, f"{long:,.0f}", f"{year:,.0f} GiB"),
        Line(
            "rules over 24h",
            f"{1000 * seconds:.1f} ms a version",
            HERE,
            f"{versions:,.0f} in 30 seconds",
            f"{cores:.2f} cores",
        ),
        Line(
            "versions that one Prometheus evaluates in time",
            "the same",
            HERE,
            "in their interval",
            f"{EVERY / seconds:,.0f}",
        ),
    ], spent


def table(rows: list[Line]) -> str:
    """Markdown."""
    shown = [f"| {one.what} | {one.unit} | `{one.by}` | {one.times} | {one.amount} |" for one in rows]
    return "\n".join(
        ["| what | unit | measured by | times | is |", "| --- | --- | --- | --- | --- |", *shown]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", type=float, default=1e10, help="a day")
    parser.add_argument("--labelled", type=float, default=0.01, help="share of them")
    parser.add_argument("--versions", type=float, default=1000)
    parser.add_argument("--replicas", type=float, default=20, help="of each version")
    parser.add_argument("--core-price", type=float, default=25, help="dollars a month")
    parser.add_argument("--memory-price", type=float, default=3, help="dollars a GiB and month")
    parser.add_argument("--disk-price", type=float, default=0.1, help="dollars a GiB and month")
    parser.add_argument("--versions-measured", type=int, default=100, help="that Prometheus scrapes")
    parser.add_argument("--scrapes", type=int, default=90)
    parser.add_argument("--versions-ruled", type=int, default=3, help="that the rules are evaluated for")
    parser.add_argument("--hours", type=float, default=2, help="of samples on disk")
    parser.add_argument(
        "--rounds", type=int, default=8, help="evaluations of the numbers, and one of counters"
    )
    args = peers.arguments(parser, versions_measured=20, scrapes=10, versions_ruled=1, hours=0.5, rounds=1)
    asked = {
        name: getattr(args, name)
        for name in (
            *("predictions", "labelled", "versions", "replicas"),
            *("core_price", "memory_price", "disk_price"),
        )
    }
    units, other = measured(args), of_others()
    print(table(lines(units, other, asked)))
    peers.save("deployment", {"asked": asked, "units": units, "of_others": other}, args)


if __name__ == "__main__":
    main()

"""Tables of docs/ that are written from kept results, so that no page contradicts them.

    python benchmarks/run_all.py --render

A table stands between ``<!-- measured NAME -->`` and ``<!-- end -->`` and is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import deployment
import neural_clamping_page
import peers
from goals import ONE_POINT, Result

DOCS = peers.ROOT / "docs"
PAGES = (
    *(DOCS / "benchmarks" / f"{name}.md" for name in ("serving", "output_calibrators", "neural_clamping")),
    *(DOCS / f"{name}.md" for name in ("deploy", "monitoring")),
)


@dataclass(frozen=True)
class Block:
    """The lines that one benchmark's result makes."""

    benchmark: str
    lines: Callable[[Result], list[str]]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = [*header]
    return [line(head), line("---" for _ in head), *(line(row) for row in rows)]


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# serving

MODELS = {"linear": "linear, 16 inputs", "resnet20": "ResNet-20, 3 x 32 x 32"}


def handlers(r: Result) -> list[str]:
    def ratio(row: Result, key: str) -> str:
        low, high = row[f"{key}_range"]
        return f"{row[key]:.2f} ({low:.2f} to {high:.2f})"

    rows = [
        (
            *(MODELS[row["model"]], str(row["connections"]), str(row["batch"])),
            *(ratio(row, "throughput_ratio"), ratio(row, "p99_ratio"), f"{row['cpu_ratio']:.2f}"),
        )
        for row in r["rows"]
    ]
    header = ("model", "connections", "batch", "throughput", "p99", "bare CPU a request over ours")
    return table(header, rows)


def in_worker(r: Result) -> list[str]:
    def took(us: float) -> str:
        return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms"

    rows = []
    for row in r["rows"]:
        if row["connections"] == 1:
            bare, ours = row["bare_in_worker"], row["calibrated_in_worker"]
            sizes = f"{bare['bytes']:.0f} / {ours['bytes']:.0f}"
            rows.append((MODELS[row["model"]], str(row["batch"]), took(bare["us"]), took(ours["us"]), sizes))
    header = (
        "model",
        "batch",
        "bare",
        "calibrated, with receipts and counters",
        "bytes a reply, bare / ours",
    )
    return table(header, rows)


# labels

LABELS = {
    "verified and acknowledged": "verified and acknowledged, 5,000 a request",
    "acknowledged, 50 a request": "verified and acknowledged, 50 a request",
    "verified and counted": "and summed, by slice and by time",
    "and watched for drift": "and watched for drift, 5,000 a tick",
    "and watched, 500 a request": "and watched, 500 a tick",
    "and watched, 50 a request": "and watched, 50 a tick",
    "and alarming all the time": "a stream so far off that it alarms every 15 labels",
}


def labels(r: Result) -> list[str]:
    rows = [
        (says, f"{r[name]['times_least_cpu']:.1f}", f"{r[name]['times_least_wall']:.1f}")
        for name, says in LABELS.items()
    ]
    return table(("", "processor time", "by the clock"), rows)


def ledgers(r: Result) -> list[str]:
    def rate(processes: str, where: str) -> str:
        return f"{r['processes'][f'{processes}, {where}']['per_wall_second']:,.0f}"

    rows = [
        (says, rate("one process", where), rate("two processes", where), f"{r['bytes'][kind]:.0f}")
        for says, where, kind in (
            ("SQLite, one file", "one file", "SQLite"),
            ("PostgreSQL, on the same two cores", "PostgreSQL", "PostgreSQL"),
        )
    ]
    header = ("labels a second, 500 a request, durable", "one process", "two processes", "bytes of a label")
    return table(header, rows)


# soak


def soak(r: Result) -> list[str]:
    later = [s for s in r["samples"] if s["seconds"] >= r["seconds"] / 3]
    grown = r["rss_growth_mb_after_a_third"]
    java = [s["rss_mb"]["java"] for s in later]
    low, high = r["ledger_mb_after_a_third"]

    def memory(worker: str) -> str:
        return f"{later[-1]['rss_mb'][worker]:.0f} MB, growth {grown[worker]:.1f} MB"

    counted = f"{r['counted_labels']:,.0f} of {r['accepted']:,}"
    rows = [
        ("predictions counted", f"{r['counted_predictions']:,.0f} of {r['predicted']:,}"),
        ("labels counted; duplicates refused", f"{counted}; {r['refused']:,}"),
        ("failed requests; monitoring errors", f"{r['failed']}; {r['monitor_errors']:.0f}"),
        ("memory of the two workers, after a third of the time", memory("digits")),
        ("memory of the feedback worker", memory("calibration_feedback")),
        ("memory of the server (Java)", f"{min(java):.0f} to {max(java):.0f} MB; bounded by `-Xmx1g`"),
        ("ledger, with receipts welcome for 30 s", f"{low:.1f} to {high:.1f} MB"),
        (
            "logs",
            f"{r['log_bytes_per_prediction']:.0f} bytes a prediction, nearly all of it the access log; "
            "bounded to 200 MB",
        ),
    ]
    return table(("what", "found"), rows)


# deployment


def needs(r: Result) -> list[str]:
    return deployment.table(deployment.lines(r["units"], r["of_others"], r["asked"])).splitlines()


# detectors


def delays(tolerance: float) -> Callable[[Result], list[str]]:
    """Median labels to the alarm, by the kinds of streams in one cell."""

    def lines(r: Result) -> list[str]:
        settings = [one for one in r["settings"] if one["tolerance"] == tolerance]
        changes = [*settings[0]["rows"]["this detector"]["delays"]]

        def cell(name: str, change: str) -> str:
            rows = (setting["rows"][name] for setting in settings)
            medians = [row and row["delays"][change]["median"] for row in rows]
            return " / ".join(f"{median:,}" if median else "never" for median in medians)

        rows = []
        for name in settings[0]["rows"]:
            shown = re.sub(r" k=[.\d]+ \((.*)\)", r" \1", name)  # CUSUM k=.01 (tuned to 2 points)
            cells = (shown, *(cell(name, change) for change in changes))
            rows.append([f"**{one}**" for one in cells] if name == "this detector" else cells)
        return table(("", *changes), rows)

    return lines


def run_lengths(r: Result) -> list[str]:
    """Measured over promised, with the standard error, by stream and gap."""
    gaps = {
        "accuracy 1 point below": (ONE_POINT, ONE_POINT),
        "1 point above": (ONE_POINT, -ONE_POINT),
        "calibrated": (ONE_POINT, 0.0),
        "tolerance 0, calibrated": (0.0, 0.0),
    }
    found = {(one["streams"], one["tolerance"], one["gap"]): one for one in r["run_lengths"]}

    def cell(kind: str, at: tuple[float, float]) -> str:
        one = found[(kind, *at)]
        ratio, error = (one[key] / one["promised"] for key in ("measured", "standard_error"))
        return f"{ratio:.2f} ± {error:.2f}"

    kinds = dict.fromkeys(one["streams"] for one in r["run_lengths"])
    rows = [(kind, *(cell(kind, at) for at in gaps.values())) for kind in kinds]
    return table(("", *gaps), rows)


# fit_outputs


def bold(cells: list[float], form: str = "{:.4f}") -> list[str]:
    """The lowest of them, or of each pair, in bold."""
    return [f"**{form.format(cell)}**" if cell == min(cells) else form.format(cell) for cell in cells]


def named(name: str) -> str:
    """Files of scores as code, drawn and small sets as text."""
    return f"`{name}`" if "_" in name or re.match(r"\d+x\d+", name) else name


NLL = (
    ("ours: structured-vector", "probmetrics svs"),
    ("ours: structured-matrix", "probmetrics sms"),
    ("ours: dirichlet-odir, seven lambdas", "torch-uncertainty odir"),
)


def in_order(r: Result) -> list[tuple[str, Result]]:
    """Files of real scores first, then the drawn ones, each by name."""
    return sorted(r["sets"].items(), key=lambda pair: (pair[0][0].isdigit(), pair[0]))


def held_out(r: Result) -> list[str]:
    rows = [
        (named(name), *(cell for pair in NLL for cell in bold([fits[one]["nll"] for one in pair])))
        for name, fits in in_order(r)
        if all(one in fits and "nll" in fits[one] for pair in NLL for one in pair)
    ]
    header = ("logits", "structured vector", "probmetrics SVS", "structured matrix", "probmetrics SMS")
    return table((*header, "Dirichlet, chosen lambda", "torch-uncertainty, lambda 1"), rows)


def temperatures(r: Result) -> list[str]:
    fitters = ("ours: temperature", "probmetrics", "scikit-learn", "torch-uncertainty")
    rows = [
        (name, *(f"{fits[one]['seconds']:.4f}" if "seconds" in fits.get(one, {}) else "" for one in fitters))
        for name, fits in in_order(r)
        if name[0].isdigit()
    ]
    return table(("logits", "ours", *fitters[1:]), rows)


def odir(r: Result) -> list[str]:
    fitters = ("ours: dirichlet-odir, seven lambdas", "torch-uncertainty odir", "dirichletcal odir")

    def seconds(fits: Result, one: str) -> str:
        if "cpu" not in fits.get(one, {}):
            return ""
        taken = fits[one]["cpu"]
        return f"{taken:.0f}" if taken >= 100 else f"{taken:.1f}" if taken >= 4 else f"{taken:.2f}"

    def nll(fits: Result, one: str) -> str:
        return f"{fits[one]['nll']:.4f}" if "nll" in fits.get(one, {}) else ""

    def row(name: str, fits: Result) -> list[str]:
        return [named(name), *(seconds(fits, one) for one in fitters), *(nll(fits, one) for one in fitters)]

    rows = [row(name, fits) for name, fits in in_order(r) if fitters[0] in fits]
    header = ("logits", "ours, seven lambdas", "torch-uncertainty, one", "dirichletcal, one")
    return table((*header, "NLL, ours", "torch-uncertainty", "dirichletcal"), rows)


# neural_clamping


def clamped(network: str) -> Callable[[Result], list[str]]:
    """The table that the page of the paper has of the small networks."""
    return lambda r: neural_clamping_page.network(network).splitlines()


# choose_outputs

METHODS = ("none", "temperature", "structured-vector", "structured-matrix", "auto")


def chosen(r: Result) -> list[str]:
    """Of whole sets: parts of them are in the ratios alone."""
    rows = []
    for name, row in r["sets"].items():
        if name.rpartition(", ")[2].isdigit():
            continue
        nll = [f"{row['nll'][method]:.4f}" for method in METHODS]
        rows.append((named(name), str(row["samples"]), *nll, f"{row['over_best']:.4f}"))
    return table(("scores", "samples", *METHODS, "auto over the best"), rows)


def ratios(r: Result) -> list[str]:
    rows = [
        (
            f"{least} or more",
            str(row["sets"]),
            f"{row['worst']:.4f} ({row['worst_set']})",
            f"{row['mean']:.4f}",
            f"{row['over_matrix']:.4f}",
        )
        for least, row in r["summary"].items()
    ]
    return table(("samples", "sets", "worst", "mean", "mean over structured matrix"), rows)


BLOCKS = {
    "handlers": Block("serving", handlers),
    "in the worker": Block("serving", in_worker),
    "labels": Block("labels", labels),
    "ledgers": Block("labels", ledgers),
    "soak": Block("soak", soak),
    "deployment": Block("deployment", needs),
    "detectors, one point of tolerance": Block("detectors", delays(ONE_POINT)),
    "detectors, tolerance 0": Block("detectors", delays(0.0)),
    "ResNet-20": Block("neural_clamping", clamped("resnet20")),
    "ResNet-56": Block("neural_clamping", clamped("resnet56")),
    "run lengths": Block("detectors", run_lengths),
    "held-out NLL": Block("fit_outputs", held_out),
    "time of a temperature": Block("fit_outputs", temperatures),
    "time of a search": Block("fit_outputs", odir),
    "what auto does": Block("choose_outputs", chosen),
    "ratios of auto": Block("choose_outputs", ratios),
}


def kept(benchmark: str) -> Result:
    return dict(json.loads((peers.RESULTS / f"{benchmark}.json").read_text()))


def rendered(text: str) -> str:
    """A page with each of its tables as the results are."""

    def written(found: re.Match[str]) -> str:
        block = BLOCKS[found[1]]
        return "\n".join(
            [f"<!-- measured {found[1]} -->", "", *block.lines(kept(block.benchmark)), "", "<!-- end -->"]
        )

    return re.sub(r"<!-- measured ([^>]+) -->.*?<!-- end -->", written, text, flags=re.S)


def render() -> None:
    """Write every table of every page anew."""
    for page in PAGES:
        page.write_text(rendered(page.read_text()))

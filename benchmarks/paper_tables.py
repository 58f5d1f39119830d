"""The papers' tables that can be rebuilt from real data at hand, next to the papers' own numbers.

    CALIB_SERVE_DATA=... python benchmarks/paper_tables.py
    python benchmarks/paper_tables.py --groups rethinking          # one paper's; the others stay as recorded
    python benchmarks/paper_tables.py --groups rethinking --fresh  # measures first what the tables read

What takes long is not run again but read, always the newest, from what other benchmarks wrote into
benchmarks/results; a table says what it was read from, and which is missing. Writes
benchmarks/results/paper_tables.json, docs/benchmarks/papers.md, and the tables on the papers' pages. All
errors in percent.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import cifar  # noqa: E402
import goals  # noqa: E402
import paper_dark_side  # noqa: E402
import paper_gradients  # noqa: E402
import paper_rethinking  # noqa: E402
import peers  # noqa: E402
import training_losses  # noqa: E402
from paper_results import Table, mean_over, percent, recorded, splits, told  # noqa: E402
from published import NI, NI_STRANGE, TANG, TANG_CLAMPED  # noqa: E402

from calib_serve.fit.output.candidates import fit_by_name  # noqa: E402
from calib_serve.metrics import (  # noqa: E402
    accuracy,
    adaptive_ece,
    classwise_ece,
    ece,
    entropy,
    mce,
    softmax,
)

TANG_2024 = "Tang 2024, Neural Clamping"
THEIRS = "ResNet-110, CIFAR-100"
NI_2025 = "Ni 2025, Stochastic masking"


# --- Tang 2024 -----------------------------------------------------------------------------------


def output_methods(folder, results: Path | None = None):
    rows = []
    for data in ("akamaster_resnet20_c10", "akamaster_resnet56_c10", "kull_resnet110_c10"):
        cal, (z, y) = splits(folder, data)
        for method, (label, published) in TANG.items():
            p = fit_by_name(method, *cal).probs(z)
            errors = (100 * error(p, y) for error in (ece, adaptive_ece, classwise_ece))
            rows.append((data, label, 100 * accuracy(p, y), entropy(p, y), *errors, published[2]))
    return Table(
        TANG_2024,
        "Table 2, its output methods, on CIFAR-10 networks",
        (
            "network",
            "method",
            "accuracy",
            "entropy",
            "ECE",
            "AECE",
            "SCE",
            f"paper's ECE ({THEIRS})",
        ),
        tuple(rows),
        "The paper's networks (BloodMNIST, CIFAR-100, ImageNet) and their logits are not published, so its "
        "numbers stand beside those of others, not against them: what compares is the order of methods.",
    )


def neural_clamping(folder, results: Path | None = None):
    found = recorded("neural_clamping", "models", results)
    networks = {
        name: {"asked": f.get("asked"), **facts} for f in found for name, facts in f["models"].items()
    }
    rows = tuple(row for name, facts in networks.items() for row in clamped_rows(name, facts))
    trimmed = [name for name, facts in networks.items() if facts.get("trimmed", True)]
    return Table(
        TANG_2024,
        "Tables 2 and 11, its own rows, on the same images as a temperature alone",
        (
            "network",
            "method",
            "accuracy",
            "ECE",
            "AECE",
            "seconds",
            f"paper's ECE ({THEIRS})",
            "seconds (V100)",
        ),
        rows,
        " ".join(
            [
                told("neural_clamping", found),
                *([f"A trimmed run: {', '.join(trimmed)}."] if trimmed else []),
                "NC (folds) is this package's own: gamma, T and delta's resolution by held-out folds.",
                "BloodMNIST, CIFAR-100 and ImageNet networks are not published: not rebuilt.",
            ]
        ),
    )


def clamped_rows(network, facts) -> Iterator[tuple[str | float | None, ...]]:
    splits = facts["splits"]
    asked = f"{network}, {len(splits)} split{'s' * (len(splits) > 1)}, {facts['asked']['images']:,} images"
    for row in splits[0]:
        seconds = [split[row]["fit"]["seconds"] for split in splits if "fit" in split[row]]
        found = (percent(mean_over(splits, row, column)) for column in ("accuracy", "ece", "aece"))
        published = TANG_CLAMPED.get(row, (None, None))
        if row in TANG_CLAMPED or row.startswith("NC"):
            yield (asked, row, *found, float(np.mean(seconds)) if seconds else None, *published)


# --- Ni 2025 -------------------------------------------------------------------------------------


def masked_head(folder, results: Path | None = None):
    with np.load(folder / "features" / "akamaster_resnet20_cifar10.npz") as arrays:
        z = arrays["test"] @ arrays["head_weight"].T + arrays["head_bias"]
    labels = cifar.cifar10_test(folder)[1]
    p = softmax(z)
    vanilla = (100 * error(p, labels) for error in (accuracy, ece, adaptive_ece, mce))
    found = recorded("masked_head", "splits", results)[-1:]
    splits = found[0]["splits"] if found else []
    rows = [("vanilla", *vanilla, *NI["vanilla"])]
    for name in (*list(NI)[1:], "default"):
        values = (percent(mean_over(splits, name, c)) for c in ("accuracy", "ece", "aece", "mce"))
        label = "this package's default" if name == "default" else name
        rows.append((label, *values, *NI.get(name, (None,) * 4)))
    numbers = ("accuracy", "ECE", "AECE", "MCE")
    return Table(
        NI_2025,
        "Table 5, CIFAR-10: ResNet-20 here, in the paper DenseNet-121, by its numbers",
        ("row", *numbers, *(f"paper's {number}" for number in numbers)),
        tuple(rows),
        f"The paper retrains heads of networks that are not published. {told('masked_head', found)} "
        f"{len(splits)} of 5 splits; vanilla is of all 10,000 images. CIFAR-100's rows and table 1 need "
        "networks that are not published.",
    )


def strange_images(folder, results: Path | None = None):
    found = recorded("masked_head", "splits", results)[-1:]
    splits = found[0]["splits"] if found else []
    rows = []
    for name in ("vanilla", "vanilla + TS", "+ decaying adaptive q (the paper's)", "default"):
        values = (percent(mean_over(splits, name, c)) for c in ("ood_auroc", "ood_fpr95"))
        label = "this package's default" if name == "default" else name
        rows.append((label, *values, *NI_STRANGE.get(name, (None, None))))
    return Table(
        NI_2025,
        "Table 2, telling strange images: CIFAR-100 shown to a CIFAR-10 network",
        ("row", "AUROC", "FPR95", "paper's AUROC", "paper's FPR95"),
        tuple(rows),
        "The paper's are means over its networks, and its strange images are SVHN's as well, which are not "
        f"at hand. {told('masked_head', found)}",
    )


# --- printing and writing ------------------------------------------------------------------------


def cell(value):
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def markdown(tables, machine):
    lines = ["# The papers' tables, rebuilt", ""]
    lines += [f"Made by `python benchmarks/paper_tables.py` on {machine}.", ""]
    paper = None
    for table in tables:
        lines += [] if table.paper == paper else [f"## {table.paper}", ""]
        paper = table.paper
        lines += [f"**{table.title}**", ""]
        lines += [*table_lines(table), ""] if table.rows else []
        lines += [table.missing, ""]
    return "\n".join(lines)


def table_lines(table):
    lines = ["| " + " | ".join(table.header) + " |", "|" + " --- |" * len(table.header)]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]


def onto_page(page, tables):
    """The page's text with what it marks as it now is.

    Below ``<!-- TITLE -->`` stands the table, below ``<!-- says: TITLE -->`` what is said of it.
    """
    for table in tables:
        for mark, below, lines in (
            (table.title, r"(?:\|.*\n)*", table_lines(table) if table.rows else []),
            (f"says: {table.title}", r"(?:[^\n]+\n)*", [table.missing]),
        ):
            shown = "\n".join([f"<!-- {mark} -->", *lines, ""])
            page = re.sub(re.escape(f"<!-- {mark} -->\n") + below, lambda _, shown=shown: shown, page)
    return page


def show(table):
    print(f"\n{table.paper}\n{table.title}")
    texts = [table.header, *(tuple(map(cell, row)) for row in table.rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(table.header))]
    for row in texts:
        padded = (
            t.ljust(w) if i < 2 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(padded))
    print(table.missing)


class Group(NamedTuple):
    """A paper, called as its page in docs/papers: its tables, and the benchmarks that they read."""

    paper: str
    makers: tuple[Callable[..., Table], ...]
    reads: tuple[str, ...]


GROUPS = {
    "neural-clamping": Group(TANG_2024, (output_methods, neural_clamping), ("neural_clamping",)),
    "rethinking": Group(paper_rethinking.WANG_2021, paper_rethinking.TABLES, ("train_losses",)),
    "dark-side": Group(
        paper_dark_side.SINGH_2021, paper_dark_side.TABLES, ("train_losses", "confidence_branches")
    ),
    "mac-cal": Group(NI_2025, (masked_head, strange_images), ("masked_head",)),
    "bsce-gra": Group(paper_gradients.LIN_2025, paper_gradients.TABLES, ("train_losses", "toy_gaussians")),
    "training-losses": Group(training_losses.PAPER, training_losses.TABLES, ("train_losses",)),
}
PAGES = {group: ROOT / "docs" / "papers" / f"{group}.md" for group in GROUPS}
PAGES["rethinking"] = ROOT / "docs" / "papers" / "rethinking-calibration.md"
PAGES["training-losses"] = ROOT / "docs" / "training-losses.md"


def measured_afresh(groups, *, quick):
    """Run every benchmark that these groups' tables read, each once and from its start."""
    names = dict.fromkeys(name for group in groups for name in GROUPS[group].reads)
    for each in (each for each in goals.BENCHMARKS if each.name in names):
        options = ["--quick"] if quick else each.options
        subprocess.run([sys.executable, str(peers.HERE / f"{each.name}.py"), *options], check=True)


def kept(options):
    """The tables that were recorded before, by paper."""
    path = peers.result("paper_tables", options)
    tables = json.loads(path.read_text())["tables"] if path.exists() else []
    return [
        Table(**{**t, "header": tuple(t["header"]), "rows": tuple(map(tuple, t["rows"]))}) for t in tables
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="papers, by page")
    parser.add_argument("--fresh", action="store_true", help="measure first what the tables read: hours")
    options = peers.arguments(parser)
    folder = cifar.data_dir()
    if options.fresh:
        measured_afresh(options.groups, quick=options.quick)
    results = peers.QUICK if options.fresh and options.quick else None
    before, tables = kept(options), []
    for group, (paper, makers, _) in GROUPS.items():
        made = []
        if group in options.groups:
            for make in makers:
                if options.quick and make is paper_dark_side.under_shift:
                    continue  # minutes of its own
                made.append(make(folder, results))
                show(made[-1])
        else:
            made = [table for table in before if table.paper == paper]
        tables += made
        if not options.quick and PAGES[group].exists():
            PAGES[group].write_text(onto_page(PAGES[group].read_text(), made))
    peers.save("paper_tables", {"tables": [asdict(t) for t in tables]}, options)
    if not options.quick:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        (ROOT / "docs" / "benchmarks" / "papers.md").write_text(markdown(tables, machine))


if __name__ == "__main__":
    main()

"""The papers' tables that can be rebuilt from real data at hand, next to the papers' own numbers.

    CALIB_SERVE_DATA=... python benchmarks/paper_tables.py [--losses runs.json]

``--losses`` takes the output of examples/train_with_losses.py --json instead of training again.
Writes benchmarks/results/paper_tables.json and docs/benchmarks/papers.md. All errors in percent.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import cifar  # noqa: E402
import peers  # noqa: E402

from calib_serve.fit.candidates import CANDIDATES, fit_by_name  # noqa: E402
from calib_serve.metrics import (  # noqa: E402
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    ece_terms,
    entropy,
    mce,
    refinement_auroc,
    softmax,
    welch,
)
from calib_serve.model.torch_classifier import from_module  # noqa: E402
from calib_serve.study import shift  # noqa: E402


@dataclass(frozen=True)
class Table:
    """One table: which of the paper's it stands for, rows, and what could not be rebuilt and why."""

    paper: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    missing: str


def splits(folder, name):
    with np.load(folder / "logits" / f"{name}.npz") as arrays:
        return (arrays["cal_logits"], arrays["cal_labels"]), (arrays["test_logits"], arrays["test_labels"])


def recorded(name):
    """What another benchmark wrote when it was last run here, or None."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def mean_over(splits, row, column):
    return float(np.mean([split[row][column] for split in splits]))


# The rows of Tang 2024, table 2 (ResNet-110 on CIFAR-100) and what computes each here.
TANG = {
    "none": ("Uncalibrated", (74.15, 0.4743, 10.707, 10.714, 0.26065)),
    "temperature": ("Temperature scaling", (74.15, 0.8991, 1.37, 1.48, 0.1443)),
    "temperature-ece": ("TS by grid search", (74.15, 0.9239, 1.08, 1.26, 0.1425)),
    "vector": ("Vector scaling", (73.81, 0.8698, 2.16, 2.13, 0.1683)),
    "matrix": ("Matrix scaling", (62.03, 0.1552, 31.86, 31.85, 0.6749)),
    "ms-odir": ("MS-ODIR", (74.07, 0.9035, 1.67, 1.79, 0.1555)),
    "dirichlet-odir": ("Dir-ODIR", (74.10, 0.9160, 1.16, 1.19, 0.1501)),
}


# The paper's ECE, tables 2 and 11; a delta of 4 x 4 coefficients is this package's own.
CLAMPED = {"NC (CE)": 1.60, "NC (CE), 4 x 4": None, "NC (FL)": 0.80, "NC (Eff.)": 1.23}


def clamped_rows():
    found = recorded("neural_clamping")
    for network, facts in (found or {"models": {}})["models"].items():
        splits = facts["splits"]
        asked = (
            f"{network}, {len(splits)} split{'s' * (len(splits) > 1)}, {facts['asked']['images']:,} images"
        )
        for row, published in CLAMPED.items():
            values = [mean_over(splits, row, c) for c in ("accuracy", "entropy", "ece", "aece", "sce")]
            shown = [v if i == 1 else 100 * v for i, v in enumerate(values)]
            yield (asked, row, *shown, published)


def neural_clamping(folder):
    rows = []
    for data in ("akamaster_resnet20_c10", "akamaster_resnet56_c10", "kull_resnet110_c10"):
        cal, (z, y) = splits(folder, data)
        for method, (label, published) in TANG.items():
            if method not in CANDIDATES:
                continue
            p = fit_by_name(method, *cal).probs(z)
            found = (
                100 * accuracy(p, y),
                entropy(p, y),
                100 * ece(p, y),
                100 * adaptive_ece(p, y),
                100 * classwise_ece(p, y),
            )
            rows.append((data, label, *found, published[2]))
    return Table(
        "Tang 2024, Neural Clamping",
        "Table 2, its output methods, on CIFAR-10 networks",
        (
            "network",
            "method",
            "accuracy",
            "entropy",
            "ECE",
            "AECE",
            "SCE",
            "paper's ECE (ResNet-110, CIFAR-100)",
        ),
        (*rows, *clamped_rows()),
        "The paper's networks (BloodMNIST, CIFAR-100, ImageNet) and their logits are not published, so its "
        "numbers stand beside those of others, not against them: what compares is the order of methods. Its "
        "own rows need images and a gradient: they are those of benchmarks/neural_clamping.py, once it ran.",
    )


WANG = {  # ECE before and after TS on CIFAR-10, tables 1 and 2
    "cross-entropy": (6.43, 0.95, 2.51),
    "label smoothing .05": (2.72, 2.54, 0.96),
    "L1 norm of logits .01": (2.93, 2.71, 0.95),
    "focal, gamma 3": (3.00, 1.39, 0.76),
}


def regularised_losses(runs):
    rows = []
    for name, seeds in runs.items():
        mean = {key: float(np.mean([seed[key] for seed in seeds])) for key in seeds[0]}
        sd = float(np.std([seed["ECE after TS"] for seed in seeds], ddof=1))
        published = WANG.get(name, (None, None, None))
        rows.append(
            (
                name,
                100 * mean["accuracy"],
                100 * mean["ECE"],
                mean["T"],
                100 * mean["ECE after TS"],
                100 * sd,
                100 * mean["optimal ECE"],
                *published[:2],
            )
        )
    return Table(
        "Wang 2021, Do not be afraid of overconfidence; Lin 2025, Uncertainty weighted gradients",
        "Wang's tables 1 and 2, and Lin's losses, on 1,000 MNIST images (a small network, 5 seeds)",
        (
            "loss",
            "accuracy",
            "ECE",
            "T",
            "ECE after TS",
            "sd",
            "optimal ECE",
            "paper's ECE (CIFAR-10)",
            "paper's after TS",
        ),
        tuple(rows),
        "Training ResNets on CIFAR for hundreds of epochs is out of reach of two processor cores, so the "
        f"losses train a small network on a small part of MNIST. {_against_cross_entropy(runs)}",
    )


def _against_cross_entropy(runs):
    """What the runs say of Wang's finding, from the numbers alone."""

    def column(name, key):
        return [seed[key] for seed in runs[name]]

    def differ(key):
        changes = {
            name: welch(column("cross-entropy", key), column(name, key))
            for name in runs
            if name != "cross-entropy"
        }
        sure = {name: change.difference.value for name, change in changes.items() if change.p < 0.05}
        higher, lower = ([n for n, d in sure.items() if sign * d > 0] for sign in (1, -1))
        return ", ".join(higher) or "none", ", ".join(lower) or "none"

    higher, lower = differ("ECE")
    after_higher, after_lower = differ("ECE after TS")
    seen = "is not seen" if after_higher == "none" else "is seen for these"
    return (
        "Beyond chance (Welch's p < 0.05) against cross-entropy, the ECE at the end of training is lower "
        f"for: {lower}; higher for: {higher}. After temperature scaling it is higher for: {after_higher}; "
        f"lower for: {after_lower}. The paper's finding, that regularised models end less calibratable, "
        f"{seen} here."
    )


SINGH = {"before": (7.12, 2.69, 93.80), "temperature": (6.73, 1.35, 93.71)}  # ResNet-50, CIFAR-10


def dark_side(folder):
    rows = []
    names = (
        "akamaster_resnet20_c10",
        "akamaster_resnet56_c10",
        "kull_resnet110_c10",
        "resnet50_c10_cross_entropy",
    )
    for data in names:
        cal, (z, y) = splits(folder, data)
        for step in ("before", "temperature"):
            p = softmax(z) if step == "before" else fit_by_name("temperature", *cal).probs(z)
            terms = ece_terms(p, y)
            found = (100 * brier(p, y), 100 * ece(p, y), 100 * refinement_auroc(p, y), 100 * terms.residual)
            rows.append((data, step, *found, *SINGH[step]))
    moved = max(abs(after[4] - before[4]) for before, after in zip(rows[::2], rows[1::2], strict=True))
    return Table(
        "Singh 2021, On the dark side of calibration",
        "Table 2, baseline and temperature scaling; and the residual of the decomposition (eq. 9)",
        (
            "network",
            "step",
            "Brier",
            "ECE",
            "AUROC",
            "residual of eq. 9",
            "paper's Brier (ResNet-50)",
            "paper's ECE",
            "paper's AUROC",
        ),
        tuple(rows),
        "Its networks trained by label smoothing, mixup, ERL and focal loss are not published; the losses "
        f"above stand for them. A temperature moves the AUROC by up to {moved:.2f} points here, by 0.09 in "
        "the paper. The residual is what the decomposition's assumption (every bin overconfident) leaves.",
    )


SINGH_SHIFT = {"none": (11.28, 86.23), "temperature": (8.16, 86.10)}  # VGG-16, CIFAR-10.1


def under_shift(folder):
    images, labels = cifar.cifar10_test(folder)
    network = cifar.resnet20()
    network.load_state_dict(load_file(folder / "models" / "akamaster_resnet20_c10.safetensors"))
    classifier = from_module(network.eval(), input_shape=(3, 32, 32), batch_size=256)
    study = shift(
        classifier.logits,
        (images[:2000], labels[:2000]),
        (images[5000:8000], labels[5000:8000]),
        methods=("none", "temperature"),
        severities=(1, 3),
    )
    rows = tuple(
        (
            f"{name} {severity}" if severity else name,
            method,
            100 * acc,
            100 * error,
            100 * auroc,
            *SINGH_SHIFT[method],
        )
        for name, severity, method, acc, error, auroc, _ in study.rows
    )
    return Table(
        "Singh 2021, On the dark side of calibration",
        "Table 3, calibration and refinement under shift: ResNet-20 on corrupted CIFAR-10 images",
        ("shift", "method", "accuracy", "ECE", "AUROC", "paper's ECE (VGG-16, CIFAR-10.1)", "paper's AUROC"),
        rows,
        "CIFAR-10.1, CIFAR-10.2 and ImageNet-v2 are not at hand; JPEG, noise, blur and brightness stand for "
        "their natural shifts. " + " ".join(f"{says[0].upper()}{says[1:]}." for says in study.says),
    )


NI = {  # accuracy, ECE, AECE, MCE of DenseNet-121
    "vanilla": (94.61, 3.68, 3.68, 29.64),
    "+ masked retraining": (94.66, 3.45, 3.42, 25.74),
    "+ gradient restriction": (94.28, 1.96, 1.95, 75.02),
    "+ restructured head": (95.23, 1.96, 1.89, 26.25),
    "+ static adaptive q": (95.23, 1.44, 1.39, 18.64),
    "+ decaying adaptive q (the paper's)": (95.26, 1.05, 1.02, 8.09),
    "default": (None, None, None, None),
}


def masked_head(folder):
    with np.load(folder / "features" / "akamaster_resnet20_cifar10.npz") as arrays:
        z = arrays["test"] @ arrays["head_weight"].T + arrays["head_bias"]
    labels = cifar.cifar10_test(folder)[1]
    p = softmax(z)
    vanilla = (accuracy(p, labels), ece(p, labels), adaptive_ece(p, labels), mce(p, labels))
    splits = (recorded("masked_head") or {"splits": []})["splits"]
    rows = [("vanilla", *(100 * value for value in vanilla), *NI["vanilla"])]
    for name, published in NI.items():
        measured = [split for split in splits if name in split]
        if measured and name != "vanilla":
            found = (100 * mean_over(measured, name, c) for c in ("accuracy", "ece", "aece", "mce"))
            rows.append((name if name != "default" else "this package's default", *found, *published))
        elif name not in ("vanilla", "default"):
            rows.append((name, None, None, None, None, *published))
    return Table(
        "Ni 2025, Stochastic masking",
        "Table 5, CIFAR-10: ResNet-20 here, DenseNet-121 in the paper",
        ("row", *(f"{whose}{c}" for whose in ("", "paper's ") for c in ("accuracy", "ECE", "AECE", "MCE"))),
        tuple(rows),
        "The paper retrains heads of networks that are not published. The rows below vanilla are those of "
        "benchmarks/masked_head.py on this ResNet-20's features, once it ran.",
    )


LIN = {"resnet50_c10_cross_entropy": (4.36, 1.32), "kull_resnet110_c10": (4.70, 1.56)}


def uncertainty_gradients(folder):
    rows = []
    for data, published in LIN.items():
        cal, (z, y) = splits(folder, data)
        coarse = fit_by_name("temperature-ece", *cal, grid="coarse").probs(z)
        nll = fit_by_name("temperature", *cal).probs(z)
        rows.append((data, 100 * ece(softmax(z), y), 100 * ece(coarse, y), 100 * ece(nll, y), *published))
    return Table(
        "Lin 2025, Uncertainty weighted gradients",
        "Table 1, the cross-entropy column: CIFAR-10, ECE before and after a temperature",
        ("network", "ECE", "after T by ECE grid", "after T by NLL", "paper's ECE", "paper's after T"),
        tuple(rows),
        "Only networks trained by cross-entropy have published outputs. The paper's are means over three "
        "trainings of its own, these are single published ones of the same architectures. The losses' "
        "columns need training: see the table of losses above, on a small set.",
    )


def losses_runs(path, folder):
    """The runs of the example: read, or made now."""
    if path:
        return json.loads(Path(path).read_text())["runs"]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "runs.json"
        data = folder / "images" / "mnist_train_first10k.npz"
        options = [
            "--train",
            "1000",
            "--cal",
            "2000",
            "--epochs",
            "60",
            "--data",
            str(data),
            "--json",
            str(out),
        ]
        subprocess.run(
            [sys.executable, str(ROOT / "examples" / "train_with_losses.py"), *options], check=True
        )
        return json.loads(out.read_text())["runs"]


def cell(value):
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def markdown(tables, machine):
    lines = [
        "# The papers' tables, rebuilt",
        "",
        f"Made by `python benchmarks/paper_tables.py` on {machine}.",
        "",
    ]
    for table in tables:
        lines += [f"## {table.paper}", "", f"**{table.title}**", ""]
        lines += ["| " + " | ".join(table.header) + " |", "|" + " --- |" * len(table.header)]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]
        lines += ["", table.missing, ""]
    return "\n".join(lines)


def show(table):
    print(f"\n{table.paper}\n{table.title}")
    texts = [table.header, *(tuple(map(cell, row)) for row in table.rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(table.header))]
    for row in texts:
        print(
            "  ".join(
                text.ljust(w) if i < 2 else text.rjust(w)
                for i, (text, w) in enumerate(zip(row, widths, strict=True))
            )
        )
    print(table.missing)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--losses", help="Runs of examples/train_with_losses.py, written with --json.")
    options = peers.arguments(parser, losses=str(peers.RESULTS / "training_losses.json"))
    folder = cifar.data_dir()
    tables = (
        neural_clamping(folder),
        regularised_losses(losses_runs(options.losses, folder)),
        dark_side(folder),
        under_shift(folder),
        masked_head(folder),
        uncertainty_gradients(folder),
    )
    for table in tables:
        show(table)
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    peers.save("paper_tables", {"tables": [asdict(t) for t in tables]}, options)
    if options.quick:
        return
    page = ROOT / "docs" / "benchmarks" / "papers.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(markdown(tables, machine))


if __name__ == "__main__":
    main()

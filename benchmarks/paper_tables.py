"""The papers' tables that can be rebuilt from real data at hand, next to the papers' own numbers.

    CALIB_SERVE_DATA=... python benchmarks/paper_tables.py

What takes long is not run again but read, always the newest, from what other benchmarks wrote into
benchmarks/results; a table says what it was read from, and which is missing. Writes
benchmarks/results/paper_tables.json and docs/benchmarks/papers.md. All errors in percent.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import cifar  # noqa: E402
import peers  # noqa: E402
from paper_losses import LIN_2025, regularised_losses, told_losses, trained, weighted_losses  # noqa: E402
from paper_results import Table, mean_over, percent, recorded, splits, told  # noqa: E402
from published import LIN, NI, NI_STRANGE, SINGH, SINGH_SHIFT, TANG, TANG_CLAMPED  # noqa: E402

from calib_serve.fit.output.candidates import fit_by_name  # noqa: E402
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
)
from calib_serve.model.torch_classifier import from_module  # noqa: E402
from calib_serve.study import shift  # noqa: E402

TANG_2024 = "Tang 2024, Neural Clamping"
THEIRS = "ResNet-110, CIFAR-100"
SINGH_2021 = "Singh 2021, On the dark side of calibration"
NI_2025 = "Ni 2025, Stochastic masking"


# --- Tang 2024 -----------------------------------------------------------------------------------


def output_methods(folder):
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


# --- Lin 2025 -----------------------------------------------------------------------------------


def cross_entropy_networks(folder):
    rows = []
    for data, published in LIN.items():
        cal, (z, y) = splits(folder, data)
        coarse = fit_by_name("temperature-ece", *cal, grid="coarse").probs(z)
        nll = fit_by_name("temperature", *cal).probs(z)
        rows.append((data, 100 * ece(softmax(z), y), 100 * ece(coarse, y), 100 * ece(nll, y), *published))
    return Table(
        LIN_2025,
        "Table 1, the cross-entropy column: CIFAR-10, ECE before and after a temperature",
        ("network", "ECE", "after T by ECE grid", "after T by NLL", "paper's ECE", "paper's after T"),
        tuple(rows),
        "The paper's are means over three trainings of its own; these are single published networks of the "
        "same architectures. Its Wide-ResNet and DenseNet, CIFAR-100 and Tiny-ImageNet are not at hand.",
    )


# --- Singh 2021 ----------------------------------------------------------------------------------


def dark_side(folder, results: Path | None = None):
    rows = []
    for data in (
        "akamaster_resnet20_c10",
        "akamaster_resnet56_c10",
        "kull_resnet110_c10",
        "resnet50_c10_cross_entropy",
    ):
        cal, (z, y) = splits(folder, data)
        for step in ("baseline", "temperature"):
            p = softmax(z) if step == "baseline" else fit_by_name("temperature", *cal).probs(z)
            found = (brier(p, y), ece(p, y), refinement_auroc(p, y), ece_terms(p, y).residual)
            rows.append((data, step, *(100 * value for value in found), *SINGH[step]))
    moved = max(abs(after[4] - before[4]) for before, after in zip(rows[::2], rows[1::2], strict=True))
    for _, what, runs in trained(results):
        for row, loss in TRAINED_IN_SINGH.items():
            means = (100 * float(np.mean([seed[key] for seed in runs[loss]])) for key in ("ECE", "AUROC"))
            rows.append((what, row, None, *means, None, *SINGH[row]))
    numbers = ("Brier", "ECE", "AUROC")
    return Table(
        SINGH_2021,
        "Table 2, CIFAR-10; and the residual of the decomposition (eq. 9)",
        (
            "network",
            "step or loss",
            *numbers,
            "residual of eq. 9",
            *(f"paper's {number}" for number in numbers),
        ),
        tuple(rows),
        "The paper's numbers are of ResNet-50. "
        f"A temperature moves the AUROC by up to {moved:.2f} points here, by 0.09 in the paper. The residual "
        "is what the decomposition's assumption (every bin overconfident) leaves. Its networks trained by "
        "label smoothing, mixup, entropy regularisation and focal loss are not published; small ones stand "
        "for three of them. Table 1 (ImageNet) is not rebuilt: no ImageNet logits are at hand. "
        + told_losses(results),
    )


TRAINED_IN_SINGH = {
    "baseline": "cross-entropy",
    "label smoothing": "label smoothing .05",
    "mixup": "mixup",
    "focal": "focal, gamma 3",
}


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
        (f"{name} {severity}".removesuffix(" 0"), method, *(100 * v for v in found[:3]), *SINGH_SHIFT[method])
        for name, severity, method, *found in study.rows
    )
    return Table(
        SINGH_2021,
        "Table 3, calibration and refinement under shift: ResNet-20 on corrupted CIFAR-10 images",
        ("shift", "method", "accuracy", "ECE", "AUROC", "paper's ECE (VGG-16, CIFAR-10.1)", "paper's AUROC"),
        rows,
        "CIFAR-10.1, CIFAR-10.2 and ImageNet-v2 are not at hand; JPEG, noise, blur and brightness stand for "
        "their natural shifts. " + " ".join(f"{says[0].upper()}{says[1:]}." for says in study.says),
    )


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
        "Table 5, CIFAR-10: ResNet-20 here, DenseNet-121 in the paper",
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
        if table.rows:
            lines += ["| " + " | ".join(table.header) + " |", "|" + " --- |" * len(table.header)]
            lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]
            lines += [""]
        lines += [table.missing, ""]
    return "\n".join(lines)


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


TABLES = (
    output_methods,
    neural_clamping,
    regularised_losses,
    dark_side,
    under_shift,
    masked_head,
    strange_images,
    cross_entropy_networks,
    weighted_losses,
)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options = peers.arguments(parser)
    folder = cifar.data_dir()
    tables = []
    for make in TABLES:
        if options.quick and make is under_shift:
            continue  # minutes of its own
        tables.append(make(folder))
        show(tables[-1])
    peers.save("paper_tables", {"tables": [asdict(t) for t in tables]}, options)
    if not options.quick:
        machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
        (ROOT / "docs" / "benchmarks" / "papers.md").write_text(markdown(tables, machine))


if __name__ == "__main__":
    main()

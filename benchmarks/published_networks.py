"""Tables of four papers on CIFAR-10 networks that are published with their logits: what needs no training.

    CALIB_SERVE_DATA=... python benchmarks/published_networks.py [--parts output refinement equation-9 shift]

``output``: the output methods of Tang 2024, table 2, and the cross-entropy column of Lin 2025, table 1.
``refinement`` and ``equation-9``: Singh 2021, table 2 and equation 9. ``shift``: its table 3, ResNet-20 on
corrupted images, minutes. Errors in percent. Writes benchmarks/results/published_networks.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cifar
import numpy as np
import peers
from corruptions import CORRUPTIONS, corrupt
from safetensors.torch import load_file

from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import (
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    ece_terms,
    entropy,
    refinement_auroc,
)
from calib_serve.models.torch_classifier import from_module
from calib_serve.scores import softmax

NETWORKS = (
    "akamaster_resnet20_c10",
    "akamaster_resnet56_c10",
    "kull_resnet110_c10",
    "resnet50_c10_cross_entropy",
)
METHODS = ("none", "temperature", "temperature-ece", "vector", "matrix", "ms-odir", "dirichlet-odir")
Row = dict[str, Any]


def splits(folder: Path, name: str) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    with np.load(folder / "logits" / f"{name}.npz") as arrays:
        return (arrays["cal_logits"], arrays["cal_labels"]), (arrays["test_logits"], arrays["test_labels"])


def output(folder: Path) -> list[Row]:
    rows = []
    for network in NETWORKS:
        cal, (z, y) = splits(folder, network)
        fits = {method: fit_by_name(method, *cal).probs(z) for method in METHODS}
        fits["temperature-ece, coarse"] = fit_by_name("temperature-ece", *cal, grid="coarse").probs(z)
        for method, p in fits.items():
            errors = {"ECE": ece, "AECE": adaptive_ece, "SCE": classwise_ece, "accuracy": accuracy}
            found = {name: 100 * measure(p, y) for name, measure in errors.items()}
            rows.append({"network": network, "method": method, **found, "entropy": entropy(p, y)})
    return rows


def steps(folder: Path) -> Any:
    """(network, step, probabilities of the test set, its labels), as they are and at two temperatures."""
    for network in NETWORKS:
        cal, (z, y) = splits(folder, network)
        yield network, "baseline", softmax(z), y
        yield network, "temperature", fit_by_name("temperature", *cal).probs(z), y
        yield network, "T = 1.5", softmax(z / 1.5), y  # the paper's, not fitted (A.3)


def refinement(folder: Path) -> list[Row]:
    measures = {"Brier": brier, "ECE": ece, "AUROC": refinement_auroc}
    return [
        {"network": network, "step": step, **{name: 100 * of(p, y) for name, of in measures.items()}}
        for network, step, p, y in steps(folder)
    ]


def equation_9(folder: Path) -> list[Row]:
    """The ECE that the equation gives, and what its two steps leave of the true one."""
    rows = []
    for network, step, p, y in steps(folder):
        t = ece_terms(p, y)
        by_equation = t.confidence - t.refinement - t.base_rate
        found = {"ECE": t.ece, "ECE by eq. 9": by_equation, "of bins": t.of_bins, "of eq. 8": t.of_equation_8}
        rows.append(
            {"network": network, "step": step, **{name: 100 * value for name, value in found.items()}}
        )
    return rows


def under_shift(folder: Path) -> list[Row]:
    images, labels = cifar.cifar10_test(folder)
    network = cifar.resnet20()
    network.load_state_dict(load_file(folder / "models" / "akamaster_resnet20_c10.safetensors"))
    classifier = from_module(network.eval(), input_shape=(3, 32, 32), batch_size=256)
    z = classifier.logits(images[:2000])
    fits = {name: fit_by_name(name, z, labels[:2000]) for name in ("none", "temperature")}
    held, y = images[5000:8000], labels[5000:8000]
    rows = []
    for name, severity in (("clean", 0), *((name, s) for name in CORRUPTIONS for s in (1, 3))):
        seen = classifier.logits(held if severity == 0 else corrupt(held, name, severity))
        for method, fit in fits.items():
            p = fit.of_logits(seen)
            found = {"accuracy": accuracy(p, y), "ECE": ece(p, y), "AUROC": refinement_auroc(p, y)}
            found = {column: 100 * value for column, value in found.items()}
            rows.append({"shift": name, "severity": severity, "method": method, **found})
    return rows


PARTS = {"output": output, "refinement": refinement, "equation-9": equation_9, "shift": under_shift}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    asked = peers.arguments(parser, parts=["refinement"])
    tables = {}
    for part in asked.parts:
        tables[part] = PARTS[part](cifar.data_dir())
        print(part)
        for row in tables[part]:
            print(*(f"{v:.2f}" if isinstance(v, float) else v for v in row.values()), sep=" | ", flush=True)
    peers.save("published_networks", {"tables": tables}, asked)


if __name__ == "__main__":
    main()

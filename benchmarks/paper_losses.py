"""The tables that compare losses of training: read from what examples/train_with_losses.py wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from paper_results import Table, recorded, told
from published import LIN_LOSSES, WANG

from calib_serve.metrics import welch

WANG_2021 = "Wang 2021, Do not be afraid of overconfidence"
LIN_2025 = "Lin 2025, Uncertainty weighted gradients"

SETS = {"training_losses": "MNIST", "training_losses_digits": "digits"}


def trained(results: Path | None = None):
    """(set, of what, runs by loss) of each set that the example of losses was run on."""
    for name, images in SETS.items():
        for found in recorded(name, "runs", results)[-1:]:
            runs, asked = found["runs"], found["options"]
            yield images, f"{images}: {asked['train']:,} to train, {len(runs['cross-entropy'])} seeds", runs


def told_losses(results: Path | None = None) -> str:
    return " ".join(
        told(name, recorded(name, "runs", results)[-1:], program="examples/train_with_losses.py --json")
        for name in SETS
    )


def regularised_losses(folder, results: Path | None = None):
    rows = []
    for _, what, runs in trained(results):
        for loss, published in WANG.items():
            mean = {key: float(np.mean([seed[key] for seed in runs[loss]])) for key in runs[loss][0]}
            sd = float(np.std([seed["ECE after TS"] for seed in runs[loss]], ddof=1))
            found = (
                100 * mean["accuracy"],
                100 * mean["ECE"],
                mean["T"],
                100 * mean["ECE after TS"],
                100 * sd,
            )
            rows.append((what, loss, *found, *published))
    numbers = ("accuracy", "ECE", "T", "ECE after T")
    return Table(
        WANG_2021,
        "Tables 1 and 2, on small networks",
        ("set", "loss", *numbers, "sd", *(f"paper's {number} (CIFAR-10)" for number in numbers)),
        tuple(rows),
        " ".join(
            [
                *(against_cross_entropy(images, runs) for images, _, runs in trained(results)),
                "Training a ResNet-32 on CIFAR and SVHN, and a convolution on 20 Newsgroups, for hundreds of "
                "epochs is out of reach of two processor cores: small fully connected networks stand for "
                "them.",
                told_losses(results),
            ]
        ),
    )


def against_cross_entropy(images, runs):
    """What the runs say of Wang's finding, from the numbers alone, at his level of 0.05."""

    def changes(key, sign):
        plain = [seed[key] for seed in runs["cross-entropy"]]
        for loss in list(WANG)[1:]:
            change = welch(plain, [seed[key] for seed in runs[loss]])
            if change.p < 0.05 and sign * change.difference.value > 0:
                yield loss

    def said(key):
        lower, higher = (", ".join(changes(key, sign)) or "none" for sign in (-1, 1))
        return f"lower for {lower} and higher for {higher}"

    seen = "is seen" if any(changes("ECE after TS", 1)) else "is not seen"
    return (
        f"{images}: beyond chance (Welch's p < 0.05) the ECE at the end of training is {said('ECE')} than "
        f"with cross-entropy; after a temperature it is {said('ECE after TS')}. The paper's finding, that "
        f"regularised networks end less calibratable, {seen}."
    )


def weighted_losses(folder, results: Path | None = None):
    rows = []
    for _, what, runs in trained(results):
        for loss, published in LIN_LOSSES.items():
            means = (
                100 * float(np.mean([seed[key] for seed in runs[loss]])) for key in ("ECE", "ECE after TS")
            )
            rows.append((what, loss, *means, *published))
    return Table(
        LIN_2025,
        "Table 1, its losses, on small networks",
        ("set", "loss", "ECE", "after T", "paper's ECE (ResNet-50, CIFAR-10)", "paper's after T"),
        tuple(rows),
        "Networks trained with these losses are not published, and 350 epochs of CIFAR are out of reach "
        "here. The Brier loss and BSCE without gradient weighting were not trained. " + told_losses(results),
    )

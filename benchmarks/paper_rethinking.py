"""Wang 2021, "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from loss_runs import SETS, Runs, chosen, first_seed, mean, spread, told_runs, trained
from loss_settings import (
    FOCAL_GAMMAS,
    INVERSE_GAMMAS,
    NORMS,
    SMOOTHINGS,
    focal,
    inverse_focal,
    norm,
    smoothing,
)
from paper_results import Table
from published import WANG

from calib_serve.metrics import welch

WANG_2021 = "Wang 2021, Do not be afraid of overconfidence"

FAMILIES = {
    "cross-entropy": ["cross-entropy"],
    "label smoothing": [smoothing(e) for e in SMOOTHINGS],
    "L1 norm": [norm(s) for s in NORMS],
    "focal loss": [focal(g) for g in FOCAL_GAMMAS],
}
INVERSE = [inverse_focal(g) for g in INVERSE_GAMMAS]


def regularised_losses(folder, results: Path | None = None):
    rows = []
    for task, runs in trained(results).items():
        for family, name in coefficients(runs).items():
            found = runs[name]
            rows.append(
                (
                    SETS[task],
                    name,
                    len(found),
                    *(spread(found, key) for key in ("accuracy", "ECE")),
                    mean(found, "pool T"),
                    *(spread(found, key) for key in ("ECE after pool TS", "ECE after HB")),
                    *(WANG[family] if task == "images" else (None,) * 5),
                )
            )
    numbers = ("accuracy", "ECE", "T", "ECE after TS", "ECE after HB")
    return Table(
        WANG_2021,
        "Tables 1 and 2",
        ("set", "loss", "seeds", *numbers, *(f"paper's {number} (CIFAR-10)" for number in numbers)),
        tuple(rows),
        " ".join(
            [
                "The coefficient of each loss is that of least ECE on the calibration part; the paper chose "
                "it on its test set. T is searched in the paper's pool (.01, .02, ..., 10) by ECE, the "
                "histogram has its 15 equal bins.",
                *(against_cross_entropy(SETS[task], runs) for task, runs in trained(results).items()),
                "A ResNet-32 on all of CIFAR and SVHN, and a convolution on 20 Newsgroups, for hundreds of "
                "epochs is out of reach of two processor cores: small networks stand for them.",
                told_runs(results),
            ]
        ),
    )


def coefficients(runs: Runs) -> dict[str, str]:
    """Family -> its chosen loss, of those that were trained."""
    found = {family: chosen(runs, names) for family, names in FAMILIES.items()}
    return {family: name for family, name in found.items() if name}


def against_cross_entropy(images: str, runs: Runs) -> str:
    """What the runs say of Wang's finding, from the numbers alone, at his level of 0.05."""
    regularised = [name for family, name in coefficients(runs).items() if family != "cross-entropy"]
    plain = runs["cross-entropy"]
    judged = [name for name in regularised if min(len(runs[name]), len(plain)) > 1]
    if not judged:
        lower = [name for name in regularised if mean(runs[name], "ECE") < mean(plain, "ECE")]
        after = [
            name
            for name in regularised
            if mean(runs[name], "ECE after pool TS") > mean(plain, "ECE after pool TS")
        ]
        return (
            f"{images}: of one seed the ECE is lower than with cross-entropy for {listed(lower)}, and after "
            f"a temperature higher for {listed(after)}; one seed proves neither."
        )

    def changes(key, sign):
        for name in judged:
            change = welch([run[key] for run in plain], [run[key] for run in runs[name]])
            if change.p < 0.05 and sign * change.difference.value > 0:
                yield name

    seeds = min(len(runs[name]) for name in judged)

    def said(key):
        lower, higher = (listed(changes(key, sign)) for sign in (-1, 1))
        return f"lower for {lower} and higher for {higher}"

    seen = "is seen" if any(changes("ECE after pool TS", 1)) else "is not seen"
    return (
        f"{images} ({seeds} seeds): beyond chance (Welch's p < 0.05) the ECE at the end of training is "
        f"{said('ECE')} than with cross-entropy; after a temperature it is {said('ECE after pool TS')}, "
        f"and after a histogram {said('ECE after HB')}. The paper's finding, that regularised networks end "
        f"less calibratable, {seen}."
    )


def listed(names) -> str:
    return ", ".join(names) or "none"


def sensitivity(folder, results: Path | None = None):
    rows = []
    for task, runs in trained(results).items():
        best = coefficients(runs)
        for family, names in list(FAMILIES.items())[1:]:
            for name in (name for name in names if name in runs):
                found = runs[name]
                keys = ("accuracy", "ECE on cal", "ECE", "ECE after pool TS", "optimal ECE")
                rows.append(
                    (
                        SETS[task],
                        name,
                        len(found),
                        *(spread(found, key) for key in keys),
                        "chosen" if name == best[family] else "",
                    )
                )
    return Table(
        WANG_2021,
        "Figure 1, the ECE by the strength of regularisation",
        ("set", "loss", "seeds", "accuracy", "ECE on cal", "ECE", "ECE after TS", "optimal ECE", ""),
        tuple(rows),
        "Figure 1(d), the best coefficient by the size of the training set, is not rebuilt. Figure 2's "
        "reliability diagrams are what `calib-serve report` draws of any model. "
        + " ".join(untrained(task, runs) for task, runs in trained(results).items()),
    )


def untrained(task, runs) -> str:
    names = [name for of_family in FAMILIES.values() for name in of_family if name not in runs]
    return f"Not trained on {SETS[task]}: {listed(names)}."


def cal_sizes(folder, results: Path | None = None):
    rows = []
    for runs in (each for task, each in trained(results).items() if task == "images"):
        for name in coefficients(runs).values():
            found = first_seed(runs, name)
            for size in found["by cal size"] if found else ():
                rows.append((name, size["n"], 100 * size["pool TS"], 100 * size["HB"]))
    return Table(
        WANG_2021,
        "Figure 3, the ECE by the number of calibration images (CIFAR-10 images, one seed)",
        ("loss", "images", "ECE after TS", "ECE after HB"),
        tuple(rows),
        " ".join(
            f"With {size} images the ECE after a temperature is {np.mean([r[2] for r in of_size]):.2f} on "
            f"average, after a histogram {np.mean([r[3] for r in of_size]):.2f}."
            for size in sorted({row[1] for row in rows})[1:2]
            for of_size in [[row for row in rows if row[1] == size]]
        ),
    )


def over_epochs(folder, results: Path | None = None):
    names = ["cross-entropy", *FAMILIES["label smoothing"]]
    runs = trained(results).get("images", {})
    curves = {name: found["curve"] for name in names if (found := first_seed(runs, name))}
    points = next(iter(curves.values()), [])
    rows = tuple(
        (point["epoch"], *(100 * curve[i]["optimal ECE"] for curve in curves.values()))
        for i, point in enumerate(points)
    )
    return Table(
        WANG_2021,
        "Figure 4, the optimal ECE over epochs (CIFAR-10 images, one seed)",
        ("epoch", *curves),
        rows,
        "The optimal ECE takes the pool's temperature that is best for the test set itself, as in the paper.",
    )


def learned(folder, results: Path | None = None):
    runs = trained(results).get("images", {})
    rows = []
    for name in coefficients(runs).values() if runs else ():
        found = first_seed(runs, name)
        groups = found["largest logit by when it was learned"] if found else {}
        rows += [(name, group, each["n"], each["mean"], each["sd"]) for group, each in groups.items()]
    return Table(
        WANG_2021,
        "Figure 5, the largest logit of training images by when they were learned (one seed)",
        ("loss", "learned in the", "images", "mean of the largest logit", "sd"),
        tuple(rows),
        "A learned epoch is the one since which an image was right without a break. The paper shows "
        "histograms; these are their means and deviations.",
    )


def inverse(folder, results: Path | None = None):
    rows = []
    for task, runs in trained(results).items():
        for name in [focal(3), focal(1), "cross-entropy", *INVERSE]:
            if name in runs:
                found = runs[name]
                rows.append(
                    (
                        SETS[task],
                        name,
                        len(found),
                        *(spread(found, key) for key in ("accuracy", "ECE")),
                        mean(found, "pool T"),
                        *(spread(found, key) for key in ("ECE after pool TS", "ECE after HB")),
                    )
                )
    return Table(
        WANG_2021,
        "Figure 6, from focal to inverse focal loss",
        ("set", "loss", "seeds", "accuracy", "ECE", "T", "ECE after TS", "ECE after HB"),
        tuple(rows),
        told_runs(results),
    )


TABLES = (regularised_losses, sensitivity, cal_sizes, over_epochs, learned, inverse)

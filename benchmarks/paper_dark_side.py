"""Singh 2021, "On the Dark Side of Calibration for Modern Neural Networks"."""

from __future__ import annotations

from pathlib import Path

import cifar
import numpy as np
from loss_runs import SETS, mean, spread, told_runs, trained
from paper_results import Table, recorded, splits, told
from published import SINGH, SINGH_BRANCHES, SINGH_SHIFT
from safetensors.torch import load_file

from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import brier, ece_terms, refinement_auroc, softmax, welch
from calib_serve.model.torch_classifier import from_module
from calib_serve.study import shift

SINGH_2021 = "Singh 2021, On the dark side of calibration"

NETWORKS = (
    "akamaster_resnet20_c10",
    "akamaster_resnet56_c10",
    "kull_resnet110_c10",
    "resnet50_c10_cross_entropy",
)
# The paper's coefficients (A.3).
TRAINED = {
    "baseline": "cross-entropy",
    "entropy regularisation": "entropy .1",
    "label smoothing": "label smoothing .05",
    "mixup": "mixup",
    "focal": "focal, gamma 3",
}


def networks(folder):
    """(network, step, probabilities of the test set, its labels), as they are and at two temperatures."""
    for data in NETWORKS:
        cal, (z, y) = splits(folder, data)
        yield data, "baseline", softmax(z), y
        yield data, "temperature", fit_by_name("temperature", *cal).probs(z), y
        yield data, "T = 1.5", softmax(z / 1.5), y


def dark_side(folder, results: Path | None = None):
    rows = []
    for data, step, p, y in networks(folder):
        found = (brier(p, y), ece_terms(p, y).ece, refinement_auroc(p, y))
        theirs = published("images", "temperature" if step == "T = 1.5" else step)
        rows.append((data, step, "", *(f"{100 * value:.2f}" for value in found), *theirs))
    moved = max(
        abs(float(after[5]) - float(before[5]))
        for i in range(0, len(rows), 3)
        for before, after in [(rows[i], rows[i + 1])]
    )
    by_set = trained(results)
    for task, runs in by_set.items():
        for row, loss in TRAINED.items():
            if loss in runs:
                found = runs[loss]
                numbers = (spread(found, key) for key in ("Brier", "ECE", "AUROC"))
                rows.append((SETS[task], row, len(found), *numbers, *published(task, row)))
            if row == "baseline":
                numbers = (spread(runs[loss], f"{key} after TS") for key in ("Brier", "ECE", "AUROC"))
                rows.append(
                    (SETS[task], "temperature", len(runs[loss]), *numbers, *published(task, "temperature"))
                )
    numbers = ("Brier", "ECE", "AUROC")
    return Table(
        SINGH_2021,
        "Table 2, calibration and refinement, CIFAR-10",
        ("network or set", "step or loss", "seeds", *numbers, *(f"paper's {number}" for number in numbers)),
        tuple(rows),
        "The paper's numbers are of ResNet-50. Its temperature is 1.5 for every network (A.3), not fitted. "
        f"A fitted one moves the AUROC by up to {moved:.2f} points here, by 0.09 in the paper. "
        + " ".join(refined(SETS[task], runs) for task, runs in by_set.items())
        + " Its networks trained with these losses are not published; small ones stand for them. Table 1 "
        "(ImageNet) is not rebuilt: no ImageNet logits are at hand. " + told_runs(results),
    )


def published(task, row):
    """The paper's own numbers, which are of CIFAR-10."""
    return SINGH[row] if task == "images" else (None, None, None)


def refined(images, runs) -> str:
    """What the runs say of the paper's claim that regularisation costs refinement."""
    plain = runs["cross-entropy"]
    others = [loss for row, loss in TRAINED.items() if row != "baseline" and loss in runs]
    points = [f"{loss} {100 * (mean(runs[loss], 'AUROC') - mean(plain, 'AUROC')):+.2f}" for loss in others]
    several = [loss for loss in others if min(len(runs[loss]), len(plain)) > 1]
    tests = {loss: welch([r["AUROC"] for r in plain], [r["AUROC"] for r in runs[loss]]) for loss in several}
    sure = [f"{loss} (p = {test.p:.3f})" for loss, test in tests.items() if test.p < 0.05]
    told_sure = f" Beyond chance: {', '.join(sure) or 'none'}." if several else " One seed proves nothing."
    return f"{images}: AUROC against cross-entropy, in points: {', '.join(points)}.{told_sure}"


def equation_9(folder, results: Path | None = None):
    rows = []
    for data, step, p, y in networks(folder):
        if step != "T = 1.5":
            t = ece_terms(p, y)
            by_equation = t.confidence - t.refinement - t.base_rate
            found = (t.ece, by_equation, t.residual, t.of_bins, t.of_equation_8)
            rows.append((data, step, *(round(100 * value, 6) + 0.0 for value in found)))
    of_bins, of_equation_8 = (max(abs(row[i]) for row in rows) for i in (5, 6))
    return Table(
        SINGH_2021,
        "Equation 9, the ECE that it gives and what its two assumptions leave, in points",
        ("network", "step", "ECE", "ECE by eq. 9", "residual", "of bins (eq. 7)", "of eq. 8"),
        tuple(rows),
        f"Equation 9 gives ECEs of {min(row[3] for row in rows):.0f} to {max(row[3] for row in rows):.0f} "
        f"points; the true ones are at most {max(row[2] for row in rows):.2f}. That every bin is "
        f"overconfident is off by at most {of_bins:.2f}, equation 8 by up to {of_equation_8:.2f}: its E[A] "
        "is an accuracy averaged over thresholds of the confidence, and not the accuracy of the network.",
    )


def under_shift(folder, results: Path | None = None):
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


def against_probability(runs):
    """What the runs say of A.2, from the numbers alone."""
    for name in ("trust score", "ConfidNet", "ConfidNet, held-out") if runs else ():
        gains = [100 * (run[name]["AUROC"] - run["largest probability"]["AUROC"]) for run in runs]
        yield f"AUROC of {name} less the largest probability's: {np.mean(gains):+.2f} points."


def branches(folder, results: Path | None = None):
    found = recorded("confidence_branches", "runs", results)[-1:]
    runs = found[0]["runs"] if found else []
    names = [name for name in runs[0] if name not in ("seed", "accuracy")] if runs else []
    rows = []
    for name in names:
        each = [run[name] for run in runs]
        numbers = (spread(each, key) if key in each[0] else None for key in ("ECE", "AUROC"))
        rows.append((name, len(runs), *numbers, *SINGH_BRANCHES.get(name, (None, None))))
    accuracy = f"{100 * np.mean([run['accuracy'] for run in runs]):.2f} %" if runs else "unknown"
    return Table(
        SINGH_2021,
        "Table 4 (A.2), a learned confidence and a trust score against the largest probability",
        ("confidence", "seeds", "ECE", "AUROC", "paper's ECE (VGG-16)", "paper's AUROC"),
        tuple(rows),
        "On the features of the published ResNet-20; each seed draws another half of the test images to "
        f"judge (accuracy {accuracy}). A trust score is a ratio of distances and has no ECE. "
        + " ".join([*against_probability(runs), ""])
        + told("confidence_branches", found),
    )


TABLES = (dark_side, equation_9, under_shift, branches)

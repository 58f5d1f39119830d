"""Every loss on every set, side by side: the tables of docs/training-losses.md."""

from __future__ import annotations

from pathlib import Path

from loss_runs import SETS, mean, spread, told_runs, trained
from loss_settings import FIRST, LOSSES
from paper_results import Table
from small_networks import TASKS

from calib_serve.metrics import welch

PAPER = "Losses in training"


def of_set(task, results):
    runs = trained(results).get(task, {})
    rows = []
    for name in (name for name in LOSSES if name in runs):
        found = runs[name]
        keys = ("accuracy", "ECE", "ECE after TS", "optimal ECE", "AUROC")
        accuracy, *errors, auroc = (spread(found, key) for key in keys)
        learned = 100 * mean(found, "train accuracy")
        rows.append((name, len(found), learned, accuracy, errors[0], mean(found, "T"), *errors[1:], auroc))
        several = name != "cross-entropy" and min(len(found), len(runs["cross-entropy"])) > 2
        rows[-1] += (f"{p_of(runs['cross-entropy'], found):.3f}" if several else "",)
    size, cal = TASKS[task].sizes
    return Table(
        PAPER,
        f"{SETS[task]}, {size:,} to train and {cal:,} to calibrate",
        (
            "loss",
            "seeds",
            "train accuracy",
            "accuracy",
            "ECE",
            "T",
            "ECE after T",
            "best possible ECE",
            "AUROC",
            "p",
        ),
        tuple(rows),
        f"{TASKS[task].says}, {TASKS[task].epochs} epochs. The first {len(FIRST)} rows have one setting of "
        "each loss, the others more coefficients. p is Welch's, of the ECE after T against cross-entropy's, "
        "where there are three seeds. " + failed(runs) + told_runs(results),
    )


def failed(runs) -> str:
    """Which trainings learned nothing: what is measured of them is no result of calibration."""
    none = [(name, run) for name, found in runs.items() for run in found if run["train accuracy"] < 0.5]
    return "".join(
        f"{name} learned nothing with seed {run['seed']} ({run['train accuracy']:.1%} of the training set). "
        for name, run in none
    )


def p_of(plain, runs):
    return welch([run["ECE after TS"] for run in plain], [run["ECE after TS"] for run in runs]).p


def images(folder, results: Path | None = None):
    return of_set("images", results)


def mnist(folder, results: Path | None = None):
    return of_set("mnist", results)


def digits(folder, results: Path | None = None):
    return of_set("digits", results)


TABLES = (images, mnist, digits)

"""Every loss on every set, side by side: the tables of docs/training-losses.md."""

from __future__ import annotations

from pathlib import Path

from loss_runs import SETS, mean, ranked, spread, told_runs, trained, unlearned
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
        "where there are three seeds. "
        + " ".join([*found_of(task, runs), *unlearned(runs), told_runs(results)]),
    )


def found_of(task, runs) -> list[str]:
    """What the numbers say, from the numbers alone."""
    names = [name for name in FIRST if name in runs]
    if len(names) < 2:
        return []
    before, after = (ranked(runs, names, key) for key in ("ECE", "ECE after TS"))
    (low, high), (low_after, high_after) = (
        [f"{100 * mean(runs[order[i]], key):.2f} ({order[i]})" for i in (0, -1)]
        for order, key in ((before, "ECE"), (after, "ECE after TS"))
    )
    worse, better = (
        [
            name
            for name in names
            if name != "cross-entropy"
            and min(len(runs[name]), len(runs["cross-entropy"])) > 2
            and p_of(runs["cross-entropy"], runs[name]) < 0.05
            and sign * (mean(runs[name], "ECE after TS") - mean(runs["cross-entropy"], "ECE after TS")) > 0
        ]
        for sign in (1, -1)
    )
    told = [
        f"Of the first rows the ECE lies between {low} and {high} at the end of training, and after a "
        f"temperature between {low_after} and {high_after}.",
    ]
    if min(len(runs[name]) for name in names) > 2:
        told.append(
            f"After a temperature the error is beyond chance (p < 0.05, {len(names) - 1} comparisons) higher "
            f"than cross-entropy's for {', '.join(worse) or 'none'}, and lower for "
            f"{', '.join(better) or 'none'}."
        )
    return told


def p_of(plain, runs):
    return welch([run["ECE after TS"] for run in plain], [run["ECE after TS"] for run in runs]).p


def images(folder, results: Path | None = None):
    return of_set("images", results)


def mnist(folder, results: Path | None = None):
    return of_set("mnist", results)


def digits(folder, results: Path | None = None):
    return of_set("digits", results)


TABLES = (images, mnist, digits)

"""What train_losses.py has recorded, by set and loss, and how it is told in a table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from paper_results import recorded, told

Runs = dict[str, list[dict[str, Any]]]

SETS = {"images": "CIFAR-10 images", "mnist": "MNIST", "digits": "digits"}


def trained(results: Path | None = None) -> dict[str, Runs]:
    """set -> loss -> its runs by seed; sets without a cross-entropy are left out."""
    by_set: dict[str, Runs] = {task: defaultdict(list) for task in SETS}
    for found in recorded("train_losses", "runs", results)[-1:]:
        for run in sorted(found["runs"], key=lambda run: run["seed"]):
            by_set[run["task"]][run["loss"]].append(run)
    return {task: dict(runs) for task, runs in by_set.items() if "cross-entropy" in runs}


def told_runs(results: Path | None = None) -> str:
    return told("train_losses", recorded("train_losses", "runs", results)[-1:])


def mean(runs: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([run[key] for run in runs]))


def spread(runs: list[dict[str, Any]], key: str) -> str:
    """Mean and standard deviation over seeds, in percent; one seed has no deviation."""
    values = [100 * run[key] for run in runs]
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation}"


def unlearned(runs: Runs) -> list[str]:
    """Trainings that learned nothing: what is measured of them is no result of calibration."""
    none = [(name, run) for name, found in runs.items() for run in found if run["train accuracy"] < 0.5]
    return [
        f"{name} learned nothing with seed {run['seed']} ({run['train accuracy']:.1%} of the training set)."
        for name, run in none
    ]


def labelled(name: str, runs: Runs) -> str:
    """A loss's name in a table, with a warning where a seed learned nothing."""
    return f"{name} (learned nothing)" if unlearned({name: runs[name]}) else name


def ranked(runs: Runs, names: list[str], key: str) -> list[str]:
    """The losses by the mean of ``key``, the least first, without those that learned nothing."""
    there = [name for name in names if name in runs and mean(runs[name], "train accuracy") >= 0.5]
    return sorted(there, key=lambda name: mean(runs[name], key))


def chosen(runs: Runs, names: list[str]) -> str | None:
    """The loss of least ECE on the calibration part, over the seeds that all of them have.

    One that learned nothing is calibrated and useless: as in the paper, it does not take part.
    """
    there = [name for name in names if name in runs and not unlearned({name: runs[name]})]
    if not there:
        return None
    seeds = set.intersection(*({run["seed"] for run in runs[name]} for name in there))
    return min(there, key=lambda name: mean([r for r in runs[name] if r["seed"] in seeds], "ECE on cal"))


def first_seed(runs: Runs, name: str) -> dict[str, Any] | None:
    return next((run for run in runs.get(name, ()) if run["seed"] == 0), None)

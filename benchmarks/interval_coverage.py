"""Do 95 % intervals hold the truth 95 times in 100, and do paired tests at .05 find a change 5 times in 100?

Samples are drawn from models whose truth is known: class probabilities, and the true ones behind them. A
cell is a number of classes, a number of samples and how the model is off. The truth of a metric is that of
the true probabilities over a large population of predictions: over the same bins for binned metrics, over the
population's equal-mass bins for adaptive ECE. That of MCE and ACE is over the bins that the sample holds, as
what lies in a bin without predictions cannot be known. A paired test compares two equally noisy versions of
one model: there is no change to find.

Minutes of two cores do not suffice for every cell, so they go where intervals are worst. All cells are
screened with a few samples; cells of one shape see the same predictions and the same draws of labels (common
random numbers), so that they differ by their kind and not by luck. The cells that come out worst are then
measured with fresh samples, which makes their coverage unbiased although they were picked. The budget is
processor time: a busy machine takes longer and measures the same.

    python benchmarks/interval_coverage.py [--core-minutes 15] [--jobs 2]
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peers

from calib_serve.core.bins import Bins
from calib_serve.metrics import evaluate, paired_changes
from calib_serve.metrics.calibration import Ranked, cumulative, gap_errors
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.smooth import smooth_curve
from calib_serve.scores import softmax

Floats = np.ndarray
Truth = Callable[[Floats], Floats]

SCALE = {2: 2.0, 10: 3.0, 100: 4.0, 1000: 5.0}  # of the logits: confidences of all sizes
POPULATION = {2: 400_000, 10: 200_000, 100: 100_000, 1000: 40_000}
"""Predictions of which a truth is the mean: its own chance is a sixth of a sample's at most."""
BINS = 15
SHAPES = ((2, 200), (2, 1000), (10, 200), (10, 1000), (100, 200), (100, 1000), (1000, 1000))
"""Classes and samples. Intervals of larger samples are the easier ones, and cost the most."""
WORST = 5  # cells that are measured with fresh samples
AT_ONCE = 6  # repeats of a job
WIDE = ("mce", "ace")
"""Of nearly empty bins: an interval may hold the truth too often, never too seldom."""


def power(exponent: float) -> Callable[[int], Truth]:
    return lambda classes: lambda p: softmax(exponent * np.log(np.maximum(p, 1e-30)))


def by_class(classes: int) -> Truth:
    offset = 0.5 * np.random.default_rng(99).standard_normal(classes)
    return lambda p: softmax(np.log(np.maximum(p, 1e-30)) + offset)


def guessing(classes: int) -> Truth:
    """One label in seven is drawn blindly."""
    return lambda p: 0.85 * p + 0.15 / classes


def sure_only(classes: int) -> Truth:
    """Only predictions above .8 are overconfident."""
    return lambda p: np.where(p.max(axis=1, keepdims=True) > 0.8, 0.85 * p + 0.15 / classes, p)


def calibrated(classes: int) -> Truth:
    return lambda p: p


KINDS: dict[str, tuple[Callable[[int], Truth], float]] = {
    "calibrated": (calibrated, 1.0),
    "overconfident": (power(1 / 1.5), 1.0),
    "underconfident": (power(1 / 0.7), 1.0),
    "off by class": (by_class, 1.0),
    "guessing": (guessing, 1.0),
    "off where sure": (sure_only, 1.0),
    "calibrated, mid": (calibrated, 0.5),
    "overconfident, mid": (power(1 / 1.5), 0.5),
}
"""How the true probabilities follow from the model's, and the scale of its logits."""


def predictions(rng: np.random.Generator, n: int, classes: int, scale: float) -> Floats:
    return softmax(SCALE[classes] * scale * rng.standard_normal((n, classes)))


def drawn(rng: np.random.Generator, probs: Floats) -> Floats:
    return np.minimum((probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1), probs.shape[1] - 1)


@functools.cache
def true_metrics(classes: int, n_seen: int, kind: str) -> tuple[dict[str, float], Floats]:
    """Each metric of the true probabilities, and the true gap of each bin (15,); the floor of ``n_seen``."""
    make, scale = KINDS[kind]
    n = POPULATION[classes]
    p = predictions(np.random.default_rng(5), n, classes, scale)
    q = make(classes)(p)
    order = np.argsort(p.max(axis=1))
    p, q = p[order], q[order]
    confidence, right = p.max(axis=1), q[np.arange(n), p.argmax(axis=1)]
    tally = Bins.tally(confidence, right, bins=BINS)
    full = tally.count > 0
    binned = gap_errors(tally.count[full], tally.confidence[full])
    found = {name: float(error(tally.gaps()[full][None])[0]) for name, error in binned.items()}
    by_class = [Bins.tally(p[:, k], q[:, k], bins=BINS).ece() for k in range(classes)]
    found |= {"rms_debiased": found["rms"], "classwise_ece": float(np.mean(by_class))}
    ranked = Ranked(np.arange(n + 1.0), cumulative(confidence), cumulative(right))
    found |= {"adaptive_ece": ranked.ece(BINS), "sweep_ece": ranked.ece(ranked.rising_bins())}
    found["smooth_ece"] = smooth_curve(confidence, right, level=0.95, replicates=0, seed=0).ece
    if kind.startswith("calibrated"):
        found = dict.fromkeys(found, 0.0)  # not the least error that the smooth ECE's grid has
    log_p = np.log(np.maximum(p, 1e-300))
    squares = (p * p).sum(axis=1)
    found |= {
        "accuracy": right.mean(),
        "mean_confidence": confidence.mean(),
        "signed_gap": confidence.mean() - right.mean(),
        "nll": -(q * log_p).sum(axis=1).mean(),
        "brier": (squares - 2 * (p * q).sum(axis=1)).mean() + 1,
        "entropy": -(p * log_p).sum(axis=1).mean(),
    }
    if classes == 2:
        found["positive_gap"] = (p[:, 1] - q[:, 1]).mean()
        found["positive_ece"] = Bins.tally(p[:, 1], q[:, 1], bins=BINS).ece()
    # The noise floor is that of samples of this size: of few predictions some bins are empty.
    seen = np.random.default_rng(8).choice(confidence, (200, n_seen))
    found["noise_floor"] = np.mean([Bins.tally(c, c > 2, bins=BINS).noise_floor() for c in seen])
    gaps = tally.gaps() / np.maximum(tally.count, 1)
    # Of so many predictions each is as often right as its true probability says.
    found |= Separation(rights=cumulative(right), wrongs=cumulative(1 - right)).areas()
    return {name: float(value) for name, value in found.items()}, gaps


Cell = tuple[int, int, str]
"""Classes, samples, kind."""


def named(cell: Cell) -> str:
    return "K={}; n={}; {}".format(*cell)


def measured(cell: Cell, runs: range, replicates: int) -> tuple[Cell, dict[str, list[list[float]]], float]:
    """Rows (truth, value, low, high) of each metric, one a run; and the processor time that they took.

    A run's predictions, and the uniform numbers that decide its labels, are those of every kind.
    """
    start = time.process_time()
    classes, n, kind = cell
    truth, gaps = true_metrics(classes, n, kind)
    make, scale = KINDS[kind]
    rows: dict[str, list[list[float]]] = {name: [] for name in truth}
    for run in runs:
        rng = np.random.default_rng([classes, n, run])
        p = predictions(rng, n, classes, scale)
        found = evaluate(p, drawn(rng, make(classes)(p)), replicates=replicates, seed=run)
        held = np.abs(gaps[found.bins.count > 0])
        here = truth | {"mce": held.max(), "ace": held.mean()}
        for name, e in found.estimates().items():
            if name in here and not math.isnan(e.low):
                rows[name].append([float(here[name]), e.value, e.low, e.high])
    return cell, {name: seen for name, seen in rows.items() if seen}, time.process_time() - start


def summary(seen: list[list[float]]) -> dict[str, float]:
    """Coverage in percent, its standard error, the shares missed on each side, and means."""
    truth, value, low, high = np.array(seen, np.float64).T
    below, above = truth < low - 1e-12, truth > high + 1e-12
    held = 1 - (below | above).mean()
    means = {"truth": truth.mean(), "value": value.mean(), "width": (high - low).mean()}
    shares = {"coverage": held, "below": below.mean(), "above": above.mean()}
    return {name: float(x) for name, x in (shares | means).items()} | {
        "repeats": len(seen),
        "standard_error": math.sqrt(max(held * (1 - held), 0.0) / len(seen)),
    }


NULLS = {"overconfident": 1.5, "nearly calibrated": 0.8}
"""Factors of noisy logits."""
LEVELS = ((2, 500, "nearly calibrated"), (10, 500, "overconfident"))


def tested(cell: Cell, runs: range, replicates: int) -> tuple[Cell, dict[str, list[float]], float]:
    """P-values of each metric, one a run, where two versions of a model are equally noisy."""
    start = time.process_time()
    classes, n, kind = cell
    found: dict[str, list[float]] = {}
    for run in runs:
        rng = np.random.default_rng([classes, n, run, 1])
        z = SCALE[classes] * rng.standard_normal((n, classes))
        labels = drawn(rng, softmax(z))
        noisy = [softmax(NULLS[kind] * (z + 0.7 * rng.standard_normal(z.shape))) for _ in range(2)]
        for name, change in paired_changes(*noisy, labels, replicates=replicates, seed=run).items():
            d = change.difference
            assert math.isnan(change.p) or (change.p < 0.05) == (not d.low <= 0 <= d.high), (name, change)
            found.setdefault(name, []).append(change.p)
    return cell, found, time.process_time() - start


Rows = dict[Cell, dict[str, list[Any]]]


def in_turns(
    pool: Executor, work: Callable[..., Any], cells: list[Cell], first: int, seconds: float, replicates: int
) -> tuple[Rows, float]:
    """Rounds over the cells, from run ``first`` on, until ``seconds`` of processor time are spent."""
    rows: Rows = {cell: {} for cell in cells}
    spent = 0.0
    while spent < seconds:
        jobs = [pool.submit(work, cell, range(first, first + AT_ONCE), replicates) for cell in cells]
        for job in as_completed(jobs):
            cell, found, took = job.result()
            spent += took
            for name, seen in found.items():
                rows[cell].setdefault(name, []).extend(seen)
        first += AT_ONCE
    return rows, spent


def held(rows: dict[str, list[Any]]) -> tuple[float, float]:
    """The least coverage of a metric in a cell, then the mean of all."""
    found = [summary(seen)["coverage"] for name, seen in rows.items() if name not in WIDE]
    return min(found), float(np.mean(found))


def extremes(cells: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Of each metric the least and the most coverage."""
    names = dict.fromkeys(name for found in cells.values() for name in found)
    every = {name: [c[name]["coverage"] for c in cells.values() if name in c] for name in names}
    return {name: (min(of), max(of)) for name, of in every.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core-minutes", type=float, default=15, help="of processor time, in all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replicates", type=int, default=200, help="of each interval")
    asked = peers.arguments(parser, core_minutes=0.5, replicates=100)
    shapes = SHAPES[:2] if asked.quick else SHAPES
    cells = [(classes, n, kind) for classes, n in shapes for kind in KINDS]
    budget = 60 * asked.core_minutes
    with ProcessPoolExecutor(asked.jobs) as pool:
        screened, spent = in_turns(pool, measured, cells, 0, budget / 4, asked.replicates)
        worst = sorted(cells, key=lambda cell: held(screened[cell]))[:WORST]
        print(
            f"screened {len(cells)} cells in {spent:.0f} s; worst:",
            *map(named, worst),
            sep="\n  ",
            flush=True,
        )
        levels, more = in_turns(pool, tested, list(LEVELS), 0, budget / 5, asked.replicates)
        rows, rest = in_turns(
            pool, measured, worst, 100_000, max(budget - spent - more, budget / 4), asked.replicates
        )
    result: dict[str, Any] = {
        **vars(asked),
        "processor_seconds": spent + more + rest,
        "screened": {named(c): {k: summary(v) for k, v in found.items()} for c, found in screened.items()},
        "cells": {named(c): {k: summary(v) for k, v in found.items()} for c, found in rows.items()},
        "level": {
            named(c): {k: float(np.mean(np.array(p) < 0.05)) for k, p in found.items()}
            for c, found in levels.items()
        },
        "level_repeats": {named(c): max(map(len, found.values())) for c, found in levels.items()},
    }
    result["coverage"] = extremes(result["cells"])
    result["mean_coverage"] = {
        name: float(np.mean([c[name]["coverage"] for c in result["screened"].values() if name in c]))
        for name in result["coverage"]
    }
    for name, (low, high) in result["coverage"].items():
        mean = 100 * result["mean_coverage"][name]
        print(f"{name:24} worst cells {100 * low:5.1f} to {100 * high:5.1f} %, all cells {mean:5.1f} %")
    for name, found in result["level"].items():
        print(f"level {name:34}", *(f"{k}:{100 * v:.1f}" for k, v in found.items()))
    peers.save("interval_coverage", result, asked)


if __name__ == "__main__":
    main()

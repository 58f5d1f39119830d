"""Do 95 % intervals hold the truth 95 times in 100, and do paired tests at .05 find a change 5 times in 100?

Samples are drawn from models whose truth is known: class probabilities, and the true ones behind them. A
cell is a number of classes, a number of samples and how the model is off. The truth of a metric is that of
the true probabilities over a large population of predictions: over the same bins for binned metrics, over the
population's equal-mass bins for adaptive ECE. That of MCE and ACE is over the bins that the sample holds, as
what lies in a bin without predictions cannot be known. A paired test compares two equally noisy versions of
one model: there is no change to find. Its power is how often it finds that a calibrated model is better than
one that is off. Writes benchmarks/results/interval_coverage.json.

    python benchmarks/interval_coverage.py [--cells K=10 n=1000 ...] [--repeats 300] [--level-repeats 1000]
"""

from __future__ import annotations

import argparse
import math
import os
import time
import zlib
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peers

from calib_serve.bins import Bins
from calib_serve.metrics import evaluate, paired_changes, softmax
from calib_serve.metrics.samples import PerSample
from calib_serve.metrics.truths import Sample, Shift

Floats = np.ndarray
Truth = Callable[[Floats], Floats]

SCALE = {2: 2.0, 10: 3.0, 100: 4.0, 1000: 5.0}  # of the logits: confidences of all sizes
POPULATION = {2: 200_000, 10: 200_000, 100: 60_000, 1000: 8_000}
SIZES = (200, 1000, 10_000)
BINS = 15


def power(exponent: float) -> Callable[[int], Truth]:
    return lambda classes: Shift(math.log(exponent), np.zeros(classes)).applied


def by_class(classes: int) -> Truth:
    return Shift(0.0, 0.5 * np.random.default_rng(99).standard_normal(classes)).applied


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


def true_metrics(classes: int, n_seen: int, kind: str) -> tuple[dict[str, float], Floats]:
    """Each metric of the true probabilities, and the true gap of each bin (15,); the floor of ``n_seen``."""
    make, scale = KINDS[kind]
    n = POPULATION[classes]
    p = predictions(np.random.default_rng(5), n, classes, scale)
    q = make(classes)(p)
    scores = PerSample.of(p, np.zeros(n, int))
    sample = Sample(scores, BINS, "right")
    right = q[scores.order, scores.predicted]
    found = {name: float(value[0]) for name, value in sample.errors(right[None]).items()}
    found |= {"rms_debiased": found["rms"], "classwise_ece": sample.residuals.true_ece(make(classes))}
    if kind.startswith("calibrated"):
        found = dict.fromkeys(found, 0.0)  # not the least error that the smooth ECE's grid has
    log_p = np.log(np.maximum(p, 1e-300))
    squares = (p * p).sum(axis=1)
    found |= {
        "accuracy": right.mean(),
        "mean_confidence": scores.confidence.mean(),
        "signed_gap": scores.confidence.mean() - right.mean(),
        "nll": -(q * log_p).sum(axis=1).mean(),
        "brier": (squares - 2 * (p * q).sum(axis=1)).mean() + 1,
        "entropy": -(p * log_p).sum(axis=1).mean(),
    }
    if classes == 2:
        excess = scores.positive - q[scores.order, 1]
        found["positive_gap"] = excess.mean()
        found["positive_ece"] = sample.positive.ece(q[scores.order, 1][None])[0]
    # The noise floor is that of samples of this size: of few predictions some bins are empty.
    seen = np.random.default_rng(8).choice(scores.confidence, (200, n_seen))
    found["noise_floor"] = np.mean([Bins.tally(c, c > 2, bins=BINS).noise_floor() for c in seen])
    tally, code = sample.tally(), sample.code()
    gaps = np.bincount(code, scores.confidence - right, minlength=BINS) / np.maximum(tally.count, 1)
    # The rank metrics of the population's labels, drawn once.
    whole = evaluate(p, drawn(np.random.default_rng(6), q), replicates=0).estimates()
    found |= {name: whole[name].value for name in ("refinement_auroc", "aurc", "aupr_correct", "e_aurc")}
    return {name: float(value) for name, value in found.items()}, gaps


def cell(classes: int, n: int, kind: str, repeats: int, replicates: int) -> dict[str, Any]:
    """Of each metric how often the interval holds the truth, and the means of estimates and interval ends."""
    truth, gaps = true_metrics(classes, n, kind)
    make, scale = KINDS[kind]
    rng = np.random.default_rng([zlib.crc32(kind.encode()), classes, n])
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in truth}
    for run in range(repeats):
        p = predictions(rng, n, classes, scale)
        found = evaluate(p, drawn(rng, make(classes)(p)), replicates=replicates, seed=run)
        held = np.abs(gaps[found.bins.count > 0])
        truth |= {"mce": held.max(), "ace": held.mean()}
        for name, e in found.estimates().items():
            if name in truth and not math.isnan(e.low):
                misses = (truth[name] < e.low - 1e-12, truth[name] > e.high + 1e-12)
                rows[name].append((truth[name], e.value, e.debiased, e.low, e.high, *misses))
    return {name: summary(np.array(seen, np.float64)) for name, seen in rows.items() if seen}


def summary(seen: Floats) -> dict[str, float]:
    names = ("truth", "value", "debiased", "low", "high", "below", "above")
    means = dict(zip(names, (float(x) for x in seen.mean(axis=0)), strict=True))
    if math.isnan(means["debiased"]):
        del means["debiased"]
    return {"coverage": 1 - means["below"] - means["above"], "repeats": len(seen), **means}


NULLS = {"overconfident": 1.5, "nearly calibrated": 0.8}
"""Factors of noisy logits."""


def level_of_tests(classes: int, n: int, kind: str, repeats: int, replicates: int) -> dict[str, float]:
    """Share of p < .05 of each metric where two versions of a model are equally noisy."""
    rng = np.random.default_rng([zlib.crc32(kind.encode()), classes, n, 1])
    found: dict[str, list[float]] = {}
    for run in range(repeats):
        z = SCALE[classes] * rng.standard_normal((n, classes))
        labels = drawn(rng, softmax(z))
        noisy = [softmax(NULLS[kind] * (z + 0.7 * rng.standard_normal(z.shape))) for _ in range(2)]
        for name, change in paired_changes(*noisy, labels, replicates=replicates, seed=run).items():
            d = change.difference
            assert math.isnan(change.p) or (change.p < 0.05) == (not d.low <= 0 <= d.high), (name, change)
            found.setdefault(name, []).append(change.p)
    return {name: float(np.mean(np.array(p) < 0.05)) for name, p in found.items()}


def power_of_tests(classes: int, n: int, repeats: int, replicates: int) -> dict[str, float]:
    """Share of p < .05 where the calibrated model is compared with itself sharpened by 1.25."""
    rng = np.random.default_rng([classes, n, 2])
    found: dict[str, list[float]] = {}
    for run in range(repeats):
        p = predictions(rng, n, classes, 1.0)
        q = Shift(-math.log(1.25), np.zeros(classes)).applied(p)
        changes = paired_changes(p, q, drawn(rng, q), replicates=replicates, seed=run)
        for name, change in changes.items():
            found.setdefault(name, []).append(change.p)
    return {name: float(np.mean(np.array(p) < 0.05)) for name, p in found.items()}


def worst(cells: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Of each metric the least and the most coverage."""
    names = dict.fromkeys(name for found in cells.values() for name in found)
    held = {name: [c[name]["coverage"] for c in cells.values() if name in c] for name in names}
    return {name: (min(of), max(of)) for name, of in held.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="*", default=[], help="parts of names such as K=10, n=200, guessing")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--level-repeats", type=int, default=1000)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--classes", type=int, nargs="*", default=list(SCALE))
    args = peers.arguments(parser, repeats=5, level_repeats=5, replicates=100, classes=[2, 10])
    result: dict[str, Any] = {**vars(args), "cells": {}, "level": {}, "power": {}}

    def wanted(name: str) -> bool:
        """Of every kind of part that is given, one must fit."""
        kinds = {"K=": [], "n=": [], "": []}
        for part in args.cells:
            kinds[next(k for k in kinds if part.startswith(k))].append(part)
        return all(any(part in name.split("; ") for part in parts) for parts in kinds.values() if parts)

    start = time.process_time()
    for classes in args.classes:
        for n in SIZES:
            # Large cells cost more, and their intervals are the easier ones.
            times = max(1, n * classes // 200_000)
            for kind in KINDS:
                name = f"K={classes}; n={n}; {kind}"
                if wanted(name) and args.repeats:
                    found = cell(classes, n, kind, max(args.repeats // times, 20), args.replicates)
                    result["cells"][name] = found
                    off = {k: round(100 * v["coverage"]) for k, v in found.items()}
                    print(f"{name:40}", *(f"{k}:{v}" for k, v in off.items()), flush=True)
    for classes in (k for k in args.classes if k <= 100):
        n = 500 if classes < 100 else 1000
        for kind in NULLS:
            name = f"K={classes}; n={n}; {kind}"
            if wanted(name) and args.level_repeats:
                found = level_of_tests(classes, n, kind, args.level_repeats, args.replicates)
                result["level"][name] = found
                print(f"level {name:34}", *(f"{k}:{100 * v:.1f}" for k, v in found.items()), flush=True)
        name = f"K={classes}; n={n}"
        if wanted(name) and args.level_repeats:
            found = power_of_tests(classes, n, max(args.level_repeats // 10, 10), args.replicates)
            result["power"][name] = found
            print(f"power {name:34}", *(f"{k}:{100 * v:.0f}" for k, v in found.items()), flush=True)
    result["coverage"] = worst(result["cells"])
    for name, (low, high) in result["coverage"].items():
        print(f"{name:24} {100 * low:5.1f} to {100 * high:5.1f} %")
    print(f"{time.process_time() - start:.0f} s of processor time")
    peers.save("interval_coverage", result, args)


if __name__ == "__main__":
    main()

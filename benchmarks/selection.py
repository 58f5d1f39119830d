"""What do live numbers say of all predictions, where only some that were chosen have labels?

    CALIB_SERVE_DATA=... python benchmarks/selection.py [--streams 200] [--draws 200]

Streams of 40,000 predictions are drawn, of a calibrated model and of three that are not; labels come for 5 %
of all, for a review queue (all below .7 and 1 % above), at rates that differ by class, by budget, and for
whole groups whose outcomes move together. The same for real predictions, whose labels are all known. Beside
ours the plain numbers, which weigh bins by labels, as others do. Bias is in standard errors of one stream's
estimate; coverage is how often 95 % intervals hold the truth.

And how the variance of the gap by a budget compares with uniform sampling of as many labels: were the
confidences right (the bound is (E s)^2 / E s^2, s = sqrt(c (1 - c))), and by the real outcomes.

Writes benchmarks/results/selection.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import peers

from calib_serve.fit import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.monitor.estimates import estimate
from calib_serve.receipts.policy import LabelPolicy
from calib_serve.receipts.sums import Sums
from calib_serve.scores import softmax

BINS, SERVED, RATE, DAY = 15, 40_000, 0.05, 86_400.0
CLASS_RATES, CLASS_SHARES = np.array([0.02, 0.05, 0.2]), np.array([0.0, 1.0, 2.0])
ACCURACIES = {
    "calibrated": lambda c: c,
    "1 point": lambda c: c - 0.01,
    "up to 6 points": lambda c: c - 0.08 * (c - 0.25),
    "cancelling": lambda c: np.where(bin_of(c) % 2 == 0, np.minimum(c + 0.05, 1), c - 0.05),
}
SELECTIONS = (
    "uniform",
    "review queue",
    "review queue, chances not known",
    "by class",
    "by class, chances not known",
    "by budget",
    "groups of 5",
    "groups of 20",
)
LOGITS = (
    *("akamaster_resnet20_c10", "akamaster_resnet56_c10", "kull_resnet110_c10"),
    *("resnet50_c10_cross_entropy", "c10LT_resnet110"),
)
STREAMS = ("elec2_frozen_gb", "acs_employment_ma")
HELD_BACK = "538_world_cup_matches_in_game_women"  # no option was ever chosen by it


def bin_of(c):
    return np.clip(np.ceil(c * BINS).astype(int) - 1, 0, BINS - 1)


def confidences(rng, n):
    return 1 - 0.75 * rng.beta(1, 4, n)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def asked_by(selection, rng, c, kind):
    """Which are labelled, and one over the chance as far as it is known."""
    if selection == "by budget":
        clock = Clock()
        policy = LabelPolicy.budget(RATE * len(c), clock=clock)
        policy.observe(Sums.served(c), seconds=DAY)
        clock.now += DAY
        asked, chance = policy.draw(c, uniforms=rng.random(len(c)))
        return asked, 1 / chance
    chance = np.full(len(c), RATE)
    if selection.startswith("review queue"):
        chance = np.where(c <= 0.7, 1.0, 0.01)
    elif selection.startswith("by class"):
        chance = CLASS_RATES[kind]
    asked = rng.random(len(c)) < chance
    return asked, np.ones(len(c)) if selection.endswith("not known") else 1 / chance


def drawn(accuracy, selection, seed):
    """A stream: confidences, outcomes, labelled, weights, and its groups' sums."""
    rng = np.random.default_rng(seed)
    c, kind = confidences(rng, SERVED), rng.integers(0, 3, SERVED)
    p = ACCURACIES[accuracy](c)
    if selection.startswith("by class"):
        p = by_class(accuracy, c, kind)
    luck = rng.random(SERVED)
    if not selection.startswith("groups"):
        asked, weight = asked_by(selection, rng, c, kind)
        return c, (luck < p).astype(float), asked, weight, ()
    size = int(selection.rpartition(" ")[2])
    group = np.arange(SERVED) // size
    shared = rng.random(group[-1] + 1)[group]
    y = (np.where(rng.random(SERVED) < 0.7, shared, luck) < p).astype(float)
    asked = (rng.random(group[-1] + 1) < RATE)[group]
    falls = rng.integers(0, 32, group[-1] + 1)[group]
    weight = np.full(SERVED, 1 / RATE)
    parts = tuple(
        Sums.labelled(c[one], y[one], weight=weight[one])
        for one in (np.flatnonzero(asked & (falls == g)) for g in range(32))
    )
    return c, y, asked, weight, parts


def by_class(accuracy, c, kind):
    """One class is right as often as it says, another errs twice as much as the accuracy says."""
    return np.clip(c - CLASS_SHARES[kind] * (c - ACCURACIES[accuracy](c)), 0, 1)


def reference(accuracy, selection):
    """The true gap of each bin."""
    c = confidences(np.random.default_rng(2**20), 4_000_000)
    if selection.startswith("by class"):
        p = sum(by_class(accuracy, c, np.full(len(c), kind)) for kind in range(3)) / 3
    else:
        p = ACCURACIES[accuracy](c)
    return means(bin_of(c), c - p)


def means(index, values):
    return np.bincount(index, values, BINS) / np.maximum(np.bincount(index, minlength=BINS), 1)


def compare(c, y, asked, weight, groups, gaps):
    """Of ours and plain: (value, truth, low, high) of accuracy, gap and ECE."""
    found = estimate(Sums.served(c) + Sums.labelled(c[asked], y[asked], weight=weight[asked]), groups=groups)
    index = bin_of(c)
    share = np.bincount(index, minlength=BINS) / len(c)
    on = np.array([row.covered for row in found.bins])
    part = np.where(on, share, 0) / share[on].sum()
    gap, error = float(part @ gaps), float(part @ np.abs(gaps))
    ours = {
        "accuracy": (found.accuracy.value, found.covered_confidence - gap, *ends(found.accuracy)),
        "gap": (found.gap.value, gap, *ends(found.gap)),
        "ECE": (found.unclipped_ece, error, *ends(found.debiased_ece)),
    }
    bins, n = Sums.labelled(c[asked], y[asked]).feedback, asked.sum()
    gap, mean = float(share @ gaps), bins.accuracy()
    half = 1.96 * np.sqrt(mean * (1 - mean) / n)
    noise = 1.96 * np.sqrt((c * (1 - c))[asked].sum()) / n
    plain = {
        "accuracy": (mean, c.mean() - gap, mean - half, mean + half),
        "gap": (bins.signed_gap(), gap, bins.signed_gap() - noise, bins.signed_gap() + noise),
        "ECE": (bins.ece(), float(share @ np.abs(gaps)), np.nan, np.nan),
    }
    return {"ours": ours, "plain": plain}


def ends(number):
    return number.low, number.high


def summed_up(runs):
    """Bias and coverage of every number over the runs."""
    told = {}
    for who in ("ours", "plain"):
        told[who] = {}
        for name in ("accuracy", "gap", "ECE"):
            value, truth, low, high = np.array([run[who][name] for run in runs]).T
            error, spread = value - truth, float(np.std(value - truth))
            told[who][name] = {
                "bias": float(error.mean()),
                "bias_in_se": float(error.mean() / spread),
                "bias_in_se_of_mean": float(error.mean() / spread * np.sqrt(len(runs))),
                "coverage": None if np.isnan(low).any() else float(((low <= truth) & (truth <= high)).mean()),
            }
    return told


def drawn_streams(streams):
    table = {}
    for selection in SELECTIONS:
        table[selection] = {}
        for number, accuracy in enumerate(ACCURACIES):
            gaps, first = reference(accuracy, selection), 10_000 * number
            runs = [compare(*drawn(accuracy, selection, first + s), gaps) for s in range(streams)]
            table[selection][accuracy] = summed_up(runs)
        show(selection, table[selection])
    return table


def show(name, rows):
    for row, told in rows.items():
        for who in ("ours", "plain"):
            cells = [
                f"{number}: bias {found['bias_in_se']:+.2f} se, holds "
                + ("-" if found["coverage"] is None else f"{100 * found['coverage']:.1f} %")
                for number, found in told[who].items()
            ]
            print(f"{name:34} {row:16} {who:6}" + "; ".join(cells), flush=True)


def real(folder):
    """Name, confidences and outcomes; of networks also by a fitted temperature, as they would be served."""
    for name in LOGITS:
        with np.load(folder / "logits" / f"{name}.npz") as data:
            scaled = fit_temperature(Samples.of(data["cal_logits"], data["cal_labels"])).probs(
                data["test_logits"]
            )
            raw, labels = softmax(data["test_logits"]), data["test_labels"]
        for probs, how in ((raw, "raw"), (scaled, "calibrated")):
            c = np.minimum(probs.max(axis=1).astype(float), 1.0)
            yield f"{name}, {how}", c, (probs.argmax(axis=1) == labels).astype(float)
    for name in STREAMS:
        with np.load(folder / "streams" / f"{name}.npz") as data:
            p = data["prob1"].astype(float)
            label = data["labels"][int(data["train_rows"]) :] if "labels" in data else data["label"]
        yield name, np.maximum(p, 1 - p), ((p > 0.5) == (label == 1)).astype(float)


def real_streams(folder, draws):
    """Labels are drawn again and again from predictions whose outcomes are all known."""
    table = {}
    for name, c, y in real(folder):
        gaps, table[name] = means(bin_of(c), c - y), {}
        for selection in ("uniform", "review queue", "by budget"):
            runs = []
            for seed in range(draws):
                asked, weight = asked_by(selection, np.random.default_rng(seed), c, None)
                runs.append(compare(c, y, asked, weight, (), gaps))
            table[name][selection] = summed_up(runs)
        show(name, table[name])
    return table


def matches(folder, draws):
    """Forecasts of each minute of football matches: 200 matches are drawn from those there are, 50 labelled.

    Those of one match move together: with groups, and as if each were by itself.
    """
    with np.load(folder / "streams" / f"{HELD_BACK}.npz") as data:
        probs, label, match = data["probs"].astype(float), data["label"], data["match"]
    c, y = np.minimum(probs.max(axis=1), 1.0), (probs.argmax(axis=1) == label).astype(float)
    rows, gaps = [np.flatnonzero(match == m) for m in np.unique(match)], means(bin_of(c), c - y)
    runs = {"with groups": [], "without": []}
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        chosen = [rows[m] for m in rng.integers(0, len(rows), 200)]
        unit = np.repeat(np.arange(200), [len(one) for one in chosen])
        at = np.concatenate(chosen)
        asked, falls, weight = unit < 50, rng.integers(0, 32, 200)[unit], np.ones(len(at))
        parts = [Sums.labelled(c[at][one], y[at][one]) for one in (asked & (falls == g) for g in range(32))]
        runs["with groups"].append(compare(c[at], y[at], asked, weight, parts, gaps))
        runs["without"].append(compare(c[at], y[at], asked, weight, (), gaps))
    table = {how: summed_up(found) for how, found in runs.items()}
    show("matches", table)
    return table


def allocation(folder, labels=500):
    """Variance of the gap by a budget over that of uniform sampling, at as many labels."""
    table = {}
    for name, c, y in real(folder):
        variance = np.maximum(c * (1 - c), 1e-12)
        residual = (c - y - means(bin_of(c), c - y)[bin_of(c)]) ** 2
        row = {"bound": float(np.sqrt(variance).mean() ** 2 / variance.mean())}
        first = np.random.default_rng(0).random(len(c)) < labels / len(c)
        for state, told in (
            ("at_first", Sums.served(c)),
            ("after_labels", Sums.served(c) + Sums.labelled(c[first], y[first])),
        ):
            clock = Clock()
            policy = LabelPolicy.budget(RATE * len(c), clock=clock)
            policy.observe(told, seconds=DAY)
            for part in np.array_split(c, 500):  # the traffic itself refines what bins told
                clock.now += DAY / 500
                policy.draw(part)
            clock.now += DAY
            chance = policy.draw(c)[1]
            row[state] = {
                "if_calibrated": ratio(variance, chance),
                "by_outcomes": ratio(residual, chance),
                "over_bound": ratio(variance, chance) / row["bound"],
            }
        table[name] = row
        cells = [
            f"{state}: {row[state]['if_calibrated']:.3f}, by outcomes {row[state]['by_outcomes']:.2f}"
            for state in ("at_first", "after_labels")
        ]
        print(f"{name:40} bound {row['bound']:.3f}; {'; '.join(cells)}", flush=True)
    return table


def ratio(variance, chance):
    return float((variance / chance).mean() * chance.mean() / variance.mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    asked = peers.arguments(parser, streams=20, draws=10)
    folder = os.environ.get("CALIB_SERVE_DATA")
    if not folder:
        sys.exit("CALIB_SERVE_DATA is not set: it names the folder of real logits and streams")
    result = {
        "trimmed": asked.quick,
        "streams": asked.streams,
        "drawn": drawn_streams(asked.streams),
        "allocation": allocation(Path(folder)),
        "matches": matches(Path(folder), 5 * asked.draws),
        "real": real_streams(Path(folder), asked.draws),
    }
    print(peers.save("selection", result, asked))


if __name__ == "__main__":
    main()

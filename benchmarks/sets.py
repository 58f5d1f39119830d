"""Do prediction sets and abstention keep what they promise, and how do they compare with others?

    CALIB_SERVE_DATA=... python benchmarks/sets.py [--runs 1000] [--splits 100] [--quick]

1. Drawn data of known truth: the coverage over many draws against its exact distribution (beta-binomial), by
   score, classes, samples and coverage; tied probabilities, a threshold a class, and groups.
2. Thresholds of abstention on drawn data whose selective risk is known: how often one breaks its promise.
3. Real logits: a temperature fitted on a third, thresholds on another, measured on the last. Beside ours the
   rule of Geifman and El-Yaniv (2017, alg. 1) for the share answered.
4. The same sets as crepes makes of the same scores, and the LAC threshold of MAPIE.

Writes benchmarks/results/sets.json. Runs in the environment of requirements-sets.txt.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import peers  # noqa: E402

PINS = "requirements-sets.txt"

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peers.rerun_in(PINS)

import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402

from calib_serve.fit import fit_by_name  # noqa: E402
from calib_serve.fit.decisions import fit_sets  # noqa: E402
from calib_serve.fit.samples import Samples  # noqa: E402
from calib_serve.metrics import abstention, conformal_rank  # noqa: E402
from calib_serve.scores import softmax  # noqa: E402

OPTIONS = {"lac": None, "aps": None, "raps": {"penalty": 0.05, "free_ranks": 1}}
NEW = 200  # samples a draw of thresholds is measured on
LOGITS = (
    "kull_resnet110_c10",
    "resnet50_c10_cross_entropy",
    "c10LT_resnet110",
    "akamaster_resnet20_c10",
    "akamaster_resnet56_c10",
    "banking77_mlp_inhouse",
)


def drawn(n, classes, rng, levels=None):
    """Probabilities of an overconfident model, wrong often; with ``levels`` rounded: many are tied."""
    z = rng.standard_normal((n, classes))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    p = softmax(3 * z)
    if levels:
        p = np.ceil(p * levels)
        p /= p.sum(axis=1, keepdims=True)
    return p, y


def held(sets, p, y):
    return sets(p)[np.arange(len(y)), y]


def cell(score, classes, n, coverage, runs, levels=None):
    """The mean coverage less the promise in standard errors, and draws inside 95 % of the distribution."""
    rng = np.random.default_rng([classes, n, round(1e4 * coverage), len(score), levels or 0])
    counts = np.empty(runs)
    for i in range(runs):
        p, y = drawn(n + NEW, classes, rng, levels)
        sets = fit_sets(p[:n], y[:n], coverage=coverage, score=score, options=OPTIONS[score])
        counts[i] = held(sets, p[n:], y[n:]).sum()
    k = conformal_rank(n, coverage)
    row = {"score": score, "classes": classes, "n": n, "coverage": coverage, "tied": bool(levels)}
    row["mean"] = counts.mean() / NEW
    if k > n:
        return {**row, "always": bool((counts == NEW).all())}
    exact = stats.betabinom(NEW, k, n + 1 - k)
    low, high = exact.ppf([0.025, 0.975])
    return {
        **row,
        "exact_mean": exact.mean() / NEW,
        "z": (counts.mean() - exact.mean()) / (exact.std() / math.sqrt(runs)),
        "above_promise_z": (counts.mean() - NEW * coverage) / (exact.std() / math.sqrt(runs)),
        "inside": float(((counts >= low) & (counts <= high)).mean()),
        "inside_exact": float(exact.cdf(high) - exact.cdf(low - 1)),
    }


def coverage_cells(runs):
    found = []
    cells = [
        (s, k, n, c)
        for s in OPTIONS
        for k in (2, 10, 100)
        for n, c in ((19, 0.9), (99, 0.9), (100, 0.95), (999, 0.9), (999, 0.99), (8, 0.9))
        if k > 2 or s == "lac"
    ]
    for score, classes, n, coverage in cells:
        small = max(20, runs // (1 + classes * n // 5000))
        found.append(cell(score, classes, n, coverage, small))
        print(found[-1], flush=True)
    for score in OPTIONS:
        found.append(cell(score, 10, 199, 0.9, runs, levels=5))
        print(found[-1], flush=True)
    return found


def by_class(runs, coverage=0.9, n=1000):
    """The mean coverage of each of three classes, the rarest of which is the hardest."""
    rng = np.random.default_rng(5)
    means = {True: np.zeros((runs, 3)), False: np.zeros((runs, 3))}
    for i in range(runs):
        y = rng.choice(3, 2 * n, p=[0.6, 0.3, 0.1])
        z = rng.standard_normal((2 * n, 3)) + 2 * np.eye(3)[y] * np.array([1.5, 1.0, 0.2])[y][:, None]
        p = softmax(z)
        for per_class, out in means.items():
            hit = held(fit_sets(p[:n], y[:n], coverage=coverage, per_class=per_class), p[n:], y[n:])
            out[i] = [hit[y[n:] == k].mean() for k in range(3)]
    each = means[True]
    return {
        "per_class": each.mean(axis=0).tolist(),
        "one_threshold": means[False].mean(axis=0).tolist(),
        "least_z": float(
            ((each.mean(axis=0) - coverage) / (each.std(axis=0, ddof=1) / math.sqrt(runs))).min()
        ),
    }


def of_groups(runs, coverage=0.8):
    """One sample of a new group: large groups are easy, so that thresholds by samples are too low."""
    rng = np.random.default_rng(8)
    kept = {"groups": np.empty(runs), "samples": np.empty(runs)}
    for i in range(runs):
        size = np.where(rng.random(40) < 0.5, 1, 30)
        groups = np.repeat(np.arange(40), size)
        score = np.where(size == 1, rng.uniform(0.5, 1, 40), rng.uniform(0.5, 0.6, 40))[groups]
        p, y = np.stack([1 - score, score], axis=1), np.zeros(len(score), int)
        new = rng.uniform(0.5, 1) if rng.random() < 0.5 else rng.uniform(0.5, 0.6)
        for name, given in (("groups", groups), ("samples", None)):
            kept[name][i] = fit_sets(p, y, coverage=coverage, groups=given)([[1 - new, new]])[0, 0]
    means = {name: float(values.mean()) for name, values in kept.items()}
    error = math.sqrt(coverage * (1 - coverage) / runs)
    return {**means, "coverage": coverage, "z": (means["groups"] - coverage) / error}


# Accuracy at a confidence c, uniform over [0.5, 1], and the selective risk of answering from t on.
GRID = np.linspace(0.5, 1, 20_001)
SHAPES = {
    "calibrated": lambda c, risk: c,
    "overconfident": lambda c, risk: 0.5 + 0.8 * (c - 0.5),
    "flat, just above the risk": lambda c, risk: 1 - risk - 1e-4 + 0 * c,
    "worst where surest": lambda c, risk: np.where(c > 0.95, 0.6, 1 - 0.7 * risk),
    "wave": lambda c, risk: 1 - risk * (1.02 + 0.9 * np.sin(40 * c)),
}


def selective_risk(right, t):
    part = min(max(t, 0.5), GRID[-1]) <= GRID
    return float(1 - right[part].mean())


def geifman(confidence, correct, risk, level):
    """The confidence from which on the risk is kept, by binary search (Geifman and El-Yaniv 2017, alg. 1)."""
    order = np.argsort(confidence)
    c, wrong = confidence[order], np.cumsum(~correct[order][::-1])
    starts = np.flatnonzero(np.concatenate([[True], c[1:] > c[:-1]]))
    share = (1 - level) / max(1, math.ceil(math.log2(len(starts) + 1)))
    best, low, high = math.inf, 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        answered = len(c) - int(starts[middle])
        if stats.binom.cdf(int(wrong[answered - 1]), answered, risk) <= share:
            best, high = float(c[starts[middle]]), middle - 1
        else:
            low = middle + 1
    return best


def risks(runs, level=0.95):
    found = []
    for shape, of in SHAPES.items():
        for n in (200, 1000, 5000):
            for risk in (0.05, 0.2):
                rng = np.random.default_rng([n, round(100 * risk), len(shape)])
                right = of(GRID, risk)
                rows = {"ours": [], "geifman": []}
                for _ in range(runs if n < 5000 else max(runs // 4, 10)):
                    c = rng.uniform(0.5, 1, n)
                    correct = rng.random(n) < of(c, risk)
                    p, y = np.stack([c, 1 - c], axis=1), np.where(correct, 0, 1)
                    ours = abstention(p, y, risk=risk, level=level).threshold
                    for name, t in (("ours", ours), ("geifman", geifman(c, correct, risk, level))):
                        broken = math.isfinite(t) and selective_risk(right, t) > risk
                        rows[name].append((broken, float(GRID[-1] - max(t, 0.5)) / 0.5 if t < 1 else 0.0))
                row = {"shape": shape, "n": n, "risk": risk, "runs": len(rows["ours"])}
                for name, values in rows.items():
                    broken, answered = np.mean(values, axis=0)
                    row[name] = {"broken": float(broken), "answered": float(answered)}
                found.append(row)
                print(row, flush=True)
    return found


def real(folder, splits, coverage_above=0.5):
    """Coverage, set size and share answered on thirds of real logits; the risk is half of the errors."""
    found = {}
    for name in LOGITS:
        data = np.load(folder / "logits" / f"{name}.npz")
        z = np.concatenate([data["cal_logits"], data["test_logits"]]).astype(np.float64)
        y = np.concatenate([data["cal_labels"], data["test_labels"]]).astype(int).ravel()
        error = float((z.argmax(axis=1) != y).mean())
        coverage, risk = 1 - coverage_above * error, error / 2
        n = min(len(y) // 3, 2000)
        rows = []
        for seed in range(splits):
            fit, held_out, test = np.split(np.random.default_rng(seed).permutation(len(y)), [n, 2 * n])
            artifact = fit_by_name("temperature", Samples.of(z[fit], y[fit]), y[fit])
            p = artifact.probs(z)
            row = {}
            for score in OPTIONS:
                sets = fit_sets(p[held_out], y[held_out], coverage=coverage, score=score, seed=seed)
                inside = sets(p[test])
                row |= {score: float(inside[np.arange(len(test)), y[test]].mean())}
                row |= {f"{score}_size": float(inside.sum(axis=1).mean())}
            confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
            ours = abstention(p[held_out], y[held_out], risk=risk).threshold
            theirs = geifman(confidence[held_out], correct[held_out], risk, 0.95)
            row |= {"ours": float((confidence[test] >= ours).mean())}
            row |= {"geifman": float((confidence[test] >= theirs).mean())}
            answers = confidence[test] >= ours
            row |= {"broken": bool(answers.any() and (~correct[test][answers]).mean() > risk)}
            rows.append(row)
        means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        size = len(test)
        k = conformal_rank(n, coverage)
        low, high = stats.betabinom(size, k, n + 1 - k).ppf([0.025, 0.975]) / size
        inside = {s: float(np.mean([low <= row[s] <= high for row in rows])) for s in ("lac", "aps")}
        found[name] = {"n": n, "coverage": coverage, "risk": risk, "inside": inside, **means}
        print(name, found[name], flush=True)
    return found


def agreement(absent):
    """Beside crepes and MAPIE; one that is not here says so in ``absent``, and has no number."""
    crepes = peers.imported("crepes", "crepes", absent)
    mapie = peers.imported("mapie.classification", "mapie", absent)
    return {**(with_crepes(crepes) if crepes else {}), **(with_mapie(mapie) if mapie else {})}


def drawn_twice(rng):
    """Probabilities and labels to take thresholds from, and new probabilities."""
    p, y = drawn(3000, 10, rng)
    return p[:2000], y[:2000], p[2000:]


def with_crepes(crepes):
    """Memberships of a class in a set on which crepes and we differ, of those not within the margin."""
    from calib_serve.fit.decisions import true_scores

    rng, differ, compared = np.random.default_rng(0), 0, 0
    for coverage in (0.8, 0.9, 0.95, 0.99):
        p, y, new = drawn_twice(rng)
        for score, options in OPTIONS.items():
            for per_class in (False, True):
                sets = fit_sets(p, y, coverage=coverage, score=score, per_class=per_class, options=options)
                scores = sets.scores(new)
                scores[np.arange(len(new)), new.argmax(axis=1)] = 0
                theirs = np.empty(scores.shape, bool)
                for k in range(10):
                    part = y == k if per_class else slice(None)
                    peer = crepes.ConformalClassifier()
                    peer.fit(true_scores(sets, p[part], y[part]))
                    # A p-value of exactly 1 - coverage is left out (Vovk 2005), where crepes keeps it.
                    column = peer.predict_set(scores[:, [k]], confidence=coverage - 1e-12, smoothing=False)
                    theirs[:, k] = column[:, 0] == 1
                sure = np.abs(scores - sets.threshold) > 1e-6
                differ += int((theirs != sets(new))[sure].sum())
                compared += int(sure.sum())
    return {"compared": compared, "differ_from_crepes": differ}


def with_mapie(mapie):
    """How far the threshold of LAC is from MAPIE's, the most of all coverages."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Ready(ClassifierMixin, BaseEstimator):
        """Probabilities as they come."""

        def fit(self, x, y):
            self.classes_, self.n_features_in_ = np.arange(x.shape[1]), x.shape[1]
            return self

        def predict_proba(self, x):
            return x

        def predict(self, x):
            return x.argmax(axis=1)

    rng, threshold = np.random.default_rng(0), 0.0
    for coverage in (0.8, 0.9, 0.95, 0.99):
        p, y, new = drawn_twice(rng)
        peer = mapie.SplitConformalClassifier(
            Ready().fit(p, y), confidence_level=coverage, conformity_score="lac"
        )
        peer.conformalize(p, y).predict_set(new)  # its threshold is known after this
        theirs = peer._mapie_classifier.conformity_score_function_.quantiles_[0]
        ours = float(fit_sets(p, y, coverage=coverage).threshold)
        threshold = max(threshold, abs(ours - theirs))
    return {"lac_threshold_from_mapie": float(threshold)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="draws of thresholds a cell")
    parser.add_argument("--splits", type=int, default=100, help="of each file of real logits")
    options = peers.arguments(parser, runs=60, splits=5)
    absent = peers.absent(PINS)
    result = {
        "absent": absent,
        "agreement": agreement(absent),
        "coverage": coverage_cells(options.runs),
        "by_class": by_class(options.runs // 4),
        "groups": of_groups(2 * options.runs),
        "risk": risks(options.runs),
        "real": real(Path(os.environ["CALIB_SERVE_DATA"]), options.splits),
    }
    peers.save("sets", result, options)


if __name__ == "__main__":
    main()

"""Do decisions keep their promise, are they near the best, and what do they cost in a graph?

    CALIB_SERVE_DATA=... python benchmarks/choices.py [--draws 200] [--n 1000] [--seconds 10] [--quick]

1. The promise at level 0.9: of each of six sets, with a calibration that was fitted elsewhere, ``n`` samples
   are drawn with replacement as often as ``--draws`` says. What a precision, a recall, a budget or a mean
   cost is among new samples is then known: that of the whole set. Where none is promised, none is broken.
2. The bound of a mean cost, as a multiple of its standard error above the truth, beside the bounds of
   Hoeffding and Bentkus (Angelopoulos 2021, section 3.2) and the normal one, which promises nothing.
3. The mean cost of decisions after a calibration on 5,000 drawn samples of an overconfident model, over that
   of the best threshold in hindsight, on 200,000 others. The same on real logits, each class against the
   rest, where the best threshold fits the chance of 5,000 or 10,000 samples: beside it the ratio where labels
   are drawn by the probabilities, which then are perfect, and the ratio to the cost of the threshold that was
   best on the samples of the calibration, as it is tuned without one.
4. The time of a graph that decides over one that does not, as in decisions_overhead.py.

Writes benchmarks/results/choices.json.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import peers
import torch
from decisions_overhead import MODELS, export, one_round, ratio
from scipy import stats
from sklearn import datasets, linear_model, naive_bayes

from calib_serve import Artifact, calibrate
from calib_serve.artifact import Choice, LogitMap
from calib_serve.core.errors import FitError
from calib_serve.core.options.evaluate import PromiseOptions
from calib_serve.fit.choices import choice_by
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import softmax

LEVEL = 0.9
ASKED = {"precision": {"precision": 0.8}, "recall": {"recall": 0.9}, "budget": {"budget": 0.15}}
ASKED |= {"cost": {"cost": (1.0, 5.0)}}
# Files of logits, and the class that is decided on against the rest; None: there are two.
LOGITS = (("pneumonia_cnn_inhouse", None), ("kull_resnet110_c10", 3), ("akamaster_resnet20_c10", 5))
LOGITS += (("c10LT_resnet110", 9),)
PRICES = ((1.0, 1.0), (1.0, 5.0), (1.0, 20.0), (5.0, 1.0))


def against_rest(z: np.ndarray, k: int | None) -> np.ndarray:
    """Log-probabilities (n, 2) of a class and of all others, the class second."""
    p = softmax(z.astype(np.float64))
    one = p[:, 1 if k is None else k]
    return np.log(np.clip(np.stack([1 - one, one], axis=1), 1e-12, 1))


def two_class_sets(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Calibrated probabilities (n, 2) and classes (n,) that no calibration was fitted to."""
    found = {}
    for name, k in LOGITS:
        d = np.load(folder / "logits" / f"{name}.npz")
        z = {part: against_rest(d[f"{part}_logits"], k) for part in ("cal", "test")}
        y = {part: d[f"{part}_labels"].ravel() == (1 if k is None else k) for part in z}
        found[name] = calibrated(z["cal"], y["cal"], z["test"], y["test"])
    digits, cancer = datasets.load_digits(), datasets.load_breast_cancer()
    logistic = linear_model.LogisticRegression(max_iter=9999)
    for model, data, k in ((logistic, digits, 8), (naive_bayes.GaussianNB(), cancer, 1)):
        x, y = data.data, data.target == k
        train, cal, test = np.split(np.random.default_rng(0).permutation(len(y)), [len(y) // 4, len(y) // 2])
        model.fit(x[train], y[train])
        p = np.clip(model.predict_proba(x), 1e-12, 1)
        found[f"scikit-learn, {type(model).__name__}"] = calibrated(
            np.log(p[cal]), y[cal], np.log(p[test]), y[test]
        )
    return found


def calibrated(z, y, new, of_new) -> tuple[np.ndarray, np.ndarray]:
    artifact = calibrate(z, y.astype(int), "beta", outputs="log_probs", cross_validate=False)
    return artifact.of_logits(new), of_new.astype(int)


def outcome(choice: Choice, p: np.ndarray, y: np.ndarray) -> float:
    values, rows = choice.outcomes(p, y)
    return float(values[rows].mean()) if rows.any() else math.nan


def promises(folder: Path, draws: int, n: int) -> list[dict]:
    found = []
    for name, (p, y) in two_class_sets(folder).items():
        for goal, asked in ASKED.items():
            rng, kept, made, near = np.random.default_rng(0), 0, 0, []
            for seed in range(draws):
                rows = rng.integers(0, len(y), n)
                options = PromiseOptions(**asked, level=LEVEL, seed=seed)
                try:
                    choice = choice_by(options, p[rows], y[rows], ())
                except FitError:
                    kept += 1
                    continue
                truth = outcome(choice, p, y)
                at_most = goal in ("cost", "budget")
                kept += math.isnan(truth) or (
                    truth <= choice.promised if at_most else truth >= choice.promised
                )
                made += 1
                near.append(truth)
            row = {"set": name, "goal": goal, "n": n, "kept": kept / draws, "made": made / draws}
            row["promised"] = next(iter(asked.values())) if goal != "cost" else None
            row["reached"] = float(np.nanmean(near)) if made else None
            found.append(row)
            print(row, flush=True)
    return found


def hoeffding_bentkus(x: np.ndarray, level: float) -> float:
    """Upper bound of a mean in [0, 1] (Angelopoulos 2021, proposition 2 inverted)."""
    n, r, low, high = len(x), float(x.mean()), float(x.mean()), 1.0
    for _ in range(40):
        m = (low + high) / 2
        apart = (r * math.log(r / m) if r else 0.0) + (
            (1 - r) * math.log((1 - r) / (1 - m)) if r < 1 else 0.0
        )
        p = min(math.exp(-n * apart), math.e * stats.binom.cdf(math.ceil(n * r), n, m))
        low, high = (m, high) if p > 1 - level else (low, m)
    return high


def bounds(draws: int) -> list[dict]:
    """Costs of 0, 0.2, 1 and 5, as to decide rightly, to look, and either error."""
    from calib_serve.metrics import mean_at_most

    found = []
    for shares in ((0.7, 0.2, 0.08, 0.02), (0.9, 0.0, 0.1, 0.0), (0.5, 0.49, 0.009, 0.001)):
        for n in (300, 1000, 5000):
            costs, rng = np.array([0.0, 0.2, 1.0, 5.0]), np.random.default_rng(n)
            truth, all_of = float(costs @ shares), {"ours": [], "hoeffding_bentkus": [], "normal": []}
            for seed in range(draws):
                x = rng.choice(costs, n, p=shares)
                all_of["ours"].append(mean_at_most(x, 0, 5, level=LEVEL, rng=np.random.default_rng(seed)))
                all_of["hoeffding_bentkus"].append(5 * hoeffding_bentkus(x / 5, LEVEL))
                all_of["normal"].append(x.mean() + stats.norm.ppf(LEVEL) * x.std() / math.sqrt(n))
            error = math.sqrt(float((costs**2) @ shares) - truth**2) / math.sqrt(n)
            row = {"shares": shares, "n": n, "truth": truth}
            for name, values in all_of.items():
                kept = float(np.mean(np.array(values) >= truth))
                row[name] = {"kept": kept, "above": float((np.median(values) - truth) / error)}
            found.append(row)
            print(row, flush=True)
    return found


def best_threshold(p: np.ndarray, y: np.ndarray, fp: float, fn: float) -> tuple[float, float]:
    """The threshold of P(y = 1) of the least mean cost on these samples, and that cost."""
    order = np.argsort(p)
    missed = np.concatenate([[0.0], np.cumsum(y[order])]) * fn
    alarms = ((1 - y).sum() - np.concatenate([[0.0], np.cumsum(1 - y[order])])) * fp
    cuts = np.concatenate([[True], np.diff(p[order]) > 0, [True]])
    cost = np.where(cuts, missed + alarms, np.inf) / len(y)
    at = int(cost.argmin())
    return (float(p[order[at]]) if at < len(y) else math.inf), float(cost[at])


def mean_cost(p: np.ndarray, y: np.ndarray, fp: float, fn: float) -> float:
    choice = Choice(("0", "1"), "cost", 0.0, costs=np.array([[0.0, fp], [fn, 0.0]]))
    return outcome(choice, p, y)


def hindsight(folder: Path, size: int) -> dict:
    """Ratios of mean costs to those of the best thresholds; raw: of probabilities as the model gives them."""
    rng, drawn = np.random.default_rng(0), []
    for shift in (-2.0, 0.0):
        z = rng.normal(size=size + 5000) + shift
        y = (rng.random(len(z)) < 1 / (1 + np.exp(-2 * z))).astype(int)
        pairs = np.stack([np.zeros_like(z), 6 * z + 1], axis=1)  # three times too sure, and shifted
        artifact = calibrate(pairs[:5000], y[:5000], "platt", outputs="logits", cross_validate=False)
        made = {"calibrated": artifact.of_logits(pairs[5000:]), "raw": softmax(pairs[5000:])}
        for prices in PRICES:
            _, best = best_threshold(pairs[5000:, 1], y[5000:], *prices)
            row = {"shift": shift, "prices": prices}
            drawn.append(row | {name: mean_cost(p, y[5000:], *prices) / best for name, p in made.items()})
            print(drawn[-1], flush=True)
    real = {}
    for name in ("kull_resnet110_c10", "resnet50_c10_cross_entropy", "akamaster_resnet56_c10"):
        d = np.load(folder / "logits" / f"{name}.npz")
        ours, best, tuned, drawn_ours, drawn_best = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(10):
            cal, test = (against_rest(d[f"{part}_logits"], k) for part in ("cal", "test"))
            of_cal, y = ((d[f"{part}_labels"].ravel() == k).astype(int) for part in ("cal", "test"))
            p, _ = calibrated(cal, of_cal, test, y)
            for prices in PRICES:
                threshold, _ = best_threshold(cal[:, 1], of_cal, *prices)
                chosen = test[:, 1] >= threshold
                tuned += float((chosen * (1 - y) * prices[0] + ~chosen * y * prices[1]).mean())
                ours += mean_cost(p, y, *prices)
                best += best_threshold(p[:, 1], y, *prices)[1]
                for _ in range(5):
                    made_up = (rng.random(len(y)) < p[:, 1]).astype(int)
                    drawn_ours += mean_cost(p, made_up, *prices)
                    drawn_best += best_threshold(p[:, 1], made_up, *prices)[1]
        real[name] = {"ratio": ours / best, "if_perfect": drawn_ours / drawn_best, "over_tuned": ours / tuned}
        print(name, real[name], flush=True)
    return {"drawn": drawn, "real": real}


def overhead(options: argparse.Namespace) -> list[dict]:
    """Of the smallest network, where it shows most."""
    make, shape, classes = MODELS["ResNet-20"]
    costs = np.random.default_rng(0).uniform(0, 5, (classes, 3))
    choice = Choice(("a", "b", "c"), "cost", 5.0, costs=costs)
    one = Artifact((LogitMap.temperature(1.7),), method="temperature", classes=classes, choice=choice)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        export(make, shape, folder / "raw.onnx")
        for file, decisions in (("plain.onnx", False), ("deciding.onnx", True)):
            how = {"returns": "probabilities", "decisions": decisions, "samples": 2, "unproven": True}
            fuse_onnx(folder / "raw.onnx", one, folder / file, **how)
        for batch in (1, 8):
            x = np.random.default_rng(0).normal(size=(batch, *shape)).astype("f4")
            bare = replace(one, choice=None)
            rounds = [one_round(folder, bare, x, options, i) for i in range(options.rounds)]
            row = {"batch": batch, "deciding": ratio(rounds, "deciding", "plain")["ratio"]}
            rows.append({**row, "control": ratio(rounds, "plain again", "plain")["ratio"]})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="draws of each set and promise")
    parser.add_argument("--n", type=int, default=1000, help="samples of each draw")
    parser.add_argument("--size", type=int, default=200_000, help="samples that drawn costs are measured on")
    parser.add_argument("--seconds", type=float, default=10, help="for each graph and batch")
    parser.add_argument("--rounds", type=int, default=5, help="fresh sessions for each")
    options = peers.arguments(parser, draws=20, size=50_000, seconds=0.1, rounds=2)
    torch.set_num_threads(1)
    folder = Path(os.environ["CALIB_SERVE_DATA"])
    result = {
        "level": LEVEL,
        "promises": promises(folder, options.draws, options.n),
        "bounds": bounds(options.draws),
        "hindsight": hindsight(folder, options.size),
        "overhead": overhead(options),
    }
    peers.save("choices", result, options)


if __name__ == "__main__":
    main()

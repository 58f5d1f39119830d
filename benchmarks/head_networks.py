"""Which head, and what behind it, is best on three networks, beside the best output method?

    CALIB_SERVE_DATA=... python benchmarks/head_networks.py [--networks digits] [--splits 5]

ResNet-20 on CIFAR-10 (features of the 50,000 images it was trained on; 5,000 test images to calibrate on,
5,000 to measure), a small network trained on 1,000 images of MNIST (5,000 and 5,000 others), and one on 100
of scikit-learn's digits (800 and 897). Small networks are trained again for every split. A row's NLL and
ECE are compared in pairs over the splits (paired t) with the lowest NLL and the lowest ECE that any of
temperature, vector and structured-average has on the split: a bar that no method knows beforehand how to
choose. "Chosen by cross-fitting" is the one of the output methods and the masked head of the
calibration images that has the least NLL on held-out folds.

Writes benchmarks/results/head_networks.json after every split; a run that is stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import peers
import torch
from head_data import NETWORKS, head_data
from scipy.stats import ttest_rel

from calib_serve.core.errors import FitError
from calib_serve.fit import fit_by_name
from calib_serve.fit.folds import stratified
from calib_serve.fit.masked import fit_masked_head, reading
from calib_serve.metrics import accuracy, adaptive_ece, binned, ece, nll
from calib_serve.scores import softmax

OUTPUT = ("temperature", "vector", "structured-average")
MASKED = {"no-mask": "no mask", "expected": "masked", "paper": "masked, as printed"}
BY_CALIBRATION = "masked, calibration images + TS"
COLUMNS = ("accuracy", "ece", "aece", "nll", "floor")


def scores(probs, labels):
    return {
        "accuracy": accuracy(probs, labels),
        "ece": ece(probs, labels),
        "aece": adaptive_ece(probs, labels),
        "nll": nll(probs, labels),
        "floor": binned(probs, labels).noise_floor(),
    }


def rows_of(data, split):
    """Every row of one network and split."""
    (x, y), (cal, cal_labels), (test, labels) = data.train, data.cal, data.test
    z, z_test = data.head(cal), data.head(test)
    rows = {"deployed": scores(softmax(z_test), labels)}
    for name in OUTPUT:
        rows[name] = scores(fit_by_name(name, z, cal_labels, seed=split).probs(z_test), labels)
    for name, label in MASKED.items():
        for of, learned in (("training", (x, y, cal, cal_labels)), ("calibration", (cal, cal_labels))):
            rows |= of_masked(f"{label}, {of} images", name, learned, (test, labels), split)
    held = held_out(data, split)
    chosen = min((name for name in held if name in rows), key=lambda name: held[name])
    rows["chosen by cross-fitting"] = {c: rows[chosen][c] for c in COLUMNS} | {
        "chosen": chosen,
        "held_out": held,
    }
    return rows


def held_out(data, split):
    """The NLL of each candidate on calibration samples of folds that it was not fitted to."""
    x, y = data.cal
    z, fold = data.head(x), stratified(y, folds=5, seed=split)
    losses = {name: np.empty(len(y)) for name in (*OUTPUT, BY_CALIBRATION)}
    for f in range(5):
        kept, out = fold != f, fold == f
        rows = np.arange(out.sum()), y[out]
        for name in OUTPUT:
            p = fit_by_name(name, z[kept], y[kept], seed=split).probs(z[out])
            losses[name][out] = -np.log(p[rows])
        how = reading("expected", round(0.75 * kept.sum()))
        new = fit_masked_head(x[kept], y[kept], classes=10, masking=how, then="temperature", seed=split)
        losses[BY_CALIBRATION][out] = -np.log(new.probs(new.head(x[out]))[rows])
    return {name: float(each.mean()) for name, each in losses.items()}


def of_masked(label, name, learned, test, split):
    """The rows of a masked head with and without a temperature; none where it cannot be calibrated."""
    n = len(learned[1]) if len(learned) == 4 else round(0.75 * len(learned[1]))
    how = {"classes": 10, "masking": reading(name, n), "seed": split}
    start = time.process_time()
    try:
        artifact = fit_masked_head(*learned, then="temperature", **how)
    except FitError as error:
        print(f"{label}: {error}", flush=True)
        return {}
    spent, z = time.process_time() - start, artifact.head(test[0])
    return {
        label: scores(softmax(z), test[1]) | {"cpu_seconds": spent, "q": artifact.fit["q"]},
        f"{label} + TS": scores(artifact.probs(z), test[1]),
    }


def compared(splits):
    """Each of our rows against the best output method of each split, in pairs: difference and p-value."""
    told = {}
    best = {c: [min(rows[m][c] for m in OUTPUT) for rows in splits] for c in ("nll", "ece")}
    for name in shared(splits):
        if name in ("deployed", *OUTPUT):
            continue
        told[name] = {}
        for column in ("nll", "ece"):
            ours = [rows[name][column] for rows in splits]
            told[name][column] = {
                "difference": float(np.mean(ours) - np.mean(best[column])),
                "p": float(ttest_rel(ours, best[column]).pvalue) if len(splits) > 1 else None,
            }
        told[name]["better in both"] = all(
            told[name][c]["difference"] < 0 and (told[name][c]["p"] or 1) < 0.05 for c in ("nll", "ece")
        )
    return told


def shared(splits):
    """The rows that every split has."""
    return [name for name in splits[0] if all(name in rows for rows in splits)]


def show(network, splits):
    print(f"{network}, {len(splits)} splits", flush=True)
    told = compared(splits)
    for name in shared(splits):
        found = {c: np.mean([rows[name][c] for rows in splits]) for c in COLUMNS}
        cells = " ".join(f"{c} {found[c]:.4f}" for c in ("accuracy", "ece", "floor", "nll"))
        pairs = "".join(
            f"  {c} {told[name][c]['difference']:+.4f} p {told[name][c]['p'] or 1:.3f}"
            for c in ("nll", "ece")
            if name in told
        )
        print(f"{name:42}{cells}{pairs}", flush=True)


def earlier(asked):
    path = peers.result("head_networks", asked)
    kept = json.loads(path.read_text())["networks"] if path.exists() else {}
    return {name: kept.get(name, {"splits": []})["splits"] for name in kept}


def save(asked, networks):
    content = {name: {"splits": s, "pairs": compared(s)} for name, s in networks.items() if s}
    trimmed = any(len(networks.get(name, ())) < 5 for name in NETWORKS)
    peers.save("head_networks", {"asked": vars(asked), "trimmed": trimmed, "networks": content}, asked)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier run has")
    asked = peers.arguments(parser, splits=1, networks=["digits"])
    torch.set_num_threads(1)
    networks = {} if asked.fresh else earlier(asked)
    for network in asked.networks:
        splits = networks.setdefault(network, [])
        for split in range(len(splits), asked.splits):
            splits.append(rows_of(head_data(network, split), split))
            save(asked, networks)
        show(network, splits)


if __name__ == "__main__":
    main()

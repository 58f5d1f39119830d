"""Does a head retrained under masks calibrate a real network, and which reading of the paper works?

    CALIB_SERVE_DATA=... python benchmarks/masked_head.py [--splits 1] [--rows default] [--device cuda]

ResNet-20 features of the 50,000 CIFAR-10 training images, on which the network was trained. Half of the
test images steer q where a row uses held-out samples, the other half is measured. The first rows are those of
Table 5 of Ni 2025 read literally (unmasked weights at inference, q by the training set); the rest are ours.
Out-of-distribution images are CIFAR-100's. The second stage is timed beside the 667 s that the paper's
Table 4 implies for its second stage (14,358 - 13,691 s, ResNet-50 on a GPU, features recomputed).

Writes benchmarks/results/masked_head.json.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import peers
import torch
from cifar import data_dir, sheet

from calib_serve.artifact import Head
from calib_serve.fit.masked.fit import PAPER, Masking, Retention
from calib_serve.fit.masked.training import train_masked
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.metrics import accuracy, adaptive_ece, ece, fpr95, mce, nll, ood_auroc, softmax
from calib_serve.model import load_model

HERE = Path(__file__).parent
FIXED = Retention(adapt=None)
STATIC = (0.01, 0.01)
ROWS = {  # ours first, so that a run that is stopped has told what matters most
    "default": Masking(),
    "+ decaying adaptive q (the paper's)": PAPER,
    "expected, held-out decaying q": replace(PAPER, inference="expected", retention=Retention()),
    "default, width 512": Masking(hidden=512),
    "+ masked retraining": replace(PAPER, hidden=None, masked_gradient=False, retention=FIXED),
    "+ gradient restriction": replace(PAPER, hidden=None, retention=FIXED),
    "+ restructured head": replace(PAPER, retention=FIXED),
    "+ static adaptive q": replace(PAPER, retention=Retention(adapt="training", gamma=0.95, eta=STATIC)),
    "the paper's, mask per epoch": replace(PAPER, draw="epoch"),
    "expected weights, q = .5": replace(PAPER, inference="expected", retention=FIXED),
    "expected, held-out static q": replace(PAPER, inference="expected", retention=Retention(eta=STATIC)),
}
COLUMNS = ("accuracy", "ece", "aece", "mce", "nll", "ood_auroc", "ood_fpr95")


def scores(logits, labels, strange):
    probs, odd = softmax(logits), softmax(strange)
    inside, outside = probs.max(axis=1), odd.max(axis=1)
    return {
        "accuracy": accuracy(probs, labels),
        "ece": ece(probs, labels),
        "aece": adaptive_ece(probs, labels),
        "mce": mce(probs, labels),
        "nll": nll(probs, labels),
        "ood_auroc": ood_auroc(inside, outside),
        "ood_fpr95": fpr95(inside, outside),
    }


def strange_features(folder):
    model = load_model(
        f"{HERE / 'cifar.py'}:resnet20",
        weights=folder / "models" / "akamaster_resnet20_c10.safetensors",
        input_shape=(3, 32, 32),
    )
    return model.features(sheet(folder / "images" / "cifar100_test_a.webp").astype(np.float32) / 255)


def one_split(data, strange, split, asked, rows):
    """Fills ``rows``, and yields after each."""
    order = np.random.default_rng(split).permutation(10_000)
    steer, test = np.sort(order[:5000]), np.sort(order[5000:])
    x, y = data["test"], data["test_labels"].astype(np.intp)
    train, labels = data["train"].astype(np.float32), data["train_labels"].astype(np.intp)
    vanilla = Head((data["head_weight"],), (data["head_bias"],))
    t = fit_temperature(vanilla(x[steer]), y[steer]).fit["temperature"]
    rows["vanilla"] = scores(vanilla(x[test]), y[test], vanilla(strange))
    rows["vanilla + TS"] = scores(vanilla(x[test]) / t, y[test], vanilla(strange) / t)
    for name, masking in ROWS.items():
        if not any(part in name for part in asked.rows):
            continue
        start, cpu = time.perf_counter(), time.process_time()
        held_out = (x[steer], y[steer])
        trained = train_masked(
            train, labels, 10, held_out=held_out, masking=masking, seed=split, device=asked.device
        )
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        head = trained.head
        rows[name] = {**scores(head(x[test]), y[test], head(strange)), "q": trained.q}
        rows[name] |= {"seconds": seconds, "cpu_seconds": cpu}
        rows[name]["passes_an_epoch"] = cpu / masking.epochs / one_pass(head, train)
        show(name, [rows[name]])
        if name == "default":
            t = fit_temperature(head(x[steer]), y[steer]).fit["temperature"]
            rows["default + TS"] = scores(head(x[test]) / t, y[test], head(strange) / t)
        yield


def one_pass(head, features):
    """Processor seconds of the head and its softmax over all samples, the least of three."""
    took = []
    for _ in range(3):
        start = time.process_time()
        softmax(head(features))
        took.append(time.process_time() - start)
    return min(took)


def show(name, rows):
    cells = [f"{np.mean([r[c] for r in rows]):.4f} +-{np.std([r[c] for r in rows]):.4f}" for c in COLUMNS]
    spent = f"{np.mean([r['seconds'] for r in rows]):.0f} s" if "seconds" in rows[0] else ""
    print(f"{name:36}" + "".join(f"{c:>18}" for c in cells), spent, flush=True)


def save(asked, splits):
    measured = {len(rows) for rows in splits}
    result = {
        "asked": vars(asked),
        "trimmed": asked.splits < 5 or asked.rows != [""] or measured != {len(ROWS) + 3},
        "threads": torch.get_num_threads(),
        "splits": splits,
    }
    peers.save("masked_head", result, asked)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", nargs="+", default=[""], help="parts of the names of rows; all without")
    parser.add_argument("--device", default="cpu", help="where the second stage is trained")
    asked = peers.arguments(parser, splits=1, rows=["+ masked retraining"])
    peers.device(asked.device)
    folder = data_dir()
    with np.load(folder / "features" / "akamaster_resnet20_cifar10.npz") as archive:
        data = dict(archive)
    strange = strange_features(folder)
    splits = []
    print(f"{'':36}" + "".join(f"{c:>18}" for c in COLUMNS), flush=True)
    for split in range(asked.splits):
        splits.append({})
        for _ in one_split(data, strange, split, asked, splits[-1]):
            save(asked, splits)
    print("means over", len(splits), "splits")
    for name in splits[0]:
        show(name, [rows[name] for rows in splits])


if __name__ == "__main__":
    main()

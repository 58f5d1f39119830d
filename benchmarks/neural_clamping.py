"""Does Neural Clamping beat output methods on real networks?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping.py [--models resnet20] [--splits 0 1]

Two residual networks on CIFAR-10, 5,000 test images to calibrate on and 5,000 to test, five random splits:
a table like Table 2 of Tang 2024. NC (CE) and NC (FL) are the paper's: full size, gamma by the ECE of the
calibration images, T as fitted with delta. NC (folds) chooses gamma, delta's resolution and T on held-out
folds. Without options the full measurement runs, for hours on two cores; the JSON says of each network what
was trimmed. Also: the entropy that Theorem 3.2 promises against what comes.

Writes benchmarks/results/neural_clamping.json, a split at a time: networks and splits not asked for stay,
splits as long as the settings are the same. So a long run can be cut into several, one on each core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import peers
import torch
from cifar import cifar10_test, data_dir

from calib_serve.artifact import InputShift
from calib_serve.fit.clamping.entropy_shift import entropy_shift, mean_entropy
from calib_serve.fit.clamping.fit import (
    GAMMAS,
    QuasiNewton,
    fit_neural_clamping,
    fit_neural_clamping_efficient,
)
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import accuracy, adaptive_ece, classwise_ece, ece, nll, softmax
from calib_serve.model import load_model

HERE = Path(__file__).parent
OUTPUT_METHODS = {
    "uncalibrated": "none",
    "TS": "temperature",
    "TS grid": "temperature-ece",
    "VS": "vector",
    "MS-ODIR": "ms-odir",
    "Dir-ODIR": "dirichlet-odir",
}
SPLITS = 5
ROOM = 100  # images on which entropy is raised: of thousands, every pixel reaches both 0 and 1
COLUMNS = ("accuracy", "entropy", "ece", "aece", "sce", "nll")


def scores(probs, labels):
    return {
        "accuracy": accuracy(probs, labels),
        "entropy": mean_entropy(probs),
        "ece": ece(probs, labels),
        "aece": adaptive_ece(probs, labels),
        "sce": classwise_ece(probs, labels),
        "nll": nll(probs, labels),
    }


def clamped(model, fit, x_test):
    start = time.perf_counter()
    artifact = fit()
    seconds = time.perf_counter() - start
    probs = artifact.probs(model.logits(x_test, shift=artifact.input_shift))
    return probs, {"seconds": seconds, **{k: v for k, v in artifact.fit.items() if k != "candidates"}}


def split_table(model, x, y, cal, test, asked):
    """Every method's scores on the test part of one split."""
    z_cal, z_test = model.logits(x[cal]), model.logits(x[test])
    rows = {}
    for name, method in OUTPUT_METHODS.items():
        rows[name] = scores(fit_by_name(method, z_cal, y[cal]).probs(z_test), y[test])
    with TemporaryDirectory() as kept:  # gradients: gamma 0 of the paper's sweep is NC (CE) again
        for name, fit in clampings(model, x[cal], y[cal], asked, kept).items():
            probs, facts = clamped(model, fit, x[test])
            rows[name] = {**scores(probs, y[test]), "fit": facts}
            print(f"  {name}: {facts['seconds']:.0f} s, ECE {rows[name]['ece']:.4f}", flush=True)
    return rows


def clampings(model, x, y, asked, kept):
    """The Neural Clamping fits of one split."""
    shared = {"solver": QuasiNewton(passes=asked.passes), "checkpoints": kept}
    paper = {**shared, "resolution": None, "judge": "calibration-ece"}
    return {
        "NC (CE)": lambda: fit_neural_clamping(model, x, y, **paper),
        "NC (FL)": lambda: fit_neural_clamping(model, x, y, gamma=asked.gammas, **paper),
        "NC (folds)": lambda: fit_neural_clamping(model, x, y, gamma=asked.fold_gammas, **shared),
        "NC (Eff.)": lambda: fit_neural_clamping_efficient(model, x, y, input_range=(0.0, 1.0)),
    }


def entropy_gains(model, x):
    """Theorem 3.2's promise, delta . g / N, and the gain that came, at fractions of the shift."""
    found = entropy_shift(model, x, input_range=(0.0, 1.0))
    before = mean_entropy(softmax(found.logits))
    gains = []
    for share in (0.001, 0.01, 0.1, 1.0):
        shifted = model.logits(x, shift=InputShift(found.delta * share))
        came = mean_entropy(softmax(shifted)) - before
        gains.append({"share": share, "promised": found.gain * share, "came": came})
    return {"zero_share": found.zero_share, "entropy": before, "gains": gains}


def table(rows):
    print(f"{'':16}" + "".join(f"{c:>20}" for c in COLUMNS))
    for name in rows[0]:
        cells = []
        for column in COLUMNS:
            values = [row[name][column] for row in rows]
            cells.append(f"{np.mean(values):11.4f} +-{np.std(values):.4f}")
        print(f"{name:16}" + "".join(f"{c:>20}" for c in cells))


def main():
    asked = arguments()
    peers.device(asked.device)
    torch.set_num_threads(asked.threads)
    folder = data_dir()
    x, y = cifar10_test(folder)
    for name in asked.models:
        weights = folder / "models" / f"akamaster_{name}_c10.safetensors"
        model = load_model(
            f"{HERE / 'cifar.py'}:{name}",
            weights=weights,
            input_shape=(3, 32, 32),
            batch_size=64 if asked.device == "cpu" else 512,
            device=asked.device,
        )
        for split in asked.splits:
            cal, test = parts(split, asked)
            print(f"{name}, split {split}", flush=True)
            rows = split_table(model, x, y, cal, test, asked)
            save(asked, name, {split: rows})  # stays when a long run is stopped
        entropy = entropy_gains(model, x[parts(0, asked)[0][:ROOM]])
        print("entropy:", json.dumps(entropy), flush=True)
        if splits := save(asked, name, {}, entropy=entropy)["splits"]:
            table(splits)


def parts(split, asked):
    """The images that a split calibrates on, and those that it is tested on."""
    order = np.random.default_rng(split).permutation(10_000)
    return np.sort(order[: asked.images]), np.sort(order[5000:][: asked.tested])


def save(asked, name, splits, **more):
    """Add splits to those measured with the same settings; returns all that is kept of the network."""
    path = peers.result("neural_clamping", asked)
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    settings, full = (
        {key: value for key, value in vars(given).items() if key not in ("models", "splits", "threads")}
        for given in (asked, arguments([]))
    )
    found = models.get(name, {})
    if found.get("asked") != settings:
        found = {}
    splits = dict(zip(found.get("numbers", ()), found.get("splits", ()), strict=True)) | splits
    numbers = sorted(splits)
    models[name] = {
        **found,
        "asked": settings,
        "trimmed": [key for key, value in settings.items() if value != full[key] and key != "device"]
        + ["splits"] * (len(numbers) < SPLITS),
        "numbers": numbers,
        "splits": [splits[number] for number in numbers],
        **more,
    }
    peers.save("neural_clamping", {"models": models}, asked)
    return models[name]


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet20", "resnet56"])
    parser.add_argument(
        "--splits", type=int, nargs="*", default=list(range(SPLITS)), help="their seeds; none: entropy alone"
    )
    parser.add_argument("--images", type=int, default=5000, help="calibration images of each split")
    parser.add_argument("--tested", type=int, default=5000, help="test images of each split")
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--fold-gammas", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    few = {"models": ["resnet20"], "splits": [0], "images": 100, "tested": 300, "passes": 2, "threads": 1}
    return peers.arguments(parser, given, **few, gammas=[0.0], fold_gammas=[0.0])


if __name__ == "__main__":
    main()

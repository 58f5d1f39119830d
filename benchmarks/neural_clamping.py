"""Does Neural Clamping beat output methods?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping.py [--models digits mnist] [--splits 0 1]

Two small networks that are trained here and two residual networks on CIFAR-10, five random splits each:
tables like Tables 1 to 3 of Tang 2024, with 15 bins, 10 and 20. The methods are in ``clamped_rows.py``:
Neural Clamping as it is printed, as its toolkit runs it, and this package's own ways to the same objective.
Each row also has Table 4's parts, the fitted shift alone and the fitted temperature alone, and Figure 2's
scores for every gamma. Also: the entropy that Theorem 3.2 promises against what comes.

The schedules as printed take a residual network most of a day on two cores: ``--rows output ours`` leaves
them out, and ``--rows output printed --images 300`` measures them trimmed, with as many steps on smaller
batches, under a name of their own. Writes benchmarks/results/neural_clamping.json, a split at a time:
networks and splits not asked for stay, splits as long as the settings are the same.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import peers
import torch
from clamped_networks import NAMES, SIZES, given
from clamped_rows import COLUMNS, rows_of_split

from calib_serve.artifact import InputShift
from calib_serve.fit import GAMMAS
from calib_serve.fit.clamping.efficient import entropy_shift, mean_entropy
from calib_serve.scores import softmax

SPLITS = 5
ROOM = 100  # images on which entropy is raised: of thousands, every pixel reaches both 0 and 1
KINDS = ("output", "printed", "ours")


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
    print(f"{'':32}" + "".join(f"{c:>20}" for c in COLUMNS))
    for name in rows[0]:
        cells = []
        for column in COLUMNS:
            values = [row[name][column] for row in rows]
            cells.append(f"{np.mean(values):11.4f} +-{np.std(values):.4f}")
        print(f"{name:32}" + "".join(f"{c:>20}" for c in cells))


def main():
    asked = arguments()
    peers.device(asked.device)
    torch.set_num_threads(asked.threads)
    for name in asked.models:
        for split in asked.splits:
            print(f"{name}, split {split}", flush=True)
            share = (asked.images or SIZES[name][0]) / SIZES[name][0]
            one = given(name, split, images=asked.images, tested=asked.tested, device=asked.device)
            save(
                asked, name, {split: rows_of_split(one, asked, share=share)}
            )  # stays when a long run is stopped
        one = given(name, 0, device=asked.device)
        entropy = entropy_gains(one.model, one.cal[0][:ROOM])
        print("entropy:", json.dumps(entropy), flush=True)
        if splits := save(asked, name, {}, entropy=entropy)["splits"]:
            table(splits)


def save(asked, name, splits, **more):
    """Add splits to those measured with the same settings; returns all that is kept of the network."""
    path = peers.result("neural_clamping", asked)
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    settings, full = (
        {key: value for key, value in vars(given).items() if key not in ("models", "splits", "threads")}
        for given in (asked, arguments([]))
    )
    if "ours" not in asked.rows:
        name += ", as printed"
    found = models.get(name, {})
    settings["images"] = settings["images"] or SIZES[name.partition(",")[0]][0]
    if found.get("asked") != settings:
        found = {}
    splits = dict(zip(found.get("numbers", ()), found.get("splits", ()), strict=True)) | splits
    numbers = sorted(splits)
    short = [
        key
        for key, value in settings.items()
        if value != full[key] and key != "device" and not (key == "images" and not asked.images)
    ]
    models[name] = {
        **found,
        "asked": settings,
        "trimmed": short + ["splits"] * (len(numbers) < SPLITS),
        "numbers": numbers,
        "splits": [splits[number] for number in numbers],
        **more,
    }
    peers.save("neural_clamping", {"models": models}, asked)
    return models[name]


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument(
        "--splits", type=int, nargs="*", default=list(range(SPLITS)), help="their seeds; none: entropy alone"
    )
    parser.add_argument("--rows", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--images", type=int, help="calibration images of each split, where fewer")
    parser.add_argument("--tested", type=int, help="test images of each split, where fewer")
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--fold-gammas", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--epochs", type=int, default=100, help="of the schedules as printed")
    parser.add_argument("--passes", type=int, default=25, help="of L-BFGS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    few = {"models": ["digits"], "splits": [0], "images": 100, "tested": 300, "passes": 2, "threads": 1}
    return peers.arguments(parser, given, **few, epochs=2, gammas=[0.0], fold_gammas=[0.0])


if __name__ == "__main__":
    main()

"""What would make a shift of the input pay beside the best output method?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping_gain.py [--models digits mnist] [--splits 0 1]

Each idea bounds what a delta can learn by heart: few coefficients (one a channel, or 4 x 4 of them enlarged),
a penalty on the squared norm, a penalty that held-out folds favour, an early stop where they favour it,
augmented images while it is fitted. Every one takes T on images that its delta was not fitted to, or after
the fit; and one has the best output method behind its shift in the place of T. They are compared in pairs,
over the splits, with a temperature, vector scaling and structured averaging.

And two bounds that the data put on any shift. The oracle fits it to half of the *test* images, with their
labels, takes the size, penalty and T that are best on the other half, and is scored on that half. In sample,
it is scored on the very images that it was fitted to.

Writes benchmarks/results/neural_clamping_gain.json, a split at a time, as neural_clamping.py does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import numpy as np
import peers
import torch
from clamped_networks import NAMES, SIZES, given
from scipy import stats

from calib_serve.fit import QuasiNewton, fit_neural_clamping
from calib_serve.fit.clamping.objective import best_temperature
from calib_serve.fit.clamping.schedules import Augmentation
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import ece, nll
from calib_serve.scores import softmax

OUTPUT = {"temperature": "temperature", "vector": "vector", "structured average": "structured-average"}
SIZES_OF_DELTA = (1, 4, None)
PENALTIES = ("tenth", 0.002)
STOPS = (1, 2, 4, 8)
BY_FOLDS = "4 x 4 or full, penalty by folds"
WHOLE = {"resolution": None, "judge": "calibration-ece"}
SPLITS = 5


def scored(probs, labels):
    return {"nll": nll(probs, labels), "ece": ece(probs, labels)}


def ideas(one, asked):
    """Name -> (shift, T) of every idea."""
    model, (x, y) = one.model, one.cal

    def folds(passes=asked.passes, **options):
        fit = fit_neural_clamping(
            model, x, y, folds=asked.folds, solver=QuasiNewton(passes=passes), **options
        )
        score = min(row["score"] for row in fit.fit["candidates"])
        return fit.input_shift, fit.fit["temperature"], score

    def early():
        """The stop that held-out folds favour."""
        return min((folds(passes, resolution=None) for passes in STOPS), key=lambda fit: fit[2])

    def augmented():
        vary = Augmentation.of(x, one.normalisation[0], flip=0.5 if x.shape[1] == 3 else 0.0)
        rng = np.random.default_rng(0)
        more = np.concatenate([x, *(vary(x, rng) for _ in range(asked.copies))])
        labels = np.tile(y, asked.copies + 1)
        solver = QuasiNewton(passes=asked.passes)
        shift = fit_neural_clamping(model, more, labels, solver=solver, **WHOLE).input_shift
        return shift, best_temperature(model.logits(x, shift=shift), y, 0.0)

    return {
        "one number a channel": lambda: folds(resolution=1),
        "4 x 4 a channel": lambda: folds(resolution=4),
        "full size": lambda: folds(resolution=None),
        "full size, squared norm": lambda: folds(resolution=None, norm_power=2, penalty=1.0),
        BY_FOLDS: lambda: folds(resolution=(4, None), penalty=PENALTIES),
        "full size, early stop": early,
        "full size, augmented": augmented,
    }


def of_split(one, asked):
    """Scores of every method and bound on the test part."""
    model, (x, y) = one.model, one.test
    z_cal, z = model.logits(one.cal[0]), model.logits(x)
    rows = {
        name: scored(fit_by_name(method, z_cal, one.cal[1]).probs(z), y) for name, method in OUTPUT.items()
    }
    for name, idea in ideas(one, asked).items():
        start = time.process_time()
        shift, t = idea()[:2]
        spent = time.process_time() - start
        probs = softmax(model.logits(x, shift=shift) / t)
        norm = float(np.linalg.norm(shift.delta))
        rows[name] = {**scored(probs, y), "delta_norm": norm, "cpu_seconds": spent}
        print(f"  {name}: {spent:.0f} s, NLL {rows[name]['nll']:.4f}", flush=True)
        if name == BY_FOLDS:
            behind = fit_by_name("structured-average", model.logits(one.cal[0], shift=shift), one.cal[1])
            probs = behind.probs(model.logits(x, shift=shift))
            rows["the same, then structured average"] = scored(probs, y)
    return rows | bounds(one, z, asked)


def bounds(one, z, asked):
    """NLL of a temperature, and of shifts that know the test labels: held-out halves, and in sample."""
    model, (x, y) = one.model, one.test
    halves = np.random.default_rng(0).permutation(len(y)) % 2
    alone, oracle, inside = [], [], []
    for half in (0, 1):
        fitted, held = np.flatnonzero(halves == half), np.flatnonzero(halves != half)
        alone.append(_at_best_t(z[held], y[held]))
        options, seen = [], []
        for size, penalty in itertools.product(SIZES_OF_DELTA, PENALTIES):
            shift = fit_neural_clamping(
                model, x[fitted], y[fitted], resolution=size, penalty=penalty, judge="calibration-ece",
                solver=QuasiNewton(passes=asked.passes),
            ).input_shift  # fmt: skip
            options.append(_at_best_t(model.logits(x[held], shift=shift), y[held]))
            if size is None:
                seen.append(_at_best_t(model.logits(x[fitted], shift=shift), y[fitted]))
        oracle.append(min(options))
        inside.append(min(seen))
    return {
        "bounds": {
            "temperature": float(np.mean(alone)),
            "oracle": float(np.mean(oracle)),
            "in sample": float(np.mean(inside)),
        }
    }


def _at_best_t(logits, labels):
    return nll(softmax(logits / best_temperature(logits, labels, 0.0)), labels)


def compared(splits):
    """Every idea against the output method of least mean NLL: paired gains over the splits, and a t-test."""
    best = min(OUTPUT, key=lambda name: np.mean([split[name]["nll"] for split in splits]))
    found = {}
    for name in splits[0]:
        if name in OUTPUT or name == "bounds":
            continue
        found[name] = {
            column: paired([s[best][column] for s in splits], [s[name][column] for s in splits])
            for column in ("nll", "ece")
        }
    bound = [split["bounds"] for split in splits]
    held = {
        name: paired([b["temperature"] for b in bound], [b[name] for b in bound])
        for name in ("oracle", "in sample")
    }
    return {"best output method": best, "gains": found, "bounds": held, "ideas": len(found)}


def paired(theirs, ours):
    """How much lower ours is, with its standard error and the one-sided p of a gain."""
    gain = np.array(theirs) - np.array(ours)
    if len(gain) < 2:
        return {"gain": float(gain.mean()), "standard_error": None, "p": None}
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    p = float(stats.t.sf(gain.mean() / error, len(gain) - 1)) if error > 0 else 1.0
    return {"gain": float(gain.mean()), "standard_error": error, "p": p}


def main():
    asked = arguments()
    peers.device(asked.device)
    torch.set_num_threads(asked.threads)
    for name in asked.models:
        for split in asked.splits:
            print(f"{name}, split {split}", flush=True)
            one = given(name, split, images=asked.images, tested=asked.tested, device=asked.device)
            kept = save(asked, name, {split: of_split(one, asked)})
        print(json.dumps(kept["compared"], indent=1))


def save(asked, name, splits):
    """Add splits to those measured with the same settings."""
    path = peers.result("neural_clamping_gain", asked)
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    settings = {
        key: value for key, value in vars(asked).items() if key not in ("models", "splits", "threads")
    }
    full = {key: getattr(arguments([]), key) for key in settings}
    short = [key for key, value in settings.items() if value != full[key] and key != "device"]
    settings["images"] = settings["images"] or SIZES[name][0]
    settings["tested"] = settings["tested"] or SIZES[name][1]
    found = models.get(name, {})
    if found.get("asked") != settings:
        found = {}
    splits = dict(zip(found.get("numbers", ()), found.get("splits", ()), strict=True)) | splits
    numbers = sorted(splits)
    several = [splits[number] for number in numbers]
    models[name] = {
        "asked": settings,
        "trimmed": short + ["splits"] * (len(numbers) < SPLITS),
        "numbers": numbers,
        "splits": several,
        "compared": compared(several),
    }
    peers.save("neural_clamping_gain", {"models": models}, asked)
    return models[name]


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(NAMES[:3]), choices=NAMES)
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(SPLITS)), help="their seeds")
    parser.add_argument("--images", type=int, help="calibration images of each split, where fewer")
    parser.add_argument("--tested", type=int, help="test images of each split, where fewer")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=3, help="augmented copies of the calibration images")
    parser.add_argument("--passes", type=int, default=25, help="of L-BFGS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    few = {"models": ["digits"], "splits": [0], "images": 100, "tested": 300, "passes": 2, "threads": 1}
    return peers.arguments(parser, given, **few, folds=2, copies=1)


if __name__ == "__main__":
    main()

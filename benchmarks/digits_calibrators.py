"""What the calibrators that touch the model are worth on a small model with few samples, and how soon.

    python benchmarks/digits_calibrators.py [--seeds 3]

scikit-learn's digits: a network trained on 100, calibrated on 500, tested on 897, over ten seeds. Neural
Clamping under the paper's whole schedule (SGD, rate .001, batch 512, 100 epochs) and under ours begin at the
same N(0, .01) and minimise the same objective: processor seconds and passes say which is sooner there.

Writes benchmarks/results/digits_calibrators.json.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import peers
import torch

from calib_serve.demo import digits
from calib_serve.fit.clamping import fit_neural_clamping, fit_neural_clamping_efficient
from calib_serve.fit.clamping.schedules import PAPER as PRINTED
from calib_serve.fit.clamping.schedules import Descent
from calib_serve.fit.masked import PAPER, fit_masked_head
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.metrics import accuracy, ece, nll
from calib_serve.model import calibrated_probs, from_module

COLUMNS = ("accuracy", "ece", "nll", "cpu_seconds")


def one_seed(seed):
    data = digits.load(seed=seed)
    model = from_module(digits.train(data.train, seed=seed).eval(), input_shape=(1, 8, 8), device="cpu")
    x, y = data.calibration.images, data.calibration.labels
    features = model.features(x)
    paper = {"resolution": None, "judge": "calibration-ece"}
    same = {**paper, "start": "random", "seed": seed}
    fits = {
        "TS": lambda: fit_temperature(model.logits(x), y),
        "NC": lambda: fit_neural_clamping(model, x, y, seed=seed),
        "NC, full size": lambda: fit_neural_clamping(model, x, y, **paper),
        "NC, ours from N(0, .01)": lambda: fit_neural_clamping(model, x, y, **same),
        "NC, the paper's schedule": lambda: fit_neural_clamping(
            model, x, y, **same, solver=Descent(PRINTED, seed)
        ),
        "NC (Eff.)": lambda: fit_neural_clamping_efficient(model, x, y),
        "masked head": lambda: fit_masked_head(features, y, classes=10, seed=seed),
        "masked head, the paper's reading": lambda: fit_masked_head(
            features, y, classes=10, seed=seed, masking=PAPER
        ),
    }
    test = data.test
    rows = {"uncalibrated": scores(calibrated_probs(model, test.images, None), test.labels)}
    for name, fit in fits.items():
        start = time.process_time()
        artifact = fit()
        spent = time.process_time() - start
        rows[name] = scores(calibrated_probs(model, test.images, artifact), test.labels)
        rows[name] |= {
            "cpu_seconds": spent,
            "fit": {k: artifact.fit.get(k) for k in ("objective_value", "passes")},
        }
    return rows


def scores(probs, labels):
    return {
        "accuracy": accuracy(probs, labels),
        "ece": ece(probs, labels),
        "nll": nll(probs, labels),
        "cpu_seconds": 0.0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    asked = peers.arguments(parser, seeds=1)
    torch.set_num_threads(1)
    seeds = []
    for seed in range(asked.seeds):
        seeds.append(one_seed(seed))
        print(f"seed {seed} done", flush=True)
        save(asked, seeds)
    for name in seeds[0]:
        cells = [[row[name][c] for row in seeds] for c in COLUMNS]
        print(f"{name:36}" + "".join(f"{np.mean(c):12.4f} +-{np.std(c):.4f}" for c in cells))
    print(json.dumps(speed(seeds)))


def speed(seeds):
    """The paper's schedule against ours: medians over seeds, and whether ours always ends lower."""
    ours = [row["NC, ours from N(0, .01)"] for row in seeds]
    paper = [row["NC, the paper's schedule"] for row in seeds]
    pairs = list(zip(paper, ours, strict=True))
    return {
        "times_less_cpu": float(np.median([p["cpu_seconds"] / o["cpu_seconds"] for p, o in pairs])),
        "times_fewer_passes": float(np.median([p["fit"]["passes"] / o["fit"]["passes"] for p, o in pairs])),
        "objective_paper": float(np.median([p["fit"]["objective_value"] for p in paper])),
        "objective_ours": float(np.median([o["fit"]["objective_value"] for o in ours])),
        "always_lower": all(o["fit"]["objective_value"] <= p["fit"]["objective_value"] for p, o in pairs),
    }


def save(asked, seeds):
    result = {
        "asked": vars(asked),
        "trimmed": len(seeds) < 10,
        "speed": speed(seeds),
        "seeds": seeds,
    }
    peers.save("digits_calibrators", result, asked)


if __name__ == "__main__":
    main()

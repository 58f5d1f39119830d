"""How much sooner does Neural Clamping's loss fall than under the paper's schedule?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping_speed.py [--images 500] [--device cuda]

The same code path twice from the same start, N(0, .01): the reference schedule (SGD, rate .001, batch 512,
100 epochs, T from 1) and ours (L-BFGS with T exact), on ResNet-20 and CIFAR-10 images. Told: what each whole
fit costs, and what ours had cost when it first stood where the schedule ends. The clock of a busy machine
misleads, so processor seconds and passes over the data are told beside it.

Writes benchmarks/results/neural_clamping_speed.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import peers
import torch
from cifar import cifar10_test, data_dir

from calib_serve.fit.clamping.fit import PaperSchedule, QuasiNewton, fit_neural_clamping
from calib_serve.model import load_model

HERE = Path(__file__).parent


class Watched:
    """An objective that remembers each value, and the processor seconds until then."""

    def __init__(self, objective, seen):
        self._objective, self._seen = objective, seen

    def __getattr__(self, name):
        return getattr(self._objective, name)

    def __call__(self, vector):
        value, gradient = self._objective(vector)
        self._seen.append((time.process_time(), value))
        return value, gradient


def timed(model, x, y, solver):
    start, cpu = time.perf_counter(), time.process_time()
    paper = {"resolution": None, "start": "random", "judge": "calibration-ece"}
    fit = fit_neural_clamping(model, x, y, solver=solver, **paper).fit
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    kept = ("passes", "objective_value", "loss", "temperature", "delta_norm", "loss_of_temperature_alone")
    return spent | {name: fit[name] for name in kept}


def as_good(reference, seen):
    """Ours at the first evaluation that is no worse than the end of the schedule, over what that took."""
    at, (cpu, value) = next(
        (i, step) for i, step in enumerate(seen, 1) if step[1] <= reference["objective_value"]
    )
    print(f"as good after {at} passes: {value:.4f}")
    return {"cpu_seconds": reference["cpu_seconds"] / cpu, "passes": reference["passes"] / at}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    asked = peers.arguments(parser, images=200, epochs=4, passes=4, threads=1)
    peers.device(asked.device)
    torch.set_num_threads(asked.threads)
    folder = data_dir()
    x, y = cifar10_test(folder)
    few = np.sort(np.random.default_rng(0).permutation(len(y))[: asked.images])
    weights = folder / "models" / "akamaster_resnet20_c10.safetensors"
    model = load_model(
        f"{HERE / 'cifar.py'}:resnet20",
        weights=weights,
        input_shape=(3, 32, 32),
        device=asked.device,
        batch_size=64,
    )
    found, seen, began = {}, [], time.process_time()
    ours = QuasiNewton(passes=asked.passes)
    for name, solver in (
        ("ours", lambda objective, start: ours(Watched(objective, seen), start)),
        ("reference", PaperSchedule(epochs=asked.epochs)),
    ):
        found[name] = timed(model, x[few], y[few], solver)
        print(name, json.dumps(found[name]), flush=True)
    ratios = {
        kind: found["reference"][kind] / found["ours"][kind] for kind in ("seconds", "cpu_seconds", "passes")
    }
    ratios_as_good = as_good(found["reference"], [(at - began, value) for at, value in seen])
    print("times faster:", json.dumps(ratios), "until as good:", json.dumps(ratios_as_good))
    result = {
        "asked": vars(asked),
        "trimmed": asked.images < 5000 or asked.epochs < 100,
        **found,
        "times_faster": ratios,
        "times_faster_until_as_good": ratios_as_good,
        "lower_objective": found["ours"]["objective_value"] <= found["reference"]["objective_value"],
    }
    peers.save("neural_clamping_speed", result, asked)


if __name__ == "__main__":
    main()

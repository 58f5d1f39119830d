"""How much sooner does Neural Clamping's loss fall than under the schedules of its paper and its toolkit?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping_speed.py [--images 500] [--device cuda]

Twice the same code path from the same start, on ResNet-20 and CIFAR-10 images: SGD and ours (L-BFGS with T
exact). The paper's schedule starts at N(0, .01) on the inputs, with gamma 0 and lambda a tenth of the
uncalibrated loss; the toolkit's at a standard deviation of .001 behind the normalisation, with gamma 1 and
lambda .01, without its augmentation, so that both minimise the same. With fewer images than 5,000 the
toolkit's batches shrink along, so that an epoch has as many steps. Told: what each whole fit costs, and what
ours had cost when it first stood where the schedule ends. The clock of a busy machine misleads, so processor
seconds and passes over the data are told beside it.

Writes benchmarks/results/neural_clamping_speed.json, a schedule at a time.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import peers
import torch
from cifar import cifar10_test, data_dir
from clamped_networks import network
from clamping_toolkit import TOOLKIT

from calib_serve.fit import QuasiNewton
from calib_serve.fit.clamping.objective import Objective, best_temperature, focal_loss
from calib_serve.fit.clamping.schedules import PAPER, Descent

STD = np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)


class Watched:
    """An objective that remembers each value, and the processor seconds until then."""

    def __init__(self, objective, seen):
        self._objective, self._seen = objective, seen

    def __getattr__(self, name):
        return getattr(self._objective, name)

    def __call__(self, vector):
        found = self._objective(vector)
        self._seen.append((time.process_time(), found[0]))
        return found


def given(schedule, asked):
    """The objective of one schedule, delta's first entries, and the schedule at this number of images."""
    x, y = cifar10_test(data_dir())
    few = np.sort(np.random.default_rng(0).permutation(len(y))[: asked.images])
    model, rng = network("resnet20", asked.device), np.random.default_rng(0)
    base = Objective(model, x[few], y[few])
    alone = model.logits(x[few])
    if schedule == "paper":
        objective = replace(base, weight=focal_loss(alone, y[few], 1.0, 0.0)[0] / 10)
        how = replace(PAPER, epochs=asked.epochs)
    else:
        objective = replace(base, gamma=TOOLKIT.gamma, weight=TOOLKIT.penalty, scale=STD)
        batch = max(1, TOOLKIT.batch * asked.images // 5000)
        how = replace(TOOLKIT, epochs=asked.epochs, batch=batch)
    return objective, rng.normal(0, how.spread, 3072), how, alone


def timed(objective, start, solver, alone):
    begun, cpu = time.perf_counter(), time.process_time()
    found = solver(objective, start)
    spent = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    t = best_temperature(alone, objective.labels, objective.gamma)
    return spent | {
        "passes": found.passes,
        "objective_value": found.objective,
        "loss": found.objective - objective.penalty(found.coefficients),
        "temperature": found.temperature,
        "delta_norm": float(np.linalg.norm(found.coefficients)),
        "loss_of_temperature_alone": focal_loss(alone, objective.labels, t, objective.gamma)[0],
    }


def as_good(reference, seen):
    """Ours at the first evaluation that is no worse than the end of the schedule, over what that took."""
    met = [(at, *step) for at, step in enumerate(seen, 1) if step[1] <= reference["objective_value"]]
    if not met:
        return {"cpu_seconds": 0.0, "passes": 0.0}  # never: it ended higher
    at, cpu, value = met[0]
    print(f"as good after {at} passes: {value:.4f}")
    return {"cpu_seconds": reference["cpu_seconds"] / cpu, "passes": reference["passes"] / at}


def compared(schedule, asked):
    objective, start, how, alone = given(schedule, asked)
    seen, began = [], time.process_time()
    ours = QuasiNewton(passes=asked.passes)
    found = {
        "ours": timed(Watched(objective, seen), start, ours, alone),
        "reference": timed(objective, start, Descent(how), alone),
    }
    print(schedule, json.dumps(found), flush=True)
    return found | {
        "times_faster": {
            kind: found["reference"][kind] / found["ours"][kind]
            for kind in ("seconds", "cpu_seconds", "passes")
        },
        "times_faster_until_as_good": as_good(
            found["reference"], [(at - began, value) for at, value in seen]
        ),
        "lower_objective": found["ours"]["objective_value"] <= found["reference"]["objective_value"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", nargs="+", default=["paper", "toolkit"])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    asked = peers.arguments(parser, images=200, epochs=4, passes=4, threads=1)
    peers.device(asked.device)
    torch.set_num_threads(asked.threads)
    path = peers.result("neural_clamping_speed", asked)
    kept = json.loads(path.read_text())["schedules"] if path.exists() else {}
    for schedule in asked.schedules:
        found = {"asked": {k: v for k, v in vars(asked).items() if k != "schedules"}}
        kept[schedule] = found | compared(schedule, asked)
        trimmed = any(one["asked"]["images"] < 5000 or one["asked"]["epochs"] < 100 for one in kept.values())
        peers.save("neural_clamping_speed", {"trimmed": trimmed, "schedules": kept}, asked)


if __name__ == "__main__":
    main()

"""Do Neural Clamping's starts, trainings and folds matter as its paper says?

    CALIB_SERVE_DATA=... python benchmarks/neural_clamping_starts.py [--models digits] [--trainings 2]

On the small networks. Figure 3 of Tang 2024: the schedule as printed from five random starts, and from the
data-driven one with five orders of the batches. Appendix G: five trainings of a network, each calibrated on
each of five parts of its calibration images, with Welch's test of Neural Clamping against the grid search, as
the paper makes it; and the same in pairs, run by run, as the runs share images and trainings.

And on larger networks: how far the printed schedule takes T alone by recorded logits, with delta held at
zero, which is at full size and takes seconds; and what the printed start does to a ResNet-20 by itself.

Writes benchmarks/results/neural_clamping_starts.json, a network at a time.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np
import peers
import torch
from cifar import data_dir
from clamped_networks import given
from clamped_rows import scores
from clamping_toolkit import TOOLKIT
from scipy import stats

from calib_serve.artifact import InputShift
from calib_serve.fit import QuasiNewton, fit_neural_clamping, fit_neural_clamping_paper
from calib_serve.fit.clamping.objective import best_temperature, focal_loss
from calib_serve.fit.clamping.schedules import PAPER
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import ece
from calib_serve.scores import softmax

FOLDS, STARTS = 5, 5
LOGITS = (
    "akamaster_resnet20_c10",
    "akamaster_resnet56_c10",
    "kull_resnet110_c10",
    "resnet50_c10_cross_entropy",
)
SHOWN = ("accuracy", "ece", "aece", "sce")  # on 100 images a delta can drive the NLL to infinity


def starts(one, asked):
    """Figure 3: scores on the test part from each start, over seeds."""
    how = {"schedule": replace(PAPER, epochs=asked.epochs)}
    ways = {"random": {"start": "random"}, "data-driven": {"start": "data", "input_range": (0.0, 1.0)}}
    return {
        name: [
            of_model(one, fit_neural_clamping_paper(one.model, *one.cal, seed=seed, **way, **how))
            for seed in range(asked.starts)
        ]
        for name, way in ways.items()
    }


def runs_of_training(one, asked):
    """Appendix G: every method's scores, a fold of the calibration images at a time."""
    x, y = one.cal
    solver = QuasiNewton(passes=asked.passes)
    how = replace(PAPER, epochs=asked.epochs)
    found = []
    for part in np.array_split(np.random.default_rng(0).permutation(len(y)), FOLDS):
        images, labels = x[part], y[part]
        z, z_test = one.model.logits(images), one.model.logits(one.test[0])
        rows = {
            name: shown(fit_by_name(method, z, labels).probs(z_test), one.test[1])
            for name, method in {"none": "none", "TS": "temperature", "TS grid": "temperature-ece"}.items()
        }
        fits = {
            "NC (FL), as printed": fit_neural_clamping_paper(one.model, images, labels, schedule=how),
            "NC (folds)": fit_neural_clamping(one.model, images, labels, solver=solver),
        }
        found.append(rows | {name: of_model(one, fit) for name, fit in fits.items()})
    return found


def of_model(one, artifact):
    shifted = one.model.logits(one.test[0], shift=artifact.input_shift)
    return shown(artifact.probs(shifted), one.test[1])


def shown(probs, labels):
    found = scores(probs, labels)
    return {column: found[column] for column in SHOWN}


def tested(runs, *, ours, theirs):
    """ECE of ours less that of theirs: Welch's t-test as the paper has it, and in pairs."""
    a, b = ([run[name]["ece"] for run in runs] for name in (ours, theirs))
    welch = stats.ttest_ind(a, b, equal_var=False)
    pairs = stats.ttest_rel(a, b)
    return {
        "difference": float(np.mean(a) - np.mean(b)),
        "welch_t": float(welch.statistic),
        "welch_p": float(welch.pvalue),
        "paired_t": float(pairs.statistic),
        "paired_p": float(pairs.pvalue),
        "runs": len(runs),
    }


def t_alone(name, asked):
    """T by the printed schedule of gamma 1 on recorded logits, and what is best; test ECE of both."""
    with np.load(data_dir() / "logits" / f"{name}.npz") as data:
        z, y, z_test, y_test = (data[k] for k in ("cal_logits", "cal_labels", "test_logits", "test_labels"))
    y, y_test = y.astype(np.intp), y_test.astype(np.intp)
    rng, t, steps = np.random.default_rng(0), 1.0, 0
    for _ in range(asked.epochs):
        for rows in np.split(rng.permutation(len(y)), range(PAPER.batch, len(y), PAPER.batch)):
            t -= PAPER.rate * focal_loss(z[rows], y[rows], t, PAPER.gamma)[1] / t
            steps += 1
    best = {f"gamma {g:g}": best_temperature(z, y, g) for g in (0.0, PAPER.gamma)}
    ends = {"none": 1.0, "schedule": t, **best}
    return {
        "samples": len(y),
        "steps": steps,
        "t": ends,
        "ece": {end: ece(softmax(z_test / at), y_test) for end, at in ends.items()},
    }


def start_alone(asked):
    """Test scores of ResNet-20 under delta's random start, T = 1: seeds of each place and spread."""
    one = given("resnet20", 0, tested=min(asked.tested or 1000, 1000))
    x, y = one.test
    std = np.array(one.normalisation[1]).reshape(3, 1, 1)
    places = {
        "printed, on the inputs": PAPER.spread,
        "printed, behind the normalisation": PAPER.spread * std,
        "the toolkit's": TOOLKIT.spread * std,
    }
    found = {"none": [shown(softmax(one.model.logits(x)), y)]}
    for name, scale in places.items():
        draws = (np.random.default_rng(seed).normal(size=x.shape[1:]) for seed in range(min(asked.starts, 3)))
        found[name] = [shown(softmax(one.model.logits(x, shift=InputShift(d * scale))), y) for d in draws]
    return {"images": len(y), "starts": found}


def of_network(name, asked):
    by_start = starts(given(name, 0, images=asked.images, tested=asked.tested), asked)
    spread = {
        start: {c: [float(np.mean(v)), float(np.std(v))] for c in SHOWN for v in [[r[c] for r in rows]]}
        for start, rows in by_start.items()
    }
    runs = []
    for training in range(asked.trainings):
        one = given(name, training, images=asked.images, tested=asked.tested)
        runs += runs_of_training(one, asked)
        print(f"{name}, training {training} done", flush=True)
    means = {row: {c: float(np.mean([run[row][c] for run in runs])) for c in SHOWN} for row in runs[0]}
    against = {row: tested(runs, ours=row, theirs="TS grid") for row in runs[0] if row.startswith("NC")}
    return {"figure 3": spread, "means": means, "against TS grid": against, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["digits", "mnist"], choices=["digits", "mnist"])
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--images", type=int, help="calibration images, where fewer")
    parser.add_argument("--tested", type=int, help="test images, where fewer")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--passes", type=int, default=25)
    few = {"models": ["digits"], "trainings": 1, "starts": 2, "images": 200, "tested": 300, "epochs": 2}
    asked = peers.arguments(parser, **few, passes=2)
    torch.set_num_threads(1)
    path = peers.result("neural_clamping_starts", asked)
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    alone = {
        "T alone": {name: t_alone(name, asked) for name in LOGITS[: asked.trainings]},
        "start alone": start_alone(asked),
    }
    peers.save("neural_clamping_starts", {"models": models, **alone}, asked)
    for name in asked.models:
        trimmed = [
            key for key in ("trainings", "starts", "images", "tested", "epochs", "passes")
            if getattr(asked, key) != {"trainings": 5, "starts": STARTS, "epochs": 100, "passes": 25}.get(key)
        ]  # fmt: skip
        models[name] = {"asked": vars(asked), "trimmed": trimmed, **of_network(name, asked)}
        peers.save("neural_clamping_starts", {"models": models, **alone}, asked)
        told = {key: models[name][key] for key in ("figure 3", "means", "against TS grid")}
        print(name, json.dumps(told, indent=1))


if __name__ == "__main__":
    main()

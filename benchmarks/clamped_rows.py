"""The methods that the benchmark of Neural Clamping compares, and their scores on one split."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from clamping_toolkit import TOOLKIT, fit_neural_clamping_toolkit

from calib_serve.fit import (
    QuasiNewton,
    fit_neural_clamping,
    fit_neural_clamping_efficient,
    fit_neural_clamping_paper,
)
from calib_serve.fit.clamping.efficient import mean_entropy
from calib_serve.fit.clamping.objective import best_temperature
from calib_serve.fit.clamping.schedules import PAPER
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import accuracy, adaptive_ece, classwise_ece, ece, nll
from calib_serve.scores import softmax

__all__ = ["COLUMNS", "OUTPUT_METHODS", "rows_of_split", "scores"]

OUTPUT_METHODS = {
    "uncalibrated": ("none", {}),
    "TS": ("temperature", {}),
    "TS grid": ("temperature-ece", {}),
    "TS grid .01": ("temperature-ece", {"grid": np.arange(1, 501) / 100}),
    "VS": ("vector", {}),
    "MS-ODIR": ("ms-odir", {}),
    "Dir-ODIR": ("dirichlet-odir", {}),
    "structured average": ("structured-average", {}),
}
COLUMNS = ("accuracy", "entropy", "ece", "aece", "sce", "nll")


def scores(probs, labels):
    found = {
        "accuracy": accuracy(probs, labels),
        "entropy": mean_entropy(probs),
        "ece": ece(probs, labels),
        "aece": adaptive_ece(probs, labels),
        "sce": classwise_ece(probs, labels),
        "nll": nll(probs, labels),
    }
    for bins in (10, 20):  # appendix D
        found |= {f"ece {bins}": ece(probs, labels, bins=bins)}
    return found


def rows_of_split(given, asked, *, share=1.0):
    """Every method's scores on the test part; ``share`` of all images calibrate, and so of each batch."""
    rows = {}
    z_cal, z_test = given.model.logits(given.cal[0]), given.model.logits(given.test[0])
    if "output" in asked.rows:
        for name, (method, options) in OUTPUT_METHODS.items():
            start = time.process_time()
            artifact = fit_by_name(method, z_cal, given.cal[1], **options)
            spent = time.process_time() - start
            rows[name] = {**scores(artifact.probs(z_test), given.test[1]), "cpu_seconds": spent}
        t = best_temperature(z_cal, given.cal[1], 1.0)
        rows["TS (FL)"] = scores(softmax(z_test / t), given.test[1])
    for name, fits in clampings(given, asked, share).items():
        rows[name] = chosen(given, fits, z_test)
        print(f"  {name}: {rows[name]['fit']['seconds']:.0f} s, ECE {rows[name]['ece']:.4f}", flush=True)
    return rows


def chosen(given, fits, z_test):
    """The scores of the fit of least calibration ECE, the paper's rule, and of each where there are more."""
    found = []
    for fit in fits:
        start, cpu = time.perf_counter(), time.process_time()
        artifact = fit()
        spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        found.append((artifact, spent))
    best = int(np.argmin([artifact.reference.ece() for artifact, _ in found]))
    row = {**_scored(given, found[best][0], z_test), "fit": _facts(found[best][0])}
    for spent in ("seconds", "cpu_seconds"):
        row["fit"][spent] = sum(each[spent] for _, each in found)
    if len(found) > 1:
        row["by gamma"] = [
            {"gamma": a.fit["gamma"], "cal ece": a.reference.ece(), **_scored(given, a, z_test, parts=False)}
            for a, _ in found
        ]
    return row


def _facts(artifact):
    return {key: value for key, value in artifact.fit.facts.items() if key not in ("candidates", "schedule")}


def _scored(given, artifact, z_test, *, parts=True):
    x, y = given.test
    shifted = given.model.logits(x, shift=artifact.input_shift)
    joint = scores(artifact.probs(shifted), y)
    if not parts:
        return joint
    # Table 4: inference with one of the two fitted together.
    alone = {"delta alone": scores(softmax(shifted), y), "T alone": scores(artifact.probs(z_test), y)}
    return {**joint, "parts": alone}


def clampings(given, asked, share):
    """Name -> fits, of which the one of least calibration ECE is taken."""
    return (printed(given, asked, share) if "printed" in asked.rows else {}) | (
        ours(given, asked) if "ours" in asked.rows else {}
    )


def printed(given, asked, share):
    """As the paper prints it, once more with delta behind the normalisation, and as the toolkit runs it.

    With fewer images the batches shrink along, so that a descent keeps its number of steps.
    """
    model, (x, y), place = given.model, given.cal, {"normalisation": given.normalisation}
    paper, toolkit = (
        replace(each, epochs=asked.epochs, batch=max(1, round(share * each.batch)))
        for each in (PAPER, TOOLKIT)
    )

    def fits(gammas, **more):
        more["schedule"] = paper
        return [lambda g=g: fit_neural_clamping_paper(model, x, y, gamma=g, **more) for g in gammas]

    def toolkits(*, augmented):
        how = {"schedule": toolkit, "augmented": augmented, **place}
        return [lambda: fit_neural_clamping_toolkit(model, x, y, **how)]

    return {
        "NC (CE), as printed": fits([0.0]),
        "NC (FL), as printed": fits(asked.gammas),
        "NC (FL), as printed, behind": fits([PAPER.gamma], **place),
        "NC, toolkit": toolkits(augmented=True),
        "NC, toolkit, images as they are": toolkits(augmented=False),
    }


def ours(given, asked):
    """L-BFGS from zero, everything chosen by held-out folds; and the efficient form."""
    model, (x, y) = given.model, given.cal
    shared = {"solver": QuasiNewton(passes=asked.passes)}
    coarse = np.arange(1, 501) / 100
    efficient = {"input_range": (0.0, 1.0)}
    return {
        "NC (folds)": [lambda: fit_neural_clamping(model, x, y, gamma=asked.fold_gammas, **shared)],
        "NC (Eff.)": [lambda: fit_neural_clamping_efficient(model, x, y, **efficient)],
        "NC (Eff.) .01": [lambda: fit_neural_clamping_efficient(model, x, y, grid=coarse, **efficient)],
    }

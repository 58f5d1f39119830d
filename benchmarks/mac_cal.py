"""MaC-Cal (Ni 2025) beside its control without masks: gamma, and other first stages.

    CALIB_SERVE_DATA=... python benchmarks/mac_cal.py [--parts gamma trainings] [--networks digits]

gamma: the paper's reading as printed, under several gammas (its figure 7). trainings: first stages by mixup
of several alphas, label smoothing and focal loss (its figure 6 and table 3), with a temperature, with masked
heads and with the same head without masks. The networks are those of benchmarks/head_data.py; trainings are
of the small ones.

Writes benchmarks/results/mac_cal.json after every run; a run that is stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import peers
import torch
from head_data import NETWORKS, head_data

from calib_serve.core.errors import FitError
from calib_serve.fit import fit_by_name
from calib_serve.fit.losses import focal
from calib_serve.fit.masked import PAPER, fit_masked_head, reading, train_masked
from calib_serve.metrics import accuracy, ece, nll
from calib_serve.scores import softmax

PARTS = ("gamma", "trainings")
GAMMAS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
METHODS = (
    "none",
    "temperature",
    "masked-head",
    "masked-head-paper",
    "no-mask-head+temperature",
)
STAGES = {
    "cross-entropy": {},
    "mixup .1": {"alpha": 0.1},
    "mixup .3": {"alpha": 0.3},
    "mixup 1": {"alpha": 1.0},
    "label smoothing .05": {"loss": partial(torch.nn.functional.cross_entropy, label_smoothing=0.05)},
    "focal, gamma 3": {"loss": focal},
}


def scores(probs, labels):
    return {"accuracy": accuracy(probs, labels), "ece": ece(probs, labels), "nll": nll(probs, labels)}


@dataclass(frozen=True, eq=False)
class Heads:
    """Methods by the names of ``METHODS``, on features that were computed once."""

    data: object
    seed: int

    def fit(self, method):
        """The artifact; what it is fitted on is the data's own."""
        name, _, then = method.partition("+")
        (x, y), (cal, cal_labels) = self.data.train, self.data.cal
        readings = {"masked-head": "expected", "masked-head-paper": "paper", "no-mask-head": "no-mask"}
        if name not in readings:
            return fit_by_name(name, self.data.head(cal), cal_labels, seed=self.seed)
        how = {"masking": reading(readings[name], len(y)), "then": then or None, "seed": self.seed}
        return fit_masked_head(x, y, cal, cal_labels, classes=10, **how)

    def measured(self, method):
        """Scores on the data's test features."""
        try:
            artifact = self.fit(method)
        except FitError as error:
            return {"error": str(error)}
        x, y = self.data.test
        return scores(artifact.of_logits((artifact.head or self.data.head)(x)), y)


def gamma(name, split):
    """The paper's reading under each gamma: what its head scores, and where q and its signals end."""
    data = head_data(name, split)
    rows = {"deployed": scores(softmax(data.head(data.test[0])), data.test[1])}
    for value in GAMMAS:
        how = replace(PAPER, retention=replace(PAPER.retention, gamma=value))
        trained = train_masked(*data.train, 10, masking=how, seed=split)
        last = trained.epochs[-1]
        rows[f"{value:g}"] = scores(softmax(trained.head(data.test[0])), data.test[1]) | {
            "q": trained.q,
            "confidence_over_accuracy": last.confidence / last.accuracy if last.accuracy else None,
        }
    return rows


def trainings(name, split):
    """Other first stages: each alone, with a temperature, and with new heads."""
    rows = {}
    for stage, how in STAGES.items():
        heads = Heads(head_data(name, split, **how), split)
        rows[stage] = {method: heads.measured(method) for method in METHODS}
    return rows


RUNS = {"gamma": gamma, "trainings": trainings}
SPLITS = {"gamma": 1, "trainings": 3}


def summary(content):
    """The means over splits of what was measured, for the page."""
    told = {}
    for part in ("gamma", "trainings"):
        for name, splits in content.get(part, {}).items():
            told.setdefault(part, {})[name] = _mean(splits)
    return told


def _mean(records):
    """Of equal records the means of their numbers; an error stays one."""
    first = records[0]
    if isinstance(first, dict):
        if any("error" in each for each in records):
            return {"error": next(each["error"] for each in records if "error" in each)}
        return {key: _mean([each[key] for each in records]) for key in first}
    return None if None in records else float(np.mean(records))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--splits", type=int, help="of every part; without, 3 of trainings and 1 of others")
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier run has")
    asked = peers.arguments(parser, parts=["trainings"], networks=["digits"], splits=1)
    torch.set_num_threads(1)
    path = peers.result("mac_cal", asked)
    content = json.loads(path.read_text())["measured"] if path.exists() and not asked.fresh else {}
    for part in asked.parts:
        for name in asked.networks:
            if (part, name) == ("trainings", "resnet20"):
                continue
            splits = content.setdefault(part, {}).setdefault(name, [])
            for split in range(len(splits), asked.splits or SPLITS[part]):
                start = time.process_time()
                splits.append(RUNS[part](name, split))
                spent = time.process_time() - start
                print(f"{part} {name} {split}: {spent:.0f} processor seconds", flush=True)
                result = {"asked": vars(asked), "measured": content, "summary": summary(content)}
                peers.save("mac_cal", result, asked)
    print(json.dumps(summary(content), indent=1))


if __name__ == "__main__":
    main()

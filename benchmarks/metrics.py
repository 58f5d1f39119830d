"""Is every metric faster than the fastest peer's, and does it give the same number?

    python benchmarks/metrics.py [--quick]

The same probabilities (float32) and labels for all, in one run, the candidates taking turns; peers
that want tensors get them ready made, over the same memory. Our side checks its input each time
and sums in float64. Everyone has one thread, times are CPU seconds, and ratios are of each
candidate's fastest call: so a busy machine disturbs them little.
Writes benchmarks/results/metrics.json.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import tracemalloc
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import peers  # noqa: E402

PINS = "requirements-metrics.txt"

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before numpy is imported
    peers.rerun_in(PINS)

import numpy as np  # noqa: E402

from calib_serve import metrics as ours  # noqa: E402

ABSENT = peers.absent(PINS)
uncertainty_calibration = peers.imported("calibration", "uncertainty-calibration", ABSENT)
netcal = peers.imported("netcal.metrics", "netcal", ABSENT)
relplot = peers.imported("relplot", "relplot", ABSENT)
torch = peers.imported("torch", "torch", ABSENT)
probmetrics = peers.imported("probmetrics.metrics", "probmetrics", ABSENT)
torchmetrics = peers.imported("torchmetrics.functional.classification", "torchmetrics", ABSENT)

SIZES = ((20_000, 100), (20_000, 10), (10_000, 1000))
PURE_PYTHON = 2_000_000  # uncertainty-calibration walks over entries in Python: no more than these


def torch_uncertainty() -> Any:
    """Its classification metrics alone: the package's own front imports torchvision, unused here."""
    for name in ("torch_uncertainty", "torch_uncertainty.metrics"):
        spec = importlib.util.find_spec(name)
        if spec is None:
            ABSENT.setdefault("torch-uncertainty", f"could not be imported: there is no {name}")
            return None
        package = types.ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[name] = package
    return peers.imported("torch_uncertainty.metrics.classification", "torch-uncertainty", ABSENT)


TU = torch_uncertainty()
Calls = dict[str, Callable[[], Any]]


def sample(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((n, classes), dtype=np.float32)
    labels = np.where(rng.random(n) < 0.7, logits.argmax(1), rng.integers(0, classes, n))
    return ours.softmax(logits).astype(np.float32), labels


def candidates(p: np.ndarray, y: np.ndarray) -> dict[str, Calls]:
    """For each metric, ours first, and the peers whose definition is the same or as near as they have."""
    every = all_candidates(p, y)
    return {
        metric: {who: call for who, call in calls.items() if who not in ABSENT}
        for metric, calls in every.items()
    }


def all_candidates(p: np.ndarray, y: np.ndarray) -> dict[str, Calls]:
    """Those of absent peers as well, which cannot be called; a peer's object is made in its first call."""
    k = p.shape[1]
    tp, ty = (torch.from_numpy(p), torch.from_numpy(y)) if torch else (p, y)

    def tm(norm: str) -> Callable[[], Any]:
        return lambda: torchmetrics.multiclass_calibration_error(tp, ty, k, n_bins=15, norm=norm)

    def tu(name: str, **options: Any) -> Callable[[], Any]:
        @functools.cache
        def metric() -> Any:
            return getattr(TU, name)(**options)

        def call() -> Any:
            metric().reset()
            metric().update(tp, ty)
            return metric().compute()

        return call

    def pm(name: str) -> Callable[[], Any]:
        metric = functools.cache(lambda: probmetrics.Metric.from_name(name))
        return lambda: metric().compute_from_labels_probs(ty, tp)

    def smece() -> Any:
        return relplot.smECE(*relplot.multiclass_logits_to_confidences(p, y, probs=True))

    def auroc() -> Any:
        confidence, predicted = tp.max(dim=1)
        return torchmetrics.binary_auroc(confidence, (predicted == ty).long())

    def entropy() -> Any:
        metric = TU.Entropy()
        metric.update(tp)
        return metric.compute()

    uc = uncertainty_calibration
    marginal: Calls = {}
    if p.size <= PURE_PYTHON:
        marginal = {"uncertainty-calibration": lambda: uc.get_ece(p, y, mode="marginal")}
    return {
        "ece": {
            "calib-serve": lambda: ours.ece(p, y),
            "torchmetrics": tm("l1"),
            "netcal": lambda: netcal.ECE(15).measure(p, y),
            "uncertainty-calibration": lambda: uc.get_ece(p, y),
            "torch-uncertainty": tu("CalibrationError", task="multiclass", num_classes=k, num_bins=15),
        },
        "mce": {
            "calib-serve": lambda: ours.binned(p, y).mce(),
            "torchmetrics": tm("max"),
            "netcal": lambda: netcal.MCE(15).measure(p, y),
        },
        "ace": {
            "calib-serve": lambda: ours.binned(p, y).ace(),
            "netcal": lambda: netcal.ACE(15).measure(p, y),
        },
        "rms": {"calib-serve": lambda: ours.binned(p, y).l2(), "torchmetrics": tm("l2")},
        "adaptive_ece": {
            "calib-serve": lambda: ours.adaptive_ece(p, y),
            "netcal": lambda: netcal.ECE(15, equal_intervals=False).measure(p, y),
            "uncertainty-calibration": lambda: uc.get_ece_em(p, y),
            "torch-uncertainty": tu(
                "AdaptiveCalibrationError", task="multiclass", num_classes=k, num_bins=15
            ),
        },
        "classwise_ece": {
            "calib-serve": lambda: ours.classwise_ece(p, y),
            "torch-uncertainty": tu("ClasswiseCalibrationError", num_classes=k, num_bins=15),
            "plain numpy": lambda: plain_classwise_ece(p, y),
            **marginal,
        },
        "smooth_ece": {"calib-serve": lambda: ours.smooth_ece(p, y), "relplot": smece},
        "nll": {
            "calib-serve": lambda: ours.nll(p, y),
            "torch-uncertainty": tu("CategoricalNLL"),
            "probmetrics": pm("logloss"),
        },
        "brier": {
            "calib-serve": lambda: ours.brier(p, y),
            "torch-uncertainty": tu("BrierScore", num_classes=k),
            "probmetrics": pm("brier"),
        },
        "entropy": {"calib-serve": lambda: ours.entropy(p, y), "torch-uncertainty": entropy},
        "refinement_auroc": {"calib-serve": lambda: ours.refinement_auroc(p, y), "torchmetrics": auroc},
        "aurc": {
            "calib-serve": lambda: float(ours.Separation.of(*ours.top_label(p, y)).aurc()),
            "torch-uncertainty": tu("AURC"),
        },
        "accuracy": {
            "calib-serve": lambda: ours.accuracy(p, y),
            "torchmetrics": lambda: torchmetrics.multiclass_accuracy(tp, ty, k, average="micro"),
        },
    }


def plain_classwise_ece(p: np.ndarray, y: np.ndarray) -> float:
    """What one would write: three bincounts over every entry."""
    n, k = p.shape
    index = np.clip(np.ceil(p * 15).astype(np.intp) - 1, 0, 14) + 15 * np.arange(k)
    confidence = np.bincount(index.ravel(), p.ravel(), minlength=15 * k)
    correct = np.bincount(index[np.arange(n), y], minlength=15 * k)
    return float(np.abs(confidence - correct).sum() / (n * k))


def number(result: Any) -> float:
    return float(result.detach() if hasattr(result, "detach") else result)


def measure_metric(name: str, calls: Calls, classes: int, rounds: int) -> dict[str, Any]:
    values, fails = {}, {}
    for who in list(calls):
        try:
            values[who] = number(calls[who]())
        except Exception as error:
            if who == "calib-serve":
                raise
            fails[who] = f"{type(error).__name__}: {str(error)[:90]}"
            print(f"{name}, K = {classes}: {who} fails: {fails[who]}")
            if isinstance(error, ImportError):  # of what it needs itself
                ABSENT.setdefault(who, f"could not be used: {fails[who]}")
            del calls[who]
    timed = {who: peers.summary(s) for who, s in peers.alternate(calls, rounds=rounds).items()}
    took = {who: times["min_s"] for who, times in timed.items()}
    rivals = [who for who in took if who not in ("calib-serve", "plain numpy")]
    if not rivals:
        print(f"{name:18} {1e3 * took['calib-serve']:9.2f} ms  no peer")
        return {"times": timed, "values": values, "fails": fails}
    fastest = min(rivals, key=took.__getitem__)
    ratio = took[fastest] / took["calib-serve"]
    print(f"{name:18} {1e3 * took['calib-serve']:9.2f} ms  {fastest:24}", end="")
    print(f"{1e3 * took[fastest]:9.2f} ms {ratio:7.1f} x", end="")
    difference = abs(values[fastest] - values["calib-serve"])
    print(f"   value {values['calib-serve']:.6f}, theirs differs by {difference:.1e}")
    found = {"times": timed, "values": values, "fails": fails}
    return {**found, "fastest_peer": fastest, "times_faster": ratio}


def measure_evaluate(p: np.ndarray, y: np.ndarray, rounds: int) -> dict[str, Any]:
    """``evaluate`` without bootstrap against one softmax of the same array, and its memory."""
    logits = np.log(p)
    calls: Calls = {
        "evaluate": lambda: ours.evaluate(p, y, replicates=0),
        "softmax": lambda: ours.softmax(logits),
    }
    timed = {who: peers.summary(s) for who, s in peers.alternate(calls, rounds=3 * rounds).items()}
    ratio = timed["evaluate"]["min_s"] / timed["softmax"]["min_s"]
    tracemalloc.start()
    ours.evaluate(p, y, replicates=0)
    peak = tracemalloc.get_traced_memory()[1] / p.nbytes
    tracemalloc.stop()
    print(f"evaluate, 24 metrics: {1e3 * timed['evaluate']['min_s']:.1f} ms, {ratio:.2f} times one ", end="")
    print(f"softmax; allocates {peak:.2f} times the input")
    return {"times": timed, "softmaxes": ratio, "allocated_inputs": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    asked = peers.arguments(parser)
    if torch:
        torch.set_num_threads(1)
    for name, why in ABSENT.items():
        print(f"{name}: {why}", flush=True)
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"clock": "CPU seconds, one thread", "absent": ABSENT, "sizes": {}}
    rounds = 3 if asked.quick else 12
    for n, classes in ((2_000, 10),) if asked.quick else SIZES:
        print(f"\nN = {n}, K = {classes}")
        p, y = sample(n, classes)
        metrics = {
            name: measure_metric(name, calls, classes, rounds) for name, calls in candidates(p, y).items()
        }
        result["sizes"][f"{n}x{classes}"] = {"metrics": metrics, "evaluate": measure_evaluate(p, y, rounds)}
    print(f"\nwritten to {peers.save('metrics', result, asked)}")


if __name__ == "__main__":
    main()

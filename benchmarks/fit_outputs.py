"""Output calibrators against their peers: seconds to fit and held-out NLL, on the same arrays.

    python benchmarks/fit_outputs.py [--sets] [--sizes 10000x10,5000x100]

Two workers, ours and one in the peers' environment (of requirements-fit.txt), keep
the arrays in memory and take turns, so that whatever else the machine does falls on both alike.
Both are bound to the same number of cores. A peer that cannot be installed or fitted is named in the result.
Prints a table, writes results/fit_outputs.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import peers

HERE = Path(__file__).resolve().parent
PINS = "requirements-fit.txt"
SOFTMAX = "one softmax"  # of the calibration set: the unit of a temperature's time
OURS = {
    "temperature": ["temperature", SOFTMAX],
    "odir": ["dirichlet-odir, one pair", "dirichlet-odir, seven lambdas"],
    "structured-vector": ["structured-vector"],
    "structured-matrix": ["structured-matrix", "structured-matrix, strength 1"],
}
PEERS = {
    "temperature": ["probmetrics", "netcal", "scikit-learn", "torch-uncertainty"],
    "odir": ["torch-uncertainty odir", "dirichletcal odir"],
    "structured-vector": ["probmetrics svs"],
    "structured-matrix": ["probmetrics sms"],
}
SLOW = {
    "dirichletcal odir": 150_000,
    "netcal": 10**6,
    "torch-uncertainty": 10**6,
}  # most logits that a peer is given: dirichletcal takes minutes of 77 classes


def scenario(n: int, k: int, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Logits off by a temperature, by a scale and bias a class, or by a full matrix too."""
    rng = np.random.default_rng(seed)
    tested = min(n, 5000)
    true = 2 * rng.standard_normal((n + tested, k), dtype=np.float32)
    labels = (true + rng.gumbel(size=true.shape).astype(np.float32)).argmax(axis=1)
    logits = 2 * true
    if kind != "temperature":
        logits = logits * rng.uniform(0.7, 1.3, k).astype(np.float32) + rng.normal(0, 1, k).astype(np.float32)
    if kind == "matrix":
        logits = logits + logits @ (0.5 * rng.standard_normal((k, k)) / np.sqrt(k)).astype(np.float32)
    return {
        "cal_logits": logits[:n],
        "cal_labels": labels[:n],
        "test_logits": logits[n:],
        "test_labels": labels[n:],
    }


# The workers.


def our_fit(name: str):
    from calib_serve.fit.output.candidates import fit_by_name
    from calib_serve.fit.output.selection import select
    from calib_serve.fit.samples import Samples

    if name == SOFTMAX:
        return one_softmax
    if name == "auto":
        return lambda z, y: select(Samples.of(z, y)).probs
    method, _, how = name.partition(", ")
    options = {"one pair": {"lam": 1.0, "mu": 1.0}, "strength 1": {"strength": 1.0}}.get(how, {})

    def fit(z, y):
        artifact = fit_by_name(method, z, y, **options)
        return artifact.probs

    return fit


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def one_softmax(z, y):
    """One pass over the data, in blocks that stay in the cache: large new arrays would cost as much again."""
    for i in range(0, len(z), 64):
        softmax(z[i : i + 64])
    return softmax


def bare_torch_uncertainty() -> None:
    """Let its calibrators be imported without the vision libraries that the whole package loads."""
    import importlib
    import site
    import types

    root = Path(site.getsitepackages()[0]) / "torch_uncertainty"
    for part in ("", ".post_processing", ".post_processing.calibration"):
        module = types.ModuleType(f"torch_uncertainty{part}")
        module.__path__ = [str(root.joinpath(*part.split(".")[1:]))]
        sys.modules.setdefault(module.__name__, module)
    abstract = importlib.import_module("torch_uncertainty.post_processing.abstract")
    sys.modules["torch_uncertainty.post_processing"].PostProcessing = abstract.PostProcessing


def peer_fit(name: str):
    import torch

    if name.startswith("probmetrics"):
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        def fit(z, y):
            calibrator = get_calibrator(
                {"probmetrics": "temp-scaling"}.get(name, name.rsplit(maxsplit=1)[-1])
            )
            calibrator.fit_torch(CategoricalLogits(torch.from_numpy(z)), torch.from_numpy(y))
            return lambda t: (
                calibrator.predict_proba_torch(CategoricalLogits(torch.from_numpy(t))).get_probs().numpy()
            )

    elif name.startswith("torch-uncertainty"):
        bare_torch_uncertainty()
        if name.endswith("odir"):
            from torch_uncertainty.post_processing.calibration.dirichlet_scaler import DirichletScaler
        else:
            from torch_uncertainty.post_processing.calibration.temperature_scaler import TemperatureScaler

        def fit(z, y):
            data = [(torch.from_numpy(z), torch.from_numpy(y))]
            if name.endswith("odir"):
                scaler = DirichletScaler(z.shape[1], lambda_reg=1.0, mu_reg=1.0)
            else:
                scaler = TemperatureScaler()
            scaler.fit(data, progress=False)

            def apply(t):
                with torch.no_grad():
                    return torch.softmax(scaler._scale(torch.from_numpy(t)), dim=1).numpy()

            return apply

    elif name == "netcal":
        from netcal.scaling import TemperatureScaling

        def probs(z):
            return softmax(z.astype(np.float64))  # of float32 it fits nothing: the temperature stays 1

        def fit(z, y):
            calibrator = TemperatureScaling()
            calibrator.fit(probs(z), y, random_state=0)
            return lambda t: calibrator.transform(probs(t))

    elif name == "scikit-learn":
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Logits(ClassifierMixin, BaseEstimator):
            def fit(self, z, y):
                self.classes_ = np.arange(z.shape[1])
                return self

            def decision_function(self, z):
                return z

            def predict(self, z):
                return z.argmax(axis=1)

        def fit(z, y):
            frozen = FrozenEstimator(Logits().fit(z, y))
            return CalibratedClassifierCV(frozen, method="temperature").fit(z, y).predict_proba

    else:
        import scipy.linalg
        from dirichletcal.calib import multinomial
        from dirichletcal.calib.fulldirichlet import FullDirichletCalibrator
        from sklearn.preprocessing import label_binarize

        # It was written before scikit-learn wanted this argument by name and scipy dropped pinv2.
        scipy.linalg.pinv2 = scipy.linalg.pinv
        multinomial.label_binarize = lambda y, classes: label_binarize(y, classes=classes)

        def fit(z, y):
            calibrator = FullDirichletCalibrator(reg_lambda=1.0, reg_mu=1.0, reg_norm=True)
            calibrator.fit(softmax(z.astype(np.float64)), y)
            return lambda t: calibrator.predict_proba(softmax(t.astype(np.float64)))

    return fit


def work(side: str) -> None:
    """Read {set, fit} a line, answer {seconds, cpu, nll} a line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print; only answers go to the parent
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for line in sys.stdin:
        task = json.loads(line)
        if task["set"] not in arrays:
            arrays.clear()
            with np.load(task["set"]) as file:
                arrays[task["set"]] = {name: file[name] for name in file.files}
        data = arrays[task["set"]]
        z, y = data["cal_logits"].astype(np.float32), data["cal_labels"].astype(np.int64)
        try:
            fit = (our_fit if side == "ours" else peer_fit)(task["fit"])
            wall, cpu = time.perf_counter(), time.process_time()
            apply = fit(z, y)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            p = np.asarray(apply(data["test_logits"].astype(np.float32)), np.float64)
            labels = data["test_labels"].astype(np.int64)
            nll = float(-np.log(np.maximum(p[np.arange(len(p)), labels], 1e-300)).mean())
            answer = {"seconds": wall, "cpu": cpu, "nll": nll}
        except Exception as error:  # a peer that fails is part of the result
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), file=out, flush=True)


# The measurement.


class Worker:
    def __init__(self, python: str, side: str, threads: int) -> None:
        env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))}
        cores = set(sorted(os.sched_getaffinity(0))[:threads])
        self.process = subprocess.Popen(
            [python, __file__, "--work", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**env, "PYTHONPATH": str(HERE.parent)} if side == "ours" else env,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - before any thread
        )

    def ask(self, path: Path, fit: str) -> dict:
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"set": str(path), "fit": fit}) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {"error": f"the worker ended: {self.process.wait()}"}


def measure(ours: Worker, peers: Worker, path: Path, repeats: int, kinds: list[str]) -> dict:
    """NLL and seconds of every fit of one set, ours and peers in turn; the fastest of a temperature's."""
    with np.load(path) as file:
        logits = file["cal_logits"].size
    answers: dict[str, list[dict]] = {}
    for kind in kinds:
        fits = [(ours, name) for name in OURS[kind]]
        fits += [(peers, name) for name in PEERS[kind] if logits <= SLOW.get(name, 10**12)]
        for _ in range(repeats if kind == "temperature" else 1):
            for worker, name in fits:
                shown = ("ours: " if worker is ours else "") + name
                answers.setdefault(shown, []).append(worker.ask(path, name))
    found = {}
    for name, runs in answers.items():
        good = [run for run in runs if "error" not in run]
        if not good:
            found[name] = runs[0]
            continue
        found[name] = min(good, key=lambda run: run["seconds"])  # a busy machine disturbs the others more
        seconds, cpu, nll = (found[name][key] for key in ("seconds", "cpu", "nll"))
        print(f"  {name:36} {seconds:9.4f} s {cpu:9.4f} cpu s  nll {nll:.5f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000x10,5000x100,25000x1000")
    parser.add_argument("--scenarios", default="temperature,vector,matrix")
    parser.add_argument("--kinds", default=",".join(OURS))
    parser.add_argument("--sets", action="store_true", help="the real sets in $CALIB_SERVE_DATA too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--add", action="store_true", help="keep what an earlier run has of other sets")
    parser.add_argument("--work", choices=("ours", "peers"), help=argparse.SUPPRESS)
    options = peers.arguments(parser, sizes="2000x10", scenarios="temperature", repeats=1, threads=1)
    if options.work:
        work(options.work)
        return
    folder = os.environ.get("CALIB_SERVE_DATA")
    theirs = str(peers.environment(PINS))
    workers = Worker(sys.executable, "ours", options.threads), Worker(theirs, "peers", options.threads)
    kept = peers.result("fit_outputs", options)
    result = json.loads(kept.read_text()) if options.add and kept.exists() else {"sets": {}}
    result |= {"threads": options.threads, "absent": peers.absent(PINS)}
    if options.sets and not folder:
        result["absent"]["real sets"] = "CALIB_SERVE_DATA is not set: it names the folder of real data"
    for name, why in result["absent"].items():
        print(f"{name}: {why}", flush=True)
    kinds = options.kinds.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        paths = {}
        for size in filter(None, options.sizes.split(",")):
            n, k = map(int, size.split("x"))
            for kind in options.scenarios.split(","):
                paths[f"{size} {kind}"] = Path(scratch) / f"{size}-{kind}.npz", n, k, kind
        for name, (path, n, k, kind) in paths.items():
            np.savez(path, **scenario(n, k, kind))
            print(name, flush=True)
            result["sets"].setdefault(name, {}).update(measure(*workers, path, options.repeats, kinds))
            path.unlink()
        if options.sets and folder:
            for path in sorted((Path(folder) / "logits").glob("*.npz")):
                print(path.stem, flush=True)
                found = measure(*workers, path, options.repeats, kinds)
                result["sets"].setdefault(path.stem, {}).update(found)
    for worker in workers:
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
        worker.process.wait()
    print(f"written to {peers.save('fit_outputs', result, options)}")


if __name__ == "__main__":
    main()

"""Claim: a calibration inside the model costs nothing.

    python benchmarks/fusion_overhead.py [--device cuda] [--seconds 15] [--rounds 5] [--quick]

Raw and fused graphs run in turns on one thread; each cycle gives one ratio, the median over cycles and
over rounds of fresh sessions counts. ``raw/raw`` is the same for two sessions of the raw graph: what
differs there is noise. On a CPU the time is the thread's own processor time, so that other programs do
not decide; on a GPU it is the clock. ``numpy/fused`` is what a user without fusion does: the raw graph,
then shift, temperature or matrix, and softmax in numpy, against a fused graph that gives probabilities.
A GPU runs the torch modules as CUDA graphs, too. Writes benchmarks/results/fusion_overhead.json, of a GPU
fusion_overhead.cuda.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import peers
import torch
from fusion_models import CifarResNet, ImageNetResNet18, Transformer

from calib_serve import Artifact
from calib_serve.artifact import InputShift, LogitMap, ModelFacts
from calib_serve.fuse import calibrated, fuse_onnx, open_session

Times = dict[str, np.ndarray]
"""Seconds by what ran, one a cycle."""

GOAL = 1.005
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], int]] = {
    "ResNet-20": (lambda: CifarResNet(3), (3, 32, 32), 10),
    "ResNet-56": (lambda: CifarResNet(9), (3, 32, 32), 10),
    "ResNet-18, ImageNet": (ImageNetResNet18, (3, 224, 224), 1000),
    "transformer, 12 layers": (Transformer, (128, 384), 77),
}
BATCHES = {"cpu": (1, 8), "cuda": (1, 32)}  # 32 take one thread a second a run


def artifacts(shape: tuple[int, ...], classes: int) -> dict[str, Artifact]:
    """Foldable calibrations; the shift only where the graph starts with a normalisation."""
    rng = np.random.default_rng(0)
    matrix = np.eye(classes) + 0.01 * rng.normal(size=(classes, classes))
    temperature = LogitMap.temperature(1.7)
    steps = {
        "temperature": (temperature,),
        "matrix": (LogitMap(matrix, 0.1 * rng.normal(size=classes)),),
    }
    if len(shape) == 3:
        steps["neural clamping"] = (InputShift(rng.normal(0, 0.01, shape)), temperature)
    facts = ModelFacts(outputs="logits")
    return {name: Artifact(s, method=name, classes=classes, model=facts) for name, s in steps.items()}


def export(make: Callable[[], torch.nn.Module], shape: tuple[int, ...], path: Path) -> torch.nn.Module:
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operator that ONNX does not have
    net = make().eval().requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.rand(2, *shape),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )
    return net


def in_turns(runs: dict[str, Callable[[], object]], seconds: float, clock: Callable[[], float]) -> Times:
    """Times of each, run in turns, in a new order each cycle: who runs after whom matters."""
    names, rng = list(runs), np.random.default_rng(0)
    for run in runs.values():
        run()
    cycles: list[list[float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(cycles) < 2:
        times = [0.0] * len(names)
        for i in rng.permutation(len(names)):
            start = clock()
            runs[names[i]]()
            times[i] = clock() - start
        cycles.append(times)
    return dict(zip(names, np.array(cycles).T, strict=True))


def ratio(rounds: list[Times], over: str, under: str) -> dict:
    """The median over rounds of each round's median ratio, and how far rounds lie apart."""
    medians = [float(np.median(r[over] / r[under])) for r in rounds]
    return {
        "ratio": float(np.median(medians)),
        "rounds": medians,
        "cycles": sum(len(r[over]) for r in rounds),
        f"{under}_ms": 1e3 * float(np.median(np.concatenate([r[under] for r in rounds]))),
        f"{over}_ms": 1e3 * float(np.median(np.concatenate([r[over] for r in rounds]))),
    }


def outside(session: ort.InferenceSession, artifact: Artifact) -> Callable[[np.ndarray], np.ndarray]:
    """Calibration as a user writes it by hand, in float32 throughout."""
    shift = None if artifact.input_shift is None else artifact.input_shift.delta
    (step,) = artifact.output_steps
    weight = step.weight.astype("f4")
    bias = None if step.bias is None else step.bias.astype("f4")

    def run(x: np.ndarray) -> np.ndarray:
        z = session.run(None, {"x": x if shift is None else x + shift})[0]
        z = z @ weight.T if weight.ndim == 2 else z * weight
        z = z if bias is None else z + bias
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    return run


def measure(name: str, options: argparse.Namespace, folder: Path) -> list[dict]:
    make, shape, classes = MODELS[name]
    export(make, shape, folder / "raw.onnx")
    rows = []
    for method, artifact in artifacts(shape, classes).items():
        same = fuse_onnx(folder / "raw.onnx", artifact, folder / "same.onnx", unproven=True)
        fuse_onnx(
            folder / "raw.onnx",
            artifact,
            folder / "probs.onnx",
            returns="probabilities",
            unproven=True,
        )
        for batch in BATCHES[options.device.partition(":")[0]]:
            x = np.random.default_rng(0).normal(size=(batch, *shape)).astype("f4")
            rounds, end = [], time.monotonic() + 2 * options.seconds
            while len(rounds) < 2 or (len(rounds) < options.rounds and time.monotonic() < end):
                rounds.append(one_round(folder, artifact, x, options, len(rounds)))
            row = {
                "model": name,
                "method": method,
                "batch": batch,
                "nodes": [same.nodes_before, same.nodes_after],
                "max_abs_diff": same.max_abs_diff,
                "fused_over_raw": ratio(rounds, "fused", "raw"),
                "raw_over_raw": ratio(rounds, "raw again", "raw"),
                "numpy_over_fused": ratio(rounds, "numpy", "probabilities"),
            }
            rows.append(row)
            show(row)
    return rows


def one_round(
    folder: Path, artifact: Artifact, x: np.ndarray, options: argparse.Namespace, seed: int
) -> Times:
    """Fresh sessions each round, in a new order: where a session's memory lies makes some per cent."""
    files = {"raw": "raw", "again": "raw", "third": "raw", "fused": "same", "probabilities": "probs"}
    order = np.random.default_rng(seed).permutation(list(files))
    opened = {n: open_session(folder / f"{files[n]}.onnx", device=options.device, threads=1) for n in order}
    raw, again, third, fused, probabilities = (opened[n] for n in files)
    by_hand = outside(third, artifact)  # its own session: nobody's memory is warm for another
    runs = {
        "raw": lambda: raw.run(None, {"x": x}),
        "fused": lambda: fused.run(None, {"x": x}),
        "raw again": lambda: again.run(None, {"x": x}),
        "probabilities": lambda: probabilities.run(None, {"x": x}),
        "numpy": lambda: by_hand(x),
    }
    clock = time.thread_time if options.device == "cpu" else time.perf_counter
    return in_turns(runs, options.seconds / options.rounds, clock)


def cuda_graphs(options: argparse.Namespace) -> list[dict]:
    """The calibrated torch module against the raw one, both replayed as CUDA graphs."""
    rows = []
    for name, (make, shape, classes) in MODELS.items():
        torch.manual_seed(0)
        net = make().eval().requires_grad_(False).cuda()
        for method, artifact in artifacts(shape, classes).items():
            whole = calibrated(net, artifact, returns="logits")
            for batch in BATCHES["cuda"]:
                x = torch.rand(batch, *shape, device="cuda")
                runs = {"raw": captured(net, x), "fused": captured(whole, x)}
                rounds = [in_turns(runs, options.seconds / options.rounds, time.perf_counter)]
                rows.append(
                    {"model": name, "method": method, "batch": batch, **ratio(rounds, "fused", "raw")}
                )
    return rows


def captured(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run


def show(row: dict) -> None:
    fused, control, numpy = row["fused_over_raw"], row["raw_over_raw"], row["numpy_over_fused"]
    before, after = row["nodes"]
    print(
        f"{row['model']:24} {row['method']:16} {row['batch']:>5}  {before:>4} -> {after:<4}"
        f" {fused['raw_ms']:9.3f} {fused['ratio']:9.4f} {control['ratio']:8.4f}"
        f" {numpy['ratio']:11.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=15, help="for each model, method and batch")
    parser.add_argument("--rounds", type=int, default=5, help="fresh sessions for each")
    options = peers.arguments(parser, seconds=2, rounds=2)
    peers.device(options.device)
    torch.set_num_threads(1)
    print(f"{'model':24} {'method':16} batch  nodes            raw ms fused/raw  raw/raw numpy/fused")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in list(MODELS)[: 1 if options.quick else None]:
            rows += measure(name, options, Path(folder))
    summary = {**summarize(rows), "device": options.device, "rows": rows}
    gpu = torch.cuda.is_available()
    summary["cuda_graphs"] = cuda_graphs(options) if gpu else "not measured: no GPU here"
    low, high = summary["control_range"]
    print(
        f"\nfused/raw: median {summary['median_ratio']:.4f}, largest {summary['largest_ratio']:.4f}, "
        f"{summary['within_goal']} of {len(rows)} within {GOAL}; a raw session against another: "
        f"median {summary['control_median']:.4f}, from {low:.4f} to {high:.4f}"
    )
    peers.save("fusion_overhead", summary, options)


def summarize(rows: list[dict]) -> dict:
    ratios = [r["fused_over_raw"]["ratio"] for r in rows]
    control = [r["raw_over_raw"]["ratio"] for r in rows]
    return {
        "goal": GOAL,
        "median_ratio": float(np.median(ratios)),
        "largest_ratio": max(ratios),
        "within_goal": sum(r <= GOAL for r in ratios),
        "control_median": float(np.median(control)),
        "control_range": [min(control), max(control)],
        "numpy_median": float(np.median([r["numpy_over_fused"]["ratio"] for r in rows])),
    }


if __name__ == "__main__":
    main()

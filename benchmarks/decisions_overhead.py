"""Claim: sets and abstention in a fused graph cost next to nothing beside the model.

    python benchmarks/decisions_overhead.py [--seconds 10] [--rounds 5] [--quick]

Two graphs give the same calibrated probabilities, and one of them sets and abstention as well. They run in
turns on one thread, in its own processor time; each cycle gives one ratio, the median over cycles and over
rounds of fresh sessions counts. ``same/same`` is the same for two sessions of the graph without decisions:
what differs there is noise. ``numpy/graph`` is what a user without them does: the graph that gives
probabilities, then the artifact's own functions in numpy, against the graph that decides. Writes
benchmarks/results/decisions_overhead.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import peers
import torch
from fusion_overhead import MODELS, Times, export, in_turns, ratio

from calib_serve import Artifact
from calib_serve.artifact import Abstain, LogitMap, PredictionSets
from calib_serve.fuse import fuse_onnx, open_session

NAMES = ("ResNet-20", "ResNet-18, ImageNet")  # of 10 and of 1000 classes


def artifacts(classes: int) -> dict[str, Artifact]:
    """Temperature scaling with sets by each kind of score, and abstention; one with abstention alone."""
    plain = Artifact((LogitMap.temperature(1.7),), method="temperature", classes=classes)
    alone = replace(plain, abstain=Abstain(0.5, risk=0.05))
    each = np.linspace(0.8, 0.95, classes)
    sets = {
        "lac": PredictionSets(np.array(0.9), 0.9),
        "lac, a threshold a class": PredictionSets(each, 0.9),
        "aps": PredictionSets(np.array(0.9), 0.9, "aps"),
        "raps": PredictionSets(np.array(0.95), 0.9, "raps", penalty=0.01, free_ranks=5),
    }
    return {"abstention alone": alone} | {name: replace(alone, sets=one) for name, one in sets.items()}


def measure(name: str, options: argparse.Namespace, folder: Path) -> list[dict]:
    make, shape, classes = MODELS[name]
    export(make, shape, folder / "raw.onnx")
    rows = []
    for kind, artifact in artifacts(classes).items():
        nodes = []
        for file, decisions in (("plain.onnx", False), ("deciding.onnx", True)):
            report = fuse_onnx(
                folder / "raw.onnx",
                artifact,
                folder / file,
                returns="probabilities",
                decisions=decisions,
                unproven=True,
            )
            nodes.append(report.nodes_after)
        for batch in (1, 8):
            x = np.random.default_rng(0).normal(size=(batch, *shape)).astype("f4")
            rounds = [one_round(folder, artifact, x, options, i) for i in range(options.rounds)]
            row = {
                "model": name,
                "classes": classes,
                "decisions": kind,
                "batch": batch,
                "nodes": nodes,
                "deciding_over_plain": ratio(rounds, "deciding", "plain"),
                "plain_over_plain": ratio(rounds, "plain again", "plain"),
                "numpy_over_deciding": ratio(rounds, "numpy", "deciding"),
            }
            rows.append(row)
            show(row)
    return rows


def one_round(
    folder: Path, artifact: Artifact, x: np.ndarray, options: argparse.Namespace, seed: int
) -> Times:
    files = {"plain": "plain", "again": "plain", "third": "plain", "deciding": "deciding"}
    order = np.random.default_rng(seed).permutation(list(files))
    opened = {name: open_session(folder / f"{files[name]}.onnx", threads=1) for name in order}
    plain, again, third, deciding = (opened[name] for name in files)

    def by_hand() -> None:
        (probs,) = third.run(None, {"x": x})
        for decide in (artifact.sets, artifact.abstain):
            if decide is not None:
                decide(probs)

    runs = {
        "plain": lambda: plain.run(None, {"x": x}),
        "plain again": lambda: again.run(None, {"x": x}),
        "deciding": lambda: deciding.run(None, {"x": x}),
        "numpy": by_hand,
    }
    return in_turns(runs, options.seconds / options.rounds, time.thread_time)


def show(row: dict) -> None:
    deciding, control = row["deciding_over_plain"], row["plain_over_plain"]
    before, after = row["nodes"]
    print(
        f"{row['model']:20} K={row['classes']:<5} {row['decisions']:26} {row['batch']:>3}"
        f" {before:>4} -> {after:<4}"
        f" {deciding['plain_ms']:9.3f} {deciding['ratio']:9.4f} {control['ratio']:9.4f}"
        f" {row['numpy_over_deciding']['ratio']:9.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="for each model, decision and batch")
    parser.add_argument("--rounds", type=int, default=5, help="fresh sessions for each")
    options = peers.arguments(parser, seconds=0.1, rounds=2)
    torch.set_num_threads(1)
    print(f"{'model':28} {'decisions':26} batch nodes        plain ms  deciding/plain same/same numpy/graph")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES[: 1 if options.quick else None]:
            rows += measure(name, options, Path(folder))
    ratios = [row["deciding_over_plain"]["ratio"] for row in rows]
    control = [row["plain_over_plain"]["ratio"] for row in rows]
    summary = {
        "median_ratio": float(np.median(ratios)),
        "largest_ratio": max(ratios),
        "control_range": [min(control), max(control)],
        "numpy_median": float(np.median([row["numpy_over_deciding"]["ratio"] for row in rows])),
        "rows": rows,
    }
    print(
        f"\ndeciding/plain: median {summary['median_ratio']:.4f}, largest {summary['largest_ratio']:.4f}; "
        f"two sessions of one graph: from {min(control):.4f} to {max(control):.4f}"
    )
    peers.save("decisions_overhead", summary, options)


if __name__ == "__main__":
    main()

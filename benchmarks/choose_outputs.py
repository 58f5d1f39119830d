"""How well ``--method auto`` does beside every single method and probmetrics' default, and at what price.

    CALIB_SERVE_DATA=... python benchmarks/choose_outputs.py [--sets NAME ...] [--draws 3] [--large]

On networks' logits, small models' scores, streams and many classes (output_sets.py): each on its whole
calibration part, and on subsets of 100, 300 and 1,000 samples, drawn ``--draws`` times. All are measured on a
test part that nothing was chosen on. Processor time is that of ours over that of the peer's default fit, each
on one thread, on the arrays of fit_outputs.py; ``--large`` adds 25,000 x 1,000. ``--peers`` names a Python
that has probmetrics; without, an environment is made of requirements-fit.txt. Prints a table, writes
results/choose_outputs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
from fit_outputs import PINS, Worker, scenario
from output_sets import Set, all_sets

SIZES = (100, 300, 1000)
OURS = ("none", "temperature", "temperature-mixture", "structured-vector", "structured-matrix")
OURS_OF_TWO = ("none", "temperature", "temperature-mixture", "platt", "beta")
PEER = "probmetrics logistic"  # its default: affine for two classes, else structured matrix scaling
PRICED = ((5000, 10), (3000, 150))
LARGE = (25_000, 1000)


def subsets(found: Set, draws: int) -> dict[str, list[Set]]:
    """The whole set, and ``draws`` subsets of each smaller size."""
    n = len(found["cal_labels"])
    made: dict[str, list[Set]] = {}
    for size in (*(size for size in SIZES if size < n), n):
        name = "all" if size == n else str(size)
        for seed in range(1 if size == n else draws):
            rows = np.arange(n) if size == n else np.random.default_rng(seed).permutation(n)[:size]
            part = {key: found[key][rows] for key in ("cal_logits", "cal_labels")}
            made.setdefault(name, []).append({**found, **part})
    return made


def look(ours: Worker, theirs: Worker, name: str, parts: list[Set], folder: Path) -> dict:
    """Mean test NLL of auto, of each method and of the peer over draws of one size."""
    classes = parts[0]["cal_logits"].shape[1]
    names = OURS_OF_TWO if classes == 2 else OURS
    answers: dict[str, list[dict]] = {}
    for i, part in enumerate(parts):
        path = folder / f"{name} {i} {len(part['cal_labels'])}.npz"  # workers keep arrays by path
        np.savez(path, **part)
        for method in ("auto", *names):
            answers.setdefault(method, []).append(ours.ask(path, method))
        answers.setdefault(PEER, []).append(theirs.ask(path, PEER))
        path.unlink()
    nll = {
        method: statistics.mean(run["nll"] for run in runs)
        for method, runs in answers.items()
        if all("nll" in run for run in runs)  # a method that cannot be fitted to each draw is no rival
    }
    rivals = {method: value for method, value in nll.items() if method != "auto"}
    best = min(rivals, key=rivals.__getitem__)
    return {
        "nll": nll,
        "best": best,
        "above_best": nll["auto"] / nll[best] - 1,
        "above_temperature": nll["auto"] / nll["temperature"] - 1 if "temperature" in nll else None,
        "errors": {
            method: run["error"] for method, runs in answers.items() for run in runs if "error" in run
        },
    }


def price(ours: Worker, theirs: Worker, size: tuple[int, int], repeats: int, folder: Path) -> dict:
    """Median processor seconds of auto and of the peer's default, in turn."""
    found = {}
    for kind in ("temperature", "matrix"):
        path = folder / f"{size[0]}x{size[1]} {kind}.npz"
        np.savez(path, **scenario(*size, kind))
        seconds: dict[str, list[float]] = {"auto": [], PEER: []}
        for _ in range(repeats):
            for worker, name in ((ours, "auto"), (theirs, PEER)):
                answer = worker.ask(path, name)
                if "cpu" in answer:
                    seconds[name].append(answer["cpu"])
        path.unlink()
        median = {name: statistics.median(each) for name, each in seconds.items() if each}
        found[kind] = median
        if PEER not in median:
            continue
        found[kind]["ratio"] = median["auto"] / median[PEER]
        print(f"{size[0]} x {size[1]} {kind:12} {found[kind]['ratio']:.2f} times the peer's", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", help="all without")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="processor time at 25,000 x 1,000 too")
    parser.add_argument("--add", action="store_true", help="keep what an earlier run has of other sets")
    parser.add_argument("--peers", help="a Python that has probmetrics")
    asked = peers.arguments(parser, sets=["pneumonia_cnn_inhouse"], draws=1, repeats=1)
    theirs = asked.peers or str(peers.environment(PINS))
    workers = Worker(sys.executable, "ours", 1), Worker(theirs, "peers", 1)
    kept = peers.result("choose_outputs", asked)
    result = json.loads(kept.read_text()) if asked.add and kept.exists() else {}
    result = {"sets": result.get("sets", {}), "times": result.get("times", {})}
    result["absent"] = {} if asked.peers else peers.absent(PINS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in (*PRICED, *([LARGE] if asked.large else [])):
            repeats = 1 if size == LARGE else asked.repeats
            result["times"][f"{size[0]}x{size[1]}"] = price(*workers, size, repeats, folder)
        for set_name, make in all_sets(Path(os.environ["CALIB_SERVE_DATA"])):
            if asked.sets and set_name not in asked.sets:
                continue
            result["sets"][set_name] = found = {}
            for size, parts in subsets(make(), asked.draws).items():
                found[size] = row = look(*workers, set_name, parts, folder)
                print(
                    f"{set_name:28} {size:>4} auto {row['nll']['auto']:.4f}, best {row['best']} by "
                    f"{100 * row['above_best']:+.2f} %, peer {row['nll'].get(PEER, float('nan')):.4f}",
                    flush=True,
                )
            peers.save("choose_outputs", result, asked)


if __name__ == "__main__":
    main()

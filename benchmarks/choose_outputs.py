"""How well ``--method auto`` chooses beside simple methods, and at what price.

    CALIB_SERVE_DATA=... python benchmarks/choose_outputs.py [--sets PREFIX ...] [--large]

On networks' logits, small models' scores, streams and many classes (output_sets.py), all measured on a test
part that nothing was chosen on: the mean NLL over draws of no calibration, a temperature, structured vector
and matrix scaling, and auto; and the ratio of auto's to the least of the others', of sets of 300 samples or
more, and of 50 or more. Processor time is that of ours over that of probmetrics' default fit, each on one
thread, on the arrays of fit_outputs.py; ``--large`` adds 25,000 x 1,000. ``--peers`` names a Python that has
probmetrics; without, an environment is made of requirements-fit.txt. Prints a table, writes
results/choose_outputs.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
from fit_outputs import PINS, Worker, scenario
from output_sets import Set, all_sets

from calib_serve.core.errors import FitError
from calib_serve.fit import fit_by_name, select
from calib_serve.fit.samples import Samples
from calib_serve.metrics import nll

METHODS = ("none", "temperature", "structured-vector", "structured-matrix")
PEER = "probmetrics logistic"  # its default: affine for two classes, else structured matrix scaling
SHIFTED = "pneumonia_cnn_inhouse"  # its test part is of another kind: no method is right, none is judged
PRICED = ((5000, 10), (3000, 150))
LARGE = (25_000, 1000)


def look(draws: list[Set]) -> dict | None:
    """Mean test NLL of auto and of each method over the draws that all can be fitted to; None of no draw."""
    rows, beyond = [], []
    for found in draws:
        calibration = found["cal_logits"], found["cal_labels"]
        with contextlib.suppress(FitError):  # every sample right: no temperature is best
            fitted = {method: fit_by_name(method, *calibration) for method in METHODS}
            fitted["auto"] = select(Samples.of(*calibration))
            test = found["test_logits"], found["test_labels"]
            rows.append({name: nll(one.of_logits(test[0]), test[1]) for name, one in fitted.items()})
            beyond.append(fitted["auto"].fit.facts.get("beyond_temperature", {}).get("share", 0.0))
    if not rows:
        return None
    means = {name: statistics.mean(row[name] for row in rows) for name in (*METHODS, "auto")}
    best = min(METHODS, key=means.__getitem__)
    return {
        "samples": len(draws[0]["cal_labels"]),
        "classes": draws[0]["cal_logits"].shape[1],
        "draws": len(rows),
        "nll": means,
        "best": best,
        "over_best": means["auto"] / means[best],
        "beyond_temperature": statistics.mean(beyond),
    }


def summary(sets: dict[str, dict]) -> dict[str, dict]:
    """Worst and mean ratios of auto to the best method, and to structured matrix, by the least size."""
    told = {}
    for least in (300, 50):
        rows = {
            name: row
            for name, row in sets.items()
            if row["samples"] >= least and not name.startswith(SHIFTED)
        }
        if not rows:
            continue
        worst = max(rows, key=lambda name: rows[name]["over_best"])
        matrix = [row["nll"]["auto"] / row["nll"]["structured-matrix"] for row in rows.values()]
        told[str(least)] = {
            "sets": len(rows),
            "worst": rows[worst]["over_best"],
            "worst_set": worst,
            "mean": statistics.geometric_mean(row["over_best"] for row in rows.values()),
            "over_matrix": statistics.geometric_mean(matrix),
        }
    return told


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
    parser.add_argument("--sets", nargs="+", help="how their names begin; all without")
    parser.add_argument("--repeats", type=int, default=3, help="of each fit that is timed; 0: none is")
    parser.add_argument("--large", action="store_true", help="processor time at 25,000 x 1,000 too")
    parser.add_argument("--peers", help="a Python that has probmetrics")
    asked = peers.arguments(parser, sets=["pneumonia", "iris"], repeats=1)
    result = {"sets": {}, "summary": {}, "times": {}, "absent": {}}
    print(f"{'set':38}{'samples':>8}" + "".join(f"{name:>19}" for name in (*METHODS, "auto")) + "  over best")
    for name, draw in all_sets(Path(os.environ["CALIB_SERVE_DATA"])):
        wanted = not asked.sets or name.startswith(tuple(asked.sets))
        if not (wanted and (row := look(draw()))):
            continue
        result["sets"][name] = row
        shown = "".join(f"{value:19.4f}" for value in row["nll"].values())
        print(f"{name:38}{row['samples']:8}{shown}{row['over_best']:11.4f}", flush=True)
    result["summary"] = summary(result["sets"])
    for least, row in result["summary"].items():
        print(
            f"{row['sets']} sets of {least} samples or more: worst {row['worst']:.4f} ({row['worst_set']}), "
            f"mean {row['mean']:.4f}, over structured-matrix {row['over_matrix']:.4f}"
        )
    if asked.repeats:
        theirs = asked.peers or str(peers.environment(PINS))
        workers = Worker(sys.executable, "ours", 1), Worker(theirs, "peers", 1)
        result["absent"] = {} if asked.peers else peers.absent(PINS)
        with tempfile.TemporaryDirectory() as folder:
            for size in (*PRICED, *([LARGE] if asked.large else [])):
                repeats = 1 if size == LARGE else asked.repeats
                result["times"][f"{size[0]}x{size[1]}"] = price(*workers, size, repeats, Path(folder))
    print(peers.save("choose_outputs", result, asked))


if __name__ == "__main__":
    main()

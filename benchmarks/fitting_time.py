"""What does it cost to fit, whole: ``auto`` on a million rows, beside a comparison on all of them?

    python benchmarks/fitting_time.py [--rows 1000000] [--classes 10] [--repeats 1]

Logits whose labels follow a matrix of them. ``calibrate(method="auto")`` as it is, and with all samples
compared and all five folds of the average fitted, which is what it does with 100,000 rows; each in a process
of its own, on one thread, in turn. Told: the least processor seconds of each, their ratio, and the NLL on
200,000 new rows.

Writes benchmarks/results/fitting_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers

TESTED = 200_000
PROGRAM = """
import json, sys, time
import numpy as np
from calib_serve import calibrate
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output import averaged, selection
from calib_serve.metrics import nll
given = np.load(sys.argv[1])
if sys.argv[2] == "all":
    other = MEASURED._replace(most_samples_cross_validated=len(given["labels"]))
    averaged.MEASURED = selection.MEASURED = other
begun = time.process_time()
artifact = calibrate(given["logits"], given["labels"], outputs="logits")
cpu = time.process_time() - begun
held = nll(artifact.of_logits(given["test_logits"]), given["test_labels"])
print(json.dumps({"cpu": cpu, "method": artifact.method, "nll": float(held)}))
"""


def written(path: Path, rows: int, classes: int) -> Path:
    rng = np.random.default_rng(0)
    weight = np.eye(classes, dtype=np.float32) / 2 + rng.normal(0, 0.01, (classes, classes)).astype(
        np.float32
    )
    arrays = {}
    for name, n in (("", rows), ("test_", TESTED)):
        z = 3 * rng.standard_normal((n, classes), dtype=np.float32)
        y = (z @ weight + rng.gumbel(size=z.shape)).argmax(axis=1)
        arrays |= {f"{name}logits": z, f"{name}labels": y}
    np.savez(path, **arrays)
    return path


def fitted(path: Path, how: str) -> dict:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-c", PROGRAM, str(path), how]
    return json.loads(subprocess.check_output(command, env={**os.environ, **threads}, text=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    asked = peers.arguments(parser, rows=200_000)
    found: dict[str, list[dict]] = {"part": [], "all": []}
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "scores.npz", asked.rows, asked.classes)
        for _ in range(asked.repeats):
            for how, told in found.items():
                told.append(fitted(path, how))
    part, whole = (min(told, key=lambda one: one["cpu"]) for told in found.values())
    auto = {
        **{"rows": asked.rows, "classes": asked.classes, "part": part, "all": whole},
        "ratio": part["cpu"] / whole["cpu"],
        "nll_above": part["nll"] - whole["nll"],
        "same_choice": part["method"] == whole["method"],
    }
    print(f"auto: {auto['ratio']:.2f} times the processor time, NLL {auto['nll_above']:+.1e}")
    print(peers.save("fitting_time", {"auto": auto}, asked))


if __name__ == "__main__":
    main()

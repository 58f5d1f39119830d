"""Claim: a fused graph gives in every runtime what the calibration gives in numpy, or there is none.

    python benchmarks/zoo.py [--small] [--seconds 6]

Graphs that torchvision, timm, transformers, scikit-learn, XGBoost and LightGBM export, quantise and rewrite
(tests/zoo) times kinds of artifacts times runtimes: the largest difference of probabilities from numpy,
or why there is none. Then the time of some fused graphs over that of the raw ones, as in fusion_overhead.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from fusion_overhead import in_turns, ratio

from calib_serve.fuse import fuse_onnx, open_session

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "zoo")]

from cells import Cage, Outcome  # noqa: E402
from onnx_runtimes import RUNTIMES  # noqa: E402
from specimens import Specimen  # noqa: E402
from zoo_graphs import LARGE, SMALL  # noqa: E402

TIMED = ("torchvision", "timm", "transformers")
Row = dict[str, dict[str, Outcome]]
"""Outcomes by the artifact's kind and the runtime."""


def measure(specimen: Specimen, seconds: float) -> tuple[Row, float]:
    """The outcomes of one graph, and its time with a matrix over without (NaN where it is not taken)."""
    with tempfile.TemporaryDirectory() as folder:
        cage = Cage(specimen, Path(folder))
        row = {kind: cage.fuse(kind) for kind in specimen.kinds}
        for kind, outcomes in row.items():
            print(f"{specimen.name} | {kind} | " + " | ".join(map(shown, outcomes.values())), flush=True)
        timed = specimen.name.startswith(TIMED) and seconds > 0
        return row, overhead(cage, seconds) if timed else float("nan")


def overhead(cage: Cage, seconds: float) -> float:
    fused = cage.folder / "timed.onnx"
    fuse_onnx(cage.path, cage.artifact("matrix"), fused, inputs=cage.feeds, unproven=True)
    rounds = []
    for seed in range(3):
        files = {"raw": cage.path, "fused": fused}
        order = np.random.default_rng(seed).permutation(list(files))
        opened = {name: open_session(files[name], threads=1) for name in order}
        runs = {name: lambda s=opened[name]: s.run(None, cage.feeds) for name in files}
        rounds.append(in_turns(runs, seconds / 3, time.thread_time))
    return float(ratio(rounds, "fused", "raw")["ratio"])


def shown(outcome: Outcome) -> str:
    if outcome.why:
        return f"{outcome.kind}: {' '.join(outcome.why.split())[:150]}"
    return f"{outcome.difference:.0e}" + ("" if outcome.kind == "equal" else f" {outcome.kind}")


def worst(row: Row, runtime: str) -> str:
    """The largest difference in a runtime over all kinds of artifacts."""
    found = [outcomes[runtime] for outcomes in row.values()]
    wrong = [o for o in found if o.kind == "wrong"]
    if wrong:
        return f"**wrong** ({max(o.difference for o in wrong):.0e})"
    equal = [o.difference for o in found if o.kind == "equal"]
    return f"{max(equal):.0e}" if equal else ""


def show(rows: dict[str, Row], times: dict[str, float]) -> None:
    """Print the largest difference of each graph in each runtime, then the counts of all."""
    print("graph | artifacts | " + " | ".join(RUNTIMES) + " | refused | fused / raw")
    for name, row in rows.items():
        no = [kind for kind, by in row.items() if all(o.kind == "refused" for o in by.values())]
        numbers = " | ".join(worst(row, runtime) for runtime in RUNTIMES)
        print(f"{name} | {len(row) - len(no)} | {numbers} | {', '.join(no)} | {times[name]:.3f}")
    outcomes = [o for row in rows.values() for by in row.values() for o in by.values()]
    count = {kind: sum(o.kind == kind for o in outcomes) for kind in ("equal", "refused", "raw", "wrong")}
    taken = [t for t in times.values() if np.isfinite(t)]
    print(
        f"{len(rows)} graphs, {len(outcomes)} cells: {count['wrong']} wrong, {count['equal']} equal, "
        f"{count['raw']} of graphs that the runtime cannot run, "
        f"{count['refused'] // len(RUNTIMES)} fusions refused"
    )
    if taken:
        print(f"fused / raw: median {np.median(taken):.4f}, from {min(taken):.3f} to {max(taken):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a dozen small graphs")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="for each graph whose time is taken; 0: none"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows, times = {}, {}
    for specimen in SMALL if options.small else [*SMALL, *LARGE]:
        rows[specimen.name], times[specimen.name] = measure(specimen, options.seconds)
    show(rows, times)


if __name__ == "__main__":
    main()

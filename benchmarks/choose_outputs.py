"""What ``--method auto`` chooses on real logits, and how it does on the test split.

    CALIB_SERVE_DATA=... python benchmarks/choose_outputs.py [--sets NAME ...]

Chosen by cross-validation on the calibration split alone; every method is then fitted on all of it and
measured on the test split. Prints a table, writes results/choose_outputs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import peers

from calib_serve.errors import CalibServeError
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.output.selection import default_candidates, select
from calib_serve.metrics import ece, nll, softmax


def look(path: Path) -> dict:
    with np.load(path) as data:
        cal, test = ((data[f"{s}_logits"], data[f"{s}_labels"]) for s in ("cal", "test"))
    start = time.perf_counter()
    auto = select(*cal)
    seconds = time.perf_counter() - start
    methods = {}
    for name in default_candidates(cal[0].shape[1]):
        try:
            probs = fit_by_name(name, *cal).probs(test[0])
        except CalibServeError as error:
            methods[name] = {"error": str(error)}
            continue
        methods[name] = {"nll": nll(probs, test[1]), "ece": ece(probs, test[1])}
    best = min((name for name in methods if "nll" in methods[name]), key=lambda name: methods[name]["nll"])
    chosen = auto.probs(test[0])
    return {
        "chosen": auto.method,
        "nll": nll(chosen, test[1]),
        "ece": ece(chosen, test[1]),
        "uncalibrated_nll": nll(softmax(test[0]), test[1]),
        "best": best,
        "above_best": nll(chosen, test[1]) / methods[best]["nll"] - 1,
        "seconds": seconds,
        "selection": auto.fit["selection"]["scores"],
        "test": methods,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", help="all without")
    asked = peers.arguments(parser, sets=["pneumonia_cnn_inhouse"])
    folder = Path(os.environ["CALIB_SERVE_DATA"]) / "logits"
    names = asked.sets or sorted(path.stem for path in folder.glob("*.npz"))
    kept = peers.result("choose_outputs", asked)
    result = {"sets": json.loads(kept.read_text())["sets"] if kept.exists() else {}}
    for name in names:
        result["sets"][name] = found = look(folder / f"{name}.npz")
        print(
            f"{name:28} {found['chosen']:18} nll {found['nll']:.4f} (uncalibrated "
            f"{found['uncalibrated_nll']:.4f}), best {found['best']} by {100 * found['above_best']:.2f} %, "
            f"ece {100 * found['ece']:.2f} %, {found['seconds']:.1f} s",
            flush=True,
        )
        peers.save("choose_outputs", result, asked)


if __name__ == "__main__":
    main()

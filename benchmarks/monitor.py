"""What does watching cost? Microseconds of processor time a prediction and a label, memory over a day.

    python benchmarks/monitor.py [--day]

Ours against what others offer for a mean and a histogram of confidences, alternating in one run:
river (running mean and histogram), whylogs (a profile of a column), NannyML (its estimator of
calibrated performance on the same rows, telemetry off). ``--day`` simulates 100 million predictions.
Runs in the environment of requirements-watch.txt.

Writes benchmarks/results/monitor.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(NML_DISABLE_USAGE_LOGGING="1", WHYLOGS_NO_ANALYTICS="True")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import peers  # noqa: E402

if __name__ == "__main__":
    peers.rerun_in("requirements-watch.txt")

import numpy as np  # noqa: E402
from calib_serve.watch.monitor import Monitor  # noqa: E402

from calib_serve.receipts import Keyring  # noqa: E402
from calib_serve.watch.drift import Detector  # noqa: E402
from calib_serve.watch.intake import Classes, Intake  # noqa: E402
from calib_serve.watch.ledger import SqliteLedger  # noqa: E402

N = 20_000
RNG = np.random.default_rng(0)
VALUES = RNG.beta(5, 2, N)
RIGHT = RNG.random(N) < VALUES
LIST = VALUES.tolist()
BATCHES = VALUES[: N - N % 64].reshape(-1, 64)


def ours_one():
    monitor = Monitor()
    for c in LIST:
        monitor.predicted("digits", "1.0", c)
    monitor.sums()


def ours_64():
    monitor = Monitor()
    for batch in BATCHES:
        monitor.predicted_many("digits", "1.0", batch)
    monitor.sums()


def ours_detector():
    Detector(arl=1e9, tolerance=0.0).update(VALUES[:2000], RIGHT[:2000])


def ours_labels():
    """Receipt, checks, a durable SQLite ledger and the detector, 1,000 labels a batch."""
    ring = Keyring("k", {"k": bytes(32)})
    items = [
        {
            "receipt": ring.sign(model="digits", version="1.0", predicted=1, confidence=c),
            "label": int(y),
        }
        for c, y in zip(LIST[:2000], RIGHT[:2000].tolist(), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        ledger = SqliteLedger(Path(folder) / "l.db")
        intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(2)})
        began = time.process_time()
        for at in range(0, 2000, 1000):
            intake.take(items[at : at + 1000])
        took = time.process_time() - began
        ledger.close()
    return took


def river_one():
    from river import sketch, stats

    mean, histogram = stats.Mean(), sketch.Histogram(max_bins=15)
    for c in LIST:
        mean.update(c)
        histogram.update(c)


def whylogs_64():
    import pandas as pd
    import whylogs

    profile = None
    for batch in BATCHES[:100]:
        frame = pd.DataFrame({"confidence": batch})
        if profile is None:
            profile = whylogs.log(frame).profile()
        else:
            profile.track(frame)


def nannyml_all():
    import nannyml
    import pandas as pd

    frame = pd.DataFrame({"p": VALUES, "y_pred": (VALUES > 0.5).astype(int), "y": RIGHT.astype(int)})
    estimator = nannyml.CBPE(
        problem_type="classification_binary",
        y_pred_proba="p",
        y_pred="y_pred",
        y_true="y",
        metrics=["accuracy"],
        chunk_size=5000,
    )
    estimator.fit(frame)
    estimator.estimate(frame)


CASES = {
    "ours, a prediction, one by one": (ours_one, N),
    "ours, a prediction, by 64": (ours_64, BATCHES.size),
    "river mean + histogram, one by one": (river_one, N),
    "whylogs profile, by 64": (whylogs_64, 6400),
    "NannyML CBPE, all at once": (nannyml_all, N),
    "ours, a label: drift detector alone": (ours_detector, 2000),
    "ours, a label: receipt, ledger, detector": (ours_labels, 2000),
}


def measure(rounds=7):
    """Microseconds an item: median and quartiles over alternating rounds."""
    times = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, (work, count) in CASES.items():
            began = time.process_time()
            took = work()
            took = took if took is not None else time.process_time() - began
            times[name].append(took / count * 1e6)
    return {
        name: {
            "median_us": statistics.median(values),
            "quartiles_us": [float(np.quantile(values, 0.25)), float(np.quantile(values, 0.75))],
        }
        for name, values in times.items()
    }


def day(predictions=100_000_000, batch=1000):
    """A day's traffic through one monitor, and what it did to the process's memory."""
    monitor = Monitor()
    values = RNG.beta(5, 2, batch)
    for _ in range(1000):
        monitor.predicted_many("digits", "1.0", values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    for _ in range(predictions // batch):
        monitor.predicted_many("digits", "1.0", values)
    total = monitor.sums()
    took = time.process_time() - began
    counted = sum(sums.predictions.sum() for sums in total.values())
    assert counted == predictions + 1000 * batch
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"predictions": predictions, "seconds": took, "grown_kib": after - before}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--day", action="store_true", help="simulate 100 million predictions as well")
    options = peers.arguments(parser)
    rows = measure(rounds=2 if options.quick else 7)
    for name, row in rows.items():
        low, high = row["quartiles_us"]
        print(f"{name:44s} {row['median_us']:9.3f} us  ({low:.3f} to {high:.3f})")
    result = {"cost": rows}
    path = peers.result("monitor", options)
    if path.exists():
        result = {"day": json.loads(path.read_text()).get("day")} | result
    if options.day:
        result["day"] = day()
        print(f"a day: {result['day']}")
    peers.save("monitor", result, options)


if __name__ == "__main__":
    main()

"""How many labels does it take to notice that calibration changed, at the same rate of false alarms?

    CALIB_SERVE_DATA=... python benchmarks/detectors.py [--streams 300]

First with a tolerance of one point: its promised run length, 10,000, holds at the tolerance's edges,
where accuracy is one point above, or below, confidence in every prediction. Its run length is measured
there, and every rival gets the threshold at which its own, on the same streams (half at each edge), is the
same. Then with tolerance 0, on calibrated streams. Streams change after 2,000 to 2,500 calibrated labels;
every detector watches both directions.

Writes benchmarks/results/detectors.json. Runs in the environment of requirements-watch.txt: numba compiles,
river is a rival.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import peers  # noqa: E402

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peers.rerun_in("requirements-watch.txt")

import drift_streams as streams  # noqa: E402
import drift_twin  # noqa: E402
import numpy as np  # noqa: E402
from drift_rivals import ABSENT, RIVALS  # noqa: E402
from goals import ONE_POINT  # noqa: E402

from calib_serve.monitor import Detector  # noqa: E402

ARL = 10_000
LENGTH = 6 * ARL  # of a null stream, after which it counts as watched so long
OURS = "this detector"
POWER = ("baseball", "drawn")


def null(kind, seed, tolerance):
    """Half of the streams at each edge of the tolerance."""
    return streams.null(kind, seed, LENGTH, gap=tolerance if seed % 2 else -tolerance)


def ours(c, y, classes, tolerance):
    return drift_twin.run(c, y, classes, tolerance=tolerance, arl=float(ARL))[0]


def mean_run(firsts):
    """Labels watched per false alarm, streams without one included, and its standard error."""
    alarms = max(np.count_nonzero(firsts), 1)
    mean = float(np.where(firsts, firsts, LENGTH).sum() / alarms)
    return mean, mean / alarms**0.5


def run_length(kind, tolerance, gap, count):
    """Of our detector, on streams with one gap."""
    firsts = np.array([ours(*streams.null(kind, s, LENGTH, gap=gap), tolerance) for s in range(count)])
    mean, error = mean_run(firsts)
    return {
        "streams": kind,
        "tolerance": tolerance,
        "gap": gap,
        "promised": ARL,
        "measured": mean,
        "standard_error": error,
    }


def threshold_for(target, method, thresholds, kind, tolerance, count):
    """Where the measured run length is the target, by interpolation; None beyond the thresholds tried."""
    taken = (null(kind, s, tolerance)[:2] for s in range(count))
    firsts = np.array([method(c, y, thresholds) for c, y in taken])
    lengths = np.maximum.accumulate([mean_run(column)[0] for column in firsts.T])
    if not lengths[0] <= target <= lengths[-1]:
        return None
    return float(np.exp(np.interp(np.log(target), np.log(lengths), np.log(thresholds))))


def delays(first, kind, shift, count):
    """Median labels from the change to the alarm, and its quartiles; an alarm before it is a false one."""
    found = []
    for seed in range(count):
        (c, y, classes), before = streams.changed(kind, seed, shift)
        label = first(c, y, classes)
        if label == 0 or label > before:
            found.append(label - before if label else np.inf)
    quartiles = np.quantile(found, [0.25, 0.5, 0.75], method="nearest")
    low, median, high = (int(q) if np.isfinite(q) else None for q in quartiles)
    return {"median": median, "quartiles": [low, high], "streams": len(found)}


def setting(kind, tolerance, count):
    """All detectors on one kind of streams at one tolerance."""
    firsts = np.array([ours(*null(kind, s, tolerance), tolerance) for s in range(count)])
    target = mean_run(firsts)[0]

    def mine(c, y, classes):
        return ours(c, y, classes, tolerance)

    rows = {OURS: {"threshold": ARL, "delays": {s: delays(mine, kind, s, count) for s in streams.SHIFTED}}}
    for name, (method, thresholds, share) in RIVALS.items():
        threshold = threshold_for(target, method, thresholds, kind, tolerance, int(share * count))
        rows[name] = None
        if threshold is not None:
            rows[name] = {
                "threshold": threshold,
                "delays": {
                    s: delays(
                        lambda c, y, _, f=method, t=threshold: f(c, y, np.array([t]))[0], kind, s, count
                    )
                    for s in streams.SHIFTED
                },
            }
    within = [s for s in streams.SHIFTED if not streams.beyond(kind, s, tolerance)]
    return {"tolerance": tolerance, "streams": kind, "run_length": target, "within": within, "rows": rows}


def check_twin():
    """The compiled twin and the detector in the package are one: same alarm, same evidence."""
    for seed in range(3):
        (c, y, classes), _ = streams.changed("drawn", seed, "5 points, cancelling over classes")
        c, y, classes = c[:6_000], y[:6_000], classes[:6_000]
        alarm = Detector(arl=ARL, tolerance=ONE_POINT).update(c, y, predicted=classes)[0]
        label, evidence = drift_twin.run(c, y, classes, tolerance=ONE_POINT, arl=float(ARL))
        assert alarm.label == label, "the twin has drifted from the package"
        assert abs(alarm.evidence / evidence - 1) < 1e-9, "the twin has drifted from the package"


def show(result):
    for one in result["settings"]:
        print(
            f"\n{one['streams']}, tolerance {one['tolerance']:g}: median labels to the alarm, all with an "
            f"average run length of {one['run_length']:,.0f}"
        )
        print(f"{'':34s}" + "".join(f"{s.replace('cancelling over', 'c.'):>24s}" for s in streams.SHIFTED))
        for name, row in one["rows"].items():
            cells = [row["delays"][s]["median"] if row else "not reached" for s in streams.SHIFTED]
            print(f"{name:34s}" + "".join(f"{'never' if c is None else c:>24}" for c in cells))
    print(f"\naverage run length measured over {ARL:,} promised")
    for one in result["run_lengths"]:
        ratio, error = (one[key] / one["promised"] for key in ("measured", "standard_error"))
        where = f"{one['streams']:>12s}, tolerance {one['tolerance']:g}, gap {one['gap']:+g}"
        print(f"{where}: {ratio:.2f} ± {error:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=300, help="of each kind")
    options = peers.arguments(parser, streams=40)
    count = options.streams
    check_twin()
    result = {"streams": count, "arl": ARL, "absent": ABSENT, "settings": [], "run_lengths": []}
    for tolerance in (ONE_POINT, 0.0):
        for kind in streams.KINDS:
            began = time.perf_counter()
            for gap in (tolerance, -tolerance, 0.0) if tolerance else (0.0,):
                result["run_lengths"].append(run_length(kind, tolerance, gap, count))
            if kind in POWER:
                result["settings"].append(setting(kind, tolerance, count))
            print(f"{kind}, {tolerance:g}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    show(result)
    peers.save("detectors", result, options)


if __name__ == "__main__":
    main()

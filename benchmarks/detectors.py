"""How many labels does it take to notice that calibration changed, at the same rate of false alarms?

    python benchmarks/detectors.py [--quick]

Confidences are 1 - 0.75 Beta(1, 4); after 2,000 calibrated labels accuracy falls 2, 5 or 10 points
below confidence, or 5 points below in every other bin and above in the rest so that the sum cancels.
Every detector watches both directions, is untuned to the size unless its name says so, and gets
the threshold at which its own average run length, measured on calibrated streams, is the target.

Writes benchmarks/results/detectors.json. Runs in the environment of requirements-watch.txt: numba compiles,
river is the rival.
"""

from __future__ import annotations

import argparse
import json
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

import numba  # noqa: E402
import numpy as np  # noqa: E402
from river import drift as river_drift  # noqa: E402

from calib_serve.watch import drift as ours  # noqa: E402
from calib_serve.watch.drift import bets, bin_bets, wealth  # noqa: E402

BINS = 15
BEFORE = 2_000
TARGETS = (10_000, 100_000)
SHIFTED = {"2 points": 30_000, "5 points": 4_000, "10 points": 2_000, "5 points, cancelling": 30_000}
ANCHORS = {  # what was measured before for others, in the order of SHIFTED
    10_000: {"CUSUM tuned": (998, 300, 114, 3_433), "ECE of 500": (2_000, 500, 500, 500)},
    100_000: {"CUSUM tuned": (1_968, 498, 187, None), "ECE of 500": (4_000, 1_000, 500, 1_000)},
}


def confidences(rng, shape):
    return 1 - 0.75 * rng.beta(1, 4, shape)


def _cancelling_scale():
    """How much the bins that fall must fall so that the mean gap is 0: those that rise stop at 1."""
    c = confidences(np.random.default_rng(99), 1_000_000)
    rises = (np.ceil(c * BINS).astype(int) - 1) % 2 == 0
    return float((np.minimum(c + 0.05, 1) - c)[rises].sum() / (0.05 * (~rises).sum()))


SCALE = _cancelling_scale()


def accuracy(c, shift):
    if shift == "none":
        return c
    if shift != "5 points, cancelling":
        return c - float(shift.split()[0]) / 100
    rises = (np.ceil(c * BINS).astype(int) - 1) % 2 == 0
    return np.where(rises, np.minimum(c + 0.05, 1), c - 0.05 * SCALE)


def stream(seed, length, shift="none"):
    rng = np.random.default_rng(seed)
    c = confidences(rng, length)
    p = c.copy()
    if shift != "none":
        p[BEFORE:] = accuracy(c[BEFORE:], shift)
    return c, (rng.random(length) < p).astype(np.float64)


@numba.njit(cache=True)
def _crossings(evidence, thresholds, out, label):
    k = len(thresholds) - 1
    while k >= 0 and evidence < thresholds[k]:
        k -= 1
    while k >= 0 and out[k] == 0:
        out[k] = label
        k -= 1


@numba.njit(cache=True)
def e_detector(pays, index, thresholds, prior, signed_share, spacing, thin, bins):
    """The detector of ``calib_serve.watch.drift``, compiled; its first crossing of each threshold."""
    n, bets_ = pays.shape
    sizes, most = bets_ // 2, 256
    out = np.zeros(len(thresholds), np.int64)
    signed = np.zeros(bets_)
    starts, count = np.zeros(most, np.int64), 0
    capital, belief = np.zeros((most, sizes)), np.zeros((most, bins, 3, sizes))
    last_evidence = 0.0
    for i in range(n):
        label = i + 1
        for k in range(bets_):
            signed[k] = (signed[k] + 1) * pays[i, k]
        if i % spacing == 0:
            last = starts[count - 1] if count else label - 1
            starts[count] = label
            for k in range(sizes):
                capital[count, k] = (label - last) / sizes
                for b in range(bins):
                    for d in range(3):
                        belief[count, b, d, k] = prior[d]
            count += 1
            kept = 1
            for j in range(1, count):
                if j < count - 1 and label + spacing - starts[kept - 1] <= thin * (
                    label + spacing - starts[j + 1]
                ):
                    capital[j + 1] += capital[j]
                else:
                    if kept != j:
                        starts[kept], capital[kept], belief[kept] = starts[j], capital[j], belief[j]
                    kept += 1
            count = kept
        b = index[i]
        total = 0.0
        for j in range(count):
            for k in range(sizes):
                over = belief[j, b, 1, k] * pays[i, k]
                under = belief[j, b, 2, k] * pays[i, sizes + k]
                growth = belief[j, b, 0, k] + over + under
                belief[j, b, 0, k] /= growth
                belief[j, b, 1, k] = over / growth
                belief[j, b, 2, k] = under / growth
                capital[j, k] *= growth
                total += capital[j, k]
        last_evidence = signed_share * signed.mean() + (1 - signed_share) * total
        if last_evidence >= thresholds[0]:
            _crossings(last_evidence, thresholds, out, label)
            if out[-1]:
                break
    return out, last_evidence


def run_ours(c, y, thresholds, tolerance=0.0):
    pays = bets.payoffs(c, y, tolerance=tolerance)
    index = np.minimum(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], c), BINS - 1)
    args = (bin_bets.PRIOR, wealth.SIGNED, bin_bets.SPACING, bin_bets.THIN, BINS)
    return e_detector(pays, index, np.asarray(thresholds, np.float64), *args)[0]


@numba.njit(cache=True)
def _cusum(x, k, thresholds):
    out = np.zeros(len(thresholds), np.int64)
    up = down = 0.0
    for i in range(len(x)):
        up, down = max(0.0, up + x[i] - k), max(0.0, down - x[i] - k)
        _crossings(max(up, down), thresholds, out, i + 1)
        if out[-1]:
            break
    return out


@numba.njit(cache=True)
def _page_hinkley(x, delta, thresholds):
    """As river 0.26 computes it, both directions, alpha = 0.9999."""
    out = np.zeros(len(thresholds), np.int64)
    mean = up = down = 0.0
    low = high = 0.0
    for i in range(len(x)):
        mean += (x[i] - mean) / (i + 1)
        up = 0.9999 * up + x[i] - mean - delta
        down = 0.9999 * down + x[i] - mean + delta
        low, high = min(low, up), max(high, down)
        if i >= 30:
            _crossings(max(up - low, high - down), thresholds, out, i + 1)
            if out[-1]:
                break
    return out


@numba.njit(cache=True)
def _ece_window(c, y, index, size, thresholds, bins):
    out = np.zeros(len(thresholds), np.int64)
    gaps = np.zeros(bins)
    for i in range(len(c)):
        gaps[index[i]] += c[i] - y[i]
        if (i + 1) % size == 0:
            _crossings(np.abs(gaps).sum() / size, thresholds, out, i + 1)
            gaps[:] = 0.0
            if out[-1]:
                break
    return out


def _first(detector, values):
    for i, value in enumerate(values.tolist()):
        detector.update(value)
        if detector.drift_detected:
            return i + 1
    return 0


def _adwin(c, y, deltas):
    return np.array([_first(river_drift.ADWIN(delta=d), c - y) for d in deltas])


@numba.njit(cache=True)
def _kswin(x, seed, thresholds):
    """As river 0.26 does it (window 100, the last 30 against 30 drawn from the rest), compiled.

    Its p-value falls as the Kolmogorov-Smirnov statistic rises, so the statistic is thresholded.
    """
    np.random.seed(seed)
    out = np.zeros(len(thresholds), np.int64)
    for i in range(99, len(x)):
        recent = np.sort(x[i - 29 : i + 1])
        older = np.sort(np.random.permutation(x[i - 99 : i - 29])[:30])
        a = b = 0
        most = 0
        while a < 30 and b < 30:
            value = min(recent[a], older[b])
            while a < 30 and recent[a] <= value:
                a += 1
            while b < 30 and older[b] <= value:
                b += 1
            most = max(most, abs(a - b))
        _crossings(most / 30, thresholds, out, i + 1)
        if out[-1]:
            break
    return out


def _index(c):
    return np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], c)


# name: (first crossings of rising strictness, thresholds from loose to strict, share of null streams)
METHODS = {
    "e-detector (ours)": (run_ours, np.geomspace(3e3, 1.2e5, 40), 1.0),
    "CUSUM k=.025 (tuned to 5 points)": (
        lambda c, y, t: _cusum(c - y, 0.025, t),
        np.linspace(3, 30, 109),
        1.0,
    ),
    "CUSUM k=.01 (tuned to 2 points)": (lambda c, y, t: _cusum(c - y, 0.01, t), np.linspace(4, 60, 113), 1.0),
    "CUSUM k=.05 (tuned to 10 points)": (lambda c, y, t: _cusum(c - y, 0.05, t), np.linspace(2, 20, 91), 1.0),
    "Page-Hinkley d=.025": (lambda c, y, t: _page_hinkley(c - y, 0.025, t), np.linspace(3, 60, 115), 1.0),
    "ECE of 500 labels": (
        lambda c, y, t: _ece_window(c, y, _index(c), 500, t, BINS),
        np.linspace(0.04, 0.12, 161),
        1.0,
    ),
    "ECE of 2000 labels": (
        lambda c, y, t: _ece_window(c, y, _index(c), 2000, t, BINS),
        np.linspace(0.015, 0.06, 181),
        1.0,
    ),
    "ADWIN (river)": (_adwin, np.geomspace(0.9, 1e-3, 7), 0.25),
    "KSWIN, as in river": (
        lambda c, y, t: _kswin(c - y, int(c[0] * 1e9), t),
        np.arange(13, 26) / 30 - 0.01,
        0.08,
    ),
}


def run_lengths(method, thresholds, streams, length):
    """Average run length at each threshold: labels watched per false alarm, censored streams included."""
    firsts = np.array([method(*stream(10_000 + s, length), thresholds) for s in range(streams)])
    watched = np.where(firsts > 0, firsts, length).sum(axis=0)
    return watched / np.maximum((firsts > 0).sum(axis=0), 0.5), (firsts > 0).sum(axis=0)


def threshold_for(target, thresholds, lengths):
    """Where the measured run length is the target, by interpolation; None beyond the range."""
    rising = np.maximum.accumulate(lengths)
    if not rising[0] <= target <= rising[-1]:
        return None
    return float(np.exp(np.interp(np.log(target), np.log(rising), np.log(thresholds))))


def delays(method, threshold, shift, streams):
    """Median labels from the change to the alarm, its quartiles, and the share of streams in time."""
    found = []
    for s in range(streams):
        first = method(*stream(50_000 + s, BEFORE + SHIFTED[shift], shift), np.array([threshold]))[0]
        if first == 0 or first > BEFORE:  # an alarm before the change is a false one
            found.append(first - BEFORE if first else np.inf)
    low, median, high = np.quantile(found, [0.25, 0.5, 0.75], method="nearest")
    return {"median": _finite(median), "quartiles": [_finite(low), _finite(high)], "streams": len(found)}


def _finite(value):
    return int(value) if np.isfinite(value) else None


def check_twin():
    """The compiled twin and the detector in the package are one: same alarm, same evidence."""
    for seed in range(3):
        c, y = stream(seed, 4_000, "5 points")
        detector = ours.Detector(arl=10_000, tolerance=0.0)
        alarms = detector.update(c, y)
        assert alarms[0].label == run_ours(c, y, [10_000.0])[0], "the twin has drifted from the package"


def guarantee(streams, target):
    """Run lengths at the threshold that theory asks for, which is the run length itself."""
    lengths = []
    for s in range(streams):
        c, y = stream(90_000 + s, 20 * target)
        first = run_ours(c, y, [float(target)])[0]
        lengths.append(first or 20 * target)
    mean, error = float(np.mean(lengths)), float(np.std(lengths) / np.sqrt(streams))
    return {"streams": streams, "threshold": target, "mean_run_length": mean, "standard_error": error}


def measure(quick, only):
    null, length = (40, 120_000) if quick else (120, 400_000)
    shifts = 60 if quick else 200
    table = {str(t): {} for t in TARGETS}
    for name, (method, thresholds, share) in METHODS.items():
        if only and not any(word in name for word in only):
            continue
        began = time.perf_counter()
        slow = share < 1
        lengths, alarms = run_lengths(method, thresholds, max(int(null * share), 8), length)
        for target in TARGETS:
            threshold = threshold_for(target, thresholds, lengths)
            if threshold is None:
                table[str(target)][name] = None
                continue
            row = {
                shift: delays(method, threshold, shift, max(int(shifts * share), 10) if slow else shifts)
                for shift in SHIFTED
            }
            table[str(target)][name] = {"threshold": threshold, "delays": row}
        print(f"{name}: {time.perf_counter() - began:.0f} s, {alarms.max()} false alarms", file=sys.stderr)
    return table


def show(table):
    for target, rows in table.items():
        print(f"\nmedian delay in labels at a measured average run length of {int(target):,}")
        print(f"{'':36s}" + "".join(f"{s:>22s}" for s in SHIFTED))
        for name, row in rows.items():
            cells = [row["delays"][s]["median"] if row else "not reached" for s in SHIFTED]
            print(f"{name:36s}" + "".join(f"{'never' if c is None else c:>22}" for c in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="words of the names to measure again")
    options = peers.arguments(parser)
    quick = options.quick
    check_twin()
    table = measure(quick, options.only)
    show(table)
    if options.only:
        path = peers.result("detectors", options)
        kept = json.loads(path.read_text()) if path.exists() else {"delays": {t: {} for t in table}}
        for target, rows in table.items():
            kept["delays"][target].update(rows)
        peers.save("detectors", kept, options)
        return
    promised = [guarantee(100 if quick else 1_000, 10_000), guarantee(20 if quick else 100, 100_000)]
    for row in promised:
        print(
            f"threshold {row['threshold']:,}: mean run length {row['mean_run_length']:,.0f} "
            f"± {row['standard_error']:,.0f} over {row['streams']:,} calibrated streams"
        )
    result = {
        "quick": quick,
        "delays": table,
        "guarantee": promised,
        "anchors": {str(k): v for k, v in ANCHORS.items()},
    }
    peers.save("detectors", result, options)


if __name__ == "__main__":
    main()

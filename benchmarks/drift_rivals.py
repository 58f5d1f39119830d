"""Rival detectors of a change in calibration: each gives its first crossing of each of rising thresholds."""

from __future__ import annotations

import numba
import numpy as np
import peers

from calib_serve.core.bins import bin_index

BINS = 15
ABSENT = peers.absent("requirements-watch.txt")
river_drift = peers.imported("river.drift", "river", ABSENT)


@numba.njit(cache=True)
def _crossings(statistic, thresholds, out, label):
    k = len(thresholds) - 1
    while k >= 0 and statistic < thresholds[k]:
        k -= 1
    while k >= 0 and out[k] == 0:
        out[k] = label
        k -= 1


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
def _ece_window(c, y, index, size, thresholds):
    out = np.zeros(len(thresholds), np.int64)
    gaps = np.zeros(BINS)
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


def cusum(k):
    return lambda c, y, t: _cusum(c - y, k, t)


def page_hinkley(delta):
    return lambda c, y, t: _page_hinkley(c - y, delta, t)


def ece(size):
    return lambda c, y, t: _ece_window(c, y, bin_index(c, bins=BINS), size, t)


# name: (first crossings, thresholds from loose to strict, share of the null streams: the slow get fewer)
RIVALS = {
    "CUSUM k=.01 (tuned to 2 points)": (cusum(0.01), np.geomspace(4, 120, 140), 1.0),
    "CUSUM k=.025 (tuned to 5 points)": (cusum(0.025), np.geomspace(3, 80, 140), 1.0),
    "CUSUM k=.05 (tuned to 10 points)": (cusum(0.05), np.geomspace(2, 60, 140), 1.0),
    "Page-Hinkley d=.005": (page_hinkley(0.005), np.geomspace(3, 200, 140), 1.0),
    "Page-Hinkley d=.025": (page_hinkley(0.025), np.geomspace(3, 120, 140), 1.0),
    "ECE of 500 labels": (ece(500), np.geomspace(0.03, 0.2, 160), 1.0),
    "ECE of 2000 labels": (ece(2000), np.geomspace(0.01, 0.1, 160), 1.0),
    "ADWIN (river)": (_adwin, np.geomspace(0.9, 1e-3, 6), 0.3),
}
if river_drift is None:
    del RIVALS["ADWIN (river)"]

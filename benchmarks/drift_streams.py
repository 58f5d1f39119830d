"""Streams of labelled predictions with known truth: confidences like real ones, outcomes drawn from them.

The forecasts' own outcomes are not used: with drawn ones it is known when calibration holds, and when it
changes.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import numpy as np

from calib_serve.core.bins import bin_index

BINS = 15
KINDS = ("baseball", "electricity", "employment", "drawn")
_FILES = {
    "baseball": "538_mlb_games",  # the winner's probability: .5 to .81
    "electricity": "elec2_frozen_gb",
    "employment": "acs_employment_ma",
}
CLASSES = {"baseball": 2, "electricity": 2, "employment": 2, "drawn": 10}
BEFORE = (2_000, 2_500)  # calibrated labels before a change: drawn, so that no window begins with it
SHIFTED = {  # what changes: how many labels after it are looked at
    "2 points": 40_000,
    "5 points": 15_000,
    "10 points": 6_000,
    "5 % of labels flipped": 40_000,
    "5 points, cancelling over bins": 30_000,
    "5 points, cancelling over classes": 30_000,
}


@functools.cache
def _real(kind):
    folder = os.environ.get("CALIB_SERVE_DATA")
    if not folder:
        sys.exit("CALIB_SERVE_DATA is not set: it names the folder of real data")
    p = np.load(Path(folder) / "streams" / f"{_FILES[kind]}.npz")["prob1"].astype(np.float64)
    return np.maximum(p, 1 - p)


def confidences(kind, rng, n):
    """Top-1 confidences (n,): drawn with replacement from the real ones, or 1 - 0.75 Beta(1, 4)."""
    if kind == "drawn":
        return 1 - 0.75 * rng.beta(1, 4, n)
    return _real(kind)[rng.integers(0, len(_real(kind)), n)]


@functools.cache
def _scale(kind, shift):
    """How much less than 5 points the rest falls, so that the mean gap is 0 where what rises stops at 1."""
    rng = np.random.default_rng(99)
    c, classes = confidences(kind, rng, 1_000_000), rng.integers(0, CLASSES[kind], 1_000_000)
    rises = _rising(c, classes, shift)
    return float((np.minimum(c + 0.05, 1) - c)[rises].sum() / (0.05 * (~rises).sum()))


def _rising(c, classes, shift):
    return (bin_index(c, bins=BINS) if shift.endswith("bins") else classes) % 2 == 0


def accuracy(kind, c, classes, shift):
    """The chance (n,) that each prediction is right after the change."""
    if shift == "5 % of labels flipped":
        return 0.95 * c + 0.05 * (1 - c) / (CLASSES[kind] - 1)
    if "cancelling" in shift:
        scale, rises = _scale(kind, shift), _rising(c, classes, shift)
        up = c + (np.minimum(c + 0.05, 1) - c) / max(scale, 1)
        return np.where(rises, up, c - 0.05 * min(scale, 1))
    return c - float(shift.split()[0]) / 100


def beyond(kind, shift, tolerance):
    """Whether the change leaves the tolerance at all, in the mean over predictions."""
    rng = np.random.default_rng(98)
    c, classes = confidences(kind, rng, 100_000), rng.integers(0, CLASSES[kind], 100_000)
    return float(np.abs(c - accuracy(kind, c, classes, shift)).mean()) > tolerance


def null(kind, seed, length, *, gap):
    """Confidences, outcomes and classes (n,), with accuracy ``gap`` below confidence in every prediction."""
    rng = np.random.default_rng([1, seed])
    c, classes = confidences(kind, rng, length), rng.integers(0, CLASSES[kind], length)
    return c, (rng.random(length) < np.clip(c - gap, 0, 1)).astype(np.float64), classes


def changed(kind, seed, shift):
    """A stream like those of ``null`` without a gap, and the label after which it changes."""
    rng = np.random.default_rng([2, seed])
    before = int(rng.integers(*BEFORE))
    length = before + SHIFTED[shift]
    c, classes = confidences(kind, rng, length), rng.integers(0, CLASSES[kind], length)
    p = np.where(np.arange(length) < before, c, accuracy(kind, c, classes, shift))
    return (c, (rng.random(length) < p).astype(np.float64), classes), before

"""Whether a calibration error is more than chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.bins import Bins, Edges, bin_index
from calib_serve.metrics.grouped import group_codes

__all__ = ["CalibrationTest", "calibration_test"]

_BLOCK = 1 << 21  # simulated labels held at once


@dataclass(frozen=True)
class CalibrationTest:
    """Whether an ECE is more than chance.

    ``expected`` and ``critical`` are the mean and the 95 % quantile of the ECE of a calibrated model
    with the same confidences; ``p`` is how often it shows this ``ece`` or more.
    """

    ece: float
    expected: float
    critical: float
    p: float


def calibration_test(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 1000,
    seed: int = 0,
    groups: ArrayLike | None = None,
) -> CalibrationTest:
    """Test of calibration by consistency resampling (Vaicenavicius 2019, section 5).

    Labels are drawn ``replicates`` times so that every confidence (n,) is true. ``groups`` (n,) say which
    samples belong together: then the errors of each group change their signs together, at random, which
    leaves them their dependence and takes the miscalibration (the wild bootstrap of Cameron, Gelbach and
    Miller 2008).
    """
    c = as_floats(confidence, "confidence")
    codes = group_codes(groups, len(c))
    if codes is not None:
        y = as_floats(correct, "correct")
        return _of_groups(c, y, codes, bins=bins, edges=edges, replicates=replicates, seed=seed)
    ece = Bins.tally(c, correct, bins=bins, edges=edges).ece()
    order = np.argsort(c, kind="stable")
    c = np.minimum(c[order], 1)
    sums = Bins.tally(c, np.zeros(len(c)), bins=bins, edges=edges)
    starts = np.concatenate([[0], np.cumsum(sums.count)])[:-1].astype(np.intp)[sums.count > 0]
    confident = sums.confidence[sums.count > 0]
    rng = np.random.default_rng(seed)
    drawn: list[NDArray[np.float64]] = []
    step = max(1, _BLOCK // len(c))
    for first in range(0, replicates, step):
        labels = rng.random((min(step, replicates - first), len(c)), np.float32) < c
        right = np.add.reduceat(labels, starts, axis=1, dtype=np.float64)
        drawn.append(np.abs(right - confident).sum(axis=1) / len(c))
    return _tested(ece, np.concatenate(drawn))


def _of_groups(
    c: NDArray[np.float64],
    correct: NDArray[np.float64],
    codes: NDArray[np.intp],
    *,
    bins: int,
    edges: Edges,
    replicates: int,
    seed: int,
) -> CalibrationTest:
    ece = Bins.tally(c, correct, bins=bins, edges=edges).ece()
    groups = int(codes.max()) + 1
    cell = codes * bins + bin_index(np.minimum(c, 1), bins=bins, edges=edges)
    gaps = np.bincount(cell, weights=c - correct, minlength=groups * bins).reshape(groups, bins)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(replicates, groups))
    return _tested(ece, np.abs(signs @ gaps).sum(axis=1) / len(c))


def _tested(ece: float, null: NDArray[np.float64]) -> CalibrationTest:
    # Equal sums may differ in their last bits.
    p = (1 + float((null >= ece - 1e-12).sum())) / (1 + len(null))
    return CalibrationTest(ece, float(null.mean()), float(np.quantile(null, 0.95)), p)

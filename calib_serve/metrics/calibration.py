"""How far confidence is from accuracy: calibration errors of the predicted class."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.bins import Bins, Edges
from calib_serve.errors import InputError
from calib_serve.metrics.equal_mass import Ranked
from calib_serve.metrics.samples import checked, top_label

__all__ = [
    "Split",
    "accuracy",
    "ace",
    "adaptive_ece",
    "ece",
    "mce",
    "mean_confidence",
    "noise_floor",
    "overconfidence_error",
    "rms",
    "rms_debiased",
    "signed_gap",
    "sweep_ece",
    "underconfidence_error",
]


Split = Literal["equal", "interpolated", "quantile"]
"""How equal-mass bins split the ranked confidences."""


def _bins(probs: ArrayLike, labels: ArrayLike, bins: int, edges: Edges) -> Bins:
    confidence, correct = top_label(probs, labels)
    return Bins.tally(confidence, correct, bins=bins, edges=edges)


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Share of predictions that are right; ties go to the lowest class id.

    >>> accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """
    p, y = checked(probs, labels)
    return float((p.argmax(axis=1) == y).mean())


def mean_confidence(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean top-1 confidence."""
    return float(top_label(probs, labels)[0].mean())


def signed_gap(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean confidence minus accuracy: positive when overconfident.

    >>> round(signed_gap([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 12)
    0.15
    """
    confidence, correct = top_label(probs, labels)
    return float((confidence - correct).mean())


def ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Expected calibration error over equal-width bins (Naeini 2015; Guo 2017, eq. 3).

    >>> ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10)  # (|0.7 - 1| + |0.6 - 0|) / 2
    0.45
    """
    return _bins(probs, labels, bins, edges).ece()


def mce(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Largest gap of a bin that holds a prediction (Guo 2017, eq. 5)."""
    return _bins(probs, labels, bins, edges).mce()


def ace(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Average calibration error: the unweighted mean gap of the bins in use (Neumann 2018)."""
    return _bins(probs, labels, bins, edges).ace()


def overconfidence_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right"
) -> float:
    """Mean over bins of confidence times its excess over accuracy (Thulasidasan 2019, eq. 4)."""
    return _bins(probs, labels, bins, edges).overconfidence_error()


def underconfidence_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right"
) -> float:
    """Mean over bins of confidence times its shortfall below accuracy (see ``overconfidence_error``)."""
    return _bins(probs, labels, bins, edges).underconfidence_error()


def rms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Root mean squared gap over equal-width bins, not debiased: label noise biases it upward."""
    return _bins(probs, labels, bins, edges).l2()


def rms_debiased(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Root of the debiased mean squared gap (Kumar 2019, eq. 8); 0 where noise explains it all."""
    return math.sqrt(max(_bins(probs, labels, bins, edges).debiased_l2_squared(), 0.0))


def noise_floor(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """The ECE that a perfectly calibrated model with these confidences would show on average."""
    return _bins(probs, labels, bins, edges).noise_floor()


def adaptive_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, split: Split = "equal") -> float:
    """Expected calibration error over equal-mass bins: np.array_split of the ranked confidences.

    Tied confidences at a bin's edge share their correct answers evenly. The other values of ``split``
    reproduce other code, and put ties on one side: "interpolated" edges between ranks drop the smallest
    confidences (Mukhoti 2020's code); "quantile" edges are np.quantile's, closed on the left (netcal).
    """
    confidence, correct = top_label(probs, labels)
    if split == "equal":
        return Ranked.of(confidence, correct).ece(bins)
    if split not in ("interpolated", "quantile"):
        raise InputError(f"split must be 'equal', 'interpolated' or 'quantile', got {split!r}")
    n = len(confidence)
    if split == "interpolated":
        cuts = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))
        index = np.searchsorted(cuts, confidence, side="left") - 1
    else:
        cuts = np.quantile(confidence, np.linspace(0, 1, bins + 1))
        index = np.minimum(np.searchsorted(cuts, confidence, side="right") - 1, bins - 1)
    kept = index >= 0
    gaps = np.bincount(index[kept], (confidence - correct)[kept], minlength=bins)
    return float(np.abs(gaps).sum() / n)


def sweep_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """ECE over as many equal-mass bins as keep accuracy rising (Roelofs 2022, alg. 1)."""
    return Ranked.of(*top_label(probs, labels)).sweep_ece()

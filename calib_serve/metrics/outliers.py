"""Out-of-distribution detection by confidence: AUROC, and false positives at 95 % recall."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.refinement import Separation

__all__ = ["fpr95", "ood_auroc"]

Floats = NDArray[np.float64]


def ood_auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """P(score inside > outside) + P(tie) / 2, of scores in (n,) and out of distribution (m,).

    Scores rise with familiarity: confidences, or negated entropies or energies.

    >>> ood_auroc([0.9, 0.8], [0.8, 0.1])  # three pairs won and one tied, of four
    0.875
    """
    a, b = _scores(inside, "inside"), _scores(outside, "outside")
    return float(Separation.of(np.concatenate([a, b]), np.arange(len(a) + len(b)) < len(a)).auroc())


def fpr95(inside: ArrayLike, outside: ArrayLike) -> float:
    """The share of ``outside`` accepted at the threshold that accepts 95 % of ``inside``.

    The threshold is the highest score that at least 95 % of the inside samples reach.

    >>> fpr95([0.9, 0.8], [0.8, 0.1])
    0.5
    """
    a, b = np.sort(_scores(inside, "inside")), _scores(outside, "outside")
    # Integer arithmetic: 0.05 * n as a float may round to the wrong sample.
    threshold = a[len(a) * 5 // 100]
    return float((b >= threshold).mean())


def _scores(values: ArrayLike, name: str) -> Floats:
    scores = as_floats(values, name)
    if scores.ndim != 1 or not len(scores):
        raise ShapeError(f"{name} must be one score per sample, (n,) with n >= 1, got {scores.shape}")
    if np.isnan(scores).any():
        raise InputError(f"{name} holds NaN; a sample without a score cannot be ranked")
    return scores

"""Calibration class by class, the worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, Edges
from calib_serve.errors import ShapeError
from calib_serve.metrics import Estimate, wilson_interval
from calib_serve.metrics.scores import checked

__all__ = ["ClassRow", "class_table"]


@dataclass(frozen=True)
class ClassRow:
    """One class: how often it occurs and is predicted, and how well its predictions are calibrated.

    ``confidence``, ``precision`` and ``gap`` (confidence minus precision, with its interval) are
    of the predictions that name this class, NaN where none does. ``ece`` is of the class's own
    probability over all samples, one term of the classwise ECE.
    """

    name: str
    occurs: int
    predicted: int
    confidence: float
    precision: float
    gap: Estimate
    ece: float

    @property
    def certain_gap(self) -> float:
        """The smallest gap that the interval allows; 0 where it holds 0 or is not known."""
        low, high = self.gap.low, self.gap.high
        return 0.0 if math.isnan(low) or math.isnan(high) else max(low, -high, 0.0)


def class_table(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    class_names: Sequence[str] = (),
    bins: int = 15,
    edges: Edges = "right",
    level: float = 0.95,
) -> tuple[ClassRow, ...]:
    """One row per class of probabilities (n, K) and class ids (n,), by falling certain gap, then ECE.

    So a rare class with a wide interval never outranks a frequent one that is certainly miscalibrated. The
    intervals hold for all K classes at once (Bonferroni).
    """
    p, y = checked(probs, labels)
    names = tuple(class_names) or tuple(str(k) for k in range(p.shape[1]))
    if len(names) != p.shape[1]:
        raise ShapeError(f"{p.shape[1]} classes but {len(names)} class names")
    predicted = p.argmax(axis=1)
    together = 1 - (1 - level) / p.shape[1]
    rows = [
        _row(name, p[:, k], predicted == k, y == k, level=together, bins=bins, edges=edges)
        for k, name in enumerate(names)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.certain_gap, -row.ece)))


def _row(
    name: str,
    probs: NDArray[np.floating[Any]],
    predicted: NDArray[np.bool_],
    occurs: NDArray[np.bool_],
    *,
    level: float,
    **binning: Any,
) -> ClassRow:
    """The row of one class from its probabilities, predictions and occurrences, each (n,)."""
    own = Bins.tally(np.clip(probs, 0, 1), occurs, **binning)
    counts = int(occurs.sum()), int(predicted.sum())
    if not predicted.any():
        return ClassRow(name, *counts, np.nan, np.nan, Estimate(np.nan), own.ece())
    confidence = float(probs[predicted].mean(dtype=np.float64))
    # Wilson's interval keeps its level where a few predictions are all right or all wrong.
    right = wilson_interval(float(occurs[predicted].sum()), counts[1], level=level)
    gap = Estimate(confidence - right.value, confidence - right.high, confidence - right.low)
    return ClassRow(name, *counts, confidence, right.value, gap, own.ece())

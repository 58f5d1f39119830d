"""What holds for all served predictions, whatever the outcomes are that nobody has seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.watch.ledger.sums import Sums

__all__ = ["Bounds", "bounds_of_covered", "bounds_of_labelled"]

_WIDE = 0.5  # bounds wider than this say nothing of use


@dataclass(frozen=True)
class Bounds:
    """Where accuracy and gap of all served predictions lie, whatever the unseen outcomes are (Manski 1989).

    ``unseen``: the share of predictions whose outcomes are put at all wrong and at all right.
    """

    accuracy: tuple[float, float]
    gap: tuple[float, float]
    unseen: float

    @property
    def useful(self) -> bool:
        """Whether they exclude at least half of what accuracy could be."""
        return self.accuracy[1] - self.accuracy[0] <= _WIDE

    @property
    def says(self) -> str:
        """What they tell, in a sentence.

        >>> Bounds((0.8, 0.9), (-0.05, 0.05), unseen=0.1).says
        'With the 10 % of predictions not known all wrong, or all right, accuracy is 80.0 or 90.0 %.'
        """
        low, high = (100 * x for x in self.accuracy)
        share = f"{100 * self.unseen:.0f} %"
        if not self.useful:
            return f"Outcomes of {share} of the predictions are not known: accuracy could be nearly anything."
        return (
            f"With the {share} of predictions not known all wrong, or all right, accuracy is "
            f"{low:.1f} or {high:.1f} %."
        )


def bounds_of_covered(accuracy: tuple[float, float], coverage: float, confidence: float) -> Bounds:
    """``accuracy``: the interval of the part that is covered; the rest is all wrong, or all right."""
    low, high = accuracy if coverage else (0.0, 0.0)
    return _bounds(coverage * low, coverage * high + 1 - coverage, confidence, unseen=1 - coverage)


def bounds_of_labelled(sums: Sums, confidence: float) -> Bounds:
    """Every prediction without a label all wrong, or all right: for labels missing for unknown reasons."""
    if not sums.predictions.any():
        return _bounds(0.0, 1.0, confidence, unseen=1.0)
    total = float(np.maximum(sums.predictions, sums.labels).sum())
    weight, squared = sums["calib_feedback_weight_total"], sums["calib_feedback_weight_squared"]
    right, heavy = sums["calib_feedback_correct_total"], sums["calib_feedback_correct_weighted"]
    low = _count(right, heavy) / total
    high = 1 - _count(weight - right, squared - heavy) / total
    return _bounds(low, max(high, low), confidence, unseen=max(1 - float(sums.labels.sum()) / total, 0.0))


def _count(weights: NDArray[np.float64], squares: NDArray[np.float64]) -> float:
    """How many labels have these sums of weights, at least: exact where a bin's are the same (Cauchy)."""
    on = squares > 1e-9
    return float((weights[on] ** 2 / squares[on]).sum())


def _bounds(low: float, high: float, confidence: float, *, unseen: float) -> Bounds:
    return Bounds((low, high), (confidence - high, confidence - low), unseen)

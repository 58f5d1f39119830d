"""How many samples prove a calibrated model to be within the tolerance: one answer, wherever it is asked."""

from __future__ import annotations

import math

import numpy as np

from calib_serve.judgement.gaps import RISK, Cells, judged_alone
from calib_serve.metrics.intervals import equivalence_power

__all__ = ["samples_needed"]

_STEPS = 40
_ROUNDED = 1.1  # what is said is rounded up


def samples_needed(
    n: float,
    cells: Cells,
    tolerance: float,
    *,
    classes: Cells | None = None,
    of_class: float = 1.0,
    power: float = 0.8,
) -> int:
    """So many samples like these ``n``, after which ``judge`` says "calibrated" with this power, if it is.

    The mean absolute gap over ``cells`` must be proven to be below the ``tolerance``; of ``classes``, a cell
    for the predictions of each, that of those which so many samples make it judge alone, below ``of_class``.
    """
    distance = cells.distance(tolerance)
    of_each = np.empty(0) if classes is None else classes.distances(of_class)

    def fails(times: float) -> float:
        wrong = 1 - float(equivalence_power(distance * times, len(cells.count), risk=RISK))
        if classes is not None:
            alone = judged_alone(classes.count * times * _ROUNDED, n * times * _ROUNDED)
            wrong += float((1 - equivalence_power(of_each[alone] * times, 1, risk=RISK)).sum())
        return wrong

    low, high = 0.0, 1.0
    while fails(high) > 1 - power:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fails(middle) > 1 - power else (low, middle)
    return math.ceil(n * high)

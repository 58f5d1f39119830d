"""How many samples prove a calibrated model to be within the tolerance: one answer, wherever it is asked."""

from __future__ import annotations

import math

from calib_serve.judgement.cells import RISK, Cells
from calib_serve.judgement.classes import judged_alone
from calib_serve.metrics.tails import detectable_distance

__all__ = ["samples_needed"]

_ROUNDS = 20


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
    Half of what may go wrong goes wrong of the first, half of some class.
    """
    wrong = (1 - power) / 2
    found = n * cells.needed(tolerance, power=1 - wrong)
    if classes is None:
        return math.ceil(found)
    distances = classes.distances(of_class)
    for _ in range(_ROUNDS):  # more samples make it judge more classes, which may need more samples
        alone = judged_alone(classes.count * found / n, found)
        if not alone.any():
            break
        distance = detectable_distance(1, risk=RISK, power=1 - wrong / int(alone.sum()))
        more = n * float((distance / distances[alone]).max())
        if more <= found:
            break
        found = more
    return math.ceil(found)

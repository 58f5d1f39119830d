"""The verdict of a multi-label model: by the mean over the labels, and by each label alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import ShapeError
from calib_serve.judgement.cells import Cells, equal_mass, finest
from calib_serve.judgement.conclude import Line, conclude, direction
from calib_serve.judgement.verdict import Tested, Verdict
from calib_serve.judgement.words import percent, points
from calib_serve.metrics.labels import checked_label_probs, decisions

__all__ = ["judge_labels"]

Floats = NDArray[np.float64]


def judge_labels(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    tolerance: float,
    class_tolerance: float,
    label_names: Sequence[str] = (),
) -> Verdict:
    """Whether probabilities of labels (n, L) are calibrated against whether each is true (n, L), 0 or 1.

    The mean absolute gap of P(label), over cells of each label, must be below the ``tolerance``, and each
    label's own below ``class_tolerance``. Labels of a sample move together: each sample is a group.
    """
    given, y = checked_label_probs(probs, labels)
    p = np.asarray(given, np.float64)
    names = tuple(label_names) or tuple(str(k) for k in range(p.shape[1]))
    if len(names) != p.shape[1]:
        raise ShapeError(f"{p.shape[1]} labels but {len(names)} names")
    lines = [_of_all(p, y, tolerance)]
    for k, name in enumerate(names):
        lines.append(_of_label(p[:, k], y[:, k], name, class_tolerance, len(names)))
    return conclude(lines, n=len(p), small=0, kinds=len(names), opening=_opening(p, y))


def _of_all(p: Floats, y: NDArray[np.intp], tolerance: float) -> Line:
    n, labels = p.shape
    samples = np.repeat(np.arange(n), labels) if labels > 1 and n > 1 else None
    cell = np.column_stack([2 * k + equal_mass(p[:, k], 2) for k in range(labels)])
    cells = Cells.of(p.ravel(), y.ravel().astype(np.float64), cell.ravel(), samples)
    tested = Tested("labels", "P(label)", cells.p, cells.error, cells.most, tolerance, required=True)
    said = f"the labels' probabilities are on average {points(cells.error)} off"
    return Line(tested, said, cells.error, cells.needed(tolerance))


def _of_label(p: Floats, came: NDArray[np.intp], name: str, tolerance: float, labels: int) -> Line:
    true = came.astype(np.float64)
    cells = finest(lambda b: Cells.of(p, true, equal_mass(p, b)), tolerance)
    chance = min(labels * cells.p, 1.0)
    tested = Tested("label", f"P(“{name}”)", chance, cells.error, cells.most, tolerance, required=True)
    way = direction(cells, ("too high", "too low", "too high in some ranges and too low in others"))
    said = f"the probability of label “{name}” is {way}, by {points(cells.error)} on average"
    return replace(Line(tested, said, cells.error), times=cells.needed(tolerance, power=1 - 0.1 / labels))


def _opening(p: Floats, y: NDArray[np.intp]) -> str:
    confidence, right = decisions(p, y)
    return (
        f"Of {len(p):,} samples with {p.shape[1]:,} labels each, {percent(float(right.mean()))} of the "
        f"decisions at 0.5 are right, at a confidence of {percent(float(confidence.mean()))} on average."
    )

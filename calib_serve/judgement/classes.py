"""Class by class: the gaps of the predictions that name a class, and of its probability over all samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.judgement.cells import Cells
from calib_serve.metrics.intervals import chi_square_beyond
from calib_serve.metrics.samples import design_effect, row_blocks
from calib_serve.words import points

__all__ = ["FEW", "ClassGap", "class_gaps", "class_totals", "judged_alone"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

FEW = 500
"""A class with fewer predictions is not judged alone, unless it is one in twenty of all."""
_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class ClassGap:
    """The predictions that name one class, or, with the ``name`` None, all that are not judged alone.

    The gap is the mean of P(y = k) among them less the share that is of class k.
    """

    name: str | None
    cells: Cells

    @property
    def says(self) -> str:
        """Which way it is off, and by how much."""
        gap = float(self.cells.gaps[0])
        way = "overconfident" if gap > 0 else "underconfident"
        who = f"predictions of class “{self.name}”" if self.name is not None else "those of small classes"
        return f"{who} are {way} by {points(gap)}"


def class_gaps(
    probs: Floats,
    right: Floats,
    predicted: Codes,
    names: Sequence[str],
    groups: Codes | None,
    *,
    weight: Floats | None = None,
) -> tuple[list[ClassGap], int]:
    """Each class that is judged alone and the rest as one, and how many classes the rest are.

    ``probs`` (n,) are those of the ``predicted`` class (n,), ``right`` (n,) whether it is true.
    """
    alone = judged_alone(np.bincount(predicted, minlength=len(names)), len(predicted))
    found = []
    for k in np.flatnonzero(alone):
        found.append(ClassGap(names[int(k)], _one(probs, right, predicted == k, groups, weight)))
    rest = ~alone[predicted]
    if rest.sum() >= FEW or rest.sum() >= _SHARE * len(predicted):
        found.append(ClassGap(None, _one(probs, right, rest, groups, weight)))
    return found, int((~alone).sum())


def judged_alone(count: NDArray[Any], n: float) -> NDArray[np.bool_]:
    """Which classes (K,) are judged alone, of ``count`` (K,) predictions of n."""
    return np.asarray((count >= FEW) | (count >= _SHARE * n))


def _one(
    probs: Floats, right: Floats, which: NDArray[np.bool_], groups: Codes | None, weight: Floats | None
) -> Cells:
    inside, w = None, None if weight is None else weight[which]
    if groups is not None:
        inside = np.unique(groups[which], return_inverse=True)[1].ravel()
        # All samples of one group: nothing tells how much they vary; the test is then of one sample.
        if inside.max() < 1:
            one = Cells.of(probs[which], right[which], np.zeros(int(which.sum()), np.intp), weight=w)
            return replace(one, effect=float(which.sum()))
        inside = None if inside.max() + 1 == which.sum() else inside
    return Cells.of(probs[which], right[which], np.zeros(int(which.sum()), np.intp), inside, w)


@dataclass(frozen=True)
class Totals:
    """How often each class is expected and occurs, and the class that stands out most.

    ``p`` is of all classes together (Bonferroni). ``gap`` is of class ``k``: the excess as a share of
    the samples that are of it or predicted to be, or of those expected where they are more; ``most`` the
    upper 95 % bound of its size.
    """

    p: float
    k: int
    expected: float
    occurs: int
    gap: float
    most: float


def class_totals(
    probs: NDArray[np.floating[Any]],
    labels: Codes,
    predicted: Codes,
    groups: Codes | None,
    weight: Floats | None = None,
) -> Totals:
    """Of probabilities (n, K), class ids (n,) and predictions (n,): the sums over all samples."""
    classes = probs.shape[1]
    expected, noise = np.zeros(classes), np.ones(classes)
    w = np.ones(len(labels)) if weight is None else weight
    for rows, block in row_blocks(probs):
        expected += w[rows] @ block
        noise += (w[rows] ** 2) @ (block * (1 - block))
    occurs = np.bincount(labels, w, minlength=classes)
    if groups is not None:
        noise *= [
            design_effect(w * (np.asarray(probs[:, k], np.float64) - (labels == k)), groups)
            for k in range(classes)
        ]
    scores = (expected - occurs) / np.sqrt(noise)
    k = int(np.abs(scores).argmax())
    p = min(classes * chi_square_beyond(float(scores[k] ** 2), 1), 1.0)
    stake = max(float(w[(labels == k) | (predicted == k)].sum()), float(expected[k]), 1.0)
    gap = float(expected[k] - occurs[k]) / stake
    return Totals(
        p, k, float(expected[k]), round(float(occurs[k])), gap, abs(gap) + 1.645 * math.sqrt(noise[k]) / stake
    )

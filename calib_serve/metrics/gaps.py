"""Tests of the gaps between probabilities and events: by cells of samples, and by class."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.text import points
from calib_serve.metrics.distributions import (
    chi_square_below,
    chi_square_beyond,
    chi_square_median,
    detectable_distance,
    student_quantile,
)
from calib_serve.metrics.intervals import quantile_of
from calib_serve.metrics.samples import design_effect, row_blocks

RISK = 0.05
"""How often a bound may fail, and how often some test may accuse a calibrated model."""

FEW = 500
"""A class with fewer predictions is not judged alone, unless it is one in twenty of all."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums in each of B cells (B,): probabilities of an event, and whether it came true.

    Args:
        count: Number of samples, or sum of their weights.
        said: Sums of the probabilities, weighted.
        came: Sums of the events, weighted.
        noise: Sums of p (1 - p), by squared weights.
        effect: How much more the sums vary as samples come in groups, at least 1.
        squares: Sums of squared weights; None where samples do not weigh.
    """

    count: Floats
    said: Floats
    came: Floats
    noise: Floats
    effect: float = 1.0
    squares: Floats | None = None

    @classmethod
    def of(
        cls,
        probs: Floats,
        came: Floats,
        cell: Codes,
        groups: Codes | None = None,
        weight: Floats | None = None,
    ) -> Cells:
        """Sum probabilities and events by cell; empty cells are left out.

        Args:
            probs: Probabilities of the event (n,).
            came: 1 where it came true, else 0 (n,).
            cell: Cell of each sample (n,), any whole numbers.
            groups: Group of each sample, from 0 (n,); None: each is its own.
            weight: (n,); None: all weigh the same.
        """
        used, cell = np.unique(cell, return_inverse=True)
        cell = cell.ravel()
        w = np.ones(len(probs)) if weight is None else weight
        rows = (w, w * probs, w * came, w * w * probs * (1 - probs), w * w)
        count, said, true, noise, squares = (
            np.bincount(cell, row, len(used)).astype(np.float64) for row in rows
        )
        effect = 1.0 if groups is None else _effect(w * (probs - came), cell, groups, noise + 1)
        return cls(count, said, true, noise, effect, None if weight is None else squares)

    @property
    def gaps(self) -> Floats:
        """The excess of the probabilities (B,)."""
        return np.asarray((self.said - self.came) / self.count)

    @property
    def error(self) -> float:
        """The mean absolute gap over samples: an ECE over these cells."""
        return float(np.abs(self.said - self.came).sum() / self.count.sum())

    @functools.cached_property
    def p(self) -> float:
        """The chance that calibrated probabilities show as large gaps.

        One event is added to each cell's variance: where less than one error is expected, one is no proof.
        """
        squares = (self.said - self.came) ** 2 / (self.noise + 1) / self.effect
        return chi_square_beyond(float(squares.sum()), len(self.count))

    @functools.cached_property
    def most(self) -> float:
        """The upper 95 % bound of the mean absolute gap: the largest error that such small gaps allow.

        Gaps of cells whose mean absolute value is t are at least t^2 / sum(w^2 v) from 0 in their own
        variances v (Cauchy and Schwarz), so the sum of their squares is noncentral chi-square with that
        distance or more (the equivalence test of Wellek 2010, section 7.2, turned around). Gaps smaller than
        half of calibrated models show count as the median of theirs: luck proves nothing.
        """
        if self._likelihood(1.0) >= RISK:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self._likelihood(middle) >= RISK else (low, middle)
        return high

    def within(self, tolerance: float) -> bool:
        """Whether the mean absolute gap is proven to be below the tolerance."""
        return self._likelihood(tolerance) < RISK

    def _likelihood(self, error: float) -> float:
        """The chance of gaps this small where the mean absolute gap is ``error``."""
        noise = self._noise_at(error)
        squares = float(((self.said - self.came) ** 2 / noise).sum()) / self.effect
        # Gaps smaller than usual are luck, and luck proves nothing.
        usual = chi_square_median(len(noise))
        return chi_square_below(max(squares, usual), len(noise), self.distance(error))

    def _noise_at(self, error: float) -> Floats:
        """The variances (B,) if events come by ``error`` more or less often: the larger of the two."""
        mean = self.said / self.count
        size = self.count if self.squares is None else self.squares
        return np.asarray(self.noise + size * np.maximum(error * np.abs(2 * mean - 1) - error**2, 1e-9))

    def distances(self, error: float) -> Floats:
        """The distance from 0 of a gap of ``error`` in each cell alone (B,), in squares of its noise."""
        return np.asarray((self.count * error) ** 2 / self._noise_at(error) / self.effect)

    def distance(self, error: float) -> float:
        """The distance from 0 of all cells together, where their mean absolute gap is ``error``."""
        n = float(self.count.sum())
        return (n * error) ** 2 / float(self._noise_at(error).sum()) / self.effect

    def needed(self, tolerance: float, *, power: float = 0.9) -> float:
        """How many times these samples would prove calibrated probabilities to be within the tolerance.

        Args:
            tolerance: Mean absolute gap, a fraction.
            power: Probability with which a calibrated model passes.
        """
        return detectable_distance(len(self.count), risk=RISK, power=power) / self.distance(tolerance)


def _effect(errors: Floats, cell: Codes, groups: Codes, noise: Floats) -> float:
    """The largest variance of any mix of cells, over that of independent samples.

    The largest eigenvalue of the covariance of groups' totals in units of the cells' own variances: tests
    that divide by it keep their level however cells move together.
    """
    count, cells = int(groups.max()) + 1, len(noise)
    totals = np.bincount(groups * cells + cell, errors, count * cells).reshape(count, cells)
    size = np.bincount(groups * cells + cell, minlength=count * cells).reshape(count, cells)
    totals = (totals - size * (totals.sum(axis=0) / np.maximum(size.sum(axis=0), 1))) / np.sqrt(noise)
    covariance = totals.T @ totals if cells <= count else totals @ totals.T
    largest = float(np.linalg.eigvalsh(covariance)[-1]) * count / (count - 1)
    # Few groups tell little of their own variance: Student's quantile over the normal one makes up for it.
    few = student_quantile(0.95, count - 1) / quantile_of(0.95)
    return max(largest, 1.0) * few**2


def equal_mass(values: Floats, cells: int) -> Codes:
    """The cell (n,) of each value, of ``cells`` of nearly equal counts; equal values share a cell."""
    edges = np.quantile(values, np.linspace(0, 1, cells + 1)[1:-1])
    return np.searchsorted(edges, values).astype(np.intp)


def finest(split: Callable[[int], Cells], tolerance: float) -> Cells:
    """The cells of the finest split that leaves a calibrated model a power of 90 %; at least two.

    The choice sees the probabilities alone, no label.

    Args:
        split: From a number of cells to cells.
        tolerance: Mean absolute gap to be proven, a fraction.
    """
    chosen = split(2)
    for cells in (3, 4, 6, 8, 12, 16):
        finer = split(cells)
        if finer.needed(tolerance) > 1:
            break
        chosen = finer
    return chosen


@dataclass(frozen=True, eq=False)
class ClassGap:
    """The predictions of one class, or, with the ``name`` None, of all classes not judged alone.

    The gap is the mean of P(y = k) among them less the share that is of class k.
    """

    name: str | None
    cells: Cells

    @property
    def says(self) -> str:
        """The direction and size of the class's gap, in words."""
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
    """The gap of each class judged alone, that of the rest together, and the number of the rest.

    ``probs`` (n,) are those of the ``predicted`` class (n,), ``right`` (n,) whether it is true.
    """
    alone = judged_alone(np.bincount(predicted, minlength=len(names)), len(predicted))
    found = []
    for k in np.flatnonzero(alone):
        found.append(ClassGap(names[int(k)], _one(probs, right, predicted == k, groups, weight)))
    rest = ~alone[predicted]
    if judged_alone(rest.sum(), len(predicted)):
        found.append(ClassGap(None, _one(probs, right, rest, groups, weight)))
    return found, int((~alone).sum())


def judged_alone(count: Any, n: float) -> NDArray[np.bool_]:
    """Which classes (K,) are judged alone, by the ``count`` (K,) of predictions among n."""
    return np.asarray((count >= FEW) | (count >= 0.05 * n))


def _one(
    probs: Floats, right: Floats, which: NDArray[np.bool_], groups: Codes | None, weight: Floats | None
) -> Cells:
    inside, w = None, None if weight is None else weight[which]
    rows = probs[which], right[which], np.zeros(int(which.sum()), np.intp)
    if groups is not None:
        inside = np.unique(groups[which], return_inverse=True)[1].ravel()
        # All samples of one group: nothing tells how much they vary; the test is then of one sample.
        if inside.max() < 1:
            return replace(Cells.of(*rows, weight=w), effect=float(which.sum()))
        inside = None if inside.max() + 1 == which.sum() else inside
    return Cells.of(*rows, inside, w)


@dataclass(frozen=True)
class ClassTotals:
    """Expected and true counts of classes, and the class that stands out most.

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
) -> ClassTotals:
    """Sum probabilities (n, K) and class ids (n,) over all samples, and test the class that stands out."""
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
    return ClassTotals(
        p, k, float(expected[k]), round(float(occurs[k])), gap, abs(gap) + 1.645 * math.sqrt(noise[k]) / stake
    )

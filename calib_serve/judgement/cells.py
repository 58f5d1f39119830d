"""Gaps of cells of samples: whether they are proven, and how large they can be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.metrics.intervals import (
    chi_square_below,
    chi_square_beyond,
    chi_square_median,
    detectable_distance,
    quantile_of,
    student_quantile,
)

__all__ = ["RISK", "Cells", "equal_mass", "finest"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

RISK = 0.05
"""How often a bound may fail, and how often some test may accuse a calibrated model."""
_POWER = 0.9  # with which a calibrated model must pass where cells are chosen
_MOST_CELLS = 16


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums over each of B cells (B,) of probabilities of an event against whether it came true.

    ``count`` samples, ``said`` and ``came`` the sums of probabilities and events, ``noise`` the sum of
    p (1 - p). ``effect`` is how much more the sums vary as samples come in groups, at least 1. Of samples
    that weigh, each sum is of weights times that, and ``noise`` and ``squares`` of squared weights.
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
        """Of probabilities (n,), events (n,) and the cell (n,) of each; empty cells are left out."""
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
        """How much too high the probabilities are (B,)."""
        return np.asarray((self.said - self.came) / self.count)

    @property
    def shares(self) -> Floats:
        """Of all samples here (B,)."""
        return np.asarray(self.count / self.count.sum())

    @property
    def error(self) -> float:
        """The mean absolute gap over samples: an ECE over these cells."""
        return float(np.abs(self.said - self.came).sum() / self.count.sum())

    @functools.cached_property
    def p(self) -> float:
        """How often calibrated probabilities show as large gaps.

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
        """The chance of so small gaps where the mean absolute gap is ``error``."""
        noise = self._noise_at(error)
        squares = float(((self.said - self.came) ** 2 / noise).sum()) / self.effect
        usual = chi_square_median(len(noise))
        return chi_square_below(max(squares, usual), len(noise), self.distance(error))

    def _noise_at(self, error: float) -> Floats:
        """The variances (B,) where events come by ``error`` more often, or less: the larger of the two."""
        mean = self.said / self.count
        size = self.count if self.squares is None else self.squares
        return np.asarray(self.noise + size * np.maximum(error * np.abs(2 * mean - 1) - error**2, 1e-9))

    def distances(self, error: float) -> Floats:
        """Of each cell alone (B,) how far from 0 a gap of ``error`` is, in squares of its noise."""
        return np.asarray((self.count * error) ** 2 / self._noise_at(error) / self.effect)

    def distance(self, error: float) -> float:
        """The same of all cells, whose mean absolute gap is ``error``."""
        n = float(self.count.sum())
        return (n * error) ** 2 / float(self._noise_at(error).sum()) / self.effect

    def needed(self, tolerance: float, *, power: float = _POWER) -> float:
        """Times the samples there are, for calibrated probabilities to be proven within the tolerance."""
        return detectable_distance(len(self.count), risk=RISK, power=power) / self.distance(tolerance)


def _effect(errors: Floats, cell: Codes, groups: Codes, noise: Floats) -> float:
    """The largest variance of any mix of cells over that of independent samples, made larger for few groups.

    The largest eigenvalue of the covariance of groups' totals in units of the cells' own variances: tests
    that divide by it keep their level however cells move together.
    """
    count, cells = int(groups.max()) + 1, len(noise)
    totals = np.bincount(groups * cells + cell, errors, count * cells).reshape(count, cells)
    size = np.bincount(groups * cells + cell, minlength=count * cells).reshape(count, cells)
    totals = (totals - size * (totals.sum(axis=0) / np.maximum(size.sum(axis=0), 1))) / np.sqrt(noise)
    covariance = totals.T @ totals if cells <= count else totals @ totals.T
    largest = float(np.linalg.eigvalsh(covariance)[-1]) * count / (count - 1)
    few = student_quantile(0.95, count - 1) / quantile_of(0.95)
    return max(largest, 1.0) * few**2


def equal_mass(values: Floats, cells: int) -> Codes:
    """The cell (n,) of each value, of ``cells`` of nearly equal counts; equal values share a cell."""
    edges = np.quantile(values, np.linspace(0, 1, cells + 1)[1:-1])
    return np.searchsorted(edges, values).astype(np.intp)


def finest(split: Callable[[int], Cells], tolerance: float) -> Cells:
    """The cells that ``split`` makes of a number, as many as leave a calibrated model a power of 90 %.

    The choice sees the probabilities alone, no label; at least two.
    """
    chosen = split(2)
    for cells in (3, 4, 6, 8, 12, _MOST_CELLS):
        finer = split(cells)
        if finer.needed(tolerance) > 1:
            break
        chosen = finer
    return chosen

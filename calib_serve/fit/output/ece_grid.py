"""Temperature by calibration error: the T of a grid whose ECE is least (Mukhoti 2020, section 5).

ECE is not smooth in T, so a grid of thousands of values is searched; one softmax per value would be slow. As
T rises, a sample's confidence falls smoothly: we compute it with two derivatives at a few knots, interpolate
these by quintics, and move every sample to another bin when its quintic crosses an edge. The least values are
then evaluated exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, Union

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.arrays import Floats, as_floats
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.samples import Samples

GRIDS = MappingProxyType(
    {
        "fine": np.arange(1, 5001) / 1000,
        "medium": np.arange(1, 1001) / 100,
        "coarse": np.arange(1, 101) / 10,
    }
)
"""Grids in use: 0 to 5 by .001, 0 to 10 by .01 and 0 to 10 by .1, all without 0."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """Samples sorted by ``second`` (n,), the smallest positive distance of a logit from the largest.

    At a low T only the first of them are unsure. ``ties`` (n,) logits are the largest; ``correct``
    and ``weight`` are (n,).
    """

    samples: Samples
    second: Floats
    ties: Floats
    correct: Floats
    weight: Floats

    @classmethod
    def of(cls, samples: Samples) -> Gaps:
        """Sort the samples in one pass; the logits of large sets are not copied."""
        second, ties, correct = (np.empty(len(samples)) for _ in range(3))
        for part, z in samples.chunks(np.float64):
            below = z.max(axis=1, keepdims=True) - z
            # Ties with the largest stay: confidence is 1 / ties at T = 0, and the next gap counts.
            ties[part] = (below == 0).sum(axis=1)
            second[part] = np.where(below > 0, below, np.inf).min(axis=1)
            correct[part] = z.argmax(axis=1) == samples.labels[part]
        order = np.argsort(second, kind="stable")
        weight = samples.weights[order]
        return cls(samples.take(order), second[order], ties[order], correct[order], weight)

    def unsure(self, t: float) -> int:
        """How many of the first rows may have another confidence than at T = 0."""
        # A confidence within 1e-9 of 1 is taken to be 1.
        return int(np.searchsorted(self.second, t * (np.log(self.samples.classes) - np.log(1e-9))))

    def knot(self, t: float) -> Floats:
        """Confidence and its first two derivatives in log T, (3, n)."""
        out = np.zeros((3, len(self.second)))
        out[0] = 1 / self.ties
        unsure = self.unsure(t)
        for part in self.samples.take(slice(0, unsure)).parts():
            z = self.samples.read(part, np.float64)
            d = (z.max(axis=1, keepdims=True) - z) / t
            e = np.exp(-d)
            total = e.sum(axis=1)
            e *= d
            m1 = e.sum(axis=1) / total
            m2 = np.einsum("nk,nk->n", e, d) / total
            c = 1 / total
            # With s = 1 / T and d in units of T: s dc/ds = m1 c, and log T = -log s.
            out[:, part] = c, -m1 * c, c * (m1 + 2 * m1**2 - m2)
        return out


def fit_temperature_ece(
    samples: Samples,
    *,
    grid: Union[Literal["fine", "medium", "coarse"], ArrayLike] = "fine",
    bins: int = 15,
) -> Artifact:
    """Fit the temperature of a grid with the least ECE on the calibration set.

    Noisier than least NLL, and ignores all but the top class; for comparison with published numbers.

    Args:
        samples: The calibration set.
        grid: A name of GRIDS, or temperatures (g,).
        bins: Number of bins, of equal width.

    Raises:
        InputError: For options that cannot be right.
    """
    values = _grid(grid)
    gaps = Gaps.of(samples)
    rough = ece_of_grid(gaps, values, bins=bins)
    near = np.flatnonzero(rough <= rough.min() + 2 * MEASURED.error_of_an_interpolated_ece)
    exact = np.array([_ece(gaps, t, bins) for t in values[near]])
    best = float(values[near[int(exact.argmin())]])
    return complete(
        [LogitMap.temperature(best)],
        samples,
        method="temperature-ece",
        fit={
            "objective": f"ece of {bins} bins",
            "temperature": best,
            "grid": {"values": len(values), "low": float(values[0]), "high": float(values[-1])},
            "evaluated_exactly": len(near),
            "ece_before": _ece(gaps, 1.0, bins),
            "ece_after": float(exact.min()),
        },
    )


def ece_of_grid(gaps: Gaps, grid: Floats, *, bins: int = 15) -> Floats:
    """The ECE (g,) at every temperature of a rising ``grid`` (g,), to within a few 1e-6."""
    log_t = np.log(grid)
    cells = max(1, int(np.ceil((log_t[-1] - log_t[0]) / MEASURED.log_t_between_knots)))
    knots = np.linspace(log_t[0], log_t[-1], 1 + cells)
    cell = np.clip(np.searchsorted(knots, log_t, side="right") - 1, 0, len(knots) - 2)
    share, out = gaps.weight / gaps.weight.sum(), np.empty(len(grid))
    left = gaps.knot(float(np.exp(knots[0])))
    for i, (a, b) in enumerate(pairwise(knots)):
        right = gaps.knot(float(np.exp(b)))
        unsure = gaps.unsure(float(np.exp(b)))
        quintic = _quintic(left[:, :unsure], right[:, :unsure], b - a)
        confidence = left[0].copy()
        for g in np.flatnonzero(cell == i):
            confidence[:unsure] = _value(quintic, (log_t[g] - a) / (b - a))
            # Tied logits can hold many samples on an edge, at 1/3 say; edges belong to the bin below.
            index = np.ceil((confidence - 1e-9) * bins).astype(np.intp)
            out[g] = np.abs(np.bincount(index, weights=share * (confidence - gaps.correct))).sum()
        left = right
    return out


def _quintic(left: Floats, right: Floats, width: float) -> Floats:
    """Coefficients (6, n) on [0, 1] that have the values and two derivatives of both ends."""
    f0, d0, c0 = left[0], left[1] * width, left[2] * width**2
    f1, d1, c1 = right[0], right[1] * width, right[2] * width**2
    rise = f1 - f0
    return np.stack(
        [
            f0,
            d0,
            c0 / 2,
            10 * rise - 6 * d0 - 4 * d1 - 1.5 * c0 + 0.5 * c1,
            -15 * rise + 8 * d0 + 7 * d1 + 1.5 * c0 - c1,
            6 * rise - 3 * d0 - 3 * d1 - 0.5 * c0 + 0.5 * c1,
        ]
    )


def _value(quintic: Floats, u: float) -> Floats:
    value: Floats = quintic[-1]
    for coefficients in quintic[-2::-1]:
        value = value * u + coefficients
    return value


def _ece(gaps: Gaps, t: float, bins: int) -> float:
    confidence = np.minimum(gaps.knot(t)[0], 1.0)
    index = bin_index(confidence, bins=bins)
    gap = np.bincount(index, weights=gaps.weight * (confidence - gaps.correct))
    return float(np.abs(gap).sum() / gaps.weight.sum())


def _grid(grid: str | ArrayLike) -> Floats:
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise InputError(f"grid must be temperatures or one of {', '.join(GRIDS)}, got {grid!r}")
        return GRIDS[grid]
    given = as_floats(grid, "grid")
    values = np.unique(given)
    if given.ndim != 1 or len(values) < 2 or not np.isfinite(values).all() or values[0] <= 0:
        raise InputError("a grid holds two or more different temperatures, all finite and above 0")
    return values

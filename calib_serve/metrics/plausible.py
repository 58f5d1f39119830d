"""Possible truths behind a sample of predictions.

An error such as ECE is an absolute value, so label noise alone makes it large: what it would be for a given
truth is found by drawing labels from that truth. The truths lie on a line from the model's own probabilities
(calibrated) through what a recalibration finds, and on beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import Bins, Edges, bin_index
from calib_serve.metrics.intervals import Estimate, calibrated_share, inverted
from calib_serve.metrics.samples import row_blocks

STEPS = np.linspace(0, 1, 8) ** 1.5
"""Where the truths lie on their line: 0 is calibrated."""

REACH = 4.0  # standard errors beyond the observed error that the line goes
_BLOCK = 1 << 20  # drawn outcomes held at once: 8 MiB of float64
_PRIOR = np.array([1.0, 4.0])  # precision of the normal prior of intercept and slope: they are near 0 and 1
_LEAST_P = 1e-30
_MOST_LOG_POWER = 2.0  # log of the power, either way


def recalibrate_event(probs: Floats, came_true: Floats, code: Codes, bins: int) -> Floats:
    """Recalibrate an event's probabilities (n,), of bins ``code`` (n,), to this sample.

    A logistic regression on the log-odds (Platt 1999) with a weak prior; then each bin's residual, shrunk
    as far as all of them look like noise (James and Stein 1961).
    """
    # Log-odds of 0 and 1 are infinite: a few saturated scores would decide the fit.
    inside = np.clip(probs, 1e-4, 1 - 1e-4)
    columns = np.stack([np.ones_like(inside), np.log(inside / (1 - inside))])
    theta, identity = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    for _ in range(12):  # with the prior it converges in five
        fitted = _logistic(theta @ columns)
        slope = columns @ (fitted - came_true) + _PRIOR * (theta - identity)
        curvature = (columns * (fitted * (1 - fitted))) @ columns.T + np.diag(_PRIOR)
        step = np.linalg.solve(curvature, slope)
        # A full Newton step overshoots where all are right.
        theta = theta - np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-8:
            break
    fitted = _logistic(theta @ columns)
    rows = (fitted * (1 - fitted), fitted - came_true, np.ones_like(fitted))
    variance, residual, count = (np.bincount(code, row, minlength=bins) for row in rows)
    known = variance > 1e-9
    excess = float((residual[known] ** 2 / variance[known]).sum())
    kept = max(0.0, 1 - max(int(known.sum()) - 2, 0) / excess) if excess > 0 else 0.0
    return np.asarray(np.clip(fitted - kept * (residual / np.maximum(count, 1))[code], 0, 1))


def _logistic(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -30, 30))))


@dataclass(frozen=True, eq=False)
class CellGaps:
    """Summed gaps of cells (...,), and what chance makes of them.

    Their variances are ``noise`` in a calibrated model, ``spread`` in one as far off as this one looks.
    Chance is normal, or, where many cells expect less than one event, binomial: ``said`` are the events that
    each expects, and ``unit`` is how much one of them counts.
    """

    gaps: Floats
    noise: Floats
    spread: Floats
    said: Floats | None = None
    unit: float = 1.0

    def shown(self, truth: Floats, far: float, draws: int, seed: int) -> tuple[Floats, Floats]:
        """Gaps of a truth, as far as there are such, and those that its samples show (r, ...).

        The truth is ``far`` on the way to a model as far off as this one looks.
        """
        rng, size = np.random.default_rng([seed, 5]), (draws, *truth.shape)
        if self.said is None:
            least = np.maximum(self.noise, 0)
            variance = least + min(far, 1.0) * np.maximum(self.spread - least, 0)
            return truth, truth + rng.standard_normal(size) * np.sqrt(variance)
        # As many rows of one probability as have this mean and variance.
        said, noise = self.said / self.unit, self.noise / self.unit**2
        rows = np.ceil(said**2 / np.maximum(said - noise, 1e-9 * said**2 + 1e-300)).clip(1, 1e9)
        came = np.clip(said - truth / self.unit, 0, rows)
        drawn = rng.binomial(rows.astype(np.int64), came / rows, size)
        return self.unit * (said - came), self.unit * (said - drawn)

    @classmethod
    def of(cls, bins: Bins) -> CellGaps:
        """The cells that bins are which hold predictions; those of one bin are as one binomial number."""
        full = bins.count > 0
        count, noise, gaps = bins.count[full], bins.noise[full], bins.gaps()[full]
        said, came = bins.confidence[full] / count, bins.correct[full] / count
        alone = said * (1 - said)
        # Of rows that weigh or move together a sum varies more than that of as many others.
        units = np.where(alone > 1e-9, noise / np.maximum(alone, 1e-9), count)
        return cls(gaps, noise, units * (came * (1 - came) + (gaps / count) ** 2))

    def calibrated_share(self) -> float:
        """See ``intervals.calibrated_share``."""
        return calibrated_share(self.gaps.ravel(), self.noise.ravel())

    def shrunk(self) -> Floats:
        """The gaps, shrunk to those of one shift of all log-odds as far as they look like noise.

        James and Stein 1961. Gaps that are noise point either way, and chance adds more to these.
        """
        shift = self.gaps.sum() / max(float(self.noise.sum()), 1e-300)
        rest, known = self.gaps - shift * self.noise, self.spread > 0
        excess = float((rest[known] ** 2 / np.maximum(self.noise, self.spread)[known]).sum())
        kept = max(0.0, 1 - np.count_nonzero(known) / excess) if excess > 0 else 0.0
        return np.asarray(self.gaps - (1 - kept) * rest)


@dataclass(frozen=True)
class Drawn:
    """Intervals of calibration errors, by draws of the gaps that they are made of.

    Args:
        draws: Number of draws of every truth; fewer than two: no interval.
        level: Coverage of the interval, a fraction.
        seed: Seed of the draws.
    """

    draws: int
    level: float
    seed: int

    def __call__(
        self,
        cells: CellGaps,
        error: Callable[[Floats], Floats],
        *,
        toward: Floats,
        elsewhere: float | None,
        value: float | None = None,
    ) -> Estimate:
        """The error of cells with its interval.

        On the way of the truths the variances go from those of a calibrated model to those of one as far off
        as this one looks.

        Args:
            cells: Gaps (...,) and their variances.
            error: Maps gaps (r, ...) to errors (r,).
            toward: Gaps (...,) through which the line of truths goes, from none.
            elsewhere: That of ``inverted``.
            value: The error that is observed, where it is known otherwise.
        """
        gaps = cells.gaps
        observed = float(error(gaps[None])[0]) if value is None else value
        if self.draws < 2:
            return Estimate(observed)
        none = cells.shown(np.zeros_like(gaps), 1.0, self.draws, self.seed)[1]
        # Where all gaps are 0 there is no direction; chance gives one.
        shape = next((way for way in (toward, gaps) if np.abs(way).sum() > 1e-9), none[0])
        far = (observed + REACH * max(float(error(none).std()), 1e-12)) / max(
            float(error(shape[None])[0]), 1e-300
        )
        line = [cells.shown(step * shape, step, self.draws, self.seed) for step in STEPS * far]
        true = error(np.stack([truth for truth, _ in line]))
        drawn = np.stack([error(shown) for _, shown in line])
        return inverted(observed, true, drawn, level=self.level, elsewhere=elsewhere)


def ece_interval(bins: Bins, *, draws: int, level: float, seed: int) -> Estimate:
    """The ECE of bins with its interval.

    Args:
        bins: Sums over the bins.
        draws: Number of draws of every truth; fewer than two: no interval.
        level: Coverage of the interval, a fraction.
        seed: Seed of the draws.
    """
    cells, n = CellGaps.of(bins), bins.n
    return Drawn(draws, level, seed)(
        cells,
        lambda g: np.abs(g).sum(axis=1) / n,
        toward=cells.shrunk(),
        elsewhere=cells.calibrated_share(),
    )


def signs(n: int, draws: int, *, seed: int, groups: Codes | None = None) -> Iterator[Floats]:
    """Draw 1 or -1 for each of n samples, alike within a group (n,): (r, n), in bounded blocks."""
    rng = np.random.default_rng([seed, 1])
    units = n if groups is None else int(groups.max()) + 1
    for start in range(0, draws, step := max(1, _BLOCK // n)):
        drawn = rng.choice([-1.0, 1.0], size=(min(step, draws - start), units))
        yield drawn if groups is None else drawn[:, groups]


class Event:
    """Probabilities (n,) of an event, and their bins over [0, 1].

    Args:
        probs: (n,); rounding beyond [0, 1] is clipped.
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """

    def __init__(self, probs: Floats, *, bins: int, edges: Edges) -> None:
        self.probs = np.clip(probs.astype(np.float64), 0, 1)
        self.code = bin_index(self.probs, bins=bins, edges=edges)
        self.bins = bins

    def tally(self, came_true: NDArray[Any], weight: Floats | None = None) -> Bins:
        """Sum by bin.

        Args:
            came_true: Whether the event came true (n,).
            weight: How often each sample counts (n,); None: once.
        """
        w = np.ones(len(self.probs)) if weight is None else weight
        rows = (w, w * self.probs, w * came_true, w * self.probs * (1 - self.probs))
        return Bins(*(np.bincount(self.code, row, self.bins).astype(np.float64) for row in rows))

    def ece(self, came_true: Floats) -> Floats:
        """The ECE (r,) under each of r outcomes.

        Args:
            came_true: Outcomes of the event (r, n): 0 or 1, or true probabilities.
        """
        sums = np.add.reduceat((self.probs - came_true)[:, self.order], self.starts, axis=1)
        return np.asarray(np.abs(sums).sum(axis=1) / len(self.probs))

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The samples (n,) by bin."""
        return np.argsort(self.code, kind="stable")

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """The start of each filled bin in this order."""
        return np.flatnonzero(np.diff(self.code[self.order], prepend=-1))


@dataclass(frozen=True, eq=False)
class Shift:
    """Probabilities proportional to p^a e^b: ``log_power`` log a, ``offset`` b (K,).

    >>> Shift(np.log(2.0), np.zeros(2)).applied(np.array([[0.75, 0.25]])).round(6).tolist()  # 9 to 1
    [[0.9, 0.1]]
    """

    log_power: float
    offset: Floats

    def applied(self, probs: Floats) -> Floats:
        """The truths (m, K) behind rows of probabilities (m, K)."""
        z = np.maximum(probs, _LEAST_P)
        np.log(z, out=z)
        z *= math.exp(self.log_power)
        z += self.offset
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        return z


def fitted_shift(probs: NDArray[np.floating], labels: Codes) -> Shift:
    """Fit a shift to the labels (n,): two scoring steps for the power, one for each class's offset.

    Offsets are shrunk by how much they vary beyond chance (Efron and Morris 1973).
    """
    shift = Shift(0.0, np.zeros(probs.shape[1]))
    for _ in range(2):
        # Sums over blocks: probabilities of many classes do not fit into memory twice.
        slope = curvature = 0.0
        variance = np.zeros(probs.shape[1])
        surplus = np.bincount(labels, minlength=probs.shape[1]).astype(np.float64)
        for rows, p in row_blocks(probs):
            q, log_p = shift.applied(p), np.log(np.maximum(p, _LEAST_P))
            mean = np.einsum("ij,ij->i", q, log_p)
            slope += float(log_p[np.arange(len(p)), labels[rows]].sum() - mean.sum())
            curvature += float(np.einsum("ij,ij,ij->i", q, log_p, log_p).sum() - (mean**2).sum())
            surplus -= q.sum(axis=0)
            variance += (q * (1 - q)).sum(axis=0)
        power = math.exp(shift.log_power)
        # One unit of log(power) of prior precision keeps it finite where all are right.
        step = (power * slope - shift.log_power) / (power**2 * curvature + 1)
        shift = Shift(
            float(np.clip(shift.log_power + np.clip(step, -1, 1), -_MOST_LOG_POWER, _MOST_LOG_POWER)),
            shift.offset,
        )
    variance = np.maximum(variance, 1e-3)
    spread = float((surplus**2 - variance).sum() / (variance**2).sum())
    # A little of the offsets is kept though all be noise: without any the line of truths may have no length.
    spread = max(spread, 0.01 / float(variance.mean()))
    return Shift(shift.log_power, spread * surplus / (spread * variance + 1))

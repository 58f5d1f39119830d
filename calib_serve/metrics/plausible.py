"""Possible truths behind a sample of predictions.

An error such as ECE is an absolute value, so label noise alone makes it large: what it would be for a given
truth is found by drawing labels from that truth. The truths lie on a line from the model's own probabilities
(calibrated) through what a recalibration finds, and on beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import Bins, Edges, bin_index
from calib_serve.metrics.classwise import Residuals
from calib_serve.metrics.intervals import Estimate, calibrated_share, inverted
from calib_serve.metrics.samples import design_effect, row_blocks

STEPS = np.linspace(0, 1, 8) ** 1.5
"""Where the truths lie on their line: 0 is calibrated."""

REACH = 4.0  # standard errors beyond the observed error that the line goes
_FARTHEST = 200.0  # times what the recalibration finds
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


def plausible_probs(probs: Floats, fitted: Floats, code: Codes, bins: int, observed: float) -> Floats:
    """P(event) (8, n), from ``probs`` through ``fitted`` to where the ECE clearly exceeds ``observed``."""
    shown = np.abs(np.bincount(code, probs - fitted, minlength=bins)).sum() / len(probs)
    # Four wrong predictions more: where all are right, the variance that is seen is 0.
    noise = math.sqrt(float(np.maximum(probs * (1 - probs), fitted * (1 - fitted)).sum()) + 4) / len(probs)
    far = min((observed + REACH * noise) / max(float(shown), 1e-12), _FARTHEST)
    return np.asarray(np.clip(probs + STEPS[:, None] * far * (fitted - probs), 0, 1))


def wider(probs: Floats, line: Floats) -> Floats:
    """Factors (k,) that widen standard errors: confidences are a sample too, and their gaps differ."""
    between = np.abs(line - probs).var(axis=1)
    return np.asarray(np.sqrt(1 + between / np.maximum((line * (1 - line)).mean(axis=1), 1e-9)))


def signs(n: int, draws: int, *, seed: int, groups: Codes | None = None) -> Iterator[Floats]:
    """Draw 1 or -1 for each of n samples, alike within a group (n,): (r, n), in bounded blocks."""
    rng = np.random.default_rng([seed, 1])
    units = n if groups is None else int(groups.max()) + 1
    for start in range(0, draws, step := max(1, _BLOCK // n)):
        drawn = rng.choice([-1.0, 1.0], size=(min(step, draws - start), units))
        yield drawn if groups is None else drawn[:, groups]


def outcomes(
    came_true: Floats, fitted: Floats, draws: int, *, seed: int, groups: Codes | None = None
) -> Iterator[Callable[[Floats], Floats]]:
    """Yield blocks of draws: each maps a truth (n,) to outcomes (r, n), with the same chance for all truths.

    Outcomes of independent samples are 0 or 1. Those of groups are the truth plus the residuals of
    ``fitted``, whose signs turn group by group (Cameron, Gelbach and Miller 2008).
    """
    n = len(fitted)
    if groups is not None:
        for turned in signs(n, draws, seed=seed, groups=groups):
            yield partial(np.add, turned * (came_true - fitted))
        return
    rng = np.random.default_rng([seed, 1])
    for start in range(0, draws, step := max(1, _BLOCK // n)):
        yield partial(_below, rng.random((min(step, draws - start), n)))


def _below(chance: Floats, truth: Floats) -> Floats:
    return (chance < truth).astype(np.float64)


def event_error(
    event: Event, came_true: Floats, *, draws: int, level: float, seed: int, groups: Codes | None = None
) -> Estimate:
    """The ECE of an event's probabilities with its interval.

    Args:
        event: Probabilities of the event and their bins.
        came_true: 1 where it came true, else 0 (n,).
        draws: Number of draws of every truth; fewer than two: no interval.
        level: Coverage of the interval, a fraction.
        seed: Seed of the draws.
        groups: Group of each sample, from 0 (n,); None: each is its own.
    """
    observed = float(event.ece(came_true[None])[0])
    if draws < 2:
        return Estimate(observed)
    fitted = recalibrate_event(event.probs, came_true, event.code, event.bins)
    line = plausible_probs(event.probs, fitted, event.code, event.bins, observed)
    blocks = outcomes(came_true, fitted, draws, seed=seed, groups=groups)
    drawn = np.concatenate([[event.ece(draw(truth)) for truth in line] for draw in blocks], axis=1)
    bins, effect = event.tally(came_true), design_effect(event.probs - came_true, groups)
    return inverted(
        observed,
        event.ece(line),
        drawn,
        level=level,
        wider=wider(event.probs, line),
        elsewhere=calibrated_share(bins.gaps(), effect * bins.noise),
    )


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

    def times(self, far: float) -> Shift:
        """The shift, scaled by ``far``: 0 is no shift."""
        # Powers grow fast: further out every row is one-hot, and the line of truths stands still.
        power = float(np.clip(far * self.log_power, -_MOST_LOG_POWER, _MOST_LOG_POWER))
        return Shift(power, np.clip(far * self.offset, -3 * _MOST_LOG_POWER, 3 * _MOST_LOG_POWER))


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


def further_shifts(
    residuals: Residuals, fitted: Shift, observed: float
) -> tuple[tuple[Shift, float], tuple[Shift, float]]:
    """Two shifts along ``fitted``, the second one beyond ``observed``, and their classwise ECEs.

    Far shifts are of few classes, as they grow by powers: what lies near is mixed from the first.
    """
    n, classes = residuals.probs.shape
    noise = sum(float((p * (1 - p)).sum()) for _, p in row_blocks(residuals.probs))
    wanted = observed + REACH * math.sqrt(noise + 4) / (n * classes)
    far, shift = 1.0, fitted
    shown = residuals.true_ece(shift.applied)
    for _ in range(2):
        far = min(far * wanted / max(shown, 1e-12), _FARTHEST)
        shift = fitted.times(far)
        shown = residuals.true_ece(shift.applied)
    near = fitted.times(0.3 * far)
    return (near, residuals.true_ece(near.applied)), (shift, shown)

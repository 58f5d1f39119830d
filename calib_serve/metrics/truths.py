"""Possible truths behind a sample of probabilities, from a calibrated model to one further off than it looks.

An error such as ECE is an absolute value, so label noise alone makes it large: what it would be for a given
truth is found by drawing labels from that truth. The truths lie on a line from the model's own probabilities
(calibrated) through what a recalibration finds, and on beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from calib_serve.metrics.event import Event
from calib_serve.metrics.intervals import Estimate, inverted

__all__ = ["STEPS", "event_error", "outcomes", "possible_truths", "recalibrated", "signs", "wider"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

STEPS = np.linspace(0, 1, 8) ** 1.5
"""Where the truths lie on their line: 0 is calibrated."""

_REACH = 4.0  # standard errors beyond the observed error that the line goes
_FARTHEST = 200.0  # times what the recalibration finds
_BLOCK = 1 << 20  # drawn outcomes held at once: 8 MiB of float64
_ROUNDS = 12  # of Newton's method; with the prior it converges in five
_PRIOR = np.array([1.0, 4.0])  # precision of the normal prior of intercept and slope: they are near 0 and 1


def recalibrated(probs: Floats, came_true: Floats, code: Codes, bins: int) -> Floats:
    """P(event) (n,) that an event's probabilities (n,), of bins ``code`` (n,), stand for in this sample.

    A logistic regression on the log-odds (Platt 1999) with a weak prior; then each bin's residual, shrunk
    as far as all of them look like noise (James and Stein 1961).
    """
    inside = np.clip(probs, 1e-4, 1 - 1e-4)
    columns = np.stack([np.ones_like(inside), np.log(inside / (1 - inside))])
    theta, identity = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    for _ in range(_ROUNDS):
        fitted = _logistic(theta @ columns)
        slope = columns @ (fitted - came_true) + _PRIOR * (theta - identity)
        curvature = (columns * (fitted * (1 - fitted))) @ columns.T + np.diag(_PRIOR)
        step = np.linalg.solve(curvature, slope)
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


def possible_truths(probs: Floats, fitted: Floats, code: Codes, bins: int, observed: float) -> Floats:
    """P(event) (8, n) from ``probs`` through ``fitted`` to where ECE clearly exceeds the ``observed`` one."""
    shown = np.abs(np.bincount(code, probs - fitted, minlength=bins)).sum() / len(probs)
    # Four wrong predictions more: where all are right, the variance that is seen is 0.
    noise = math.sqrt(float(np.maximum(probs * (1 - probs), fitted * (1 - fitted)).sum()) + 4) / len(probs)
    far = min((observed + _REACH * noise) / max(float(shown), 1e-12), _FARTHEST)
    return np.asarray(np.clip(probs + STEPS[:, None] * far * (fitted - probs), 0, 1))


def wider(probs: Floats, line: Floats) -> Floats:
    """Factors (k,) of the standard errors: confidences are a sample too, and gaps differ between them."""
    between = np.abs(line - probs).var(axis=1)
    return np.asarray(np.sqrt(1 + between / np.maximum((line * (1 - line)).mean(axis=1), 1e-9)))


def signs(n: int, draws: int, *, seed: int, groups: Codes | None = None) -> Iterator[Floats]:
    """1 or -1 for each of n samples, the same within a group (n,): (r, n), in blocks of bounded memory."""
    rng = np.random.default_rng([seed, 1])
    units = n if groups is None else int(groups.max()) + 1
    for start in range(0, draws, step := max(1, _BLOCK // n)):
        drawn = rng.choice([-1.0, 1.0], size=(min(step, draws - start), units))
        yield drawn if groups is None else drawn[:, groups]


def outcomes(
    came_true: Floats, fitted: Floats, draws: int, *, seed: int, groups: Codes | None = None
) -> Iterator[Callable[[Floats], Floats]]:
    """Blocks of draws: each makes outcomes (r, n) of a truth (n,), with the same chance for every truth.

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
    """The ECE of an event's probabilities with its interval, given whether it came true (n,).

    From ``draws`` of every truth; without an interval where these are fewer than two.
    """
    observed = float(event.ece(came_true[None])[0])
    if draws < 2:
        return Estimate(observed)
    fitted = recalibrated(event.probs, came_true, event.code, event.bins)
    line = possible_truths(event.probs, fitted, event.code, event.bins, observed)
    blocks = outcomes(came_true, fitted, draws, seed=seed, groups=groups)
    drawn = np.concatenate([[event.ece(draw(truth)) for truth in line] for draw in blocks], axis=1)
    return inverted(observed, event.ece(line), drawn, level=level, wider=wider(event.probs, line))

"""Possible truths behind a sample of predictions, and its metrics under weights and under truths.

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

from calib_serve.core.bins import Bins, Edges, bin_index, check_binning
from calib_serve.metrics.calibration import (
    NODES,
    Ranked,
    Residuals,
    cumulative,
    gap_errors,
    on_grid,
    smoothed,
    tie_ends,
)
from calib_serve.metrics.intervals import Estimate, calibrated_share, inverted
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import (
    MEANS,
    checked,
    design_effect,
    measure_count,
    measured_rows,
    row_blocks,
    row_slices,
)
from calib_serve.scores import ProbsView

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

STEPS = np.linspace(0, 1, 8) ** 1.5
"""Where the truths lie on their line: 0 is calibrated."""

_REACH = 4.0  # standard errors beyond the observed error that the line goes
_FARTHEST = 200.0  # times what the recalibration finds
_BLOCK = 1 << 20  # drawn outcomes held at once: 8 MiB of float64
_ROUNDS = 12  # of Newton's method; with the prior it converges in five
_PRIOR = np.array([1.0, 4.0])  # precision of the normal prior of intercept and slope: they are near 0 and 1


def recalibrate_event(probs: Floats, came_true: Floats, code: Codes, bins: int) -> Floats:
    """Recalibrate an event's probabilities (n,), of bins ``code`` (n,), to this sample.

    A logistic regression on the log-odds (Platt 1999) with a weak prior; then each bin's residual, shrunk
    as far as all of them look like noise (James and Stein 1961).
    """
    # Log-odds of 0 and 1 are infinite: a few saturated scores would decide the fit.
    inside = np.clip(probs, 1e-4, 1 - 1e-4)
    columns = np.stack([np.ones_like(inside), np.log(inside / (1 - inside))])
    theta, identity = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    for _ in range(_ROUNDS):
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
    far = min((observed + _REACH * noise) / max(float(shown), 1e-12), _FARTHEST)
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


Ints = NDArray[np.intp]

_LEAST = 1e-30
_MOST = 2.0  # log of the power, either way
_NEAR = 0.3  # of the way to the farthest


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
        z = np.maximum(probs, _LEAST)
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
        power = float(np.clip(far * self.log_power, -_MOST, _MOST))
        return Shift(power, np.clip(far * self.offset, -3 * _MOST, 3 * _MOST))


def fitted_shift(probs: NDArray[np.floating], labels: Ints) -> Shift:
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
            q, log_p = shift.applied(p), np.log(np.maximum(p, _LEAST))
            mean = np.einsum("ij,ij->i", q, log_p)
            slope += float(log_p[np.arange(len(p)), labels[rows]].sum() - mean.sum())
            curvature += float(np.einsum("ij,ij,ij->i", q, log_p, log_p).sum() - (mean**2).sum())
            surplus -= q.sum(axis=0)
            variance += (q * (1 - q)).sum(axis=0)
        power = math.exp(shift.log_power)
        # One unit of log(power) of prior precision keeps it finite where all are right.
        step = (power * slope - shift.log_power) / (power**2 * curvature + 1)
        shift = Shift(float(np.clip(shift.log_power + np.clip(step, -1, 1), -_MOST, _MOST)), shift.offset)
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
    wanted = observed + _REACH * math.sqrt(noise + 4) / (n * classes)
    far, shift = 1.0, fitted
    shown = residuals.true_ece(shift.applied)
    for _ in range(2):
        far = min(far * wanted / max(shown, 1e-12), _FARTHEST)
        shift = fitted.times(far)
        shown = residuals.true_ece(shift.applied)
    near = fitted.times(_NEAR * far)
    return (near, residuals.true_ece(near.applied)), (shift, shown)


_WEIGHTS = 1 << 16  # weights processed together: intermediate arrays stay in a core's cache


class Sample:
    """Samples in order of rising confidence, with everything that resampling does not change.

    ``measures`` (7, n), of two classes (9, n), are the numbers whose means are ``MEANS``; ``order`` (n,) are
    the rows of ``probs`` (n, K) and ``labels`` (n,) that they belong to. Beside them the bins, ties, grid
    nodes and residuals.
    """

    def __init__(self, probs: Any, labels: Any, *, bins: int, edges: Edges) -> None:
        """Measure probabilities (n, K), an array or a view of scores, in one pass; class ids are (n,)."""
        check_binning(bins, edges)
        self.bins, self.edges = bins, edges
        is_view = isinstance(probs, ProbsView)
        p, self.labels = (probs, np.asarray(labels, np.intp)) if is_view else checked(probs, labels)
        self.n, self.classes = p.shape
        # Resampling reads rows again and again, so a view's are made once.
        self.probs: NDArray[np.floating[Any]] = np.empty(p.shape) if is_view else p
        measures = np.empty((measure_count(self.classes), self.n))
        for rows in row_slices(p.shape):
            block, measures[:, rows] = measured_rows(p, rows, self.labels[rows])
            if is_view:
                self.probs[rows] = block
        # What is binned or ranked reads runs of this order, so it is sorted once.
        self.order = np.argsort(measures[1])
        self.measures = np.ascontiguousarray(measures[:, self.order])
        self.correct, self.confidence = self.measures[:2]
        inner = np.searchsorted(self.confidence, np.linspace(0, 1, bins + 1)[1:-1], side=edges)
        self.bin_ends = np.concatenate([[0], inner, [self.n]])
        ends = tie_ends(self.confidence)
        self.tie_ends = ends if len(ends) <= self.n else slice(None)
        self.node, self.share = on_grid(self.confidence)
        self._ranks, self._confidences = (
            cumulative(s)[self.tie_ends] for s in (np.ones(self.n), self.confidence)
        )
        self.residuals = Residuals.of(self.probs, bins=bins, edges=edges)
        self.came_true = np.asarray(self.labels[self.order] == 1, np.float64)
        positive = self.probs[self.order, 1]
        self.positive = Event(positive, bins=bins, edges=edges) if self.classes == 2 else None

    def columns(self) -> dict[str, Floats]:
        """The values (n,) whose means are metrics."""
        return dict(zip(MEANS, self.measures, strict=False))

    def by_row(self) -> dict[str, Floats]:
        """Columns of ``columns`` in the order of the rows of ``probs``."""
        given = np.empty_like(self.measures)
        given[:, self.order] = self.measures
        return dict(zip(MEANS, given, strict=False))

    @cached_property
    def tally(self) -> Bins:
        """The bins of the whole sample."""
        return Bins.tally(self.confidence, self.correct, bins=self.bins, edges=self.edges)

    def code(self) -> NDArray[np.intp]:
        """The bin of each confidence (n,), rising."""
        return np.repeat(np.arange(self.bins), np.diff(self.bin_ends))

    def positive_tally(self) -> Bins | None:
        """The bins of P(y = 1) against how often class 1 is true.

        None unless there are two classes.
        """
        return None if self.positive is None else self.positive.tally(self.came_true)

    def values(self) -> dict[str, float]:
        """Every metric that is not a plain mean."""
        whole = np.ones((1, self.n))
        found = {**self.errors(self.correct[None]), **self.weighted(whole)}
        if self.positive is not None:
            found["positive_ece"] = self.positive.ece(self.came_true[None])
        values = {name: float(value[0]) for name, value in found.items()}
        return {**values, "classwise_ece": self.residuals.ece(self.labels)}

    def auroc_error(self) -> float:
        """The standard error of the whole sample's refinement AUROC."""
        rights = cumulative(self.correct)
        ranks = np.arange(self.n + 1.0)
        whole = Separation(rights=rights[self.tie_ends], wrongs=(ranks - rights)[self.tie_ends])
        return float(whole.auroc_error())

    def weighted(self, weights: Floats) -> dict[str, Floats]:
        """The metrics that are no errors (r,), of predictions by rising confidence under weights (r, n)."""
        found = _in_blocks(lambda part: self._weighted(weights[part]), weights.shape)
        if self.positive is not None:
            tallies = [self.positive.tally(self.came_true, w) for w in weights]
            found["positive_noise_floor"] = np.array([tally.noise_floor() for tally in tallies])
        return found

    def errors(self, correct: Floats) -> dict[str, Floats]:
        """Calibration errors (r,) of predictions, by rising confidence, under outcomes ``correct`` (r, n)."""
        return _in_blocks(lambda part: self._errors(correct[part]), correct.shape)

    def _weighted(self, weights: Floats) -> dict[str, Floats]:
        said = self.confidence
        columns = (weights, weights * said, weights * self.correct, weights * (said * (1 - said)))
        sums = [cumulative(s) for s in columns]
        tallies = np.stack([np.diff(s[:, self.bin_ends]) for s in sums], axis=1)
        floors = [Bins(*tally).noise_floor() for tally in tallies]
        seen, rights = sums[0][:, self.tie_ends], sums[2][:, self.tie_ends]
        return {
            "noise_floor": np.array(floors),
            **Separation(rights=rights, wrongs=seen - rights).areas(),
        }

    def _errors(self, correct: Floats) -> dict[str, Floats]:
        rights = cumulative(correct)
        return {
            **_binned(self.tally.count, self.tally.confidence, np.diff(rights[:, self.bin_ends])),
            **self._equal_mass(rights[:, self.tie_ends]),
            "smooth_ece": self._smooth((self.confidence - correct) / self.n),
        }

    def _equal_mass(self, rights: Floats) -> dict[str, Floats]:
        drawn = [Ranked(self._ranks, self._confidences, right) for right in rights]
        return {
            "adaptive_ece": np.array([ranked.ece(self.bins) for ranked in drawn]),
            "sweep_ece": np.array([ranked.sweep_ece() for ranked in drawn]),
        }

    def _smooth(self, gaps: Floats) -> Floats:
        upper = gaps * self.share
        mass = np.zeros((len(gaps), NODES + 1))
        starts = np.flatnonzero(np.diff(self.node, prepend=-1))
        nodes = self.node[starts]
        mass[:, nodes] = np.add.reduceat(gaps - upper, starts, axis=1)
        mass[:, nodes + 1] += np.add.reduceat(upper, starts, axis=1)
        # Draws need fewer digits than the one error that is shown.
        return smoothed(mass) if len(mass) == 1 else smoothed(mass, tolerance=1e-6)


def _in_blocks(metrics: Callable[[slice], dict[str, Floats]], shape: tuple[int, ...]) -> dict[str, Floats]:
    step = max(1, _WEIGHTS // shape[1])
    parts = [metrics(slice(start, start + step)) for start in range(0, shape[0], step)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _binned(count: Floats, confidence: Floats, correct: Floats) -> dict[str, Floats]:
    """Errors (r,) from counts and summed confidences (bins,) and numbers correct (r, bins)."""
    full = count > 0
    count, confidence, correct = count[full], confidence[full], correct[:, full]
    gaps, accuracy = confidence - correct, correct / count
    chance = accuracy * (1 - accuracy) / np.maximum(count - 1, 1)
    squares = (count * ((gaps / count) ** 2 - chance))[:, count > 1].sum(axis=1) / count.sum()
    errors = {name: error(gaps) for name, error in gap_errors(count, confidence).items()}
    return {**errors, "rms_debiased": np.sqrt(np.maximum(squares, 0))}

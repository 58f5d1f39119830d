"""Two models of the same rows: the change of each metric, and whether it is chance.

Means and areas are tested by each row's influence. Calibration errors are absolute values, which noise makes
larger, and the influence of a row on one is discontinuous where a gap is 0: neither resampling nor a linear
approximation has the right spread for models that are nearly calibrated. Drawn errors do: each model's
residuals about its own recalibration keep their size, and their signs turn, for both models at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import Bins, Edges, bin_index, check_binning
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.calibration import Ranked, cumulative, tie_ends
from calib_serve.metrics.comparison import Change, change_of_mean
from calib_serve.metrics.distributions import student_beyond
from calib_serve.metrics.intervals import Estimate, drawn_quantile, floor_influence, quantile_of
from calib_serve.metrics.refinement import ranked_areas
from calib_serve.metrics.samples import (
    BLOCK,
    MEANS,
    checked,
    group_codes,
    measure_count,
    measured_rows,
    row_slices,
)
from calib_serve.metrics.smooth import NODES, on_grid, smoothed
from calib_serve.scores import ProbsView

_PRIOR = np.array([1.0, 4.0])  # precision of the normal prior of intercept and slope: they are near 0 and 1


def paired_changes(
    before: ArrayLike,
    after: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: ArrayLike | None = None,
) -> dict[str, Change]:
    """Return the change of metrics between two models of the same samples.

    Of the metrics of ``evaluate`` that are means, areas and noise floors, and of ``ece``, ``adaptive_ece``,
    ``smooth_ece`` and, of two classes, ``positive_ece``. Each is tested in pairs: means by the z-test;
    areas by each sample's influence on them; calibration errors by the differences of errors when labels are
    drawn from what the models' recalibrations say, less what chance adds to one of them more than to the
    other. An interval excludes 0 where p is below 1 - ``level``.

    Args:
        before: Probabilities of the first model (n, K).
        after: Probabilities of the second (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        replicates: Number of draws of labels.
        level: Coverage of the intervals, a fraction.
        seed: Seed of the random draws.
        groups: Which samples belong together (n,): their errors turn together.
    """
    quantile_of(level)
    check_binning(bins, edges)
    first, second = (_Model.of(probs, labels, bins=bins, edges=edges) for probs in (before, after))
    if first.shape != second.shape:
        raise ShapeError(
            f"before and after must be of the same samples, got {first.shape} and {second.shape}"
        )
    if replicates < 0:
        raise InputError(f"replicates must be 0 or more, got {replicates}")
    codes = group_codes(groups, first.shape[0])
    with np.errstate(invalid="ignore"):  # the difference of infinite NLLs is NaN
        changes = {
            name: change_of_mean(second.means[name] - values, level, codes)
            for name, values in first.means.items()
        }
    (was, parts_were), (now, parts_are) = first.influences(), second.influences()
    for name, value in now.items():
        moves = parts_are[name] - parts_were[name]
        changes[name] = change_of_mean(moves - moves.mean() + (value - was[name]), level, codes)
    draws = min(replicates, 200)
    # The same signs for both models: noise that they share cancels in the difference.
    shown = [model.shown(draws, seed, codes) for model in (first, second)]
    for name, one in shown[0].items():
        other = shown[1][name]
        error = float((other.drawn - one.drawn).std(ddof=1)) if draws > 1 else math.nan
        changes[name] = _tested(other.value - one.value, _excess(one, other), error, draws - 1, level)
    return changes


def _tested(value: float, excess: float, error: float, freedom: int, level: float) -> Change:
    """Test a change less the ``excess`` that chance adds to it, by its standard error from draws."""
    if not math.isfinite(value) or not math.isfinite(error):
        return Change(Estimate(value), math.nan)
    # Chance adds to an absolute value, and more to that of the model with the larger noise.
    true = value - excess
    debiased = true if excess else math.nan
    if error == 0:
        return Change(Estimate(value, true, true, debiased), 1.0 if true == 0 else math.nan)
    half = drawn_quantile(level, freedom + 1) * error
    p = student_beyond(true / (error * math.sqrt(1 + 1 / (freedom + 1))), freedom)
    return Change(Estimate(value, true - half, true + half, debiased), p)


@dataclass(frozen=True)
class _Shown:
    """An error, and what a truth as far off as it looks would show by chance.

    ``true`` is the error of that truth, ``drawn`` (r,) those that its samples show, and ``floor`` the error
    that chance gives to a calibrated model.
    """

    value: float
    true: float
    drawn: Floats
    floor: float


def _excess(before: _Shown, after: _Shown) -> float:
    """How much more chance adds to the error after than to the error before.

    The share of their floors that it adds to both together is used for each: its noise then cancels in
    the difference of two models that are alike.
    """
    floors = before.floor + after.floor
    if not floors > 0:
        return 0.0
    added = float((before.drawn + after.drawn).mean()) - before.true - after.true
    return min(max(added / floors, 0.0), 1.0) * (after.floor - before.floor)


@dataclass(frozen=True, eq=False)
class _Model:
    """One model's predictions: the numbers (n,) by row whose means are metrics, and one or two events.

    ``top`` is that the predicted class is true; ``positive``, of two classes, that class 1 is.
    """

    shape: tuple[int, int]
    means: dict[str, Floats]
    top: _Event
    positive: _Event | None

    @classmethod
    def of(cls, probs: Any, labels: Any, *, bins: int, edges: Edges) -> _Model:
        """Measure probabilities (n, K), an array or a view of scores, in one pass; class ids are (n,)."""
        is_view = isinstance(probs, ProbsView)
        p, y = (probs, np.asarray(labels, np.intp)) if is_view else checked(probs, labels)
        n, classes = p.shape
        measures, positive = np.empty((measure_count(classes), n)), np.empty(n)
        for rows in row_slices(p.shape):
            block, measures[:, rows] = measured_rows(p, rows, y[rows])
            positive[rows] = np.clip(block[:, 1], 0, 1)
        return cls(
            (n, classes),
            dict(zip(MEANS, measures, strict=False)),
            _Event(measures[1], measures[0], bins=bins, edges=edges),
            _Event(positive, (y == 1).astype(np.float64), bins=bins, edges=edges) if classes == 2 else None,
        )

    def influences(self) -> tuple[dict[str, float], dict[str, Floats]]:
        """The areas and noise floors, and the influence (n,) of each row on each."""
        top = self.top
        values, _, few, ends = ranked_areas(top.probs, top.came, None)
        step = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        moved = few.influences()[0].items()
        parts = {name: top.by_row(np.where(top.came, won[step], lost[step])) for name, (won, lost) in moved}
        for name, event in (("noise_floor", top), ("positive_noise_floor", self.positive)):
            if event is not None:
                values[name] = event.tally.noise_floor()
                parts[name] = event.by_row(floor_influence(event.tally, event.probs, event.code))
        return values, parts

    def shown(self, draws: int, seed: int, groups: Codes | None) -> dict[str, _Shown]:
        """Each calibration error, and what truths would show in so many draws; ``groups`` (n,) by row."""
        found = self.top.shown(draws, seed, groups)
        if self.positive is not None:
            found["positive_ece"] = self.positive.shown(draws, seed, groups)["ece"]
        return found


class _Event:
    """Probabilities (n,) of an event in rising order, whether it came true, and what no truth changes.

    ``order`` (n,) are the rows that they belong to.
    """

    def __init__(self, probs: Floats, came: Floats, *, bins: int, edges: Edges) -> None:
        self.order = np.argsort(probs)
        self.probs, self.came = probs[self.order], came[self.order]
        self.n, self.bins = len(probs), bins
        self.tally = Bins.tally(self.probs, self.came, bins=bins, edges=edges)
        self.code = bin_index(self.probs, bins=bins, edges=edges)
        self._bin_ends = np.searchsorted(self.code, np.arange(bins + 1))
        ends = tie_ends(self.probs)
        self._tie_ends = ends if len(ends) <= self.n else slice(None)
        self._ranks, self._said = (cumulative(row)[self._tie_ends] for row in (np.ones(self.n), self.probs))
        self._node, self._share = on_grid(self.probs)

    def by_row(self, values: Floats) -> Floats:
        """Values (n,) in the order of the rows."""
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def shown(self, draws: int, seed: int, groups: Codes | None) -> dict[str, _Shown]:
        """Each calibration error, and what truths would show in so many draws."""
        fitted = self._recalibrated()
        residual = self.came - fitted
        values, true, none = (self.errors(row[None]) for row in (self.came, fitted, self.probs))
        off: dict[str, list[Floats]] = {name: [np.empty(0)] for name in values}
        null: dict[str, list[Floats]] = {name: [np.empty(0)] for name in values}
        for turned in _signs(self.n, draws, seed=seed, groups=groups):
            noise = turned[:, self.order] * residual
            # Of a calibrated model the mean alone is needed.
            for drawn, truth in ((off, fitted + noise), (null, self.probs + noise[::4])):
                for name, errors in self.errors(truth).items():
                    drawn[name].append(errors)
        found = {}
        for name, value in values.items():
            floor = float(np.concatenate(null[name]).mean() - none[name][0]) if draws else math.nan
            found[name] = _Shown(float(value[0]), float(true[name][0]), np.concatenate(off[name]), floor)
        return found

    def errors(self, came: Floats) -> dict[str, Floats]:
        """Calibration errors (r,) under outcomes (r, n), in the order of the probabilities."""
        step = max(1, BLOCK // self.n)
        parts = [self._errors(came[start : start + step]) for start in range(0, len(came), step)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _errors(self, came: Floats) -> dict[str, Floats]:
        rights = cumulative(came)
        gaps = self.tally.confidence - np.diff(rights[:, self._bin_ends])
        ranked = [Ranked(self._ranks, self._said, right) for right in rights[:, self._tie_ends]]
        return {
            "ece": np.abs(gaps).sum(axis=1) / self.n,
            "adaptive_ece": np.array([one.ece(self.bins) for one in ranked]),
            "smooth_ece": self._smooth((self.probs - came) / self.n),
        }

    def _smooth(self, gaps: Floats) -> Floats:
        upper = gaps * self._share
        mass = np.zeros((len(gaps), NODES + 1))
        starts = np.flatnonzero(np.diff(self._node, prepend=-1))
        nodes = self._node[starts]
        mass[:, nodes] = np.add.reduceat(gaps - upper, starts, axis=1)
        mass[:, nodes + 1] += np.add.reduceat(upper, starts, axis=1)
        # Draws need fewer digits than the one error that is shown.
        return smoothed(mass) if len(mass) == 1 else smoothed(mass, tolerance=1e-6)

    def _recalibrated(self) -> Floats:
        """The probabilities (n,) recalibrated to this sample.

        A logistic regression on the log-odds (Platt 1999) with a weak prior; then each bin's residual, shrunk
        as far as all of them look like noise (James and Stein 1961).
        """
        # Log-odds of 0 and 1 are infinite: a few saturated scores would decide the fit.
        inside = np.clip(self.probs, 1e-4, 1 - 1e-4)
        columns = np.stack([np.ones_like(inside), np.log(inside / (1 - inside))])
        theta, identity = np.array([0.0, 1.0]), np.array([0.0, 1.0])
        for _ in range(12):  # with the prior it converges in five
            fitted = _logistic(theta @ columns)
            slope = columns @ (fitted - self.came) + _PRIOR * (theta - identity)
            curvature = (columns * (fitted * (1 - fitted))) @ columns.T + np.diag(_PRIOR)
            step = np.linalg.solve(curvature, slope)
            # A full Newton step overshoots where all are right.
            theta = theta - np.clip(step, -1, 1)
            if np.abs(step).max() < 1e-8:
                break
        fitted = _logistic(theta @ columns)
        rows = (fitted * (1 - fitted), fitted - self.came, np.ones_like(fitted))
        variance, residual, count = (np.bincount(self.code, row, minlength=self.bins) for row in rows)
        known = variance > 1e-9
        excess = float((residual[known] ** 2 / variance[known]).sum())
        kept = max(0.0, 1 - max(int(known.sum()) - 2, 0) / excess) if excess > 0 else 0.0
        return np.asarray(np.clip(fitted - kept * (residual / np.maximum(count, 1))[self.code], 0, 1))


def _logistic(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -30, 30))))


def _signs(n: int, draws: int, *, seed: int, groups: Codes | None) -> Iterator[NDArray[np.float64]]:
    """Draw 1 or -1 for each of n samples, alike within a group (n,): (r, n), in bounded blocks."""
    rng = np.random.default_rng([seed, 1])
    units = n if groups is None else int(groups.max()) + 1
    for start in range(0, draws, step := max(1, (1 << 20) // n)):
        drawn = rng.choice([-1.0, 1.0], size=(min(step, draws - start), units))
        yield drawn if groups is None else drawn[:, groups]

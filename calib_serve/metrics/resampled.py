"""A sample's errors under possible truths: what these do not change is made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, Edges, check_binning
from calib_serve.metrics.calibration import Ranked, cumulative, gap_errors, tie_ends
from calib_serve.metrics.classwise import Residuals
from calib_serve.metrics.intervals import floor_influence
from calib_serve.metrics.plausible import Event
from calib_serve.metrics.refinement import ranked_areas
from calib_serve.metrics.samples import BLOCK, MEANS, checked, measure_count, measured_rows, row_slices
from calib_serve.metrics.smooth import NODES, on_grid, smoothed
from calib_serve.scores import ProbsView


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

    def by_row(self) -> dict[str, Floats]:
        """The values (n,) whose means are metrics, in the order of the rows of ``probs``."""
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
        """The bins of P(y = 1) against how often class 1 is true; None unless there are two classes."""
        return None if self.positive is None else self.positive.tally(self.came_true)

    def values(self) -> dict[str, float]:
        """Every calibration error."""
        found = self.errors(self.correct[None])
        if self.positive is not None:
            found["positive_ece"] = self.positive.ece(self.came_true[None])
        values = {name: float(value[0]) for name, value in found.items()}
        return {**values, "classwise_ece": self.residuals.ece(self.labels)}

    def influences(self) -> tuple[dict[str, float], dict[str, Floats]]:
        """The metrics that are no errors, and the influence (n,) of each row of ``probs`` on each."""
        values, _, few, ends = ranked_areas(self.confidence, self.correct, None)
        step = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        moved = few.influences()[0].items()
        parts = {name: np.where(self.correct, won[step], lost[step]) for name, (won, lost) in moved}
        values["noise_floor"] = self.tally.noise_floor()
        parts["noise_floor"] = floor_influence(self.tally, self.confidence, self.code())
        tally, event = self.positive_tally(), self.positive
        if event is not None and tally is not None:
            values["positive_noise_floor"] = tally.noise_floor()
            parts["positive_noise_floor"] = floor_influence(tally, event.probs, event.code)
        back = np.argsort(self.order)
        return values, {name: part[back] for name, part in parts.items()}

    def errors(self, correct: Floats) -> dict[str, Floats]:
        """Calibration errors (r,) of predictions, by rising confidence, under outcomes ``correct`` (r, n)."""
        return _in_blocks(lambda part: self._errors(correct[part]), correct.shape)

    def _errors(self, correct: Floats) -> dict[str, Floats]:
        rights = cumulative(correct)
        drawn = [Ranked(self._ranks, self._confidences, right) for right in rights[:, self.tie_ends]]
        return {
            **_binned(self.tally.count, self.tally.confidence, np.diff(rights[:, self.bin_ends])),
            "adaptive_ece": np.array([ranked.ece(self.bins) for ranked in drawn]),
            "sweep_ece": np.array([ranked.sweep_ece() for ranked in drawn]),
            "smooth_ece": self._smooth((self.confidence - correct) / self.n),
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
    step = max(1, BLOCK // shape[1])
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

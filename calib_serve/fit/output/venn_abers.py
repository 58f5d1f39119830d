"""Venn-Abers predictors (Vovk and Petej 2014): isotonic regression that says how sure it is.

Inductive: fitted once, to the scores of the calibration set. For a new score the isotonic fit is made twice,
with the score added under label 0 and under label 1; its two values there are p0 <= p1, and one of the two is
a calibrated probability, whatever the distribution and the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats, as_array
from calib_serve.core.errors import ShapeError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.tables import table_of
from calib_serve.fit.samples import Samples, sample_weights
from calib_serve.metrics import checked
from calib_serve.scores import softmax

_CELLS = 2.0**30  # scores are rounded to one of so many, else ties would depend on the last bit of a softmax
_TIED = 1e-5  # above the rounding error of a probability in float32


@dataclass(frozen=True, eq=False)
class _Row:
    """p0 and p1 of one class: ``lower`` (m,) from each of the rising ``scores`` (m,) on, ``upper`` up to it.

    Below the first score p0 is 0, above the last p1 is 1.
    """

    scores: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def of(cls, p: Floats, came_true: Floats, weight: Floats) -> _Row:
        kept = weight > 0
        scores, place = np.unique(_rounded(p[kept]), return_inverse=True)
        counts, ones = (np.bincount(place, w[kept]).astype(np.float64) for w in (weight, weight * came_true))
        # p0, of a sample with label 0, is p1 with labels and order mirrored.
        lower = 1 - _upper(counts[::-1], (counts - ones)[::-1])[::-1]
        return cls(scores, np.maximum(lower, 0), np.minimum(_upper(counts, ones), 1))

    def intervals(self, p: Floats) -> Floats:
        """p0 and p1 of scores (n,), (n, 2)."""
        p = _rounded(p)
        lower = np.concatenate([[0.0], self.lower])[np.searchsorted(self.scores, p, side="right")]
        upper = np.concatenate([self.upper, [1.0]])[np.searchsorted(self.scores, p, side="left")]
        return np.stack([lower, upper], axis=1)

    def steps(self) -> tuple[Floats, Floats]:
        """The merged probability as a table: inner edges (right-closed bins) and values.

        p0 rises at its score and p1 beyond it. What lies within ``_TIED`` of a score counts as tied with it,
        but for scores that are nearer to one another: so a model in float32 finds its bin again.
        """
        middle = (self.scores[1:] + self.scores[:-1]) / 2
        rises = np.maximum(self.scores - _TIED, np.concatenate([[self.scores[0] / 2], middle]))
        passes = np.minimum(self.scores + _TIED, np.append(middle, (self.scores[-1] + 1) / 2))
        p0, p1 = np.concatenate([[0.0], self.lower]), np.append(self.upper, 1.0)
        edges = np.union1d(rises[np.diff(p0) > 0], passes[np.diff(p1) > 0])
        edges = edges[(edges > 0) & (edges < 1)]
        ends = np.append(edges, 1.0)
        found = np.stack([p0[np.searchsorted(rises, ends)], p1[np.searchsorted(passes, ends)]], axis=1)
        return edges, merged(found)


@dataclass(frozen=True, eq=False)
class VennAbers:
    """Probability intervals, one row of scores for each class against the rest.

    Args:
        rows: Of each class (K,); ``of`` makes them.

    >>> found = VennAbers.of([[0.6, 0.4], [0.4, 0.6]], [0, 1])
    >>> found.intervals([[0.3, 0.7]])[0, 1].tolist()  # with (0.7, 0): 1 and 0 pool to 1/2; with (0.7, 1): 1
    [0.5, 1.0]
    >>> found.probs([[0.3, 0.7]]).round(3).tolist()  # 1 / (1 - 0.5 + 1)
    [[0.333, 0.667]]
    """

    rows: tuple[_Row, ...]

    @classmethod
    def of(cls, probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> VennAbers:
        """Fit to a calibration set.

        Args:
            probs: Probabilities (n, K).
            labels: Class ids (n,).
            sample_weight: (n,).
        """
        p, y = checked(probs, labels)
        weight = sample_weights(y, p.shape[1], sample_weight, None)
        # Of mean 1: a predictor adds one whole sample to those that it knows.
        w = np.ones(len(y)) if weight is None else weight * (np.count_nonzero(weight) / weight.sum())
        columns = np.minimum(p.T.astype(np.float64), 1)
        return cls(tuple(_Row.of(c, (y == k).astype(np.float64), w) for k, c in enumerate(columns)))

    def intervals(self, probs: ArrayLike) -> Floats:
        """p0 and p1 of each class, (n, K, 2).

        Of each class alone, one of the two is calibrated; p0 <= p1, and they lie near each other where the
        calibration set has many samples.

        Args:
            probs: The model's probabilities (n, K).
        """
        p, _ = checked(probs, np.zeros(len(as_array(probs, "probs")), np.intp))
        if p.shape[1] != len(self.rows):
            raise ShapeError(f"probs must be (n, {len(self.rows)}), got {p.shape}")
        columns = np.minimum(p.T.astype(np.float64), 1)
        return np.stack([row.intervals(columns[k]) for k, row in enumerate(self.rows)], axis=1)

    def probs(self, probs: ArrayLike) -> Floats:
        """Merged probabilities (n, K), divided by their sum; of two classes the sum is 1.

        Args:
            probs: The model's probabilities (n, K).
        """
        p = merged(self.intervals(probs))
        return np.asarray(p / p.sum(axis=1, keepdims=True))


def fit_venn_abers(samples: Samples) -> Artifact:
    """Fit the merged probability of a Venn-Abers predictor, one table for each class against the rest.

    p1 / (1 - p0 + p1) is the minimax choice under log-loss (Vovk and Petej 2014, section 4); between classes
    it is normalised. Never 0 or 1, without a floor.
    """
    probs = np.concatenate([softmax(z) for _, z in samples.chunks(np.float64)])
    found = VennAbers.of(probs, samples.labels, sample_weight=samples.weight)
    rows = [row.steps() for row in found.rows]
    widths = [float((row.upper - row.lower).mean()) for row in found.rows]
    return complete(
        [table_of(rows)],
        samples,
        method="venn-abers",
        fit={
            "objective": "merged Venn-Abers probabilities",
            "of": "each",
            "steps": [len(values) for _, values in rows],
            "mean_width": float(np.mean(widths)),
        },
    )


def merged(intervals: Floats) -> Floats:
    """p1 / (1 - p0 + p1) of intervals (..., 2) (Vovk and Petej 2014, eq. 3)."""
    p0, p1 = intervals[..., 0], intervals[..., 1]
    return np.asarray(p1 / (1 - p0 + p1))


def _rounded(p: Floats) -> Floats:
    return np.asarray(np.rint(p * _CELLS) / _CELLS)


def _upper(counts: Floats, ones: Floats) -> Floats:
    """p1 at each distinct score (m,), from samples and class-1 samples there (Vovk 2015, algs. 1, 2).

    The isotonic fit's value is the slope of the greatest convex minorant of the cumulative sums. A sample of
    label 1 at the i-th score moves all sums before it by (-1, -1). As i rises, one more point moves; the
    corners that remain form a stack, so that all of them are found in one pass.
    """
    x, y = (np.concatenate([[0.0], np.cumsum(sums)]).tolist() for sums in (counts, ones))
    stack: list[tuple[float, float]] = []

    def push(px: float, py: float) -> None:
        while len(stack) > 1:
            (ax, ay), (bx, by) = stack[-1], stack[-2]
            if (ay - py) * (bx - px) < (by - py) * (ax - px):
                break
            stack.pop()
        stack.append((px, py))

    for i in range(len(counts), 0, -1):
        push(x[i], y[i])
    push(x[0] - 1, y[0] - 1)
    found = np.empty(len(counts))
    for i in range(len(counts)):
        (ax, ay), (bx, by) = stack[-1], stack[-2]
        found[i] = (by - ay) / (bx - ax)
        px, py = x[i + 1] - 1, y[i + 1] - 1
        if i + 1 < len(counts) and (py - ay) * (bx - ax) < (by - ay) * (px - ax):
            stack.pop()
            push(px, py)
    return found

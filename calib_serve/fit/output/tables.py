"""Tables of probabilities: histogram binning and isotonic regression (Zadrozny 2001, 2002), Venn-Abers.

A Venn-Abers predictor (Vovk and Petej 2014) is isotonic regression that says how sure it is. Inductive:
fitted once, to the scores of the calibration set. For a new score the isotonic fit is made twice, with the
score added under label 0 and under label 1; its two values there are p0 <= p1, and one of the two is a
calibrated probability, whatever the distribution and the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp

from calib_serve.artifact import Artifact, ProbTable
from calib_serve.core.arrays import as_array
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import Samples, sample_weights
from calib_serve.metrics import checked
from calib_serve.scores import softmax

Floats = NDArray[np.float64]

_STEPS = 100  # of a table that stands for a temperature

Of = Literal["top", "each"]
"""``top``: one table for the confidence in the predicted class. ``each``: one per class, renormalised.

Of two classes the top one's confidence hides a changed share of each: the default is then ``each``.
"""


def fit_histogram_width(
    samples: Samples,
    *,
    bins: int = 15,
    of: Of | None = None,
    smoothing: float = 1.0,
) -> Artifact:
    """Fit bins of equal width, each with the observed frequency of its samples.

    ``smoothing`` pseudo-samples at the bin's mean confidence (its middle, where it is empty) keep the values
    between 0 and 1; 0 gives the plain frequencies. Raises InputError for options that cannot be right.
    Zadrozny 2001, section 3.
    """
    return _histogram(samples, "histogram-width", equal_width, of=of, bins=bins, smoothing=smoothing)


def fit_histogram_mass(
    samples: Samples,
    *,
    bins: int = 15,
    of: Of | None = None,
    smoothing: float = 1.0,
) -> Artifact:
    """Fit bins of equal numbers of samples; otherwise as ``fit_histogram_width``.

    Confidences that tie share a bin, so that there may be fewer than ``bins``. With ``of="each"`` and
    many classes nearly all probabilities are near 0, the bins crowd there, and accuracy falls.
    """
    return _histogram(samples, "histogram-mass", quantile_edges, of=of, bins=bins, smoothing=smoothing)


def fit_isotonic(samples: Samples, *, of: Of = "each") -> Artifact:
    """Fit the rising step function of least squared error; one per class unless ``of="top"``.

    On the calibration set it equals scikit-learn's up to rounding; between two neighbouring steps ours
    changes half way, where scikit-learn's interpolates. Values are kept 1 / (K (n + 1)) away from 0 and 1,
    which a plain isotonic fit reaches. Zadrozny 2002, section 3.
    """
    check_table(of, 1, 0)
    # One sample's weight over all classes: a plain fit reaches 0, where the NLL is infinite.
    floor = 1 / (samples.classes * (len(samples) + 1))
    rows = [isotonic_row(*column, floor) for column in _columns(samples, of)]
    return complete(
        [table_of(rows)],
        samples,
        method="isotonic",
        fit={"objective": "squared error", "of": of, "steps": [len(values) for _, values in rows]},
        packages=("scipy",),
    )


def isotonic_row(p: Floats, came_true: Floats, weight: Floats, floor: float) -> tuple[Floats, Floats]:
    """The inner edges and values of an isotonic fit of probabilities (n,) to 0 and 1 (n,)."""
    on = weight > 0
    # Equal probabilities get one value: their weighted mean stands for them.
    x, at = np.unique(_told_apart(p[on]), return_inverse=True)
    mass = np.bincount(at, weights=weight[on])
    mean = np.bincount(at, weights=weight[on] * came_true[on]) / mass
    values = np.clip(isotonic_regression(mean, weights=mass).x, floor, 1 - floor)
    changes = np.flatnonzero(np.diff(values) > 0)
    return (x[changes] + x[changes + 1]) / 2, np.append(values[changes], values[-1])


def equal_width(p: Floats, bins: int) -> Floats:
    """The inner edges of bins of equal width, independent of the probabilities."""
    return np.linspace(0, 1, bins + 1)[1:-1]


def quantile_edges(p: Floats, bins: int) -> Floats:
    """The inner edges of bins that hold equally many probabilities (n,); fewer where these tie."""
    told = _told_apart(p)
    x, inner = np.unique(told), np.linspace(0, 1, bins + 1)[1:-1]
    last = np.unique(np.searchsorted(x, np.quantile(told, inner, method="inverted_cdf")))
    last = last[last < len(x) - 1]
    # Half way: a model of few probabilities, as of trees, has most samples at one, which is rounded.
    return np.asarray((x[last] + x[last + 1]) / 2)


def _told_apart(p: Floats) -> Floats:
    """Probabilities rounded to 20 bits: float32 does not surely tell smaller differences apart.

    >>> len(np.unique(_told_apart(np.array([0.3, 0.30000001, 0.30001]))))
    2
    """
    mantissa, exponent = np.frexp(p)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, 20)), exponent - 20))


def histogram_row(
    p: Floats, came_true: Floats, weight: Floats, edges: Floats, smoothing: float
) -> tuple[Floats, Floats]:
    """``edges`` and the frequency of each bin, with ``smoothing`` samples added at the bin's mean."""
    # Bins are (lo, hi], as everywhere: searchsorted from the left.
    index = np.searchsorted(edges, p)
    count, confidence, correct = (
        np.bincount(index, weights=weight * what, minlength=len(edges) + 1)
        for what in (np.ones(len(p)), p, came_true)
    )
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middle = (bounds[1:] + bounds[:-1]) / 2
    mean = np.where(count > 0, confidence / np.where(count > 0, count, 1), middle)
    seen = count + smoothing
    return edges, np.where(seen > 0, (correct + smoothing * mean) / np.where(seen > 0, seen, 1), middle)


def _histogram(
    samples: Samples,
    method: str,
    edges_of: Callable[[Floats, int], Floats],
    *,
    of: Of | None,
    bins: int,
    smoothing: float,
) -> Artifact:
    of = of or ("each" if samples.classes == 2 else "top")
    check_table(of, bins, smoothing)
    rows = [
        histogram_row(p, came_true, weight, edges_of(p, bins), smoothing)
        for p, came_true, weight in _columns(samples, of)
    ]
    return complete(
        [table_of(rows)],
        samples,
        method=method,
        fit={"objective": "share of each bin", "of": of, "bins": bins, "smoothing": smoothing},
    )


def _columns(samples: Samples, of: Of) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield, for each table, probabilities (n,), whether each came true (n,), and weights (n,)."""
    weight = samples.weights
    if of == "top":
        parts = [
            (p.max(axis=1), p.argmax(axis=1)) for p in (softmax(z) for _, z in samples.chunks(np.float64))
        ]
        confidence, predicted = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        yield np.minimum(confidence, 1.0), (predicted == samples.labels).astype(np.float64), weight
        return
    log_total = np.concatenate([logsumexp(z, axis=1) for _, z in samples.chunks(np.float64)])
    # A class at a time: float64 probabilities of all are twice as large as float32 logits.
    for k in range(samples.classes):
        column = np.concatenate([z[:, k] for _, z in samples.chunks()]).astype(np.float64)
        yield np.minimum(np.exp(column - log_total), 1.0), (samples.labels == k).astype(np.float64), weight


def temperature_row(p: Floats, cooled: Floats) -> tuple[Floats, Floats]:
    """A temperature as a row of a table: a step function from probabilities (n,) to ``cooled`` (n,)."""
    edges = quantile_edges(p, _STEPS)
    index = np.searchsorted(edges, p)
    count, total = (np.bincount(index, w, len(edges) + 1) for w in (None, cooled))
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middle = (bounds[1:] + bounds[:-1]) / 2  # of a step that holds nothing
    return edges, np.where(count > 0, total / np.maximum(count, 1), middle)


def table_of(rows: list[tuple[Floats, Floats]]) -> ProbTable:
    """Put rows of unequal length in one table: short ones are padded with empty bins above 1."""
    most = max(len(values) for _, values in rows)
    edges = np.stack([np.pad(e, (0, most - 1 - len(e)), constant_values=1.0) for e, _ in rows])
    values = np.stack([np.pad(v, (0, most - len(v)), mode="edge") for _, v in rows])
    return ProbTable(edges, np.clip(values, 0, 1))


def check_table(of: str, bins: int, smoothing: float) -> None:
    """Raise InputError for options of a table that cannot be right."""
    if of not in ("top", "each"):
        raise InputError(f"of must be 'top' or 'each', got {of!r}")
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if not (np.isfinite(smoothing) and smoothing >= 0):
        raise InputError(f"smoothing must be a number of samples, 0 or more, got {smoothing}")


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

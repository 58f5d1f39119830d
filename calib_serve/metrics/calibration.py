"""Calibration errors: of the top class and of every class, over bins and by a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.bins import Bins, Edges, bin_index, check_binning
from calib_serve.core.errors import InputError
from calib_serve.metrics.intervals import quantile_of, resamples
from calib_serve.metrics.samples import checked, row_blocks, top_label

Floats = NDArray[np.float64]

_MOST_BINS = 200  # of the sweep


def equal_mass_edges(n: float, bins: int) -> Floats:
    """Bounds (M + 1,) of M equal-mass bins over ranked samples, by np.array_split's rule.

    Args:
        n: Number of samples, or their mass; a mass that is no count is divided evenly.
        bins: Number of bins, M.

    >>> equal_mass_edges(7, 3).tolist()
    [0.0, 3.0, 5.0, 7.0]
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if n != round(n):
        return np.linspace(0, n, bins + 1)
    size, longer = divmod(round(n), bins)
    ranks = np.arange(bins + 1)
    return (ranks * size + np.minimum(ranks, longer)).astype(np.float64)


def tie_ends(ranked: Floats) -> NDArray[np.intp]:
    """Count how many of the ranked numbers (n,) lie at or below each distinct one (g,), after a 0.

    >>> tie_ends(np.array([0.1, 0.5, 0.5, 0.5])).tolist()
    [0, 1, 4]
    """
    rises = np.ones(len(ranked) + 1, bool)
    np.greater(ranked[1:], ranked[:-1], out=rises[1:-1])
    return np.flatnonzero(rises)


def cumulative(values: Floats) -> Floats:
    """Cumulative sums (..., n + 1) along the last axis, from 0."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


@dataclass(frozen=True, eq=False)
class Ranked:
    """Cumulative sums (g + 1,) over predictions ranked by rising confidence, each from 0.

    Equal confidences at a bin's edge share their correct answers evenly, which is the mean over all their
    orders: so no result depends on the order of the samples.

    Args:
        mass: Number of predictions.
        confidence: Sum of their confidences.
        correct: Number of right ones.
    """

    mass: Floats
    confidence: Floats
    correct: Floats

    @classmethod
    def of(cls, confidence: ArrayLike, correct: ArrayLike) -> Ranked:
        """Rank predictions by confidence.

        Args:
            confidence: (n,), in any order.
            correct: Whether each is right (n,).
        """
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        order = np.argsort(c)
        c, y = c[order], y[order]
        ends = tie_ends(c)
        return cls(*(cumulative(column)[ends] for column in (np.ones_like(c), c, y)))

    def sums(self, bins: int) -> tuple[Floats, Floats, Floats]:
        """Count, sum of confidences and number correct of each equal-mass bin (bins,)."""
        edges = equal_mass_edges(float(self.mass[-1]), bins)
        confidence = np.interp(edges, self.mass, self.confidence)
        correct = np.interp(edges, self.mass, self.correct)
        return np.diff(edges), np.diff(confidence), np.diff(correct)

    def ece(self, bins: int) -> float:
        """Expected calibration error over equal-mass bins."""
        # Edges between ranks split ties: each bin has its share of their correct answers.
        count, confidence, correct = self.sums(bins)
        return float(np.abs(confidence - correct).sum() / count.sum())

    def sweep_ece(self) -> float:
        """The ECE over as many equal-mass bins as keep accuracy rising (Roelofs 2022, alg. 1)."""
        return self.ece(self.rising_bins())

    def rising_bins(self) -> int:
        """Count the equal-mass bins that keep accuracy rising, at most 200.

        The bound is ours: where confidence ranks nearly perfectly, accuracy rises up to n bins, and
        finding that out takes time quadratic in n for no change in the number.
        """
        bins, most = 1, min(_MOST_BINS, self.mass[-1])
        while bins < most and self._rises(bins + 1):
            bins += 1
        return bins

    def _rises(self, bins: int) -> bool:
        edges = equal_mass_edges(float(self.mass[-1]), bins)
        correct = np.interp(edges, self.mass, self.correct)
        accuracy = (correct[1:] - correct[:-1]) / (edges[1:] - edges[:-1])
        # Interpolation rounds; equal accuracies must not look like a fall.
        return bool((accuracy[1:] >= accuracy[:-1] - 1e-12).all())


Split = Literal["equal", "interpolated", "quantile"]
"""How equal-mass bins split the ranked confidences."""


def _bins(probs: ArrayLike, labels: ArrayLike, bins: int, edges: Edges) -> Bins:
    confidence, correct = top_label(probs, labels)
    return Bins.tally(confidence, correct, bins=bins, edges=edges)


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return share of predictions that are right; ties go to the lowest class id.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """
    p, y = checked(probs, labels)
    return float((p.argmax(axis=1) == y).mean())


def mean_confidence(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return mean top-1 confidence.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,), which are checked alone.
    """
    return float(top_label(probs, labels)[0].mean())


def signed_gap(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return mean confidence minus accuracy: positive when overconfident.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> round(signed_gap([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 12)
    0.15
    """
    confidence, correct = top_label(probs, labels)
    return float((confidence - correct).mean())


def ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return expected calibration error over equal-width bins (Naeini 2015; Guo 2017, eq. 3).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10)  # (|0.7 - 1| + |0.6 - 0|) / 2
    0.45
    """
    return _bins(probs, labels, bins, edges).ece()


def mce(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return largest gap of a bin that holds a prediction (Guo 2017, eq. 5).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).mce()


def ace(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return average calibration error: the unweighted mean gap of the bins in use (Neumann 2018).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).ace()


def overconfidence_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right"
) -> float:
    """Return mean over bins of confidence times its excess over accuracy (Thulasidasan 2019, eq. 4).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).overconfidence_error()


def underconfidence_error(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right"
) -> float:
    """Return the mean over bins of confidence times its shortfall below accuracy.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).underconfidence_error()


def rms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return root mean squared gap over bins, not debiased: label noise biases it upward.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).l2()


def rms_debiased(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return root of the debiased mean squared gap (Kumar 2019, eq. 8); 0 where noise explains it all.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return math.sqrt(max(_bins(probs, labels, bins, edges).debiased_l2_squared(), 0.0))


def noise_floor(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return the ECE that a perfectly calibrated model with these confidences would show on average.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
    """
    return _bins(probs, labels, bins, edges).noise_floor()


def gap_errors(count: Floats, confidence: Floats) -> dict[str, Callable[[Floats], Floats]]:
    """Each binned error (r,) as a function of gaps (r, B), summed confidence less correct ones.

    ``count`` and summed ``confidence`` (B,) are of bins that hold a prediction. They equal those of ``Bins``.
    """
    n = count.sum()
    weight = confidence / count / n
    return {
        "ece": lambda g: np.abs(g).sum(axis=1) / n,
        "mce": lambda g: (np.abs(g) / count).max(axis=1),
        "ace": lambda g: (np.abs(g) / count).mean(axis=1),
        "overconfidence_error": lambda g: np.maximum(g, 0) @ weight,
        "underconfidence_error": lambda g: np.maximum(-g, 0) @ weight,
        "rms": lambda g: np.sqrt((g**2 / count).sum(axis=1) / n),
    }


def adaptive_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, split: Split = "equal") -> float:
    """Return expected calibration error over equal-mass bins: np.array_split of the ranked confidences.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
        split: "equal": tied confidences at a bin's edge share their correct answers evenly. The others
            reproduce other code, and put ties on one side: "interpolated" edges between ranks drop the
            smallest confidences (Mukhoti 2020's code); "quantile" edges are np.quantile's, closed on the left
            (netcal).
    """
    confidence, correct = top_label(probs, labels)
    if split == "equal":
        return Ranked.of(confidence, correct).ece(bins)
    if split not in ("interpolated", "quantile"):
        raise InputError(f"split must be 'equal', 'interpolated' or 'quantile', got {split!r}")
    n = len(confidence)
    if split == "interpolated":
        cuts = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(confidence))
        index = np.searchsorted(cuts, confidence, side="left") - 1
    else:
        cuts = np.quantile(confidence, np.linspace(0, 1, bins + 1))
        index = np.minimum(np.searchsorted(cuts, confidence, side="right") - 1, bins - 1)
    # Interpolated edges begin above the smallest confidences, which fall out, as in the code it reproduces.
    kept = index >= 0
    gaps = np.bincount(index[kept], (confidence - correct)[kept], minlength=bins)
    return float(np.abs(gaps).sum() / n)


def sweep_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return ECE over as many equal-mass bins as keep accuracy rising (Roelofs 2022, alg. 1).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
    """
    return Ranked.of(*top_label(probs, labels)).sweep_ece()


Ints = NDArray[np.intp]
Truth = Callable[[Floats], Floats]


def classwise_ece(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right", threshold: float = 0.0
) -> float:
    """Return the mean over classes of each class's ECE: the static error (Nixon 2019, eq. 4; Kull 2019).

    All n samples count in each class, and all K columns are classes, whether or not a label of theirs is
    present.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        threshold: Probabilities below it are left out of the sums, with their labels (thresholded SCE: Nixon
            2019, section 3.3), and not out of the denominator n.

    >>> round(classwise_ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=1), 12)  # |1.3 - 1| / 2, twice
    0.15
    """
    p, y = checked(probs, labels)
    return Residuals.of(p, bins=bins, edges=edges, threshold=threshold).ece(y)


def adaptive_classwise_ece(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, threshold: float = 0.0
) -> float:
    """Return the mean over classes of each class's ECE over equal-mass bins (Nixon 2019, eq. 5: ACE, TACE).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
        threshold: A class's bins hold the probabilities from it on (TACE); the denominator stays n.
    """
    p, y = checked(probs, labels)
    found = []
    for k, column in enumerate(p.T):
        kept = column >= threshold
        if kept.any():
            found.append(Ranked.of(column[kept], y[kept] == k).ece(bins) * float(kept.mean()))
    return float(math.fsum(found) / p.shape[1])


def classwise_rms_debiased(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Return root of the debiased squared gap, averaged over classes (Kumar 2019, eq. 8, marginal).

    A class whose gaps are within noise counts as 0.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
    """
    p, y = checked(probs, labels)
    squares = [
        max(Bins(*Ranked.of(column, y == k).sums(bins)).debiased_l2_squared(), 0.0)
        for k, column in enumerate(p.T)
    ]
    return math.sqrt(sum(squares) / len(squares))


@dataclass(frozen=True, eq=False)
class Residuals:
    """The entries of probabilities (n, K) above the first bin, from which classwise ECE follows.

    A row sums to 1, so fewer than ``bins`` of its entries lie above the first bin. The list is short, and a
    class's first bin is its column's ``total`` minus its listed entries. ``row``, ``column``, ``code``
    (column * bins + bin) and ``listed`` (m,) are one entry each.
    """

    probs: NDArray[np.floating[Any]]
    bins: int
    threshold: float
    total: Floats
    row: Ints
    column: Ints
    code: Ints
    listed: Floats

    @classmethod
    def of(
        cls, probs: NDArray[np.floating[Any]], *, bins: int, edges: Edges, threshold: float = 0.0
    ) -> Residuals:
        """List the entries above the first bin; those below the threshold are ignored."""
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must be a probability, got {threshold}")
        check_binning(bins, edges)
        # The same edges as ``bin_index``, to the last bit.
        first_edge = np.linspace(0, 1, bins + 1)[1]
        above = np.greater if edges == "right" else np.greater_equal
        total = np.zeros(probs.shape[1])
        found: list[tuple[Ints, Floats]] = []
        for rows, p in row_blocks(probs):
            if threshold > 0:
                p[p < threshold] = 0
            total += p.sum(axis=0)
            flat = np.flatnonzero(above(p, first_edge)) if bins > 1 else np.empty(0, np.intp)
            found.append((flat + rows.start * p.shape[1], p.ravel()[flat]))
        row, column = np.divmod(np.concatenate([flat for flat, _ in found]), probs.shape[1])
        listed = np.concatenate([p for _, p in found])
        code = column * bins + bin_index(np.minimum(listed, 1), bins=bins, edges=edges)
        return cls(probs, bins, threshold, total, row, column, code, listed)

    def ece(self, labels: Ints) -> float:
        """Classwise ECE for class ids (n,)."""
        return self._mean_gap(*self._gaps(labels))

    def cells(self, labels: Ints) -> tuple[Floats, Floats]:
        """Summed gaps for class ids (n,), and their variances were the model calibrated: (K, bins)."""
        variance = sum((p * (1 - p)).sum(axis=0) for _, p in row_blocks(self.probs))
        return self._cells(*self._gaps(labels)), self._cells(variance, self.listed * (1 - self.listed))

    def _gaps(self, labels: Ints) -> tuple[Floats, Floats]:
        counted = labels
        if self.threshold > 0:
            counted = labels[self.probs[np.arange(len(labels)), labels] >= self.threshold]
        total = self.total - np.bincount(counted, minlength=len(self.total))
        return total, self.listed - (labels[self.row] == self.column)

    def true_ece(self, truth: Truth) -> float:
        """The classwise ECE under ``truth``, which maps rows of probabilities to true ones."""
        return self._mean_gap(*self._true_gaps(truth))

    def true_cells(self, truth: Truth) -> Floats:
        """Summed gaps (K, bins) of given from true probabilities."""
        return self._cells(*self._true_gaps(truth))

    def turned(self, labels: Ints, signs: Floats, truth: Truth) -> Iterator[Floats]:
        """Yield residuals (K, bins) of true probabilities from labels (n,), summed under signs (r, n)."""
        total = np.zeros((len(signs), len(self.total)))
        listed = np.empty(len(self.listed))
        for rows, p in row_blocks(self.probs):
            q = truth(p)
            q[np.arange(len(q)), labels[rows]] -= 1
            total += signs[:, rows] @ q
            entries = self._entries(rows)
            listed[entries] = q[self.row[entries] - rows.start, self.column[entries]]
        for whole, sign in zip(total, signs, strict=True):
            yield self._cells(whole, sign[self.row] * listed)

    def _true_gaps(self, truth: Truth) -> tuple[Floats, Floats]:
        """Each class's summed gap (K,), and the listed entries' gaps (m,)."""
        total, listed = self.total.copy(), self.listed.copy()
        for rows, p in row_blocks(self.probs):
            q = truth(p)
            total -= q.sum(axis=0)
            entries = self._entries(rows)
            listed[entries] -= q[self.row[entries] - rows.start, self.column[entries]]
        return total, listed

    def _entries(self, rows: slice) -> slice:
        """The listed entries of a run of rows; entries are in the rows' order."""
        first, last = np.searchsorted(self.row, [rows.start, rows.stop])
        return slice(int(first), int(last))

    def _mean_gap(self, total: Floats, gaps: Floats) -> float:
        """Average the absolute gaps, from each class's summed residual (K,) and the listed entries' (m,)."""
        return float(np.abs(self._cells(total, gaps)).sum() / self.probs.size)

    def _cells(self, total: Floats, gaps: Floats) -> Floats:
        classes = self.probs.shape[1]
        sums = np.bincount(self.code, gaps, minlength=classes * self.bins)
        per_class = sums.astype(np.float64).reshape(classes, self.bins)  # integers if none is listed
        # The first bin is what the listed entries leave of the column's total.
        per_class[:, 0] += total - per_class.sum(axis=1)
        return per_class


NODES = 2048  # grid cells on [0, 1]
_NARROWEST = 1 / 1024  # the smallest bandwidth that this grid resolves
_TOLERANCE = 1e-9
_STEPS = 60
_SHOWN = 8  # every eighth node is a point of the curve
_LEAST = 0.1  # kernel weights at a point, in samples, below which there is no curve
_BLOCK = 32  # replicates smoothed at once: 1 MiB of float64


def smooth_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return the smooth ECE of the top class, the sigma that equals it (Blasiok 2023, def. 3.3).

    The Gaussian kernel is reflected at 0 and 1 with the boundary itself counted once; code that
    leaves it out differs where many confidences are 0 or 1.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> round(smooth_ece([[1.0, 0.0], [1.0, 0.0]], [0, 1]), 4)  # as ECE: all mass in one place
    0.5
    """
    return _smooth_ece(*top_label(probs, labels))


@dataclass(frozen=True, eq=False)
class SmoothReliability:
    """A reliability diagram without bins, over g rising confidences.

    Args:
        confidence: (g,), rising.
        accuracy: Kernel regression of right answers (g,).
        low: Lower end of its pointwise band (g,), NaN where hardly any prediction lies.
        high: Upper end of its pointwise band (g,), NaN where hardly any prediction lies.
        density: Density of the confidences (g,), which integrates to 1.
        sigma: Width of the kernel: the smooth ECE, at least 1 / 1024.
        ece: Smooth ECE.
        n: Number of samples.
    """

    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    density: Floats
    sigma: float
    ece: float
    n: int


def smooth_reliability(
    probs: ArrayLike, labels: ArrayLike, *, level: float = 0.95, replicates: int = 200, seed: int = 0
) -> SmoothReliability:
    """Return the smooth reliability diagram of the predicted class (Blasiok and Nakkiran 2023).

    Kernel regression (Nadaraya 1964) of right answers on the top class's confidence, by the reflected
    Gaussian kernel whose width is the smooth ECE (section 4). The band is how far chance moves the curve, not
    what a calibrated model shows.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        level: Coverage of the pointwise band, a fraction.
        replicates: Resamples, at that width, between whose quantiles the band is; 0: no band.
        seed: Seed of the resamples.

    >>> curve = smooth_reliability([[0.75, 0.25]] * 4, [0, 0, 0, 1], replicates=0)
    >>> float(curve.accuracy[192].round(6)), curve.sigma  # at 0.75: calibrated, so the narrowest kernel
    (0.75, 0.0009765625)
    """
    return smooth_curve(*top_label(probs, labels), level=level, replicates=replicates, seed=seed)


def smooth_curve(
    confidence: Floats, correct: NDArray[np.bool_], *, level: float, replicates: int, seed: int
) -> SmoothReliability:
    """Compute ``smooth_reliability`` from confidences.

    Args:
        confidence: (n,), in [0, 1].
        correct: Whether each came true (n,).
        level: Coverage of the pointwise band, a fraction.
        replicates: Resamples that the band is made of; 0: no band.
        seed: Seed of the resamples.
    """
    quantile_of(level)  # raises for an invalid level
    if replicates < 0:
        raise InputError(f"replicates must be 0 or more, got {replicates}")
    n, ece = len(confidence), _smooth_ece(confidence, correct)
    # A narrower kernel than the grid's resolution would draw its nodes, not the data.
    sigma = max(ece, _NARROWEST)
    node, share = on_grid(confidence)

    def curve(weight: Floats) -> tuple[Floats, Floats]:
        mass = np.stack([_mass(node, share, weight), _mass(node, share, weight * correct)])
        total, right = _at_nodes(mass, sigma)[:, ::_SHOWN]
        few = total * n * sigma * math.sqrt(2 * math.pi) < _LEAST
        return np.where(few, np.nan, np.clip(right / np.where(few, 1, total), 0, 1)), total

    accuracy, density = curve(np.full(n, 1 / n))
    drawn = [curve(weight / n)[0] for block in resamples(n, replicates, seed=seed) for weight in block]
    low = high = np.full(len(accuracy), np.nan)
    if drawn:
        ends = [(1 - level) / 2, (1 + level) / 2]
        known = np.isfinite(accuracy)
        low, high = low.copy(), high.copy()
        # Where a resample has no curve it says nothing.
        low[known], high[known] = np.nanquantile(np.stack([accuracy, *drawn])[:, known], ends, axis=0)
    points = np.linspace(0, 1, NODES + 1)[::_SHOWN]
    return SmoothReliability(points, accuracy, low, high, np.maximum(density, 0), sigma, ece, n)


def _smooth_ece(confidence: Floats, correct: NDArray[np.bool_]) -> float:
    residual = (confidence - correct) / len(confidence)
    return float(smoothed(_mass(*on_grid(confidence), residual)[None])[0])


def _mass(node: NDArray[np.intp], share: Floats, weight: Floats) -> Floats:
    """Weights (n,) on the grid's nodes (NODES + 1,)."""
    low = np.bincount(node, weights=weight * (1 - share), minlength=NODES + 1)
    return np.asarray(low + np.bincount(node + 1, weights=weight * share, minlength=NODES + 1))


def _at_nodes(mass: Floats, sigma: float) -> Floats:
    """Densities on [0, 1] at the nodes, of masses (r, NODES + 1) under the reflected kernel."""
    cosines = _cosines(mass)
    kernel = np.exp(-((np.pi * sigma * np.arange(cosines.shape[1])) ** 2) / 2)
    return np.asarray(np.fft.irfft(cosines * kernel, 2 * NODES)[:, : NODES + 1] * (2 * NODES))


def on_grid(confidence: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The grid node below each confidence (n,), and the share of the way to the next node."""
    place = confidence * NODES
    node = np.minimum(place.astype(np.intp), NODES - 1)
    return node, place - node


def smoothed(mass: Floats, *, tolerance: float = _TOLERANCE) -> Floats:
    """Smooth ECEs (r,) of residuals (confidence - correct) / n on grid nodes (r, NODES + 1)."""
    starts = range(0, len(mass), _BLOCK)
    blocks = [_fixed_point(_cosines(mass[i : i + _BLOCK]), tolerance) for i in starts]
    return np.concatenate(blocks)


def _cosines(mass: Floats) -> Floats:
    """Sums of mass * cos(pi k t), the Fourier transform of the even extension to a circle.

    The nodes 0 and 1 are their own mirror images, so they enter it once.
    """
    inner = mass[:, 1:-1] / 2
    return np.fft.rfft(np.concatenate([mass[:, :1], inner, mass[:, -1:], inner[:, ::-1]], axis=1)).real


def _error_at(sigma: Floats, cosines: Floats) -> Floats:
    """Integral over [0, 1] of the absolute smoothed residual, by the trapezoid rule.

    A reflected Gaussian kernel is a factor exp(-(pi k sigma)^2 / 2) on the k-th cosine.
    """
    # Where pi k sigma > 8.6 the factor is below 1e-16.
    k = np.arange(min(cosines.shape[1], int(8.6 / (np.pi * sigma.min())) + 2))
    kernel = np.exp(-((np.pi * sigma[:, None] * k) ** 2) / 2)
    return np.asarray(np.abs(np.fft.irfft(cosines[:, : len(k)] * kernel, 2 * NODES)).sum(axis=1))


def _fixed_point(cosines: Floats, tolerance: float) -> Floats:
    """Find where the error, which falls with sigma, crosses sigma (Illinois variant of regula falsi)."""
    widest = _error_at(np.full(len(cosines), _NARROWEST), cosines)
    if (narrow := widest <= _NARROWEST).any():  # the error is below the grid's resolution
        crossing = np.array(widest)
        if not narrow.all():
            crossing[~narrow] = _fixed_point(cosines[~narrow], tolerance)
        return crossing
    # As the error falls, error(widest) <= error(crossing) = crossing <= widest.
    high, at_high = widest, _error_at(widest, cosines) - widest
    low = np.maximum(widest + at_high, _NARROWEST)
    at_low = _error_at(low, cosines) - low
    stayed = np.zeros(len(low))  # -1: low did not move last time, 1: high did not
    for _ in range(_STEPS):
        fall = at_low - at_high
        middle = np.where(fall > 0, low + (high - low) * at_low / np.where(fall > 0, fall, 1), low)
        at_middle = _error_at(middle, cosines) - middle
        if np.abs(at_middle).max() < tolerance:
            break
        above = at_middle > 0
        # An end that stays twice counts half, so that both ends keep moving.
        at_low = np.where(above, at_middle, np.where(stayed < 0, at_low / 2, at_low))
        at_high = np.where(above, np.where(stayed > 0, at_high / 2, at_high), at_middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        stayed = np.where(above, 1, -1)
    return middle

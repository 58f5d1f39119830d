"""Calibration errors of the top class, over bins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, Edges
from calib_serve.core.errors import InputError
from calib_serve.metrics.samples import checked, row_slices, top_label

Split = Literal["equal", "interpolated", "quantile"]
"""How equal-mass bins split the ranked confidences."""


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


def running(ranked: Floats, columns: Callable[[slice], Sequence[Floats]]) -> Iterator[Floats]:
    """Yield cumulative sums (k, m + 1) at the distinct ones of ranked numbers (n,), run after run.

    A run begins with the sums that the last one ended with, the first with 0. ``columns``: k numbers a row.

    >>> [sums.tolist() for sums in running(np.array([0.1, 0.5, 0.5]), lambda rows: [np.ones(3)])]
    [[[0.0, 1.0, 3.0]]]
    """
    seen = last = np.zeros((len(columns(slice(0, 0))), 1))
    for rows in row_slices((len(ranked), 1)):
        sums = np.cumsum(np.concatenate([seen, np.stack(columns(rows))], axis=1), axis=1)
        own, after = ranked[rows], ranked[rows.start + 1 : rows.stop + 1]
        ends = np.append(True, np.append(after, np.inf)[: len(own)] > own)
        seen, sums[:, :1] = sums[:, -1:], last
        last = sums[:, ends][:, -1:]
        yield sums[:, ends]


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
    MOST: ClassVar[int] = 200  # equal-mass bins of a sweep

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
        bins, most = 1, min(self.MOST, self.mass[-1])
        while bins < most and self._rises(bins + 1):
            bins += 1
        return bins

    def _rises(self, bins: int) -> bool:
        edges = equal_mass_edges(float(self.mass[-1]), bins)
        correct = np.interp(edges, self.mass, self.correct)
        accuracy = (correct[1:] - correct[:-1]) / (edges[1:] - edges[:-1])
        # Interpolation rounds; equal accuracies must not look like a fall.
        return bool((accuracy[1:] >= accuracy[:-1] - 1e-12).all())


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

"""Calibration errors of the top class and of each class, over bins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, Edges, bin_index
from calib_serve.core.errors import InputError
from calib_serve.metrics.samples import checked, row_blocks, row_slices, top_label


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

    def rising_bins(self) -> int:
        """Count the equal-mass bins that keep accuracy rising, at most 200 (Roelofs 2022, alg. 1).

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


def binned(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> Bins:
    """Sum predictions by confidence: every calibration error over equal-width bins is a method of the result.

    ``ece()``, ``mce()``, ``ace()``, ``l2()``, ``overconfidence_error()``, ``signed_gap()``, ``noise_floor()``
    and others. Bins add up: those of all parts of data that do not fit into memory are those of the data.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> first, second = binned([[0.7, 0.3]], [0]), binned([[0.6, 0.4]], [1])
    >>> round((first + second).ece(), 12), round(second.mce(), 12)  # (|0.7 - 1| + |0.6 - 0|) / 2
    (0.45, 0.6)
    """
    return Bins.tally(*top_label(probs, labels), bins=bins, edges=edges)


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of predictions that are right; ties go to the lowest class id.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """
    p, y = checked(probs, labels)
    return float((p.argmax(axis=1) == y).mean())


def ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return the expected calibration error over equal-width bins (Naeini 2015; Guo 2017, eq. 3).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10)  # (|0.7 - 1| + |0.6 - 0|) / 2
    0.45
    """
    return binned(probs, labels, bins=bins, edges=edges).ece()


def adaptive_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Return the expected calibration error over equal-mass bins: np.array_split of the ranked confidences.

    Tied confidences at a bin's edge share their correct answers evenly.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal mass.
    """
    return Ranked.of(*top_label(probs, labels)).ece(bins)


def classwise_ece(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> float:
    """Return the mean over classes of each class's ECE: the static error (Nixon 2019, eq. 4; Kull 2019).

    All n samples count in each class, and all K columns are classes, whether or not a label of theirs is
    present.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> round(classwise_ece([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=1), 12)  # |1.3 - 1| / 2, twice
    0.15
    """
    p, y = checked(probs, labels)
    classes, gaps = p.shape[1], np.zeros(p.shape[1] * bins)
    for rows, block in row_blocks(p):
        code = bin_index(np.minimum(block, 1), bins=bins, edges=edges) + bins * np.arange(classes)
        gaps += np.bincount(code.ravel(), block.ravel(), len(gaps))
        gaps -= np.bincount(code[np.arange(len(block)), y[rows]], minlength=len(gaps))
    return float(np.abs(gaps).sum() / p.size)


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

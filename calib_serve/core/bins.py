"""Sums per confidence bin, and every number that follows from them alone.

Metrics, plots, the monitor and the exporter all read this one record, so ECE means the
same in a table, in a test and on a dashboard. Sums add up over shards, workers and
replicas; ratios do not: a ratio is always taken last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, are_counts, as_floats
from calib_serve.core.errors import InputError, ShapeError

Edges = Literal["right", "left"]
"""``right``: bins are (lo, hi] and the first holds 0. ``left``: [lo, hi) and the last holds 1."""

_COUNTED = ("count", "confidence", "correct")


def check_binning(bins: int, edges: Edges) -> None:
    """Raise InputError for an invalid bin count or convention."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if edges not in ("right", "left"):
        raise InputError(f"edges must be 'right' or 'left', got {edges!r}")


def bin_index(confidence: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> NDArray[np.intp]:
    """The equal-width bin of each confidence, in any shape; InputError for values outside of [0, 1] and NaN.

    >>> bin_index([0.0, 0.5, 0.55, 1.0], bins=10).tolist()
    [0, 4, 5, 9]
    >>> bin_index([0.0, 0.5, 0.55, 1.0], bins=10, edges="left").tolist()
    [0, 5, 5, 9]
    """
    check_binning(bins, edges)
    c = as_floats(confidence, "confidences")
    if c.size and not (c.min() >= 0 and c.max() <= 1):  # also true for NaN
        raise InputError("confidences must lie in [0, 1]; pass probabilities, not logits or percent")
    cuts = np.linspace(0, 1, bins + 1)
    scaled = np.asarray(c * bins)
    index = scaled.astype(np.intp)
    # Multiplication rounds: what lies near a cut is compared with it.
    near = np.abs(scaled - np.rint(scaled)) < 1e-6
    # Right-closed bins are like Prometheus `le`: one set of edges serves both.
    side: Literal["left", "right"] = "left" if edges == "right" else "right"
    index[near] = np.searchsorted(cuts, c[near], side=side) - 1
    return np.clip(index, 0, bins - 1)


@dataclass(frozen=True, eq=False)
class Bins:
    """Sums over the predictions whose confidence fell into each bin; read-only, float64.

    Args:
        count: Predictions (bins,).
        confidence: Sums of their confidences (bins,).
        correct: How many of them were right (bins,).
        noise: Variances of the gaps of a calibrated model with these confidences (bins,), sums of c (1 - c);
            by default as if all confidences of a bin were its mean.

    >>> b = Bins.tally([0.5, 0.55, 0.6, 0.45], [1, 1, 1, 1], bins=10)
    >>> b.count.astype(int).tolist()
    [0, 0, 0, 0, 2, 2, 0, 0, 0, 0]
    >>> round(b.ece(), 4)
    0.475
    """

    count: Floats
    confidence: Floats
    correct: Floats
    noise: Floats = None  # type: ignore[assignment]  # never None once it is made

    def __post_init__(self) -> None:
        if self.noise is None:
            count, said = np.asarray(self.count, np.float64), np.asarray(self.confidence, np.float64)
            object.__setattr__(self, "noise", said * (1 - said / np.where(count > 0, count, 1)))
        for name in (*_COUNTED, "noise"):
            sums = np.array(getattr(self, name), np.float64)
            sums.setflags(write=False)
            object.__setattr__(self, name, sums)
        if self.count.ndim != 1 or len({getattr(self, name).shape for name in (*_COUNTED, "noise")}) > 1:
            raise ShapeError(
                "count, confidence and correct must be 1-D of one length, got "
                f"{self.count.shape}, {self.confidence.shape}, {self.correct.shape}"
            )

    @classmethod
    def zeros(cls, bins: int = 15) -> Bins:
        """Return sums of no prediction yet.

        Args:
            bins: Number of bins.
        """
        return cls(*np.zeros((4, bins)))

    @classmethod
    def tally(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        bins: int = 15,
        edges: Edges = "right",
        weight: ArrayLike | None = None,
    ) -> Bins:
        """Sum up top-1 confidences and whether each prediction was right.

        Args:
            confidence: (n,) in [0, 1].
            correct: 0 or 1 (n,).
            bins: Number of bins, of equal width.
            edges: Whether a bin holds its upper end, "right", or its lower one, "left".
            weight: (n,); counts are rows that are there as often, and the gap of other weights varies by
                their squares.
        """
        c, y = as_floats(confidence, "confidence"), as_floats(correct, "correct")
        if c.ndim != 1 or c.shape != y.shape:
            raise ShapeError(f"confidence and correct must both be (n,), got {c.shape} and {y.shape}")
        if y.size and not (y.min() >= 0 and y.max() <= 1):  # also true for NaN
            raise InputError("correct must be 0 or 1 for each prediction, got numbers beyond or NaN")
        index = bin_index(c, bins=bins, edges=edges)
        w = np.ones(len(c)) if weight is None else as_floats(weight, "weight")
        columns = (w, w * c, w * y, (w if are_counts(w) else w * w) * c * (1 - c))
        return cls(*(np.bincount(index, column, bins).astype(np.float64) for column in columns))

    def merge(self, other: Bins) -> Bins:
        """Add the sums of both; associative and commutative.

        Args:
            other: Sums over as many bins.
        """
        if len(self) != len(other):
            raise ShapeError(f"cannot merge {len(self)} bins with {len(other)}; use one bin count")
        return Bins(*(getattr(self, name) + getattr(other, name) for name in (*_COUNTED, "noise")))

    __add__ = merge

    def __len__(self) -> int:
        return len(self.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bins) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _COUNTED
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def n(self) -> float:
        """Return how many predictions there are."""
        return float(self.count.sum())

    def _mean(self, total: float) -> float:
        return total / self.n if self.n else math.nan

    def gaps(self) -> Floats:
        """Return how much each bin's summed confidence is above its correct ones (bins,)."""
        return self.confidence - self.correct

    def accuracy(self) -> float:
        """Return the share of correct predictions; NaN when empty, like every ratio here."""
        return self._mean(float(self.correct.sum()))

    def mean_confidence(self) -> float:
        """Return the mean top-1 confidence."""
        return self._mean(float(self.confidence.sum()))

    def signed_gap(self) -> float:
        """Return the mean confidence minus accuracy: positive when overconfident."""
        return self._mean(float(self.gaps().sum()))

    def ece(self) -> float:
        """Return the expected calibration error (Naeini 2015; Guo 2017, eq. 3)."""
        return self._mean(float(np.abs(self.gaps()).sum()))

    def mce(self, *, at_least: float = 1) -> float:
        """Return the largest gap of a bin (Guo 2017, eq. 5).

        Args:
            at_least: Predictions that a bin must hold.
        """
        full = self.count >= max(at_least, np.finfo(float).tiny)
        return float((np.abs(self.gaps())[full] / self.count[full]).max()) if full.any() else math.nan

    def ace(self) -> float:
        """Return the unweighted mean gap of the bins that hold a prediction (Neumann 2018)."""
        full = self.count > 0
        return float((np.abs(self.gaps())[full] / self.count[full]).mean()) if full.any() else math.nan

    def overconfidence_error(self) -> float:
        """Return the bins' mean of confidence times its excess over accuracy (Thulasidasan 2019, eq. 4)."""
        return self._weighted_excess(self.gaps())

    def underconfidence_error(self) -> float:
        """Return the mean over bins of confidence times its shortfall below accuracy."""
        return self._weighted_excess(-self.gaps())

    def _weighted_excess(self, gaps: Floats) -> float:
        full = self.count > 0
        excess = self.confidence[full] / self.count[full] * np.maximum(gaps[full], 0)
        return self._mean(float(excess.sum()))

    def noise_floor(self) -> float:
        """Return E[ECE] of a perfectly calibrated model with these confidences, to first order.

        A bin's gap is then normal with the variance ``noise``, and E|gap| = sqrt(2 / pi) sd.
        """
        return self._mean(float(np.sqrt(2 / math.pi * np.maximum(self.noise, 0)).sum()))

    def l2(self) -> float:
        """Return the root mean squared gap, plug-in estimate (biased upward)."""
        full = self.count > 0
        return (
            math.sqrt(self._mean(float((self.gaps()[full] ** 2 / self.count[full]).sum())))
            if self.n
            else math.nan
        )

    def debiased_l2_squared(self) -> float:
        """Return the mean squared gap less the part that label noise alone explains (Kumar 2019, eq. 8).

        Negative when the gaps are smaller than noise; bins with fewer than two predictions are left out of
        the sum.
        """
        full = self.count > 1
        n, gap = self.count[full], self.gaps()[full] / self.count[full]
        accuracy = self.correct[full] / n
        return self._mean(float((n * (gap**2 - accuracy * (1 - accuracy) / (n - 1))).sum()))


def psi(counts: ArrayLike, reference: ArrayLike) -> float:
    """Return the population stability index of two histograms of counts (bins,); NaN when either is empty.

    Such as confidences or predicted classes. Every share counts as at least 1e-4, so that an empty bin
    does not make it infinite.

    >>> round(psi([40, 60], [50, 50]), 4)
    0.0405
    """
    a, b = np.asarray(counts, np.float64), np.asarray(reference, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ShapeError(f"both histograms must be (bins,), got {a.shape} and {b.shape}")
    if not (a.sum() > 0 and b.sum() > 0):
        return math.nan
    p, q = (np.maximum(counted / counted.sum(), 1e-4) for counted in (a, b))
    return float(((p - q) * np.log(p / q)).sum())

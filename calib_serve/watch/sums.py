"""What one model version has to show for itself: sums over predictions and over labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, bin_index
from calib_serve.errors import InputError, ShapeError

__all__ = ["Key", "Sums"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Key:
    """What is counted apart: a model version, and a segment and a predicted class where asked for."""

    model: str
    version: str
    segment: str = ""
    predicted: int | None = None


@dataclass(frozen=True, eq=False)
class Sums:
    """Everything the Prometheus counters of one model version hold; adds up over workers and time.

    ``predictions`` (bins,) counts served predictions, ``predictions_confidence`` (bins,) sums their
    confidences; ``feedback`` are the bins of the labelled ones, ``confidence_squared`` and
    ``confidence_correct`` the sums of c^2 and c y over them.

    >>> a = Sums.served([0.9, 0.5], bins=2) + Sums.labelled([0.9], [1], bins=2)
    >>> a.predictions.tolist(), a.feedback.count.tolist(), round(a.brier(), 4)
    ([1.0, 1.0], [0.0, 1.0], 0.01)
    """

    predictions: Floats
    predictions_confidence: Floats
    feedback: Bins
    confidence_squared: float = 0.0
    confidence_correct: float = 0.0

    def __post_init__(self) -> None:
        for name in ("predictions", "predictions_confidence"):
            sums = np.array(getattr(self, name), np.float64)
            if sums.shape != self.feedback.count.shape:
                raise ShapeError(f"{name} must be ({len(self.feedback)},) like feedback, got {sums.shape}")
            sums.setflags(write=False)
            object.__setattr__(self, name, sums)

    @classmethod
    def zeros(cls, bins: int = 15) -> Sums:
        """Nothing yet."""
        return cls(np.zeros(bins), np.zeros(bins), Bins.zeros(bins))

    @classmethod
    def served(cls, confidence: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of predictions with top-1 confidences (n,) in [0, 1], labels not known."""
        c = np.asarray(confidence, np.float64)
        if c.ndim != 1:
            raise ShapeError(f"confidence must be (n,), got {c.shape}")
        index = bin_index(c, bins=bins)
        return cls(
            np.bincount(index, minlength=bins).astype(np.float64),
            np.bincount(index, weights=c, minlength=bins).astype(np.float64),
            Bins.zeros(bins),
        )

    @classmethod
    def labelled(cls, confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of labels that came in: confidences (n,) and whether each prediction was right (n,)."""
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        feedback = Bins.tally(c, y, bins=bins)
        return cls(np.zeros(bins), np.zeros(bins), feedback, float(c @ c), float(c @ y))

    def merge(self, other: Sums) -> Sums:
        """The sums over both; associative and commutative."""
        return self._combine(other, 1.0)

    __add__ = merge

    def __sub__(self, other: Sums) -> Sums:
        """These sums without ``other``, which must be part of them: how a window forgets."""
        return self._combine(other, -1.0)

    def scaled(self, factor: float) -> Sums:
        """Every sum times ``factor`` >= 0: how a decayed window forgets."""
        if not factor >= 0:
            raise InputError(f"factor must not be negative, got {factor}")
        return Sums.zeros(len(self.feedback))._combine(self, factor)

    def _combine(self, other: Sums, sign: float) -> Sums:
        if len(self.feedback) != len(other.feedback):
            raise ShapeError(
                f"cannot combine {len(self.feedback)} bins with {len(other.feedback)}; use one bin count"
            )
        mine, theirs = self.feedback, other.feedback
        return Sums(
            self.predictions + sign * other.predictions,
            self.predictions_confidence + sign * other.predictions_confidence,
            Bins(
                mine.count + sign * theirs.count,
                mine.confidence + sign * theirs.confidence,
                mine.correct + sign * theirs.correct,
            ),
            self.confidence_squared + sign * other.confidence_squared,
            self.confidence_correct + sign * other.confidence_correct,
        )

    def __len__(self) -> int:
        return len(self.feedback)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sums)
            and np.array_equal(self.predictions, other.predictions)
            and np.array_equal(self.predictions_confidence, other.predictions_confidence)
            and self.feedback == other.feedback
            and self.confidence_squared == other.confidence_squared
            and self.confidence_correct == other.confidence_correct
        )

    __hash__ = None  # type: ignore[assignment]

    def brier(self) -> float:
        """Top-label Brier score, exact: mean (c - y)^2 over the labels; NaN without labels."""
        n = self.feedback.n
        total = self.confidence_squared - 2 * self.confidence_correct + float(self.feedback.correct.sum())
        return total / n if n else float("nan")

"""What one model version has to show for itself: sums over predictions and over labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, bin_index
from calib_serve.errors import ShapeError
from calib_serve.receipts import Label

__all__ = ["Key", "Sums", "Version", "by_key", "merge_segments"]

Floats = NDArray[np.float64]

Version = tuple[str, str]
"""(model, version)."""


@dataclass(frozen=True, order=True)
class Key:
    """What is counted separately: a model version, and one segment of its predictions or "" for none."""

    model: str
    version: str
    segment: str = ""


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
        """These sums without ``other``, which must be part of them."""
        return self._combine(other, -1.0)

    def _combine(self, other: Sums, factor: float) -> Sums:
        if len(self) != len(other):
            raise ShapeError(f"cannot combine {len(self)} bins with {len(other)}; use one bin count")
        return Sums.from_flat(self.flat() + factor * other.flat())

    def flat(self) -> Floats:
        """Every sum in one vector (5 bins + 2,), for stores; read back by ``from_flat``."""
        f = self.feedback
        columns = (self.predictions, self.predictions_confidence, f.count, f.confidence, f.correct)
        return np.concatenate([*columns, (self.confidence_squared, self.confidence_correct)])

    @classmethod
    def from_flat(cls, flat: ArrayLike) -> Sums:
        """The sums behind ``flat()``."""
        v = np.asarray(flat, np.float64)
        if v.ndim != 1 or len(v) < 7 or len(v) % 5 != 2:
            raise ShapeError(f"flat sums are (5 bins + 2,), got {v.shape}")
        p, pc, n, c, y = v[:-2].reshape(5, -1)
        return cls(p, pc, Bins(n, c, y), float(v[-2]), float(v[-1]))

    def __len__(self) -> int:
        return len(self.feedback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and np.array_equal(self.flat(), other.flat())

    __hash__ = None  # type: ignore[assignment]

    def brier(self) -> float:
        """Top-label Brier score, exact: mean (c - y)^2 over the labels; NaN without labels."""
        n = self.feedback.n
        total = self.confidence_squared - 2 * self.confidence_correct + float(self.feedback.correct.sum())
        return total / n if n else float("nan")


def by_key(
    labels: Sequence[Label], segments: Sequence[str], *, counted: Sequence[bool], bins: int
) -> dict[Key, Sums]:
    """The sums of the labels that were ``counted``, by model, version and segment."""
    members: dict[tuple[str, str, str], list[Label]] = {}
    for one, segment, new in zip(labels, segments, counted, strict=True):
        if new:
            members.setdefault((one.receipt.model, one.receipt.version, segment), []).append(one)
    return {
        Key(*names): Sums.labelled([m.receipt.confidence for m in ms], [m.correct for m in ms], bins=bins)
        for names, ms in members.items()
    }


def merge_segments(sums: Mapping[Key, Sums]) -> dict[Version, Sums]:
    """The sums of whole model versions."""
    found: dict[Version, Sums] = {}
    for key, more in sums.items():
        version = (key.model, key.version)
        found[version] = found[version] + more if version in found else more
    return found

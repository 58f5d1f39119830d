"""Sums over the predictions and labels of one model version, as one vector that ledgers store."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, bin_index
from calib_serve.errors import ShapeError
from calib_serve.receipts import Label
from calib_serve.watch.series import SUMS

__all__ = ["Key", "Sums", "Version", "by_key", "changes", "merge_segments"]

Floats = NDArray[np.float64]

Version = tuple[str, str]
"""(model, version)."""


@dataclass(frozen=True, order=True)
class Key:
    """What is counted separately: a model version, and one segment of its predictions or "" for none."""

    model: str
    version: str
    segment: str = ""


@functools.cache
def _layout(bins: int) -> dict[str, slice]:
    """Where each sum lies in the vector."""
    ends = np.cumsum([bins if one.per_bin else 1 for one in SUMS]).tolist()
    return {one.name: slice(start, end) for one, start, end in zip(SUMS, [0, *ends], ends, strict=False)}


def _length(bins: int) -> int:
    return sum(bins if one.per_bin else 1 for one in SUMS)


def changes(
    of: Literal["predictions", "labels"], confidence: ArrayLike, correct: ArrayLike, *, bins: int
) -> tuple[NDArray[np.intp], Floats]:
    """What each prediction or label adds where: places in the vector and values, both (n, sums of its kind).

    ``confidence`` (n,) in [0, 1], ``correct`` (n,).
    """
    c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    if c.ndim != 1 or c.shape != y.shape:
        raise ShapeError(f"confidence and correct must both be (n,), got {c.shape} and {y.shape}")
    index, layout = bin_index(c, bins=bins), _layout(bins)
    kind = [one for one in SUMS if one.of == of]
    places = [layout[one.name].start + (index if one.per_bin else 0 * index) for one in kind]
    return np.stack(places, axis=1), np.stack([one.adds(c, y) for one in kind], axis=1)


@dataclass(frozen=True, eq=False)
class Sums:
    """Every sum that ``calib_serve.watch.series.SUMS`` declares; adds up over workers and time.

    ``vector`` holds them in the declared order, ``bins`` numbers for a sum per bin and one for another;
    ``sums[name]`` is one of them by the name of its series, (bins,) or (1,). Read-only.

    >>> a = Sums.served([0.9, 0.5], bins=2) + Sums.labelled([0.9], [1], bins=2)
    >>> a.predictions.tolist(), a["calib_feedback_total"].tolist(), round(a.brier(), 4)
    ([1.0, 1.0], [0.0, 1.0], 0.01)
    """

    bins: int
    vector: Floats

    def __post_init__(self) -> None:
        vector = np.array(self.vector, np.float64)
        if vector.shape != (_length(self.bins),):
            raise ShapeError(f"sums over {self.bins} bins are ({_length(self.bins)},), got {vector.shape}")
        vector.setflags(write=False)
        object.__setattr__(self, "vector", vector)

    @classmethod
    def zeros(cls, bins: int = 15) -> Sums:
        """Nothing yet."""
        return cls(bins, np.zeros(_length(bins)))

    @classmethod
    def stored(cls, vector: ArrayLike, *, bins: int) -> Sums:
        """The sums behind a stored ``vector``; those that were declared after it was written are 0."""
        v = np.asarray(vector, np.float64)
        ends = [place.stop for place in _layout(bins).values()]
        if v.ndim != 1 or len(v) not in ends:
            raise ShapeError(f"stored sums over {bins} bins are ({ends[-1]},), got {v.shape}")
        return cls(bins, np.pad(v, (0, ends[-1] - len(v))))

    @classmethod
    def served(cls, confidence: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of predictions with top-1 confidences (n,) in [0, 1], labels not known."""
        return cls._tally("predictions", confidence, np.zeros_like(confidence, np.float64), bins)

    @classmethod
    def labelled(cls, confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of labels that came in: confidences (n,) and whether each prediction was right (n,)."""
        return cls._tally("labels", confidence, correct, bins)

    @classmethod
    def _tally(
        cls, of: Literal["predictions", "labels"], confidence: ArrayLike, correct: ArrayLike, bins: int
    ) -> Sums:
        places, values = changes(of, confidence, correct, bins=bins)
        sums = np.bincount(places.ravel(), weights=values.ravel(), minlength=_length(bins))
        return cls(bins, sums.astype(np.float64))

    def __getitem__(self, name: str) -> Floats:
        return self.vector[_layout(self.bins)[name]]

    @property
    def predictions(self) -> Floats:
        """Served predictions by bin (bins,)."""
        return self["calib_predictions_total"]

    @property
    def predictions_confidence(self) -> Floats:
        """Sum of their confidences by bin (bins,)."""
        return self["calib_predictions_confidence_total"]

    @property
    def feedback(self) -> Bins:
        """The bins of the labelled predictions."""
        names = ("calib_feedback_total", "calib_feedback_confidence_total", "calib_feedback_correct_total")
        return Bins(*(self[name] for name in names))

    def merge(self, other: Sums) -> Sums:
        """The sums over both; associative and commutative."""
        return self._combine(other, 1.0)

    __add__ = merge

    def __sub__(self, other: Sums) -> Sums:
        """These sums without ``other``, which must be part of them."""
        return self._combine(other, -1.0)

    def _combine(self, other: Sums, factor: float) -> Sums:
        if self.bins != other.bins:
            raise ShapeError(f"cannot combine {self.bins} bins with {other.bins}; use one bin count")
        return Sums(self.bins, self.vector + factor * other.vector)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and np.array_equal(self.vector, other.vector)

    __hash__ = None  # type: ignore[assignment]

    def brier(self) -> float:
        """Top-label Brier score, exact: mean (c - y)^2 over the labels; NaN without labels."""
        n = float(self["calib_feedback_total"].sum())
        squared = float(self["calib_feedback_confidence_squared_total"][0])
        both = float(self["calib_feedback_confidence_correct_total"][0])
        right = float(self["calib_feedback_correct_total"].sum())
        return (squared - 2 * both + right) / n if n else float("nan")


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

"""Sums over the predictions and labels of one slice of a model version, as one additive vector."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, bin_index
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.receipts.series import DELAYS, SUMS

At = TypeVar("At", bound=Hashable)
Version = tuple[str, str]
"""(model, version)."""

Kind = Literal["segment", "class", "group", "source", "clause"]
"""How predictions are sliced: by the segment they name ("" for none), which makes up all of them; by the
predicted class; labels of wrong ones by the true class; by random groups of the groups that they name; labels
by the source that sent them; and by the clauses of the contract that count them."""


class Key(NamedTuple):
    """The name of a slice of a model version, whose sums are separate.

    Args:
        model: Name of the model.
        version: Its version.
        name: Name of the slice; empty: predictions that name none.
        kind: How predictions are sliced.
    """

    model: str
    version: str
    name: str = ""
    kind: Kind = "segment"

    @property
    def of(self) -> Version:
        """The model version, (model, version)."""
        return self.model, self.version


@functools.cache
def _layout(bins: int) -> dict[str, slice]:
    """The place of each sum in the vector."""
    ends = np.cumsum([bins if one.per == "bin" else len(DELAYS) + 1 for one in SUMS]).tolist()
    return {one.name: slice(start, end) for one, start, end in zip(SUMS, [0, *ends], ends, strict=False)}


def _length(bins: int) -> int:
    return int(_layout(bins)[SUMS[-1].name].stop)


def changes(
    of: Literal["predictions", "labels"],
    confidence: ArrayLike,
    correct: ArrayLike = 0.0,
    weight: ArrayLike = 1.0,
    delay: ArrayLike = 0.0,
    *,
    bins: int,
) -> tuple[NDArray[np.intp], Floats]:
    """Compute what each prediction or label adds: places in the vector and values (n, sums of its kind).

    Args:
        of: Which sums.
        confidence: Top-1 confidences (n,), in [0, 1].
        correct: Whether each prediction was right (n,).
        weight: One over the chance of being asked for (n,), at least 1.
        delay: Seconds since the prediction (n,).
        bins: Number of bins of confidence.

    Raises:
        InputError: Where a weight is below 1.
        ShapeError: Where shapes do not fit.
    """
    c = np.asarray(confidence, np.float64)
    if c.ndim != 1:
        raise ShapeError(f"confidence must be (n,), got {c.shape}")
    try:
        y, w, d = (np.broadcast_to(np.asarray(x, np.float64), c.shape) for x in (correct, weight, delay))
    except ValueError as error:
        raise ShapeError(f"correct, weight and delay must be {c.shape} like confidence: {error}") from error
    if not (w >= 1).all():
        raise InputError("a weight is one over a probability: at least 1")
    places = {"bin": bin_index(c, bins=bins), "delay": np.searchsorted(DELAYS, d)}
    layout = _layout(bins)
    kind = [one for one in SUMS if one.of == of]
    where = [layout[one.name].start + places[one.per] for one in kind]
    return np.stack(where, axis=1), np.stack([one.adds(c, y, w) for one in kind], axis=1)


@dataclass(frozen=True, eq=False)
class Sums:
    """Every sum that ``calib_serve.receipts.series.SUMS`` declares; adds up over workers and time. Read-only.

    ``sums[name]`` is one of them by its name, (bins,), or of the delay (steps,).

    Args:
        bins: Number of bins of confidence, of equal width.
        vector: All sums, in the declared order.

    >>> a = Sums.served([0.9, 0.5], bins=2) + Sums.labelled([0.9], [1], bins=2)
    >>> a.predictions.tolist(), a["calib_feedback_total"].tolist()
    ([1.0, 1.0], [0.0, 1.0])
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
        """Sums of nothing."""
        return cls(bins, np.zeros(_length(bins)))

    @classmethod
    def at(cls, places: NDArray[np.intp], values: Floats, *, bins: int) -> Sums:
        """Sums from places and values of ``changes``.

        Args:
            places: Places in the vector, of any shape.
            values: What is added there, of the same shape.
            bins: Number of bins of confidence.
        """
        found = np.bincount(places.ravel(), weights=values.ravel(), minlength=_length(bins))
        return cls(bins, found.astype(np.float64))

    @classmethod
    def served(cls, confidence: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of unlabelled predictions.

        Args:
            confidence: Top-1 confidences (n,), in [0, 1].
            bins: Number of bins of confidence.
        """
        return cls.at(*changes("predictions", confidence, bins=bins), bins=bins)

    @classmethod
    def labelled(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        weight: ArrayLike = 1.0,
        delay: ArrayLike = 0.0,
        bins: int = 15,
    ) -> Sums:
        """Sums of labels.

        Args:
            confidence: Top-1 confidences (n,), in [0, 1].
            correct: Whether each prediction was right (n,).
            weight: One over the chance of being asked for (n,), at least 1.
            delay: Seconds since the prediction (n,).
            bins: Number of bins of confidence.
        """
        return cls.at(*changes("labels", confidence, correct, weight, delay, bins=bins), bins=bins)

    def of(self, kind: Literal["predictions", "labels"]) -> Sums:
        """The sums over predictions, or the sums over labels, alone."""
        layout, kept = _layout(self.bins), np.zeros(len(self.vector))
        for one in SUMS:
            if one.of == kind:
                kept[layout[one.name]] = self[one.name]
        return Sums(self.bins, kept)

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
    def labels(self) -> Floats:
        """Labels by bin (bins,), each counted as one."""
        return self["calib_feedback_total"]

    @property
    def feedback(self) -> Bins:
        """The bins of the labelled predictions, weighted."""
        names = (
            "calib_feedback_weight_total",
            "calib_feedback_confidence_total",
            "calib_feedback_correct_total",
            "calib_feedback_noise_total",
        )
        return Bins(*(self[name] for name in names))

    def merge(self, other: Sums) -> Sums:
        """The sums of both; associative and commutative."""
        return self._combine(other, 1.0)

    __add__ = merge

    def __sub__(self, other: Sums) -> Sums:
        """These sums without ``other``, which must be part of them."""
        return self._combine(other, -1.0)

    def with_values(self, values: Mapping[tuple[str, int], float]) -> Sums:
        """The sums with the given values by name and place; unknown names are left out."""
        found, layout = self.vector.copy(), _layout(self.bins)
        for (name, place), value in values.items():
            if name in layout and place < len(found[layout[name]]):
                found[layout[name].start + place] = value
        return Sums(self.bins, found)

    def _combine(self, other: Sums, factor: float) -> Sums:
        if self.bins != other.bins:
            raise ShapeError(f"cannot combine {self.bins} bins with {other.bins}; use one bin count")
        return Sums(self.bins, self.vector + factor * other.vector)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and np.array_equal(self.vector, other.vector)

    __hash__ = None  # type: ignore[assignment]


def add_at(found: dict[At, Sums], at: At, more: Sums) -> None:
    """Add to the sums at a key.

    Args:
        found: Sums by key, which are changed.
        at: Key, whose sums begin at 0 where there are none.
        more: Sums to add.
    """
    found[at] = found[at] + more if at in found else more


def merge_slices(sums: Mapping[Key, Sums] | Iterable[tuple[Key, Sums]]) -> dict[Version, Sums]:
    """Sums of whole model versions, from the sums of their segments."""
    found: dict[Version, Sums] = {}
    for key, more in sums.items() if isinstance(sums, Mapping) else sums:
        if key.kind == "segment":
            add_at(found, key.of, more)
    return found

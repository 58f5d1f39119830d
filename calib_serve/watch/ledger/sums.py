"""Sums over the predictions and labels of one slice of a model version, as one vector that ledgers store."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, bin_index
from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.series import DELAYS, SUMS

__all__ = ["Emission", "Key", "Kind", "Sums", "Version", "add_at", "changes", "label_places", "merge_slices"]

Floats = NDArray[np.float64]

At = TypeVar("At", bound=Hashable)
Version = tuple[str, str]
"""(model, version)."""

Kind = Literal["segment", "class", "group", "source", "clause"]
"""How predictions are sliced: by the segment they name ("" for none), which makes up all of them; by the
predicted class; by random groups of the groups that they name; labels by the source that sent them; and by
the clauses of the contract that count them."""

_PLACES = {"version": 1, "delay": len(DELAYS) + 1}
_DIGITS = 1e-9  # sums that are made in another order differ by less, of themselves
_PACKED = 2 + 8  # bytes of a number that is not 0: its place and its value


class Key(NamedTuple):
    """What is counted separately: a slice of a model version."""

    model: str
    version: str
    name: str = ""
    kind: Kind = "segment"

    @property
    def of(self) -> Version:
        """(model, version)."""
        return self.model, self.version


@functools.cache
def _layout(bins: int) -> dict[str, slice]:
    """Where each sum lies in the vector."""
    ends = np.cumsum([_PLACES.get(one.per, bins) for one in SUMS]).tolist()
    return {one.name: slice(start, end) for one, start, end in zip(SUMS, [0, *ends], ends, strict=False)}


@functools.cache
def _published(bins: int) -> NDArray[np.intp]:
    """Where those lie that are published: none of them ever goes down while labels are counted."""
    where = [np.arange(_length(bins))[_layout(bins)[one.name]] for one in SUMS if one.published]
    return np.concatenate(where)


def _length(bins: int) -> int:
    return sum(_PLACES.get(one.per, bins) for one in SUMS)


def changes(
    of: Literal["predictions", "labels"],
    confidence: ArrayLike,
    correct: ArrayLike = 0.0,
    weight: ArrayLike = 1.0,
    delay: ArrayLike = 0.0,
    *,
    bins: int,
) -> tuple[NDArray[np.intp], Floats]:
    """What each prediction or label adds where: places in the vector and values, both (n, sums of its kind).

    ``confidence`` (n,) in [0, 1], ``correct`` (n,), ``weight`` (n,) at least 1, ``delay`` (n,) seconds.
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
    places = {
        "bin": bin_index(c, bins=bins),
        "version": np.zeros(c.shape, np.intp),
        "delay": np.searchsorted(DELAYS, d),
    }
    layout = _layout(bins)
    kind = [one for one in SUMS if one.of == of]
    where = [layout[one.name].start + places[one.per] for one in kind]
    return np.stack(where, axis=1), np.stack([one.adds(c, y, w) for one in kind], axis=1)


@dataclass(frozen=True, eq=False)
class Sums:
    """Every sum that ``calib_serve.watch.series.SUMS`` declares; adds up over workers and time.

    ``vector`` holds them in the declared order; ``sums[name]`` is one of them by its name, (bins,) (1,) for
    one of the version, or (24,) for the delay. Read-only.

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
        """Nothing yet."""
        return cls(bins, np.zeros(_length(bins)))

    @classmethod
    def at(cls, places: NDArray[np.intp], values: Floats, *, bins: int) -> Sums:
        """The sums of what ``changes`` told, of any shape."""
        found = np.bincount(places.ravel(), weights=values.ravel(), minlength=_length(bins))
        return cls(bins, found.astype(np.float64))

    @classmethod
    def served(cls, confidence: ArrayLike, *, bins: int = 15) -> Sums:
        """Sums of predictions with top-1 confidences (n,) in [0, 1], labels not known."""
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
        """Sums of labels that came in: confidences (n,) and whether each prediction was right (n,).

        ``weight`` (n,): one over the chance of being asked for; ``delay`` (n,): seconds since the prediction.
        """
        return cls.at(*changes("labels", confidence, correct, weight, delay, bins=bins), bins=bins)

    def packed(self) -> bytes:
        """The numbers that are not 0, for stores: places as u16, then values as float64, little-endian."""
        places = np.flatnonzero(self.vector)
        return places.astype("<u2").tobytes() + self.vector[places].astype("<f8").tobytes()

    @classmethod
    def unpacked(cls, packed: bytes, *, bins: int) -> Sums:
        """The sums that ``packed`` to this; ShapeError if they cannot have."""
        count, left = divmod(len(packed), _PACKED)
        places = np.frombuffer(packed[: 2 * count], "<u2").astype(np.intp)
        vector = np.zeros(_length(bins))
        if left or not (np.diff(places) > 0).all() or (places >= len(vector)).any():
            raise ShapeError(f"these {len(packed)} bytes are no sums over {bins} bins")
        vector[places] = np.frombuffer(packed[2 * count :], "<f8")
        return cls(bins, vector)

    def less(self, part: Sums) -> Sums:
        """These sums without labels that are part of them; InputError where they cannot be.

        Where no label is left nothing is, not what floats leave of sums that were added and taken away.
        """
        left = self - part
        labels = left.labels
        if (labels < 0).any():
            raise InputError("these labels were never counted here")
        vector, layout = left.vector.copy(), _layout(self.bins)
        for one in SUMS:
            if one.of == "labels":
                empty = labels == 0 if one.per == "bin" else not labels.any()
                vector[layout[one.name]][empty] = 0.0
        return Sums(self.bins, vector)

    def of(self, kind: Literal["predictions", "labels"]) -> Sums:
        """The sums over predictions, or those over labels, alone."""
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
        """The sums over both; associative and commutative."""
        return self._combine(other, 1.0)

    __add__ = merge

    def __sub__(self, other: Sums) -> Sums:
        """These sums without ``other``, which must be part of them."""
        return self._combine(other, -1.0)

    def with_values(self, values: Mapping[tuple[str, int], float]) -> Sums:
        """These sums, but with those of the given names and places; other names are left out."""
        found, layout = self.vector.copy(), _layout(self.bins)
        for (name, place), value in values.items():
            if name in layout and place < len(found[layout[name]]):
                found[layout[name].start + place] = value
        return Sums(self.bins, found)

    def below(self, other: Sums) -> bool:
        """Whether a published sum is less than that of ``other``, by more than the last digits."""
        at = _published(self.bins)
        return bool((self.vector[at] < other.vector[at] * (1 - _DIGITS)).any())

    def beyond(self, other: Sums) -> Sums:
        """What these sums have more than ``other``, of those that are published; 0 where they have less."""
        more = np.zeros_like(self.vector)
        at = _published(self.bins)
        a, b = self.vector[at], other.vector[at]
        more[at] = np.where(a > b * (1 + _DIGITS), a - b, 0.0)
        return Sums(self.bins, more)

    def highest(self, other: Sums) -> Sums:
        """These sums, but with those of ``other`` that are published and greater."""
        found, at = self.vector.copy(), _published(self.bins)
        found[at] = np.maximum(found[at], other.vector[at])
        return Sums(self.bins, found)

    def lowest(self, other: Sums) -> Sums:
        """The same with those that are less."""
        found, at = self.vector.copy(), _published(self.bins)
        found[at] = np.minimum(found[at], other.vector[at])
        return Sums(self.bins, found)

    def _combine(self, other: Sums, factor: float) -> Sums:
        if self.bins != other.bins:
            raise ShapeError(f"cannot combine {self.bins} bins with {other.bins}; use one bin count")
        return Sums(self.bins, self.vector + factor * other.vector)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums) and np.array_equal(self.vector, other.vector)

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def label_places(bins: int) -> tuple[list[int], list[list[int]], list[int]]:
    """Where counts of labels lie in the vector; each bin's label sums, its count first; and the others."""
    layout, labels = _layout(bins), [one for one in SUMS if one.of == "labels"]
    counts = list(range(layout["calib_feedback_total"].start, layout["calib_feedback_total"].stop))
    by_bin = [
        [counts[b], *(layout[one.name].start + b for one in labels if one.per == "bin")] for b in range(bins)
    ]
    whole = [
        at
        for one in labels
        if one.per != "bin"
        for at in range(layout[one.name].start, layout[one.name].stop)
    ]
    return counts, by_bin, whole


def add_at(found: dict[At, Sums], at: At, more: Sums) -> None:
    """Add ``more`` to what ``found`` holds there, if anything."""
    found[at] = found[at] + more if at in found else more


def merge_slices(sums: Mapping[Key, Sums] | Iterable[tuple[Key, Sums]]) -> dict[Version, Sums]:
    """The sums of whole model versions, of their segments."""
    found: dict[Version, Sums] = {}
    for key, more in sums.items() if isinstance(sums, Mapping) else sums:
        if key.kind == "segment":
            add_at(found, key.of, more)
    return found


class Emission(NamedTuple):
    """A writer's sums of one moment, by version: ``fresh`` is what of all ``counted`` was not published yet.

    Labels may be counted while these are read: two reads of the ledger do not belong together.
    """

    fresh: Mapping[Version, Sums]
    counted: Mapping[Version, Sums]

    @classmethod
    def of(cls, counted: Mapping[Version, Sums], published: Mapping[Version, Sums]) -> Emission:
        """What was counted beyond what was published; nothing of a sum that is below it."""
        fresh = {}
        for version, total in counted.items():
            before = published.get(version)
            more = total if before is None else total.beyond(before)
            if more.vector.any():
                fresh[version] = more
        return cls(fresh, counted)

    def marks(self, published: Mapping[Version, Sums]) -> dict[Version, Sums]:
        """What is published when this is, of the versions where that is new."""
        found = {v: total.highest(published.get(v, total)) for v, total in self.counted.items()}
        return {v: mark for v, mark in found.items() if mark != published.get(v)}

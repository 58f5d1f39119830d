"""How often each class is predicted, and how surely, where the label is known: all that ``bbse`` needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import bin_index
from calib_serve.errors import InputError, ShapeError

__all__ = ["MOST_ENTRIES", "Confusion"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ENTRIES = 20_000
"""Counts other than 0 that facts may hold: a fifth of a manifest's bytes."""


@dataclass(frozen=True, eq=False)
class Confusion:
    """Labelled samples by (predicted class, confidence bin, label): those counts that are not 0.

    ``at`` (m, 3) of these three, ``count`` (m,); ``bins`` of equal width, right-closed. ``on`` says which
    samples they are. Read-only.

    >>> found = Confusion.tally([0, 0, 1], [0.9, 0.9, 0.6], [0, 1, 1], classes=2, bins=2)
    >>> found.facts["counts"]
    '0 1 0 1, 0 1 1 1, 1 1 1 1'
    """

    at: Ints
    count: Ints
    classes: int
    bins: int = 15
    on: str = "calibration set"

    def __post_init__(self) -> None:
        at, count = np.array(self.at, np.int64), np.array(self.count, np.int64)
        if at.ndim != 2 or at.shape[1:] != (3,) or count.shape != at.shape[:1]:
            raise ShapeError(f"places (m, 3) and counts (m,) do not fit: {at.shape} and {count.shape}")
        if not (self.classes >= 2 and self.bins >= 1):
            raise InputError(f"classes must be at least 2 and bins 1, got {self.classes} and {self.bins}")
        if (at < 0).any() or (at >= (self.classes, self.bins, self.classes)).any() or (count < 0).any():
            raise InputError("a count of the confusion is of no class or bin that there is, or negative")
        for name, array in (("at", at), ("count", count)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def tally(
        cls,
        predicted: ArrayLike,
        confidence: ArrayLike,
        labels: ArrayLike,
        *,
        classes: int,
        bins: int = 15,
        on: str = "calibration set",
    ) -> Confusion:
        """Count predicted classes (n,) with their confidences (n,) in [0, 1] and labels (n,)."""
        j, y = np.asarray(predicted, np.int64), np.asarray(labels, np.int64)
        b = bin_index(confidence, bins=bins)
        if not (j.ndim == 1 and j.shape == y.shape == b.shape):
            raise ShapeError(f"give (n,) of each, got {j.shape}, {b.shape} and {y.shape}")
        flat, count = np.unique((j * bins + b) * classes + y, return_counts=True)
        at = np.stack([flat // (bins * classes), flat // classes % bins, flat % classes], axis=1)
        return cls(at, count, classes, bins, on)

    @property
    def labels(self) -> Floats:
        """Samples of each label (K,)."""
        found = np.bincount(self.at[:, 2], weights=self.count, minlength=self.classes)
        return found.astype(np.float64)

    @property
    def predictions(self) -> Floats:
        """Samples of each predicted class and bin (K, B)."""
        flat = self.at[:, 0] * self.bins + self.at[:, 1]
        found = np.bincount(flat, weights=self.count, minlength=self.classes * self.bins)
        return found.reshape(self.classes, self.bins).astype(np.float64)

    @property
    def facts(self) -> dict[str, Any]:
        """For a manifest: each count after its predicted class, bin and label. ``unknown`` of too many."""
        if len(self.count) > MOST_ENTRIES:
            return {"unknown": f"{len(self.count)} counts are more than a manifest holds"}
        rows = np.column_stack([self.at, self.count]).tolist()
        return {"bins": self.bins, "on": self.on, "counts": ", ".join(" ".join(map(str, r)) for r in rows)}

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None, classes: int) -> Confusion:
        """The inverse of ``facts``; InputError that says why where there are none, or they are damaged."""
        if not isinstance(facts, Mapping):
            raise InputError("the artifact was fitted before confusions were kept; fit it again")
        if "unknown" in facts:
            raise InputError(str(facts["unknown"]))
        try:
            rows = [[int(number) for number in row.split()] for row in facts["counts"].split(",") if row]
            table = np.array(rows, np.int64).reshape(-1, 4)
            return cls(table[:, :3], table[:, 3], classes, int(facts["bins"]), str(facts["on"]))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"the artifact's confusion is damaged ({error}); fit it again") from error

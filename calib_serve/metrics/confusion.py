"""Labelled samples, counted by predicted class, confidence bin and label: the known side of label shift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.measured import MOST_ENTRIES_OF_A_CONFUSION

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Confusion:
    """Labelled samples counted by (predicted class, confidence bin, label), without counts of 0. Read-only.

    Args:
        at: These three of each count (m, 3).
        count: Number of samples (m,).
        classes: Number of classes.
        bins: Number of bins, of equal width, right-closed.
        on: Which samples they are, in words.

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
        """Count predictions by class, confidence and label.

        Args:
            predicted: Class ids (n,).
            confidence: Probability of the predicted class (n,), in [0, 1].
            labels: Class ids (n,).
            classes: Number of classes.
            bins: Number of bins, of equal width, right-closed.
            on: Which samples they are, in words.
        """
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
        """The manifest's entry: each count after its predicted class, bin and label; too many are unknown."""
        if len(self.count) > MOST_ENTRIES_OF_A_CONFUSION:
            return {"unknown": f"{len(self.count)} counts are more than a manifest holds"}
        rows = np.column_stack([self.at, self.count]).tolist()
        return {"bins": self.bins, "on": self.on, "counts": ", ".join(" ".join(map(str, r)) for r in rows)}

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None, classes: int) -> Confusion:
        """Rebuild the confusion from an artifact's facts.

        Args:
            facts: Its ``facts``.
            classes: Number of classes.

        Raises:
            InputError: Where there are none, or they are damaged.
        """
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

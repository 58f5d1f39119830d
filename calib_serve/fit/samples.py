"""The calibration set as every output fitter sees it: checked once, read in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError

__all__ = ["ClassWeight", "Samples"]

Floats = NDArray[np.floating[Any]]
ClassWeight = Union[ArrayLike, Literal["balanced"], None]

# Values a chunk holds: a few chunks in float64 fit a core's cache, and never double the memory of
# logits that are memory-mapped from disk.
_CHUNK = 1 << 17


@dataclass(frozen=True, eq=False)
class Samples:
    """Logits (n, K) of any float type, class ids (n,) and weights (n,) of mean 1, or None for equal.

    ``logits`` may be memory-mapped and larger than memory: read them by ``chunks``. ``rows`` are
    the rows of ``logits`` that belong to these samples, or None for all; a fold copies nothing.
    """

    logits: Floats
    labels: NDArray[np.intp]
    weight: NDArray[np.float64] | None = None
    rows: NDArray[np.intp] | None = None

    @classmethod
    def of(
        cls,
        logits: ArrayLike | Samples,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        class_weight: ClassWeight = None,
    ) -> Samples:
        """Check and take over what a caller passed; samples that are checked already stay as they are.

        One logit a sample, (n,) or (n, 1), is a binary model's: class 0 gets logit 0. A class weight
        multiplies the weight of its samples; "balanced" makes every class that occurs weigh the same.
        Raises ShapeError, or InputError for NaN, infinities, labels outside 0..K-1 and bad weights.
        """
        if isinstance(logits, Samples):
            return logits
        z = two_columns(logits)
        y = _class_ids(labels, z)
        samples = cls(z, y, _weights(y, z.shape[1], sample_weight, class_weight))
        for part, chunk in samples.chunks():
            if not np.isfinite(chunk).all():
                bad = part.start + int(np.argmax(~np.isfinite(chunk).all(axis=1)))
                raise InputError(
                    f"logits must be finite, row {bad} is not; clip them first, "
                    "for example with np.nan_to_num(logits, neginf=-1e4)"
                )
        return samples

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """K."""
        return int(self.logits.shape[1])

    @property
    def size(self) -> int:
        """How many logits they have."""
        return len(self) * self.classes

    def parts(self, values: int = _CHUNK, *, within: slice | None = None) -> Iterator[slice]:
        """Runs of samples that hold about ``values`` logits each, of all or of those ``within`` a run."""
        step = max(1, values // self.classes)
        first, last = (0, len(self)) if within is None else (within.start, within.stop)
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))

    def read(self, part: slice, dtype: type[np.floating[Any]] | None = None) -> Floats:
        """The logits of a run of samples, converted to ``dtype`` if given."""
        chunk = self.logits[part if self.rows is None else self.rows[part]]
        return np.asarray(chunk if dtype is None else chunk.astype(dtype, copy=False))

    def chunks(
        self, dtype: type[np.floating[Any]] | None = None, *, values: int = _CHUNK
    ) -> Iterator[tuple[slice, Floats]]:
        """Runs of samples with their logits, one after the other."""
        for part in self.parts(values):
            yield part, self.read(part, dtype)

    def take(self, index: slice | NDArray[Any]) -> Samples:
        """A part of the samples, by position or mask; weights get mean 1 again."""
        rows = (np.arange(len(self)) if self.rows is None else self.rows)[index]
        weight = None if self.weight is None else self.weight[index]
        if weight is not None:
            total = weight.sum()
            weight = weight * (len(weight) / total) if total > 0 else np.ones(len(weight))
        return Samples(self.logits, self.labels[index], weight, rows)


def two_columns(logits: ArrayLike) -> Floats:
    """Logits as (n, K) with K at least 2; float16, float32 or float64 stay as they are.

    >>> two_columns([1.5]).tolist()
    [[0.0, 1.5]]
    """
    z = logits if isinstance(logits, np.ndarray) else np.asarray(logits)
    if z.dtype.kind not in "fiu":
        raise InputError(f"logits must be numbers, got {z.dtype}")
    if z.dtype.kind != "f":
        z = z.astype(np.float64)
    if z.ndim == 1:
        z = z[:, None]
    if z.ndim != 2 or z.shape[1] == 0:
        raise ShapeError(f"logits must be (n, K), or (n,) for one logit, got {z.shape}")
    return z if z.shape[1] > 1 else np.concatenate([np.zeros_like(z), z], axis=1)


def _class_ids(labels: ArrayLike, logits: Floats) -> NDArray[np.intp]:
    n, classes = logits.shape
    y = np.asarray(labels)
    if y.shape != (n,):
        raise ShapeError(f"labels must be ({n},), got {y.shape}; pass class ids, not one-hot")
    if n == 0:
        raise InputError("there is no sample to fit on")
    if y.dtype.kind == "b" or (y.dtype.kind == "f" and (y == np.floor(y)).all()):
        y = y.astype(np.intp)
    if y.dtype.kind not in "iu":
        raise InputError(f"labels must be class ids (whole numbers), got {y.dtype}")
    if y.min() < 0 or y.max() >= classes:
        raise InputError(f"labels must lie in 0..{classes - 1}, got {y.min()}..{y.max()}")
    return y.astype(np.intp)


def _weights(
    labels: NDArray[np.intp], classes: int, sample: ArrayLike | None, of_class: ClassWeight
) -> NDArray[np.float64] | None:
    if sample is None and of_class is None:
        return None
    weight = np.ones(len(labels)) if sample is None else np.array(sample, np.float64)
    if weight.shape != labels.shape:
        raise ShapeError(f"sample_weight must be {labels.shape}, got {weight.shape}")
    if isinstance(of_class, str):
        if of_class != "balanced":
            raise InputError(f"class_weight must be (K,) numbers or 'balanced', got {of_class!r}")
        mass = np.bincount(labels, weights=weight, minlength=classes)
        weight = weight / mass[labels] if (mass[labels] > 0).all() else weight
    elif of_class is not None:
        per_class = np.asarray(of_class, np.float64)
        if per_class.shape != (classes,):
            raise ShapeError(f"class_weight must be ({classes},), got {per_class.shape}")
        weight = weight * per_class[labels]
    if not np.isfinite(weight).all() or (weight < 0).any() or weight.sum() == 0:
        raise InputError("weights must be finite, not negative and not all zero")
    return np.asarray(weight * (len(weight) / weight.sum()))

"""Checked logits and labels of one split of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.data.logits_file import read_logits, read_npy
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics import two_columns
from calib_serve.metrics.scores import class_ids

__all__ = ["LabelledScores", "read_groups", "read_labelled"]


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Logits (n, K), K at least 2, may be memory-mapped; class ids (n,); class names (K,) or ().

    Also takes one logit per sample, (n,) or (n, 1), and whole labels stored as floats. ``name`` says
    where they came from.

    >>> scores = LabelledScores("spam", np.array([1.5, -2.0]), np.array([1.0, 0.0]))
    >>> scores.logits.tolist(), scores.labels.tolist()
    ([[0.0, 1.5], [0.0, -2.0]], [1, 0])
    """

    name: str
    logits: NDArray[np.floating[Any]]
    labels: NDArray[np.intp]
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        logits = two_columns(self.logits)
        if not len(logits):
            raise InputError("there is no sample")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "labels", class_ids(self.labels, *logits.shape))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if len(self.class_names) not in (0, logits.shape[1]):
            raise ShapeError(f"{logits.shape[1]} classes but {len(self.class_names)} class names")

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled(
    path: str | Path, *, split: str | None = None, labels: str | Path | None = None
) -> LabelledScores:
    """The logits and labels of one split of a file that ``read_logits`` reads.

    ``labels`` names a second npy file that holds the labels. Raises InputError, which names the file,
    where there are no labels or they do not fit the logits.
    """
    found = read_logits(path, split=split, labels=labels)
    if found.labels is None:
        where = f"{path} has no labels" if split is None else f"the split {split!r} of {path} has no labels"
        raise InputError(f"{where}; add them to the file, or name an npy file of labels (labels=, --labels)")
    try:
        return LabelledScores(Path(path).stem, found.logits, found.labels, found.class_names)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error


def read_groups(path: str | Path, samples: int) -> NDArray[Any]:
    """The groups (n,) of an npy file, numbers or text, one for each of ``samples``."""
    groups = read_npy(Path(path))
    if groups.shape != (samples,):
        raise ShapeError(f"{path} must hold one group for each of {samples} samples, got {groups.shape}")
    return groups

"""Checked logits and labels of one split of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.data.logits_file import holds_files, read_logits, read_npy
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.scores import class_ids, truths
from calib_serve.names import check_names
from calib_serve.scores import LABELS, Outputs, as_logits

__all__ = ["LabelledScores", "read_groups", "read_labelled"]

_TRUTHS = ("label", "labels", "target", "targets", "class", "truth", "y", "y_true")
"""What others call the column label."""


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """A model's scores (n, K), may be memory-mapped; class ids (n,); class names (K,) or ().

    ``outputs`` says what the scores are, None for logits; ``logits`` (n, K), K at least 2, is made of them.
    Also takes one number per sample, (n,) or (n, 1), and whole labels stored as floats. Of labels, of which
    any number may be true, ``scores``, ``logits`` and ``labels``, 0 or 1, are (n, L). ``name`` says where
    they came from.

    >>> scores = LabelledScores("spam", np.array([1.5, -2.0]), np.array([1.0, 0.0]))
    >>> scores.logits.tolist(), scores.labels.tolist()
    ([[0.0, 1.5], [0.0, -2.0]], [1, 0])
    """

    name: str
    scores: NDArray[np.floating[Any]]
    labels: NDArray[np.intp]
    class_names: tuple[str, ...] = ()
    outputs: Outputs | None = None
    logits: NDArray[np.floating[Any]] = field(init=False)

    def __post_init__(self) -> None:
        logits, outputs = as_logits(self.scores, self.outputs)
        if not len(logits):
            raise InputError("there is no sample")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "outputs", outputs)
        labels = (
            truths(self.labels, logits.shape) if outputs in LABELS else class_ids(self.labels, *logits.shape)
        )
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "class_names", tuple(self.class_names))
        check_names(self.class_names)
        if len(self.class_names) not in (0, logits.shape[1]):
            raise ShapeError(f"{logits.shape[1]} classes but {len(self.class_names)} class names")

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled(
    path: str | Path,
    *,
    split: str | None = None,
    labels: str | Path | None = None,
    outputs: Outputs | None = None,
    engine: str | None = None,
    password_file: str | Path | None = None,
) -> LabelledScores:
    """The logits and labels of one split of a file, or of a table of an ``engine``, as ``read_logits`` reads.

    ``labels`` names a second npy file that holds the labels, ``outputs`` says what the scores are. Raises
    InputError, which names the file, where there are no labels or they do not fit the logits.
    """
    found = read_logits(
        path, split=split, labels=labels, outputs=outputs, engine=engine, password_file=password_file
    )
    if found.labels is None:
        table = Path(path).suffix in (".csv", ".parquet")
        what = "column label" if table else "labels"
        where = f"{path} has no {what}" if split is None else f"the split {split!r} of {path} has no {what}"
        other = next((n for n in found.class_names if table and n.strip().lower() in _TRUTHS), None)
        rename = "" if other is None else f" (is it {other!r}? Rename that)"
        raise InputError(
            f"{where}; add {'it' if table else 'them'} to the file{rename}, or name an npy file of labels "
            "(labels=, --labels)"
        )
    try:
        return LabelledScores(Path(path).stem, found.scores, found.labels, found.class_names, found.outputs)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error


def read_groups(path: str | Path, samples: int, *, beside: str | Path | None = None) -> NDArray[Any]:
    """The groups (n,) of an npy file, numbers or text, one for each of ``samples``.

    ``beside``: the file of these. InputError where it is a folder or pattern, whose rows have no order.
    """
    if beside is not None and holds_files(Path(beside)):
        raise InputError(
            f"the rows of {beside} come in any order, so which belongs to which line of {path} is not known; "
            "write them into one file"
        )
    groups = read_npy(Path(path))
    if groups.shape != (samples,):
        raise ShapeError(f"{path} must hold one group for each of {samples} samples, got {groups.shape}")
    return groups

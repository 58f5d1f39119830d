"""Rows that belong together: several of one id, and copies, as bootstrap and oversampling leave them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import as_array, content_of
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores.kinds import Floats, Outputs, to_probs

_LEAST = 50
"""Distinct rows of which fewer are of a model of few distinct scores, such as a small tree."""


def groups_of_ids(ids: NDArray[Any]) -> str:
    """What is said of ids (n,) that several rows have, which makes them groups; empty where none does.

    >>> groups_of_ids(np.array(["a", "b", "a"]))
    'ids occur up to 2 times: the rows of each of 2 ids are a group'
    """
    times = np.unique(ids.astype(str), return_counts=True)[1]
    if times.max() == 1:
        return ""
    return f"ids occur up to {times.max()} times: the rows of each of {len(times):,} ids are a group"


def source_names(given: Any, n: int, by: str = "sources") -> NDArray[np.str_]:
    """Read which source each of ``n`` rows is of as texts (n,); ``by`` names the column in errors."""
    # A list as objects: numpy would make a text of a NaN beside texts.
    objects = np.fromiter(given, object, len(given)) if isinstance(given, (list, tuple)) else given
    found = as_array(objects, by, missing=True)
    if found.shape != (n,):
        raise ShapeError(f"{by} must be ({n},), one source for each row, got {found.shape}")
    texts = [str(one) if isinstance(one, (str, int)) else "" for one in found.tolist()]
    if "" in texts:
        row = texts.index("")
        raise InputError(
            f"{by} says the source of each row, a text or whole number, and row {row + 1} has "
            f"{repr(found.tolist()[row])[:80]}: leave such rows out, or name their source"
        )
    return np.array(texts, np.str_)


def copies_of(values: Floats, labels: NDArray[Any], kind: Outputs) -> NDArray[np.intp] | None:
    """Of which row each of (n,) rows is a copy, as numbers of these; None where none is.

    Equal scores alone are no copies: a tree gives one to all samples of a leaf. Copies have one label, too,
    each time, which is unlikely of different samples.

    Args:
        values: Scores (n, K).
        labels: Class ids (n,).
        kind: Kind of the scores.
    """
    # Many rows hide what is repeated.
    if not _LEAST <= len(values) <= 1_000_000:
        return None
    key = content_of(values)
    # Above such a share of distinct rows a few that are alike are chance.
    if np.count_nonzero(np.diff(np.sort(key))) + 1 > 0.95 * len(key):
        return None
    _, first, row, times = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    row = row.ravel()
    if len(first) < _LEAST or (labels != labels[first][row]).any():
        return None
    p = to_probs(values[first], kind)[np.arange(len(first)), labels[first]]
    chance = float(((times - 1) * np.log(np.clip(p, 1e-3, 1))).sum())
    # Copies have one label each time, which is unlikely of different samples.
    return row if chance < -14.0 else None

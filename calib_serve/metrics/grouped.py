"""Samples that belong together: patients, sessions, matches. Errors of one group move together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError

__all__ = ["design_effect", "group_codes", "mean_error", "one_of_each"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

_FEWEST = 2


def group_codes(groups: ArrayLike | None, n: int) -> Codes | None:
    """The group of each of n samples as a number from 0; ``groups`` (n,) are numbers or text.

    Each sample is its own group where there are none: then there are no codes.
    """
    if groups is None:
        return None
    given = np.asarray(groups)
    if given.shape != (n,) or given.dtype.kind not in "iufbUS":
        raise ShapeError(
            f"groups must be ({n},) numbers or text, one a sample, got {given.shape} {given.dtype}"
        )
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError("a group is NaN or infinite; give each sample without a group one of its own")
    distinct, codes = np.unique(given, return_inverse=True)
    if len(distinct) < _FEWEST:
        raise InputError("all samples are of one group: how much they vary cannot be told from one")
    return None if len(distinct) == n else codes.astype(np.intp)


def one_of_each(codes: Codes, *, seed: int) -> Codes:
    """One row of each group, drawn by ``seed``: rows (G,) of codes (n,) from 0.

    >>> len(one_of_each(np.array([0, 0, 1, 2, 2]), seed=0))
    3
    """
    order = np.random.default_rng(seed).permutation(len(codes))
    return np.asarray(order[np.unique(codes[order], return_index=True)[1]])


def mean_error(values: Floats, codes: Codes | None, weight: Floats | None = None) -> float:
    """The standard error of a mean (n,), robust to what happens inside groups (Liang and Zeger 1986)."""
    n = len(values)
    if weight is None and codes is None:
        return float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    w = np.ones(n) if weight is None else weight
    apart = w * (values - np.average(values, weights=w))
    totals = apart if codes is None else np.bincount(codes, weights=apart)
    units = len(totals) if codes is not None else np.count_nonzero(w)
    more = units / (units - 1) if units > 1 else math.nan
    return math.sqrt(more * float((totals**2).sum())) / float(w.sum())


def design_effect(values: Floats, codes: Codes | None) -> float:
    """How much more the mean (n,) varies than that of independent samples; at least 1."""
    alone = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return max((mean_error(values, codes) / alone) ** 2, 1.0) if codes is not None and alone > 0 else 1.0

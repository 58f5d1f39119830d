"""Shares of classes that a caller gives, and Bayes' rule from one set of them to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.errors import InputError, ShapeError

__all__ = ["Given", "as_shares", "checked_probs", "corrected"]

Floats = NDArray[np.float64]

Given = Union[ArrayLike, Mapping[str, float]]
"""Shares in the order of the classes, or by class name or id."""

_SUM = 1e-3  # by which given shares, and rows of probabilities, may miss 1: they are rounded
_NAMED = 10


def as_shares(given: Given, classes: int, names: Sequence[str] = ()) -> Floats:
    """Shares (K,) that sum to 1, from as many numbers or from a mapping of class names (or ids) to them.

    Raises ShapeError for another number of them, InputError for shares that are not above 0, that miss a sum
    of 1 by more than 0.001, and for names that are no classes.

    >>> as_shares({"dog": 0.3, "cat": 0.7}, 2, ["cat", "dog"]).tolist()
    [0.7, 0.3]
    """
    if isinstance(given, Mapping):
        given = _by_name(given, classes, names)
    shares: Floats = as_floats(given, "class shares")
    if shares.shape != (classes,):
        raise ShapeError(f"give one share for each of {classes} classes, got {shares.shape}")
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise InputError(
            "class shares must be above 0 and finite: what is known of a class that never comes is nothing; "
            f"give it a small share, got {shares[~(shares > 0)][:_NAMED].tolist() or 'infinity'}"
        )
    if shares.max() > 1 + _SUM or abs(shares.sum() - 1) > _SUM:
        raise InputError(f"class shares must sum to 1, got {shares[:_NAMED].tolist()}")
    return np.asarray(shares / shares.sum())


def _by_name(given: Mapping[str, float], classes: int, names: Sequence[str]) -> list[float]:
    known = list(names) or [str(k) for k in range(classes)]
    if len(set(known)) != len(known):
        raise InputError("class names repeat, so a name does not tell a class; give all shares in order")
    if unknown := [name for name in map(str, given) if name not in known]:
        raise InputError(f"there is no class {unknown[0]!r}; classes are {', '.join(known[:_NAMED])}")
    by_name = {str(name): share for name, share in given.items()}
    if missing := [name for name in known if name not in by_name]:
        raise InputError(f"give each class its share; {', '.join(missing[:_NAMED])} got none")
    return [by_name[name] for name in known]


def corrected(probs: ArrayLike, old: ArrayLike, new: ArrayLike) -> Floats:
    """Calibrated probabilities (n, K) under class shares ``old`` (K,) as they are under ``new`` (K,).

    p_k new_k / old_k, divided by its sum (Saerens 2002, eq. 2.4): exact where p(x | y) is the same.

    >>> corrected([[0.5, 0.5]], [0.5, 0.5], [0.75, 0.25]).tolist()
    [[0.75, 0.25]]
    """
    p = checked_probs(probs)
    before, after = (as_shares(shares, p.shape[1]) for shares in (old, new))
    weighed = p * (after / before)
    return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))


def checked_probs(probs: ArrayLike) -> Floats:
    """Probabilities (n, K) as float64; ShapeError, or InputError for what are none."""
    p: Floats = as_floats(probs, "probs")
    if p.ndim != 2 or p.shape[1] < 2:
        raise ShapeError(f"probs must be (n, K) of at least 2 classes, got {p.shape}")
    if not ((p >= 0) & (p <= 1)).all() or (abs(p.sum(axis=1) - 1) > _SUM).any():  # also true for NaN
        raise InputError("rows must be probabilities that sum to 1; calibrate logits first")
    return p

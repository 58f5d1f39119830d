"""Prior shift: correct probabilities for other class shares, and the most likely shares of a mixture.

Under label shift the shares of the classes change, and what each class looks like stays: p(y) moves, p(x | y)
does not. Then Bayes' rule corrects calibrated probabilities; ``label_shift`` estimates shares without labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Floats, as_floats, finite
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import NAMED_IN_A_SENTENCE
from calib_serve.metrics.distributions import chi_square_beyond

ClassShares = Union[ArrayLike, Mapping[str, float]]
"""Shares in the order of the classes, or by class name or id."""

_SUM = 1e-3  # by which given shares, and rows of probabilities, may miss 1: they are rounded


def as_shares(given: ClassShares, classes: int, names: Sequence[str] = ()) -> Floats:
    """Read class shares: (K,), above 0, divided by their sum.

    Args:
        given: Numbers (K,), or a mapping of class names (or ids) to them.
        classes: Number of classes, K.
        names: Name of each class, where a mapping is of names.

    Raises:
        ShapeError: Where there is another number of them.
        InputError: Where a share is not above 0, the sum misses 1 by more than 0.001, or a name is no class.

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
            f"give it a small share, got {shares[~(shares > 0)][:NAMED_IN_A_SENTENCE].tolist() or 'infinity'}"
        )
    if shares.max() > 1 + _SUM or abs(shares.sum() - 1) > _SUM:
        raise InputError(f"class shares must sum to 1, got {shares[:NAMED_IN_A_SENTENCE].tolist()}")
    return np.asarray(shares / shares.sum())


def _by_name(given: Mapping[str, float], classes: int, names: Sequence[str]) -> list[float]:
    known = list(names) or [str(k) for k in range(classes)]
    if len(set(known)) != len(known):
        raise InputError("class names repeat, so a name does not tell a class; give all shares in order")
    if unknown := [name for name in map(str, given) if name not in known]:
        raise InputError(
            f"there is no class {unknown[0]!r}; classes are {', '.join(known[:NAMED_IN_A_SENTENCE])}"
        )
    by_name = {str(name): share for name, share in given.items()}
    if missing := [name for name in known if name not in by_name]:
        raise InputError(f"give each class its share; {', '.join(missing[:NAMED_IN_A_SENTENCE])} got none")
    return [by_name[name] for name in known]


def corrected(probs: ArrayLike, old: ArrayLike, new: ArrayLike) -> Floats:
    """Calibrated probabilities (n, K) under other class shares.

    p_k new_k / old_k, divided by its sum (Saerens 2002, eq. 2.4): exact where p(x | y) is the same.

    Args:
        probs: Probabilities (n, K), calibrated under ``old``.
        old: Class shares (K,).
        new: Class shares (K,) to come.

    >>> corrected([[0.5, 0.5]], [0.5, 0.5], [0.75, 0.25]).tolist()
    [[0.75, 0.25]]
    """
    p = checked_probs(probs)
    before, after = (as_shares(shares, p.shape[1]) for shares in (old, new))
    weighed = p * (after / before)
    return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))


def checked_probs(probs: ArrayLike) -> Floats:
    """Check probabilities, and return them as float64.

    Args:
        probs: Probabilities (n, K), K at least 2.

    Raises:
        InputError: Where a row does not sum to 1, within 0.001.
        ShapeError: Where the shape is another.
    """
    p: Floats = as_floats(probs, "probs")
    if p.ndim != 2 or p.shape[1] < 2:
        raise ShapeError(f"probs must be (n, K) of at least 2 classes, got {p.shape}")
    if not ((p >= 0) & (p <= 1)).all() or (abs(p.sum(axis=1) - 1) > _SUM).any():  # also true for NaN
        raise InputError("rows must be probabilities that sum to 1; calibrate logits first")
    return p


def climbed(ratio: Floats, weight: Floats, start: Floats) -> Floats:
    """Climb to the shares (K,) of the most likely mixture: ``ratio`` (m, K) is proportional to p(row | k).

    ``weight`` (m,) of the rows sums to 1. Two EM steps and their extrapolation (Varadhan 2008, SQUAREM).
    """
    shares = start
    for _ in range(5000):
        first = _step(ratio, weight, shares)
        second = _step(ratio, weight, first)
        change, bend = first - shares, second - 2 * first + shares
        if np.abs(second - first).max() < 1e-9:
            return second
        length = -np.linalg.norm(change) / max(float(np.linalg.norm(bend)), np.finfo(float).tiny)
        jumped = np.asarray(shares - 2 * length * change + length**2 * bend)
        # Extrapolation may leave the simplex or go down: the plain step never does.
        better = jumped.min() >= 0 and _likelihood(ratio, weight, jumped) >= _likelihood(
            ratio, weight, second
        )
        shares = _step(ratio, weight, jumped / jumped.sum()) if better else second
    return shares


def _step(ratio: Floats, weight: Floats, shares: Floats) -> Floats:
    moved: Floats = shares * ((weight / (ratio @ shares)) @ ratio)
    return np.asarray(moved / moved.sum())


def _likelihood(ratio: Floats, weight: Floats, shares: Floats) -> float:
    mixed = ratio @ shares
    return float(weight @ np.log(mixed)) if mixed.min() > 0 else -np.inf


def inverse(information: Floats) -> Floats:
    """The inverse of a symmetric matrix; a nearly singular matrix gives large numbers, never an error."""
    scale = 1 / np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    unit = information * np.outer(scale, scale) + 1e-10 * np.eye(len(scale))
    return np.asarray(np.linalg.inv(unit) * np.outer(scale, scale))


@dataclass(frozen=True)
class ChiSquared:
    """A statistic and its degrees of freedom; with 0 of them nothing was tested, and ``p`` is NaN.

    >>> round(ChiSquared(3.841, 1).p, 3), round(ChiSquared(5.991, 2).p, 3), round(ChiSquared(7.815, 3).p, 3)
    (0.05, 0.05, 0.05)
    """

    statistic: float
    dof: int

    @classmethod
    def of(cls, deviation: Floats, covariance: Floats) -> ChiSquared:
        """Wald's test that ``deviation`` (m,) of this ``covariance`` (m, m) is 0, where it varies at all."""
        if not len(deviation):
            return cls(0.0, 0)
        values, vectors = np.linalg.eigh(covariance)
        # Directions of less variance do not vary.
        varies = values > 1e-9 * max(float(values[-1]), np.finfo(float).tiny)
        along = vectors[:, varies].T @ deviation
        return cls(float((along**2 / values[varies]).sum()), int(varies.sum()))

    @property
    def p(self) -> float:
        """The chance of a statistic at least as large."""
        if not self.dof:
            return math.nan
        return chi_square_beyond(self.statistic, self.dof)

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"statistic": self.statistic, "dof": self.dof, "p": finite(self.p)}

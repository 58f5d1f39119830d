"""Class shares of unlabelled traffic from counts of its predictions, and whether these may be believed.

Black box shift estimation (Lipton 2018): under label shift the shares t of what is predicted are A q, with
A[c, k] the chance of cell c given label k, known from labelled samples, and q the shares of the classes. A
cell here is a predicted class with a range of confidences, so that there are more cells than classes: what
the best q cannot explain tells that more than the shares has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.errors import InputError, ShapeError
from calib_serve.priors.confusion import Confusion
from calib_serve.priors.em import ChiSquared, climbed, inverse
from calib_serve.priors.shares import as_shares

__all__ = ["LEVEL", "TOLERANCE", "ShareEstimate", "bbse"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

LEVEL = 0.01
"""The chance of calling chance a change."""
TOLERANCE = 0.02
"""Share of predictions that may lie in other cells than label shift explains."""

_LEAST = 20.0  # samples and predictions that a cell of its own holds
_PARTS = 4  # cells of a predicted class hold at least one part in so many of it
_FEWEST = 100.0  # predictions from which shares are estimated
_MANY = 400  # classes up to which confidences of all together are tested: the work grows as the cube
_Z = 1.96


@dataclass(frozen=True, eq=False)
class ShareEstimate:
    """Class shares (K,) of ``n`` predictions, their standard ``error`` (K,), and two tests.

    ``old`` (K,): those of the calibration set. ``moved``: a test that the shares of what is predicted are as
    they were there. ``fits``: a test that class shares alone explain the counts; ``misfit`` the share of
    predictions that they do not, beyond what noise shows. ``kind``: "same", "moved", "other" (more than the
    shares has changed: do not correct), "unknown" (too little to tell).
    """

    old: Floats
    shares: Floats
    error: Floats
    moved: ChiSquared
    fits: ChiSquared
    misfit: float
    n: float
    right: Floats
    level: float = LEVEL
    tolerance: float = TOLERANCE

    @property
    def low(self) -> Floats:
        """Lower ends (K,) of the 95 % intervals."""
        return np.clip(self.shares - _Z * self.error, 0, 1)

    @property
    def high(self) -> Floats:
        """Their upper ends (K,)."""
        return np.clip(self.shares + _Z * self.error, 0, 1)

    @property
    def kind(self) -> Literal["same", "moved", "other", "unknown"]:
        """What the tests come to."""
        if self.n < _FEWEST or not self.fits.dof:
            return "unknown"
        if self.fits.p < self.level and self.misfit > self.tolerance:
            return "other"
        return "moved" if self.moved.p < self.level else "same"

    @property
    def shrunk(self) -> Floats:
        """Shares (K,) to correct by: between the old and the estimated ones, nearer the surer these are.

        1 + lambda (w - 1) for w = new / old (Azizzadenesheli 2019, RLLS), with James and Stein's lambda,
        1 - dof / statistic of ``moved``. Above 0.
        """
        moved = self.moved
        trust = max(0.0, 1 - moved.dof / moved.statistic) if moved.statistic > 0 else 0.0
        shares = np.maximum(self.old + trust * (self.shares - self.old), 0.5 / max(self.n, 1.0))
        return np.asarray(shares / shares.sum())

    def says(self, names: Sequence[str] = ()) -> str:
        """In a sentence or two; classes by their ``names``, where there are any."""
        if self.n < _FEWEST:
            return f"Too few predictions to tell: {self.n:,.0f}, and {_FEWEST:,.0f} are the least."
        if not self.fits.dof:
            return "Too few samples of each class to test whether class shares alone have changed."
        if self.kind == "other":
            return (
                f"Not a change of class shares alone: they leave {100 * self.misfit:.1f} % of the "
                f"predictions unexplained (p = {self.fits.p:.2g}). The inputs or the model have changed; do "
                "not correct."
            )
        if self.kind == "same":
            p = f"p = {self.moved.p:.2g}"
            return f"Class shares are those of the calibration set, as far as can be told ({p})."
        k = int(np.argmax(np.abs(self.shares - self.old)))
        name = names[k] if names else f"class {k}"
        return (
            f"Class shares have moved (p = {self.moved.p:.2g}), most that of {name}: "
            f"{100 * self.old[k]:.1f} % to {100 * self.shares[k]:.1f} %; nothing else is seen to have."
        )

    def as_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """For JSON."""
        arrays = {"old": self.old, "shares": self.shares, "low": self.low, "high": self.high}
        numbers = {name: values.tolist() for name, values in arrays.items()}
        tests = {"moved": self.moved.as_dict(), "fits": self.fits.as_dict()}
        found = {"kind": self.kind, "says": self.says(names), "n": self.n, "misfit": self.misfit}
        return {**found, **tests, **numbers}


def bbse(
    confusion: Confusion,
    seen: ArrayLike,
    *,
    old: ArrayLike | None = None,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
) -> ShareEstimate:
    """Class shares of predictions without labels, of which ``seen`` (K, B) counts class and confidence bin.

    ``confusion``: of labelled samples under the same calibration. ``old`` (K,): the class shares that the
    probabilities were calibrated under, by default those of its labels. The shares are the most likely ones
    under q >= 0; with one cell a class they are Lipton's A^-1 t wherever that has no negative share.
    Intervals and tests hold the noise of both sides, and take samples to be independent. Raises InputError
    where a class has no labelled sample.

    >>> labels = np.repeat([0, 1], 500)
    >>> right = np.tile(np.repeat([True, False], [80, 20]), 10)
    >>> top, confidence = np.where(right, labels, 1 - labels), np.full(1000, 0.8)
    >>> told = Confusion.tally(top, confidence, labels, classes=2, bins=1)
    >>> found = bbse(told, [[320], [680]])  # .32 = .8 q + .2 (1 - q)
    >>> found.shares.round(6).tolist(), found.kind  # one cell a class leaves nothing to test
    ([0.2, 0.8], 'unknown')
    """
    counts = as_floats(seen, "seen")
    if counts.shape != (confusion.classes, confusion.bins):
        raise ShapeError(
            f"seen must be ({confusion.classes}, {confusion.bins}): counts by predicted class and bin of "
            f"confidence, got {counts.shape}"
        )
    if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.sum() > 0):
        raise InputError("counts of predictions must be finite, not negative, and not all 0")
    labels = confusion.labels
    if not labels.all():
        missing = np.flatnonzero(labels == 0)[:10].tolist()
        raise InputError(f"the confusion holds no sample of classes {missing}, whose shares cannot be told")
    before = labels / labels.sum() if old is None else as_shares(old, confusion.classes)
    cells = _cells(confusion.predictions, counts)
    n = float(counts.sum())
    found = _Table.of(confusion, cells, counts)
    shares = climbed(np.maximum(found.mass, 1e-12), found.seen, before)
    gain, noise = _linear(found.mass, shares), found.noise(shares)
    fits, misfit = _fits(confusion, counts, found, shares)
    return ShareEstimate(
        old=before,
        shares=shares,
        error=np.sqrt(np.maximum(np.diag(gain @ noise @ gain.T), 0)),
        moved=_moved(confusion, counts, before),
        fits=fits,
        misfit=misfit,
        n=n,
        right=_right(confusion, shares, labels),
        level=level,
        tolerance=tolerance,
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """Cells: their chance ``mass`` (C, K) given each label, and share ``seen`` (C,) of ``n`` predictions."""

    mass: Floats
    seen: Floats
    labels: Floats
    n: float

    @classmethod
    def of(cls, confusion: Confusion, cells: Ints, counts: Floats) -> _Table:
        """``cells`` (K, B): the cell of each predicted class and bin."""
        at, number = confusion.at, int(cells.max()) + 1
        found = np.zeros((number, confusion.classes))
        np.add.at(found, (cells[at[:, 0], at[:, 1]], at[:, 2]), confusion.count)
        n = float(counts.sum())
        seen = np.bincount(cells.ravel(), weights=counts.ravel(), minlength=number) / n
        return cls(found / confusion.labels, seen, confusion.labels, n)

    def noise(self, shares: Floats) -> Floats:
        """The covariance (C, C) of t - A q: of n predictions, and of the labelled samples of each class."""
        # A sample more of each class, over all cells: one that it was not seen in is not impossible.
        mass = (self.mass * self.labels + 1 / len(self.mass)) / (self.labels + 1)
        mixed, part = mass @ shares, shares**2 / self.labels
        drawn = (np.diag(mixed) - np.outer(mixed, mixed)) / self.n
        return np.asarray(drawn + np.diag(mass @ part) - (mass * part) @ mass.T)


def _cells(have: Floats, seen: Floats) -> Ints:
    """The cell of each predicted class and bin (K, B): bins join, from the top, until a cell holds enough."""
    cells = np.empty(have.shape, np.intp)
    first = 0
    for j in range(len(have)):
        groups = _joined(have[j], seen[j])
        cells[j] = first + groups
        first += int(groups.max()) + 1
    return cells


def _joined(have: Floats, seen: Floats) -> Ints:
    """The group of each bin (B,), the top ones first, each with enough of both counts (B,)."""
    groups, group = np.empty(len(have), np.intp), 0
    least = max(_LEAST, float(have.sum()) / _PARTS)
    held, came = 0.0, 0.0
    for b in reversed(range(len(have))):
        rest = min(float(have[: b + 1].sum()), float(seen[: b + 1].sum()))
        if held >= least and came >= _LEAST and rest >= _LEAST:
            group, held, came = group + 1, 0.0, 0.0
        groups[b] = group
        held, came = held + float(have[b]), came + float(seen[b])
    return groups


def _fits(confusion: Confusion, counts: Floats, found: _Table, shares: Floats) -> tuple[ChiSquared, float]:
    """Whether ``shares`` of the classes make the cells what they are, and by how much they do not.

    Of classes with too few samples to have more than a cell each: the confidences of all together.
    """
    classes, cells = confusion.classes, len(found.mass)
    if cells > classes:
        left, noise = found.seen - found.mass @ shares, found.noise(shares)
        spread = np.linalg.qr(found.mass, mode="complete")[0][:, classes:]  # what no shares can make
        return ChiSquared.of(spread.T @ left, spread.T @ noise @ spread), _beyond(left, noise)
    groups = _joined(confusion.predictions.sum(axis=0), counts.sum(axis=0))
    parts = int(groups.max()) + 1
    if parts == 1 or classes > _MANY:
        return ChiSquared(0.0, 0), 0.0
    fine = _Table.of(confusion, np.arange(classes)[:, None] * parts + groups, counts)
    whole = np.kron(np.eye(classes), np.ones(parts))  # (K, K parts): cells of a class
    pooled = np.kron(np.ones(classes), np.eye(parts))[1:]  # without one that the others leave
    gain = _linear(found.mass, shares)
    rest = pooled @ (np.eye(classes * parts) - fine.mass @ gain @ whole)
    noise, left = rest @ fine.noise(shares) @ rest.T, pooled @ (fine.seen - fine.mass @ shares)
    return ChiSquared.of(left, noise), _beyond(np.append(left, -left.sum()), noise)


def _beyond(left: Floats, noise: Floats) -> float:
    """The share of predictions in other cells than they should be, less what noise makes of it."""
    expected = float(np.sqrt(np.maximum(np.diag(noise), 0) / (2 * math.pi)).sum())
    return max(float(np.abs(left).sum()) / 2 - expected, 0.0)


def _linear(mass: Floats, shares: Floats) -> Floats:
    """The derivative (K, C) of the most likely shares by the shares of cells."""
    weighed = mass / np.maximum(mass @ shares, 1e-12)[:, None]
    return inverse(mass.T @ weighed) @ weighed.T


def _moved(confusion: Confusion, counts: Floats, old: Floats) -> ChiSquared:
    """Whether classes are predicted in the shares that ``old`` shares of the classes lead to."""
    each = np.repeat(np.arange(confusion.classes)[:, None], confusion.bins, axis=1)
    found = _Table.of(confusion, each, counts)
    mixed = found.mass @ old
    # The labels' shares are a sample too.
    drawn = ((found.mass * old) @ found.mass.T - np.outer(mixed, mixed)) / found.labels.sum()
    return ChiSquared.of(found.seen - mixed, found.noise(old) + drawn)


def _right(confusion: Confusion, shares: Floats, labels: Floats) -> Floats:
    """The accuracy to expect in each predicted class (K,) under these shares of the classes; NaN of none."""
    at, classes = confusion.at, confusion.classes
    weight = confusion.count * (shares / labels)[at[:, 2]]
    predicted = np.bincount(at[:, 0], weights=weight, minlength=classes)
    hit = np.bincount(at[:, 0], weights=weight * (at[:, 0] == at[:, 2]), minlength=classes)
    return np.asarray(np.divide(hit, predicted, out=np.full(classes, math.nan), where=predicted > 0))

"""Black box shift estimation (Lipton 2018): class shares from predictions without labels.

The shares t of what is predicted are A q, with A[c, k] the chance of cell c given label k, known from
labelled samples, and q the shares of the classes. A cell here is a predicted class with a range of
confidences, so that there are more cells than classes: what the best q cannot explain tells that more than
the shares has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Codes, Floats, as_floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import percent
from calib_serve.metrics.confusion import Confusion
from calib_serve.metrics.intervals import NORMAL_95
from calib_serve.metrics.shares import ChiSquared, as_shares, climbed, inverse

_FEWEST_PREDICTIONS = 100.0  # predictions from which shares are estimated


@dataclass(frozen=True, eq=False)
class ShareEstimate:
    """Class shares of predictions, their standard error, and two tests.

    ``kind``: "same", "moved", "other" (more than the shares has changed: do not correct), "unknown" (too
    little to tell).

    Args:
        old: Shares of the calibration set (K,).
        shares: Estimated shares (K,), of sum 1.
        error: Their standard error (K,).
        moved: Test that the shares of the predicted classes are as they were there.
        fits: Test that class shares alone explain the counts.
        misfit: Share of the predictions that these do not explain, beyond what noise shows.
        n: Number of predictions.
        right: Accuracy to expect in each predicted class (K,); NaN where none is predicted.
    """

    old: Floats
    shares: Floats
    error: Floats
    moved: ChiSquared
    fits: ChiSquared
    misfit: float
    n: float
    right: Floats

    @property
    def low(self) -> Floats:
        """Lower ends (K,) of the 95 % intervals."""
        return np.clip(self.shares - NORMAL_95 * self.error, 0, 1)

    @property
    def high(self) -> Floats:
        """Upper ends (K,) of the 95 % intervals."""
        return np.clip(self.shares + NORMAL_95 * self.error, 0, 1)

    @property
    def kind(self) -> Literal["same", "moved", "other", "unknown"]:
        """The conclusion of the tests, at a level of 1 %; a misfit of two points of a hundred is none."""
        if self.n < _FEWEST_PREDICTIONS or not self.fits.dof:
            return "unknown"
        if self.fits.p < 0.01 and self.misfit > 0.02:
            return "other"
        return "moved" if self.moved.p < 0.01 else "same"

    @property
    def shrunk(self) -> Floats:
        """Shares (K,) to correct by: between old and estimated shares, nearer the estimate the surer it is.

        1 + lambda (w - 1) for w = new / old (Azizzadenesheli 2019, RLLS), with James and Stein's lambda,
        1 - dof / statistic of ``moved``. Above 0.
        """
        moved = self.moved
        trust = max(0.0, 1 - moved.dof / moved.statistic) if moved.statistic > 0 else 0.0
        shares = np.maximum(self.old + trust * (self.shares - self.old), 0.5 / max(self.n, 1.0))
        return np.asarray(shares / shares.sum())

    def says(self, names: Sequence[str] = ()) -> str:
        """The estimate in a sentence or two.

        Args:
            names: Name of each class; without them classes are called by id.
        """
        if self.n < _FEWEST_PREDICTIONS:
            return (
                f"Too few predictions to tell: {self.n:,.0f}, and {_FEWEST_PREDICTIONS:,.0f} are the least."
            )
        if not self.fits.dof:
            return "Too few samples of each class to test whether class shares alone have changed."
        if self.kind == "other":
            return (
                f"Not a change of class shares alone: they leave {percent(self.misfit)} of the "
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
            f"{percent(self.old[k])} to {percent(self.shares[k])}; nothing else is seen to have."
        )

    def as_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """As plain values for JSON."""
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
) -> ShareEstimate:
    """Estimate class shares of predictions without labels.

    The shares are the most likely ones under q >= 0; with one cell a class they are Lipton's A^-1 t wherever
    that has no negative share. Intervals and tests hold the noise of both sides, and take samples to be
    independent.

    Args:
        confusion: Counts of labelled samples under the same calibration.
        seen: Number of predictions of each class in each bin of confidence (K, B).
        old: Class shares (K,) that the probabilities were calibrated under, by default those of the
            confusion's labels.

    Raises:
        InputError: Where a class has no labelled sample, or there is no prediction.
        ShapeError: Where ``seen`` has another shape.

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
    # A cell of chance 0 under every class would have a likelihood of 0, whatever the shares.
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
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """Cells: chance ``mass`` (C, K) of each given a label, and share ``seen`` (C,) of ``n`` predictions."""

    mass: Floats
    seen: Floats
    labels: Floats
    n: float

    @classmethod
    def of(cls, confusion: Confusion, cells: Codes, counts: Floats) -> _Table:
        """Sum counts by ``cells`` (K, B), the cell of each predicted class and bin."""
        at, number = confusion.at, int(cells.max()) + 1
        found = np.zeros((number, confusion.classes))
        np.add.at(found, (cells[at[:, 0], at[:, 1]], at[:, 2]), confusion.count)
        n = float(counts.sum())
        seen = np.bincount(cells.ravel(), weights=counts.ravel(), minlength=number) / n
        return cls(found / confusion.labels, seen, confusion.labels, n)

    def noise(self, shares: Floats) -> Floats:
        """The covariance (C, C) of t - A q, from n predictions and each class's labelled samples."""
        # One more sample of each class, spread over all cells: a cell without any is not impossible.
        mass = (self.mass * self.labels + 1 / len(self.mass)) / (self.labels + 1)
        mixed, part = mass @ shares, shares**2 / self.labels
        drawn = (np.diag(mixed) - np.outer(mixed, mixed)) / self.n
        return np.asarray(drawn + np.diag(mass @ part) - (mass * part) @ mass.T)


def _cells(have: Floats, seen: Floats) -> Codes:
    """Join the bins of each class (K, B) into cells, from the top, until a cell holds enough."""
    cells = np.empty(have.shape, np.intp)
    first = 0
    for j in range(len(have)):
        groups = _joined(have[j], seen[j])
        cells[j] = first + groups
        first += int(groups.max()) + 1
    return cells


def _joined(have: Floats, seen: Floats) -> Codes:
    """The group of each bin (B,), the top bins first, each group with enough of both counts (B,)."""
    groups, group, few = np.empty(len(have), np.intp), 0, 20.0
    least = max(few, float(have.sum()) / 4)
    held, came = 0.0, 0.0
    for b in reversed(range(len(have))):
        rest = min(float(have[: b + 1].sum()), float(seen[: b + 1].sum()))
        if held >= least and came >= few and rest >= few:
            group, held, came = group + 1, 0.0, 0.0
        groups[b] = group
        held, came = held + float(have[b]), came + float(seen[b])
    return groups


def _fits(confusion: Confusion, counts: Floats, found: _Table, shares: Floats) -> tuple[ChiSquared, float]:
    """Test whether ``shares`` of the classes explain the cells, and how large a misfit is left.

    Of classes with too few samples to have more than a cell each: the confidences of all together.
    """
    classes, cells = confusion.classes, len(found.mass)
    if cells > classes:
        left, noise = found.seen - found.mass @ shares, found.noise(shares)
        spread = np.linalg.qr(found.mass, mode="complete")[0][:, classes:]  # what no shares can make
        return ChiSquared.of(spread.T @ left, spread.T @ noise @ spread), _beyond(left, noise)
    groups = _joined(confusion.predictions.sum(axis=0), counts.sum(axis=0))
    parts = int(groups.max()) + 1
    if parts == 1 or classes > 400:
        return ChiSquared(0.0, 0), 0.0
    fine = _Table.of(confusion, np.arange(classes)[:, None] * parts + groups, counts)
    whole = np.kron(np.eye(classes), np.ones(parts))  # (K, K parts): cells of a class
    pooled = np.kron(np.ones(classes), np.eye(parts))[1:]  # without one that the others leave
    gain = _linear(found.mass, shares)
    rest = pooled @ (np.eye(classes * parts) - fine.mass @ gain @ whole)
    noise, left = rest @ fine.noise(shares) @ rest.T, pooled @ (fine.seen - fine.mass @ shares)
    return ChiSquared.of(left, noise), _beyond(np.append(left, -left.sum()), noise)


def _beyond(left: Floats, noise: Floats) -> float:
    """The share of predictions in other cells than expected, less the share that noise explains."""
    expected = float(np.sqrt(np.maximum(np.diag(noise), 0) / (2 * math.pi)).sum())
    return max(float(np.abs(left).sum()) / 2 - expected, 0.0)


def _linear(mass: Floats, shares: Floats) -> Floats:
    """The derivative (K, C) of the most likely shares by the shares of cells."""
    weighed = mass / np.maximum(mass @ shares, 1e-12)[:, None]
    return inverse(mass.T @ weighed) @ weighed.T


def _moved(confusion: Confusion, counts: Floats, old: Floats) -> ChiSquared:
    """Test whether ``old`` shares of the classes still explain the predicted classes."""
    each = np.repeat(np.arange(confusion.classes)[:, None], confusion.bins, axis=1)
    found = _Table.of(confusion, each, counts)
    mixed = found.mass @ old
    # The labels' shares are a sample too.
    drawn = ((found.mass * old) @ found.mass.T - np.outer(mixed, mixed)) / found.labels.sum()
    return ChiSquared.of(found.seen - mixed, found.noise(old) + drawn)


def _right(confusion: Confusion, shares: Floats, labels: Floats) -> Floats:
    """The accuracy to expect in each predicted class (K,) under these shares of the classes.

    NaN of none.
    """
    at, classes = confusion.at, confusion.classes
    weight = confusion.count * (shares / labels)[at[:, 2]]
    predicted = np.bincount(at[:, 0], weights=weight, minlength=classes)
    hit = np.bincount(at[:, 0], weights=weight * (at[:, 0] == at[:, 2]), minlength=classes)
    return np.asarray(np.divide(hit, predicted, out=np.full(classes, math.nan), where=predicted > 0))

"""Prior shift: estimate class shares without labels, and correct probabilities for other class shares.

Under label shift the shares of the classes change, and what each class looks like stays: p(y) moves, p(x | y)
does not. Then Bayes' rule corrects calibrated probabilities, and shares can be estimated without labels.

Black box shift estimation (Lipton 2018): the shares t of what is predicted are A q, with A[c, k] the chance
of cell c given label k, known from labelled samples, and q the shares of the classes. A cell here is a
predicted class with a range of confidences, so that there are more cells than classes: what the best q
cannot explain tells that more than the shares has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import as_floats
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import percent
from calib_serve.metrics.intervals import chi_square_beyond

Floats = NDArray[np.float64]

ClassShares = Union[ArrayLike, Mapping[str, float]]
"""Shares in the order of the classes, or by class name or id."""

_SUM = 1e-3  # by which given shares, and rows of probabilities, may miss 1: they are rounded
_NAMED = 10


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


Ints = NDArray[np.int64]

MOST_ENTRIES = 20_000
"""Counts other than 0 that facts may hold: a fifth of a manifest's bytes."""


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
        if len(self.count) > MOST_ENTRIES:
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


_STEPS = 5000
_STILL = 1e-9  # a step that moves no share further is the last


@dataclass(frozen=True, eq=False)
class EmShares:
    """Shares of maximum likelihood and their covariance, by the observed information.

    It leaves out the noise of the calibration itself: these intervals hold where the probabilities are right.

    Args:
        shares: (K,), of sum 1.
        covariance: (K, K).
        moved: Likelihood-ratio test that the shares are the old ones.
        n: Number of samples.
    """

    shares: Floats
    covariance: Floats
    moved: ChiSquared
    n: int

    @property
    def error(self) -> Floats:
        """Standard errors (K,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))


def em(probs: ArrayLike, old: ArrayLike) -> EmShares:
    """Estimate class shares of samples from calibrated probabilities.

    The fixed point q_k = mean of q_k u_k / sum_j q_j u_j, u = p / old, where the likelihood is largest. It is
    consistent under label shift where every class is calibrated, not the top one alone; ``bbse`` asks less.

    Args:
        probs: Probabilities (n, K), calibrated under ``old``.
        old: Class shares (K,).

    Raises:
        InputError: Where there is no sample, or a row does not sum to 1.
        ShapeError: Where shapes do not fit.

    >>> found = em([[1.0, 0.0]] * 3 + [[0.0, 1.0]], [0.5, 0.5])
    >>> found.shares.tolist()
    [0.75, 0.25]
    >>> found.error.round(4).tolist()  # of a share of 4 draws: sqrt(.75 x .25 / 4)
    [0.2165, 0.2165]
    """
    p = checked_probs(probs)
    if not len(p):
        raise InputError("there are no samples to estimate class shares of")
    before = as_shares(old, p.shape[1])
    ratio = np.maximum(p / before, np.finfo(float).tiny)
    shares = climbed(ratio, np.full(len(p), 1 / len(p)), before)
    mixed = ratio @ shares
    gain = 2 * float(np.log(mixed).sum() - np.log(ratio @ before).sum())
    scaled = ratio / mixed[:, None]
    # The information of one sample is E[v v'] with v = u / sum_j q_j u_j; H q = E[v] = 1 gives the sum.
    information = scaled.T @ scaled / len(p)
    # A share at 0 is held there by a slope, which tells as much as an exponential distribution of that rate.
    slope = np.maximum(1 - scaled.mean(axis=0), 0)
    covariance = (inverse(information + len(p) * np.diag(slope**2)) - np.outer(shares, shares)) / len(p)
    return EmShares(shares, covariance, ChiSquared(max(gain, 0.0), len(shares) - 1), len(p))


def climbed(ratio: Floats, weight: Floats, start: Floats) -> Floats:
    """Climb to the shares (K,) of the most likely mixture: ``ratio`` (m, K) is proportional to p(row | k).

    ``weight`` (m,) of the rows sums to 1. Two EM steps and their extrapolation (Varadhan 2008, SQUAREM).
    """
    shares = start
    for _ in range(_STEPS):
        first = _step(ratio, weight, shares)
        second = _step(ratio, weight, first)
        change, bend = first - shares, second - 2 * first + shares
        if np.abs(second - first).max() < _STILL:
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


_RANK = 1e-9  # of the largest variance: directions that vary less do not vary


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
        varies = values > _RANK * max(float(values[-1]), np.finfo(float).tiny)
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
        p = self.p
        return {"statistic": self.statistic, "dof": self.dof, "p": None if math.isnan(p) else p}


Codes = NDArray[np.intp]

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
        level: p-value below which a test has found a change.
        tolerance: Largest ``misfit`` that counts as none.
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
        """Upper ends (K,) of the 95 % intervals."""
        return np.clip(self.shares + _Z * self.error, 0, 1)

    @property
    def kind(self) -> Literal["same", "moved", "other", "unknown"]:
        """The conclusion of the tests."""
        if self.n < _FEWEST or not self.fits.dof:
            return "unknown"
        if self.fits.p < self.level and self.misfit > self.tolerance:
            return "other"
        return "moved" if self.moved.p < self.level else "same"

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
        if self.n < _FEWEST:
            return f"Too few predictions to tell: {self.n:,.0f}, and {_FEWEST:,.0f} are the least."
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
        """As plain values for JSON.

        Args:
            names: Name of each class, for the sentences.
        """
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
    """Estimate class shares of predictions without labels.

    The shares are the most likely ones under q >= 0; with one cell a class they are Lipton's A^-1 t wherever
    that has no negative share. Intervals and tests hold the noise of both sides, and take samples to be
    independent.

    Args:
        confusion: Counts of labelled samples under the same calibration.
        seen: Number of predictions of each class in each bin of confidence (K, B).
        old: Class shares (K,) that the probabilities were calibrated under, by default those of the
            confusion's labels.
        level: p-value below which a test has found a change.
        tolerance: Share of the predictions that other causes may move before they count.

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
        level=level,
        tolerance=tolerance,
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

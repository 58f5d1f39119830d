"""Prediction sets measured: how often they hold the true class, how large they are, whom they fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array
from calib_serve.bins import Bins
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.intervals import Estimate, beta_binomial_at_most, conformal_rank, mean_interval
from calib_serve.metrics.samples import checked_labels, group_codes
from calib_serve.metrics.selective import share_of, with_interval

__all__ = ["SetEvaluation", "SizeGroup", "evaluate_sets"]

_SIZES = (1, 2, 3, 5, 10, 30, 100, 300)  # the last size of each group of sizes


@dataclass(frozen=True)
class SizeGroup:
    """The ``count`` sets of ``smallest`` to ``largest`` classes, and how many of these hold the true one."""

    smallest: int
    largest: int
    count: int
    coverage: Estimate


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """What prediction sets do on ``n`` labelled samples.

    ``coverage`` is the share of sets that hold the true class, ``promised`` what it should be (None where
    nothing was), ``mean_size`` the mean number of classes in a set, ``sizes`` (K + 1,) how many sets are of
    0 to K classes. ``by_class`` (K,): the coverage of each true class, NaN where it never occurs, with
    intervals that hold for all classes at once; ``by_size``: of groups of sizes; ``by_confidence``: bins of
    the top probability, whose ``correct`` are the sets that hold the true class, None where it was not given.
    ``p`` is the chance of so few sets with the true class if the promise is kept, over the draws of these
    samples and of those of the thresholds; NaN where that is not known.
    """

    n: int
    coverage: Estimate
    mean_size: Estimate
    sizes: tuple[int, ...]
    by_class: tuple[Estimate, ...]
    by_size: tuple[SizeGroup, ...]
    by_confidence: Bins | None = None
    promised: float | None = None
    p: float = math.nan

    @property
    def singletons(self) -> float:
        """The share of sets of one class."""
        return self.sizes[1] / self.n

    @property
    def worst_class(self) -> int:
        """The class that is most surely missed: see ``worst_classes``."""
        return self.worst_classes()[0]

    def worst_classes(self) -> list[int]:
        """The classes that occur, the one with the smallest upper end first; its value where it has none."""
        ends = {k: e.value if math.isnan(e.high) else e.high for k, e in enumerate(self.by_class)}
        return sorted((k for k, end in ends.items() if not math.isnan(end)), key=ends.__getitem__)

    @property
    def size_violation(self) -> float:
        """The largest distance of a group of sizes from the promise (Angelopoulos 2021, section 4)."""
        if self.promised is None:
            return math.nan
        return max(abs(group.coverage.value - self.promised) for group in self.by_size)

    def says(self, class_names: Sequence[str] = ()) -> str:
        """Two sentences for a person."""
        promise = "" if self.promised is None else f" (promised {100 * self.promised:.4g} %)"
        worst = self.worst_class
        name = class_names[worst] if class_names else f"class {worst}"
        found = self.by_class[worst]
        said = (
            f"The sets hold the true class in {with_interval(self.coverage)}{promise}, {self.mean_size:.2f} "
            f"classes on average, {100 * self.singletons:.1f} % of them one class alone. Worst class: "
            f"{name}, {with_interval(found)}."
        )
        if self.p < 0.025:
            said += (
                " That is fewer than the promise allows by chance: these samples are not like those that the "
                "thresholds are of."
            )
        return said

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        bins = self.by_confidence
        names = ("count", "confidence", "correct")
        return {
            "n": self.n,
            "promised": self.promised,
            "coverage": self.coverage.as_dict(),
            "p": None if math.isnan(self.p) else self.p,
            "mean_size": self.mean_size.as_dict(),
            "singletons": self.singletons,
            "sizes": list(self.sizes),
            "by_class": [e.as_dict() for e in self.by_class],
            "by_size": [{**vars(group), "coverage": group.coverage.as_dict()} for group in self.by_size],
            "by_confidence": None if bins is None else {n: getattr(bins, n).tolist() for n in names},
        }


def evaluate_sets(
    inside: ArrayLike,
    labels: ArrayLike,
    *,
    confidence: ArrayLike | None = None,
    promised: float | None = None,
    fitted_on: int | None = None,
    bins: int = 15,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> SetEvaluation:
    """Whether sets ``inside`` (n, K), True for the classes in them, hold the class ids ``labels`` (n,).

    ``confidence`` (n,) is the top probability. ``promised`` is the coverage, and ``fitted_on`` the number of
    samples that one threshold for all classes was found on: the number held is then beta-binomial. Shares
    have exact intervals (Clopper and Pearson 1934); with ``groups`` (n,) they are of as many samples as the
    groups are worth, and p is not known.

    >>> found = evaluate_sets([[True, False], [True, True], [True, False]], [0, 1, 1])
    >>> round(found.coverage, 2), found.sizes, round(found.mean_size, 2)
    (0.67, (0, 2, 1), 1.33)
    """
    sets = as_array(inside, "sets")
    if sets.ndim != 2 or not len(sets) or sets.dtype.kind != "b":
        raise ShapeError(f"sets must be (n, K) booleans with n >= 1, got {sets.shape} {sets.dtype}")
    n, classes = sets.shape
    y = checked_labels(labels, n, classes)
    codes = group_codes(groups, n)
    held = sets[np.arange(n), y]
    size = sets.sum(axis=1)
    known = promised is not None and fitted_on is not None and codes is None
    return SetEvaluation(
        n,
        coverage=share_of(held, codes, level=level),
        mean_size=mean_interval(size, level=level, groups=codes),
        sizes=tuple(np.bincount(size, minlength=classes + 1).tolist()),
        by_class=_by_class(held, y, classes, level=level, codes=codes),
        by_size=_by_size(held, size, level=level, codes=codes),
        by_confidence=None if confidence is None else _by_confidence(held, confidence, bins),
        promised=promised,
        p=_p(int(held.sum()), n, float(promised or 0), int(fitted_on or 0)) if known else math.nan,
    )


def _p(held: int, n: int, promised: float, fitted_on: int) -> float:
    """Of the calibration draws and the test's together (Vovk 2012; Angelopoulos and Bates 2023, app. C)."""
    k = conformal_rank(fitted_on, promised)
    return float(held == n) if k > fitted_on else beta_binomial_at_most(held, n, k, fitted_on + 1 - k)


def _by_class(
    held: NDArray[np.bool_],
    labels: NDArray[np.intp],
    classes: int,
    *,
    level: float,
    codes: NDArray[np.intp] | None,
) -> tuple[Estimate, ...]:
    each = 1 - (1 - level) / max(1, len(np.unique(labels)))  # Bonferroni: all hold at once
    found = []
    for k in range(classes):
        of_class = labels == k
        part = None if codes is None else codes[of_class]
        found.append(share_of(held[of_class], part, level=each) if of_class.any() else Estimate(math.nan))
    return tuple(found)


def _by_size(
    held: NDArray[np.bool_], size: NDArray[np.intp], *, level: float, codes: NDArray[np.intp] | None
) -> tuple[SizeGroup, ...]:
    found, smallest = [], 0
    for largest in (*_SIZES, int(size.max()) + 1):
        part = (size >= smallest) & (size <= largest)
        if part.any():
            of_part = share_of(held[part], None if codes is None else codes[part], level=level)
            found.append(SizeGroup(int(size[part].min()), int(size[part].max()), int(part.sum()), of_part))
        smallest = largest + 1
    return tuple(found)


def _by_confidence(held: NDArray[np.bool_], confidence: ArrayLike, bins: int) -> Bins:
    c = np.asarray(confidence, np.float64)
    if c.shape != held.shape:
        raise ShapeError(f"confidence must be {held.shape}, one a set, got {c.shape}")
    if not (c.min() >= 0 and c.max() <= 1):
        raise InputError("confidence must lie in [0, 1]; give the top probability")
    return Bins.tally(c, held, bins=bins)

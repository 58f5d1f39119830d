"""Decisions measured on samples: answers above a threshold, prediction sets, and chosen actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, as_array, as_floats, finite
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import percent
from calib_serve.metrics.distributions import beta_binomial_at_most
from calib_serve.metrics.intervals import (
    Estimate,
    conformal_rank,
    exact_interval,
    mean_interval,
    share_interval,
)
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import checked_labels, design_effect, group_codes, top_label

_SIZES = (1, 2, 3, 5, 10, 30, 100, 300)  # the last size of each group of sizes


@dataclass(frozen=True)
class SelectiveEvaluation:
    """The effect of a threshold on samples.

    Args:
        n: Number of samples.
        threshold: Least confidence that is answered.
        answered: Share of the samples that is answered.
        risk: Share of the answers that is wrong; NaN where nothing is answered.
        promised: Risk that was to be kept; None where none was.
        promised_answered: Share that was to be answered; None where none was.
        p: Chance of so few answers if that is kept, over the draws of these samples and of those of the
            threshold; NaN where that is not known.
    """

    n: int
    threshold: float
    answered: Estimate
    risk: Estimate
    promised: float | None = None
    promised_answered: float | None = None
    p: float = math.nan

    def says(self) -> str:
        """A sentence for a person, and another where the promise is surely broken."""
        least = self.promised_answered
        of_all = "" if least is None else f" (promised at least {100 * least:.4g} %)"
        promise = "" if self.promised is None else f" (promised at most {100 * self.promised:.4g} %)"
        said = (
            f"Answers from {self.threshold:.4f} confidence on: {self.answered.percent()} are answered{of_all}"
        )
        if math.isnan(self.risk.value):
            return f"{said}."
        said += f", {self.risk.percent()} of these are wrong{promise}."
        if self.promised is not None and self.risk.low > self.promised:
            said += " That is more than promised: these samples are not like those that the threshold is of."
        if self.p < 0.025:
            said += " Fewer are answered than promised: these samples are not like those of the threshold."
        return said

    def as_dict(self) -> dict[str, object]:
        """As plain values for JSON."""
        shares = {"answered": self.answered.as_dict(), "risk": self.risk.as_dict()}
        least = {"promised_answered": self.promised_answered, "p": finite(self.p)}
        kept = {} if self.promised_answered is None else least
        return {"n": self.n, "threshold": self.threshold, "promised": self.promised, **kept, **shares}


def evaluate_abstention(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    threshold: float,
    promised: float | None = None,
    promised_answered: float | None = None,
    fitted_on: int | None = None,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> SelectiveEvaluation:
    """Measure the answers at or above a threshold of the top probability, with exact intervals.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        threshold: Least confidence that is answered.
        promised: Risk that was to be kept.
        promised_answered: Share that was to be answered, at least.
        fitted_on: Number of samples that a threshold for that share was found on.
        level: Coverage of the intervals, a fraction.
        groups: Which samples belong together (n,): intervals are then of as many as they are worth.

    >>> found = evaluate_abstention([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 0], threshold=0.7)
    >>> round(found.answered, 2), found.risk.value
    (0.67, 0.5)
    """
    confidence, correct = top_label(probs, labels)
    codes = group_codes(groups, len(correct))
    kept = confidence >= threshold
    answered = share_of(kept, codes, level=level)
    of_answers = share_of(~correct, codes, level=level, among=kept)
    p = math.nan
    if promised_answered is not None and fitted_on is not None and codes is None:
        p = _p(int(kept.sum()), len(kept), promised_answered, fitted_on)
    return SelectiveEvaluation(
        len(correct), float(threshold), answered, of_answers, promised, promised_answered, p
    )


def open_set(
    known: ArrayLike, unknown: ArrayLike, *, threshold: float | None = None, level: float = 0.95
) -> dict[str, Estimate]:
    """Return how well confidence tells samples of the classes from those of none, which are to be refused.

    ``auroc`` (Hendrycks and Gimpel 2017), and of a threshold ``known_refused`` and ``unknown_refused``.

    Args:
        known: Top probabilities of samples of the classes (n,), independent ones.
        unknown: Top probabilities of samples of none of them (m,), independent ones.
        threshold: Least probability that is answered.
        level: Coverage of the intervals, a fraction.

    >>> found = open_set([0.9, 0.8], [0.8, 0.1], threshold=0.7)
    >>> {name: share.value for name, share in found.items()}
    {'auroc': 0.875, 'known_refused': 0.0, 'unknown_refused': 0.5}
    """
    a, b = as_floats(known, "known"), as_floats(unknown, "unknown")
    for name, one in (("known", a), ("unknown", b)):
        if one.ndim != 1 or not len(one):
            raise ShapeError(f"{name} must be one probability a sample, (n,) with n >= 1, got {one.shape}")
        if np.isnan(one).any():
            raise InputError(f"{name} holds NaN; a sample without a probability cannot be ranked")
    ranks = Separation.of(np.concatenate([a, b]), np.arange(len(a) + len(b)) < len(a))
    found = {"auroc": share_interval(float(ranks.auroc()), float(ranks.auroc_error()), level=level)}
    if threshold is not None:
        found["known_refused"] = share_of(a < threshold, None, level=level)
        found["unknown_refused"] = share_of(b < threshold, None, level=level)
    return found


def share_of(
    hits: NDArray[np.bool_],
    codes: NDArray[np.intp] | None,
    *,
    level: float,
    among: NDArray[np.bool_] | None = None,
) -> Estimate:
    """The share of hits (n,) with its exact interval, of the effective number of samples under groups.

    Of those ``among`` which it is asked (n,) alone; NaN of none.
    """
    if among is not None:
        hits, codes = hits[among], None if codes is None else codes[among]
    if not len(hits):
        return Estimate(math.nan)
    share = float(hits.mean())
    if codes is not None and (codes == codes[0]).all():  # how much groups vary cannot be told from one
        return Estimate(share)
    n = effective_count(hits, codes)
    return exact_interval(share * n, n, level=level)


def effective_count(hits: NDArray[np.bool_], codes: NDArray[np.intp] | None) -> float:
    """The number of independent samples that hits or misses of samples in groups are worth.

    Args:
        hits: Which samples are hits (n,).
        codes: Group of each sample (n,); None: they are independent.
    """
    if codes is None:
        return float(len(hits))
    own = np.unique(codes, return_inverse=True)[1]
    groups = int(own.max()) + 1
    # Of one group, or where all are alike, nothing tells how groups vary: each counts once.
    alike = groups == 1 or hits.all() or not hits.any()
    return float(groups) if alike else len(hits) / design_effect(hits.astype(np.float64), own)


@dataclass(frozen=True)
class SizeGroup:
    """Sets of about one size, and how many of these hold the true class.

    Args:
        smallest: Fewest classes of a set.
        largest: Most classes of a set.
        count: Number of sets.
        coverage: Share of them that hold the true class.
    """

    smallest: int
    largest: int
    count: int
    coverage: Estimate


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """Measures of prediction sets on labelled samples.

    Args:
        n: Number of samples.
        coverage: Share of sets that hold the true class.
        mean_size: Mean number of classes in a set.
        sizes: How many sets are of 0 to K classes (K + 1,).
        by_class: Coverage of each true class (K,), NaN where it never occurs, with intervals that hold for
            all classes at once.
        by_size: Coverage of groups of sizes.
        promised: Promised coverage; None where there is no promise.
        p: Chance of so few sets with the true class if the promise is kept, over the draws of these samples
            and of those of the thresholds; NaN where that is not known.
    """

    n: int
    coverage: Estimate
    mean_size: Estimate
    sizes: tuple[int, ...]
    by_class: tuple[Estimate, ...]
    by_size: tuple[SizeGroup, ...]
    promised: float | None = None
    p: float = math.nan

    @property
    def singletons(self) -> float:
        """The share of sets of one class."""
        return self.sizes[1] / self.n

    def worst_classes(self) -> list[int]:
        """Return the classes that occur, the one with the smallest upper end first.

        Its value where it has none.
        """
        ends = {k: e.value if math.isnan(e.high) else e.high for k, e in enumerate(self.by_class)}
        return sorted((k for k, end in ends.items() if not math.isnan(end)), key=ends.__getitem__)

    def says(self, class_names: Sequence[str] = ()) -> str:
        """Return two sentences for a person."""
        promise = "" if self.promised is None else f" (promised {100 * self.promised:.4g} %)"
        worst = self.worst_classes()[0]
        name = class_names[worst] if class_names else f"class {worst}"
        found = self.by_class[worst]
        said = (
            f"The sets hold the true class in {self.coverage.percent()}{promise}, {self.mean_size:.2f} "
            f"classes on average, {percent(self.singletons)} of them one class alone. Worst class: "
            f"{name}, {found.percent()}."
        )
        if self.p < 0.025:
            said += (
                " That is fewer than the promise allows by chance: these samples are not like those that the "
                "thresholds are of."
            )
        return said

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "n": self.n,
            "promised": self.promised,
            "coverage": self.coverage.as_dict(),
            "p": finite(self.p),
            "mean_size": self.mean_size.as_dict(),
            "singletons": self.singletons,
            "sizes": list(self.sizes),
            "by_class": [e.as_dict() for e in self.by_class],
            "by_size": [{**vars(group), "coverage": group.coverage.as_dict()} for group in self.by_size],
        }


def evaluate_sets(
    inside: ArrayLike,
    labels: ArrayLike,
    *,
    promised: float | None = None,
    fitted_on: int | None = None,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> SetEvaluation:
    """Tell whether sets hold the true classes, with exact intervals of shares (Clopper and Pearson 1934).

    Args:
        inside: True for the classes in each set (n, K).
        labels: Class ids (n,).
        promised: Coverage that was promised.
        fitted_on: Number of samples that one threshold for all classes was found on: the number of sets that
            hold the true class is then beta-binomial.
        level: Coverage of the intervals, a fraction.
        groups: Which samples belong together (n,): intervals are then of as many as they are worth, and p is
            not known.

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
        promised=promised,
        p=_p(int(held.sum()), n, float(promised or 0), int(fitted_on or 0)) if known else math.nan,
    )


def _p(held: int, n: int, promised: float, fitted_on: int) -> float:
    """The chance of so few hits under the promise, over the draws of calibration and test samples.

    Vovk 2012; Angelopoulos 2023, C.
    """
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
    return tuple(share_of(held, codes, level=each, among=labels == k) for k in range(classes))


def _by_size(
    held: NDArray[np.bool_], size: NDArray[np.intp], *, level: float, codes: NDArray[np.intp] | None
) -> tuple[SizeGroup, ...]:
    found, smallest = [], 0
    for largest in (*_SIZES, int(size.max()) + 1):
        part = (size >= smallest) & (size <= largest)
        if part.any():
            of_part = share_of(held, codes, level=level, among=part)
            found.append(SizeGroup(int(size[part].min()), int(size[part].max()), int(part.sum()), of_part))
        smallest = largest + 1
    return tuple(found)


@dataclass(frozen=True)
class ChoiceEvaluation:
    """What chosen actions came to on samples.

    Args:
        goal: "cost", "precision", "recall" or "budget".
        measured: The mean cost, or the share, with its interval; NaN where no sample tells.
        promised: What it was to be, at most (of cost and budget) or at least.
    """

    goal: str
    measured: Estimate
    promised: float

    def says(self) -> str:
        """A sentence for a person, and another where the promise is surely broken."""
        e, most = self.measured, self.goal in ("cost", "budget")
        as_text = "{:.4g}".format if self.goal == "cost" else percent
        shown = as_text(e.value) + ("" if math.isnan(e.low) else f" ({as_text(e.low)} to {as_text(e.high)})")
        said = f"{self.goal.capitalize()} of the decisions: {shown}"
        said += f" (promised at {'most' if most else 'least'} {as_text(self.promised)})."
        if e.low > self.promised if most else e.high < self.promised:
            said += " That breaks the promise: these samples are not like those that it is of."
        return said

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**vars(self), "measured": self.measured.as_dict()}


def evaluate_choice(
    values: Floats,
    rows: NDArray[np.bool_],
    goal: str,
    promised: float,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> ChoiceEvaluation:
    """Measure the mean of what ``Choice.outcomes`` gives, with its interval.

    Args:
        values: Costs, or 1 where a sample counts and 0 elsewhere (n,).
        rows: Samples that a share is of (n,); a mean cost is of all.
        goal: "cost", "precision", "recall" or "budget".
        promised: What was to be kept.
        level: Coverage of the interval, a fraction.
        groups: Which samples belong together (n,).
    """
    codes = group_codes(groups, len(values))
    if goal == "cost":
        return ChoiceEvaluation(goal, mean_interval(values, level=level, groups=codes), promised)
    return ChoiceEvaluation(goal, share_of(values == 1, codes, level=level, among=rows), promised)

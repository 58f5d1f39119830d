"""Metrics of decisions by confidence: answers above a threshold, and prediction sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, as_array, as_floats, finite
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import percent, percent_within
from calib_serve.metrics.distributions import accuracy_at_least, beta_binomial_at_most, binomial_at_most
from calib_serve.metrics.intervals import (
    Estimate,
    conformal_rank,
    exact_interval,
    mean_interval,
    share_interval,
)
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import checked_labels, design_effect, group_codes, one_of_each, top_label

# Thresholds are fixed before any sample is seen, so that each test is exact, also of tied confidences.
_STEPS = 32  # thresholds to a doubling of the odds c / (1 - c)
_MOST_DOUBLINGS = 20  # above lie confidences that float32 hardly tells from 1
# Doublings of the odds of a confidence of 1 - risk.
_STARTS = (-16, -8, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 8)

_SIZES = (1, 2, 3, 5, 10, 30, 100, 300)  # the last size of each group of sizes


@dataclass(frozen=True)
class Abstention:
    """Answer where confidence reaches a threshold, abstain elsewhere.

    Where no threshold keeps the promise, ``threshold`` is infinite, ``answered`` 0 and the risks NaN.

    Args:
        threshold: Least confidence that is answered.
        answered: Share of the samples that is answered.
        risk: Share of the answers that is wrong.
        risk_high: Upper bound of that share among new samples.
    """

    threshold: float
    answered: float
    risk: float
    risk_high: float


def abstention(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Abstention:
    """Return the confidence from which on few answers are wrong, as is proved of new samples.

    The promise holds with probability ``level`` over draws of samples like these, independent of each other,
    whatever the model. Each threshold is tested once, by the binomial, in an order that is fixed beforehand,
    from the strictest on (Learn then Test, Angelopoulos 2021, section 2.2). Half of 1 - level is spent from
    the confidence 1 - risk on, from which a calibrated model keeps the promise; even shares of the rest from
    15 others. A test that succeeds hands what it had to the next one (the fallback procedure, Wiens 2003).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        risk: Share of the answers that may be wrong, at most.
        level: Probability that the promise holds.
        groups: Which samples belong together (n,); the tests are then of one sample each.
        seed: Seed by which that one is drawn.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> found = abstention(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)
    >>> round(found.threshold, 2), found.answered, found.risk
    (0.6, 0.75, 0.0)
    """
    for name, share in (("risk", risk), ("level", level)):
        if not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {share}; 0.05 means 5 %")
    confidence, correct = top_label(probs, labels)
    codes = group_codes(groups, len(correct))
    # The binomial test needs independent samples: one of each group is.
    rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
    classes = np.shape(probs)[1]
    threshold, high = lowest_threshold(
        confidence[rows], correct[rows], classes=classes, risk=risk, level=level
    )
    answered = confidence >= threshold
    wrong = float((~correct[answered]).mean()) if math.isfinite(threshold) else math.nan
    return Abstention(threshold, float(answered.mean()), wrong, high)


def lowest_threshold(
    confidence: Floats, correct: NDArray[np.bool_], *, classes: int, risk: float, level: float
) -> tuple[float, float]:
    """Return the lowest threshold that passes its test as in ``abstention``, and the bound of its risk.

    Infinite and NaN if none does.

    Args:
        confidence: Probabilities (n,) of what is answered, of independent samples.
        correct: Whether it is right (n,).
        classes: K: below 1 / K, thresholds are not told apart.
        risk: Share of the answers that may be wrong, at most.
        level: Probability that the promise holds.
    """
    order = np.argsort(-confidence)
    falling, errors = -confidence[order], np.concatenate([[0], np.cumsum(~correct[order])])
    best, spent = None, 0.0
    for threshold, share in _sequence(classes, risk):
        spent += (1 - level) * share
        if not spent:
            continue
        # The threshold itself is answered, so ties are on its side.
        n = int(np.searchsorted(falling, -threshold, side="right"))
        k = int(errors[n])
        if n and binomial_at_most(k, n, risk) <= spent:
            best = (threshold, n, k, spent)
        else:
            spent = 0.0
    if best is None:
        return math.inf, math.nan
    threshold, n, k, paid = best
    return threshold, 1 - accuracy_at_least(n - k, n, risk=paid)


def _sequence(classes: int, risk: float) -> Iterator[tuple[float, float]]:
    """Yield thresholds from the strictest to 0, which answers all, and the share of errors spent there.

    They are evenly spaced in the logarithm of the odds, down to a confidence below 1 / K, which all reach.
    """
    last = -math.ceil(math.log2(classes)) * _STEPS
    usual = math.log2((1 - risk) / risk)
    shares = {_step(usual, last): 0.5}
    for doublings in _STARTS:
        step = _step(usual + doublings, last)
        shares[step] = shares.get(step, 0.0) + 0.5 / len(_STARTS)
    for step in range(_MOST_DOUBLINGS * _STEPS, last, -1):
        yield 1 / (1 + 2 ** (-step / _STEPS)), shares.get(step, 0.0)
    yield 0.0, shares.get(last, 0.0)


def _step(doublings: float, last: int) -> int:
    return min(max(round(doublings * _STEPS), last), _MOST_DOUBLINGS * _STEPS)


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
            f"Answers from {self.threshold:.4f} confidence on: {_percent(self.answered)} are answered{of_all}"
        )
        if math.isnan(self.risk.value):
            return f"{said}."
        said += f", {_percent(self.risk)} of these are wrong{promise}."
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
    of_answers = Estimate(math.nan)
    if kept.any():
        of_answers = share_of(~correct[kept], None if codes is None else codes[kept], level=level)
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


def _percent(share: Estimate) -> str:
    return percent_within(share.value, share.low, share.high)


def share_of(hits: NDArray[np.bool_], codes: NDArray[np.intp] | None, *, level: float) -> Estimate:
    """The share of hits (n,) with its exact interval, of the effective number of samples under groups."""
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
        by_confidence: Bins of the top probability, whose ``correct`` are the sets that hold the true class;
            None where it was not given.
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
    by_confidence: Bins | None = None
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
            f"The sets hold the true class in {_percent(self.coverage)}{promise}, {self.mean_size:.2f} "
            f"classes on average, {percent(self.singletons)} of them one class alone. Worst class: "
            f"{name}, {_percent(found)}."
        )
        if self.p < 0.025:
            said += (
                " That is fewer than the promise allows by chance: these samples are not like those that the "
                "thresholds are of."
            )
        return said

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        bins = self.by_confidence
        names = ("count", "confidence", "correct")
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
    """Tell whether sets hold the true classes, with exact intervals of shares (Clopper and Pearson 1934).

    Args:
        inside: True for the classes in each set (n, K).
        labels: Class ids (n,).
        confidence: Top probabilities (n,).
        promised: Coverage that was promised.
        fitted_on: Number of samples that one threshold for all classes was found on: the number of sets that
            hold the true class is then beta-binomial.
        bins: Number of bins of confidence.
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
        by_confidence=None if confidence is None else _by_confidence(held, confidence, bins),
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

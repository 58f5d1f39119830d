"""Signs that labels mislead: their rate has moved, or one source differs from the others.

Estimates hold while labels are missing by confidence or by draw. If wrong predictions suddenly come back more
often than right ones, no number made from labels shows it; but the share of predictions with a label moves.

A source is who sent a label. It is compared with all others inside bins of confidence, so that one that
labels other confidences than the rest does not differ by that; the bins that both cover are weighed by what
was served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.monitor._bin_gaps import BinGaps, bin_gaps, check_same_bins
from calib_serve.receipts import Sums

_SIGMAS = 4.0  # standard errors of a difference that chance may make
_NOT_KNOWN = (math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class MovedBin:
    """Confidences in (lower, upper], and the labelled share of their predictions, before and now."""

    lower: float
    upper: float
    before: float
    now: float
    z: float


@dataclass(frozen=True)
class RateChange:
    """The bins whose label rate moved, strongest first, and a sentence."""

    moved: tuple[MovedBin, ...]
    says: str


def rate_changes(before: Sums, now: Sums) -> RateChange:
    """Compare labels over predictions by bin between two cohorts that had equally long to be labelled.

    A bin has moved if its rates differ by a quarter at least, and by more than chance would show in one of
    ten thousand comparisons of all bins, so that a look every few minutes stays quiet for weeks.

    Args:
        before: Sums of the earlier cohort.
        now: Sums of the later one.

    >>> c = np.full(1000, 0.9)
    >>> def cohort(labels): return Sums.served(c) + Sums.labelled(c[:labels], np.ones(labels))
    >>> rate_changes(cohort(100), cohort(200)).says[:57]
    'Labels come back more often at confidences 87 % to 93 % ('
    """
    check_same_bins(before, now)
    (n, k), (m, j) = _counts(before), _counts(now)
    together = (k + j) / np.maximum(n + m, 1.0)
    fewest = np.minimum(n, m) * np.minimum(together, 1 - together)
    # Bins of 30 predictions in both cohorts, where both rates together let expect 5 labels of each, and 5
    # predictions without.
    on = (np.minimum(n, m) >= 30.0) & (fewest >= 5.0)
    error = np.sqrt(together * (1 - together) * (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1)))
    was, is_ = k / np.maximum(n, 1.0), j / np.maximum(m, 1.0)
    z = np.divide(is_ - was, error, out=np.zeros(len(n)), where=on & (error > 0))
    # Rates nearer than that are the same for all that matters.
    far = np.maximum(is_, was) >= 1.25 * np.minimum(is_, was)
    # Ten thousand comparisons between false findings.
    limit = -NormalDist().inv_cdf(0.5 / (10_000.0 * max(int(on.sum()), 1)))
    edges = np.linspace(0, 1, before.bins + 1)
    moved = tuple(
        MovedBin(float(edges[b]), float(edges[b + 1]), float(was[b]), float(is_[b]), float(z[b]))
        for b in np.argsort(-np.abs(z), kind="stable")
        if on[b] and far[b] and abs(z[b]) > limit
    )
    return RateChange(moved, _says(moved, compared=bool(on.any())))


def _counts(sums: Sums) -> tuple[Floats, Floats]:
    """Predictions and labels by bin; labels beyond the predictions are of servers that count none."""
    served = np.maximum(sums.predictions, 0.0)
    return served, np.minimum(np.maximum(sums.labels, 0.0), served)


def _says(moved: tuple[MovedBin, ...], *, compared: bool) -> str:
    if not compared:
        return "Too few predictions or labels to compare their rates."
    if not moved:
        return "Labels come back at the rates they did before."
    first = moved[0]
    ways = {one.now > one.before for one in moved}
    how = "at other rates" if len(ways) > 1 else "more often" if first.now > first.before else "less often"
    where = f"confidences {100 * first.lower:.0f} % to {100 * first.upper:.0f} %"
    rates = f"({100 * first.now:.1f} % for {100 * first.before:.1f} %)"
    others = f" and {len(moved) - 1} more bins" if len(moved) > 2 else " and one more bin" * (len(moved) - 1)
    return f"Labels come back {how} at {where} {rates}{others}: they may depend on the outcome."


@dataclass(frozen=True)
class SourceGap:
    """A source's labels and gap, and the others' gap in the bins that both cover; NaN where unknown.

    ``difference``: its gap less theirs, with its standard error ``se``. ``differs``: by more than 2 points
    and four standard errors beyond these.
    """

    name: str
    labels: float
    share: float
    gap: float
    others: float
    difference: float
    se: float

    @property
    def differs(self) -> bool:
        """Whether the source differs from the others by more than chance and tolerance."""
        return abs(self.difference) > 0.02 + _SIGMAS * self.se

    @property
    def low(self) -> float:
        """The lower end of the difference's 95 % interval."""
        return self.difference - 1.96 * self.se

    @property
    def high(self) -> float:
        """The upper end of the difference's 95 % interval."""
        return self.difference + 1.96 * self.se


def source_gaps(whole: Sums, sources: Mapping[str, Sums], groups: Sequence[Sums] = ()) -> list[SourceGap]:
    """Compare each source of a version with all its other labels; the most different first.

    Args:
        whole: Sums of the version.
        sources: Sums of the labels of each source.
        groups: Sums of random groups of labels that belong together, by which errors are larger than
            independent labels would make them.

    >>> c = np.full(1000, 0.75)
    >>> right, wrong = (Sums.labelled(c, np.arange(1000) < k) for k in (750, 550))
    >>> first, _ = source_gaps(Sums.served(np.full(2000, 0.75)) + right + wrong, {"a": right, "b": wrong})
    >>> round(first.difference, 2), first.differs
    (-0.2, True)
    """
    inflation = bin_gaps(whole, groups).gap_noise.inflation if groups else 1.0
    counted = bool((whole.predictions > 0).any())
    served = whole.predictions if counted else whole["calib_feedback_weight_total"]
    found = []
    for name, sums in sources.items():
        one, rest = bin_gaps(_labels_of(sums)), bin_gaps(_labels_of(whole - _labels_of(sums)))
        on = one.covered & rest.covered & (served > 0)
        # With fewer in the bins that both cover, they are not compared.
        enough = min(one.labels[on].sum(), rest.labels[on].sum()) >= 100.0
        labels, every = float(sums.labels.sum()), float(whole.labels.sum())
        told = _difference(one, rest, np.where(on, served, 0.0), inflation) if enough else _NOT_KNOWN
        found.append(SourceGap(name, labels, labels / every if every else math.nan, *told))
    return sorted(found, key=lambda one: (-_distance(one), -one.labels, one.name))


def _difference(
    one: BinGaps, rest: BinGaps, served: Floats, inflation: float
) -> tuple[float, float, float, float]:
    share = served / served.sum()
    gap, others = (float(share @ np.nan_to_num(each.gap)) for each in (one, rest))
    variance = sum(float(share**2 @ each.gap_noise.independent) for each in (one, rest))
    return gap, others, gap - others, math.sqrt(variance * inflation)


def _distance(one: SourceGap) -> float:
    """How far the difference exceeds chance; an unknown difference comes last."""
    return -math.inf if math.isnan(one.difference) else abs(one.difference) - _SIGMAS * one.se


def _labels_of(sums: Sums) -> Sums:
    """The sums without predictions, so that bins are weighed by labels."""
    return sums - sums.of("predictions")

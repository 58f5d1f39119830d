"""Whether labels come back at another rate than before: a sign that they may depend on the outcome.

Estimates hold while labels are missing by confidence or by draw. If wrong predictions suddenly come back more
often than right ones, no number made from labels shows it; but the share of predictions with a label moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.sums import Sums

__all__ = ["MovedBin", "RateChange", "rate_changes"]

Floats = NDArray[np.float64]

_LEAST = 30.0  # predictions a bin, in both cohorts
_EXPECTED = 5.0  # labels, and predictions without, that both rates together let expect of each cohort
_ONCE_IN = 10_000.0  # comparisons between two false findings
_FACTOR = 1.25  # rates nearer than this are the same for all that matters


@dataclass(frozen=True)
class MovedBin:
    """Confidences in (lower, upper], and the share of their predictions with a label, before and now."""

    lower: float
    upper: float
    before: float
    now: float
    z: float


@dataclass(frozen=True)
class RateChange:
    """The bins whose label rate moved, strongest first, and a sentence.

    ``z``: how far the strongest is beyond chance, in standard errors. ``compared``: bins with enough
    predictions in both. ``overall``: the ratio of the rates now and before at the same confidences.
    """

    moved: tuple[MovedBin, ...]
    compared: int
    overall: float
    z: float
    says: str


def rate_changes(
    before: Sums, now: Sums, *, once_in: float = _ONCE_IN, factor: float = _FACTOR
) -> RateChange:
    """Compare labels over predictions by bin between two cohorts that had equally long to be labelled.

    A bin has moved if its rates differ by ``factor`` at least, and by more than chance would show in one of
    ``once_in`` comparisons of all bins (so that a look every few minutes stays quiet for weeks).

    >>> c = np.full(1000, 0.9)
    >>> def cohort(labels): return Sums.served(c) + Sums.labelled(c[:labels], np.ones(labels))
    >>> rate_changes(cohort(100), cohort(200)).says[:57]
    'Labels come back more often at confidences 87 % to 93 % ('
    """
    if before.bins != now.bins:
        raise ShapeError(f"cannot compare {before.bins} bins with {now.bins}; use one bin count")
    if not (math.isfinite(once_in) and once_in > 1 and math.isfinite(factor) and factor >= 1):
        raise InputError(f"once_in must be above 1 and factor at least 1, got {once_in} and {factor}")
    for sums in (before, now):
        if not np.isfinite(sums.vector).all():
            raise InputError("sums must be finite numbers, got NaN or infinity; count them anew")
    (n, k), (m, j) = _counts(before), _counts(now)
    together = (k + j) / np.maximum(n + m, 1.0)
    fewest = np.minimum(n, m) * np.minimum(together, 1 - together)
    on = (np.minimum(n, m) >= _LEAST) & (fewest >= _EXPECTED)
    error = np.sqrt(together * (1 - together) * (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1)))
    was, is_ = k / np.maximum(n, 1.0), j / np.maximum(m, 1.0)
    z = np.divide(is_ - was, error, out=np.zeros(len(n)), where=on & (error > 0))
    far = np.maximum(is_, was) >= factor * np.minimum(is_, was)
    limit = _limit(once_in * max(int(on.sum()), 1))
    edges = np.linspace(0, 1, before.bins + 1)
    moved = tuple(
        MovedBin(float(edges[b]), float(edges[b + 1]), float(was[b]), float(is_[b]), float(z[b]))
        for b in np.argsort(-np.abs(z), kind="stable")
        if on[b] and far[b] and abs(z[b]) > limit
    )
    expected = float((m * was)[on].sum())
    overall = float(j[on].sum()) / expected if expected > 0 else math.nan
    strongest = float(z[np.abs(z).argmax()])
    return RateChange(moved, int(on.sum()), overall, strongest, _says(moved, int(on.sum())))


def _counts(sums: Sums) -> tuple[Floats, Floats]:
    """Predictions and labels by bin; labels beyond the predictions are of servers that count none."""
    served = np.maximum(sums.predictions, 0.0)
    return served, np.minimum(np.maximum(sums.labels, 0.0), served)


def _limit(once_in: float) -> float:
    """The z beyond which, to either side, chance is seen once in so many."""
    return -NormalDist().inv_cdf(0.5 / once_in)


def _says(moved: tuple[MovedBin, ...], compared: int) -> str:
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

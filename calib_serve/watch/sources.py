"""Which source of labels says something else than the others do: one that errs, or bends what is estimated.

A source is who sent a label. It is compared with all others inside bins of confidence, so that one that
labels other confidences than the rest does not differ by that; the bins that both cover are weighed by what
was served.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calib_serve.watch._bin_gaps import BinGaps, bin_gaps
from calib_serve.watch.slices import OTHER
from calib_serve.watch.sums import Sums

__all__ = ["LEAST_LABELS", "SourceGap", "is_source", "source_gaps"]

LEAST_LABELS = 100.0
"""Labels of a source, and of the others, in the bins that both cover: with fewer, they are not compared."""

_TOLERANCE = 0.02  # a difference that is none
_SIGMAS = 4.0  # standard errors beyond it
_NORMAL = 1.96
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class SourceGap:
    """A source's labels, its gap and that of the others in the bins that both cover; NaN where not known.

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
        """Whether it says something else than the others do."""
        return abs(self.difference) > _TOLERANCE + _SIGMAS * self.se

    @property
    def low(self) -> float:
        """The lower end of the difference's 95 % interval."""
        return self.difference - _NORMAL * self.se

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.difference + _NORMAL * self.se


def source_gaps(whole: Sums, sources: Mapping[str, Sums], groups: Sequence[Sums] = ()) -> list[SourceGap]:
    """Each source of a version against all its other labels, those that differ most first.

    ``whole``: the sums of the version; ``groups``: those of random groups of labels that belong together,
    by which errors are larger than independent labels would make them.

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
        enough = min(one.labels[on].sum(), rest.labels[on].sum()) >= LEAST_LABELS
        labels, every = float(sums.labels.sum()), float(whole.labels.sum())
        told = _difference(one, rest, np.where(on, served, 0.0), inflation) if enough else _NOT_KNOWN
        found.append(SourceGap(name, labels, labels / every if every else math.nan, *told))
    return sorted(found, key=lambda one: (-_distance(one), -one.labels, one.name))


_NOT_KNOWN = (math.nan, math.nan, math.nan, math.nan)


def _difference(
    one: BinGaps, rest: BinGaps, served: np.ndarray[tuple[int, ...], np.dtype[np.float64]], inflation: float
) -> tuple[float, float, float, float]:
    share = served / served.sum()
    gap, others = (float(share @ np.nan_to_num(each.gap)) for each in (one, rest))
    variance = sum(float(share**2 @ each.gap_noise.independent) for each in (one, rest))
    return gap, others, gap - others, math.sqrt(variance * inflation)


def _distance(one: SourceGap) -> float:
    """By how much it differs beyond chance; what is not known last."""
    return -math.inf if math.isnan(one.difference) else abs(one.difference) - _SIGMAS * one.se


def _labels_of(sums: Sums) -> Sums:
    """The sums without predictions, so that bins are those of labels."""
    return sums - sums.of("predictions")


def is_source(name: str) -> bool:
    """Whether a source may have this name: up to 63 letters, digits, ``.``, ``_``, ``-``, and not ``other``.

    >>> is_source("lab-2"), is_source("lab 2"), is_source("other")
    (True, False, False)
    """
    return bool(_NAME.fullmatch(name)) and name != OTHER

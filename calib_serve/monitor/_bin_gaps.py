"""The gap of each confidence bin, estimated from its labels, and the noise of the estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.monitor.measured import SURPRISES_IN_VARIANCE
from calib_serve.receipts import Sums

LEAST = 5.0
"""Effective labels that a bin must hold to be estimated: with fewer, the noise itself is not known."""


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise of the bins' means of one score: their ``covariance`` (bins, bins).

    ``grouped`` (bins, bins) is the part of it that random groups told; ``independent`` (bins,): the variances
    if every label were a group of its own. ``inflation``: how much larger those of all bins really are.
    """

    covariance: Floats
    grouped: Floats
    independent: Floats
    inflation: float


@dataclass(frozen=True, eq=False)
class BinGaps:
    """Means of what is counted in each bin (bins,), NaN without labels, and their noise.

    ``counted`` is how many predictions the means speak of: all ``served`` of a ``covered`` bin, which holds
    enough labels or one for each, and of other bins the labelled ones. ``confidence`` is theirs, ``said``
    that of all served ones, and ``accuracy`` is confidence less ``gap``. ``known`` are the labels that were
    right, each counted as one.
    ``calibrated`` is the variance of a calibrated model's gap, labels independent. ``effective`` labels are
    the independent ones of equal weights that would tell as much.
    """

    weighed_by: Literal["predictions", "labels"]
    served: Floats
    labels: Floats
    known: Floats
    said: Floats
    counted: Floats
    effective: Floats
    covered: NDArray[np.bool_]
    confidence: Floats
    accuracy: Floats
    gap: Floats
    calibrated: Floats
    groups: int
    gap_noise: Noise
    accuracy_noise: Noise


class _Of(NamedTuple):
    """Sums over the labels of each bin (bins,): of 1, c - y, (c - y)^2, y and c (1 - c)."""

    one: Floats
    gap: Floats
    error: Floats
    right: Floats
    chance: Floats


class _Tally(NamedTuple):
    """Sums over labels, each by the weight that it counts with, ``first``, and by its square, ``second``."""

    first: _Of
    second: _Of


def standing(sums: Sums, served: Floats, covered: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Find a and b of each bin, so that its labels of weight w stand for ``served`` by a + b w >= 1 each.

    A label counts as one, for itself, and the rest of the served ones is estimated by the odds of not having
    been asked for, w k - 1. Of k = 1 these are Horvitz and Thompson's; where fewer labels came than were
    asked for, k makes up for it (Hajek). Where all came, a = 1 and b = 0, whatever the weights; and in bins
    that are not ``covered``, whose rest is not estimated.
    """
    labels, weight = _once(sums).one, np.maximum(sums["calib_feedback_weight_total"], 0.0)
    k = np.maximum(np.nan_to_num(_ratio(served, weight)), 1.0)
    odds = np.where(covered, k * weight - labels, 0.0)
    part = np.nan_to_num(_ratio(np.maximum(served - labels, 0.0), odds)).clip(0, 1)
    return 1 - part, part * k


_SUMS = (
    ("total", "gap", "error", "right", "chance"),
    ("weight_total", "confidence_total", "squared_error_total", "correct_total"),
    ("weight_squared", "gap_weighted", "gap_squared", "correct_weighted", "noise_total"),
)
"""The sums of labels, of their weights and of the squares of these, each over 1, c - y and so on."""


Score = Literal["gap", "right"]
_SQUARES: dict[Score, str] = {"gap": "error", "right": "right"}
"""The sums of a score's squares: whether a label is right, 0 or 1, is its own."""


def _once(sums: Sums) -> _Of:
    one, *others = (sums[f"calib_feedback_{name}"] for name in _SUMS[0])
    return _Of(np.maximum(one, 0.0), *others)


def _tally(sums: Sums, a: Floats, b: Floats) -> _Tally:
    """The sums over labels of which each counts by ``a`` + ``b`` w."""
    once = np.stack(_once(sums))
    weighted, squares = (np.stack([sums[f"calib_feedback_{name}"] for name in row]) for row in _SUMS[1:])
    weight, squares[0] = np.maximum(weighted[0], 0.0), np.maximum(squares[0], 0.0)
    # Of c (1 - c) no sum is of w itself; within a bin it hardly differs between the two others.
    chance = weight / 2 * np.nan_to_num(_ratio(once[4], once[0]) + _ratio(squares[4], squares[0]))
    weighted = np.stack([weight, weighted[1] - weighted[3], *weighted[2:], chance])
    second = a**2 * once + 2 * a * b * weighted + b**2 * squares
    return _Tally(_Of(*(a * once + b * weighted)), _Of(*second))


def check_same_bins(sums: Sums, *others: Sums) -> None:
    """Raise ShapeError for sums over another number of bins, InputError for numbers that are none."""
    for one in (sums, *others):
        if one.bins != sums.bins:
            raise ShapeError(f"cannot compare {sums.bins} bins with {one.bins}; use one bin count")
        if not np.isfinite(one.vector).all():
            raise InputError("sums must be finite numbers, got NaN or infinity; count them anew")


def bin_gaps(sums: Sums, groups: Sequence[Sums] = ()) -> BinGaps:
    """The gaps of the bins of ``sums``; ``groups``: sums of random groups of (some of) its labels."""
    check_same_bins(sums, *groups)
    once, counted = _once(sums), bool((sums.predictions > 0).any())
    # A server that counts labels alone can bring a bin more labels than predictions.
    weight = np.maximum(sums["calib_feedback_weight_total"], 0.0)
    served = np.maximum(sums.predictions, once.one) if counted else weight
    holding = [one for one in groups if _once(one).one.any()]
    covered = _covered(sums, holding, served)
    how = standing(sums, served, covered)
    first, second = tally = _tally(sums, *how)
    parts = [_tally(one, *how) for one in holding]
    said = confidence = _ratio(first.gap + first.right, first.one)
    if counted:
        every = (sums.predictions > 0) & (sums.predictions >= once.one)
        said = np.where(every, _ratio(sums.predictions_confidence, sums.predictions), confidence)
        confidence = np.where(covered | np.isnan(confidence), said, confidence)
    # Each label is known: the right ones are right, and the wrong ones wrong.
    worst, best = _ratio(once.right, first.one), _ratio(once.right + first.one - once.one, first.one)
    accuracy = np.clip(confidence - _ratio(first.gap, first.one), worst, np.maximum(best, worst))
    gap_noise = _noise("gap", tally, parts)
    return BinGaps(
        weighed_by="predictions" if counted else "labels",
        served=served,
        labels=once.one,
        known=once.right,
        said=said,
        counted=np.where(covered, served, once.one),
        effective=np.nan_to_num(_ratio(first.one**2, second.one)) / gap_noise.inflation,
        covered=covered,
        confidence=confidence,
        accuracy=accuracy,
        gap=confidence - accuracy,
        calibrated=np.nan_to_num(_ratio(second.chance, first.one**2)).clip(0),
        groups=len(holding),
        gap_noise=gap_noise,
        accuracy_noise=gap_noise if counted else _noise("right", tally, parts),
    )


def _covered(sums: Sums, groups: Sequence[Sums], served: Floats) -> NDArray[np.bool_]:
    """Which bins hold enough effective labels to estimate the rest, or no rest."""
    how = standing(sums, served, served > 0)
    first, second = tally = _tally(sums, *how)
    inflation = _noise("gap", tally, [_tally(one, *how) for one in groups]).inflation if groups else 1.0
    effective = np.nan_to_num(_ratio(first.one**2, second.one)) / inflation
    none_left = _once(sums).one >= served
    return (served > 0) & (none_left | (effective > LEAST * (1 - 1e-9)))


def _noise(score: Score, tally: _Tally, groups: Sequence[_Tally]) -> Noise:
    """Estimate the noise: label by label, or from random groups where labels name groups."""
    weight, squared = tally.first.one, tally.second.one
    mean, square = _ratio(getattr(tally.first, score), weight), _SQUARES[score]
    # The variance of one label's score, each label counted by its weight's square as in that of the mean.
    seen, seen_square = (_ratio(getattr(tally.second, name), squared) for name in (score, square))
    one = (seen_square - 2 * mean * seen + mean**2).clip(0)
    # Of a calibrated model, 0.01 at least: a confidence of 1 is no proof.
    prior = np.maximum(_ratio(tally.second.chance, tally.second.one), 0.01)
    n = np.maximum(_ratio(weight**2, squared), 1.0)
    # A bin whose labels all agree has no variance of its own, and one that errs more than it says has more.
    like = SURPRISES_IN_VARIANCE / prior
    smooth = np.maximum((n * one + prior) / n, (n * one + like * prior) / (n + like))
    independent = np.nan_to_num(smooth / n)
    if not groups:
        return Noise(np.diag(independent), np.zeros((len(n), len(n))), independent, 1.0)
    grouped = _grouped(score, tally, groups, np.sqrt(np.nan_to_num(smooth)))
    share = np.nan_to_num(_ratio(np.sum([g.second.one for g in groups], axis=0), squared)).clip(0, 1)
    told = np.diag(grouped) + independent * (1 - share)
    alone = float(weight**2 @ independent)
    inflation = max(float(weight**2 @ told) / alone, 1.0) if alone > 0 else 1.0
    # Groups whose labels all agree show no spread either.
    least = np.nan_to_num(prior * (inflation / n) ** 2) * share
    short = np.maximum(independent * share - np.diag(grouped) - least, 0.0)
    return Noise(
        grouped + np.diag(independent * (1 - share) + least + short), grouped, independent, inflation
    )


def _grouped(score: Score, tally: _Tally, groups: Sequence[_Tally], deviation: Floats) -> Floats:
    """Covariance (bins, bins) from the spread of random groups (Wolter 2007, chapter 2).

    A group that holds the share h of a bin's weight pulls the bin's mean along, so that its residual is too
    small: by 1 - h in its square (Bell and McCaffrey 2002).
    """
    weight = tally.first.one
    if len(groups) == 1:  # one observation: nothing to compare it with
        moved = deviation * np.nan_to_num(_ratio(groups[0].first.one, weight))
        return np.outer(moved, moved)
    mean = _ratio(getattr(tally.first, score), weight)
    own = np.stack([getattr(g.first, score) - mean * g.first.one for g in groups])
    residual = own / np.maximum(weight, 1e-300)
    share = np.stack([g.first.one for g in groups]) / np.maximum(weight, 1e-300)
    # Doubled at most: a bin of one group has no residual, and one of little more hardly any.
    residual = np.nan_to_num(residual) / np.sqrt(np.maximum(1 - share, 0.5))
    residual -= residual.mean(axis=0)
    covariance: Floats = residual.T @ residual
    return covariance


def _ratio(a: Floats, b: Floats) -> Floats:
    """Quotients; NaN where ``b`` is 0."""
    quotient: Floats = np.divide(a, b, out=np.full(len(b), np.nan), where=b > 0)
    return quotient


@dataclass(frozen=True)
class NoisyError:
    """An estimate with its interval; ``value`` is nearly unbiased, and can be slightly below 0."""

    value: float
    low: float
    high: float


def noisy_error(gap: Floats, covariance: Floats, share: Floats, *, z: float = 1.96) -> NoisyError:
    """Estimate sum(share |true gap|) with an interval of ``z`` standard errors.

    ``gap`` (b,) as seen, ``covariance`` (b, b) of their errors, ``share`` (b,) of the predictions.

    >>> found = noisy_error(np.array([0.3]), np.array([[0.0001]]), np.array([1.0]))
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.3, 0.28, 0.32)
    """
    error = np.sqrt(np.maximum(np.diag(covariance), 1e-18))
    size, observed = np.abs(gap), float(share @ np.abs(gap))
    sign = np.where(gap < 0, -1.0, 1.0)
    together = covariance / np.outer(error, error) * np.outer(share * sign, share * sign)
    quantiles = np.array([0.0, z, -z])
    top = float((size / error).max())

    def at(less: Floats) -> tuple[Floats, Floats]:
        """True sums (3,), and their quantiles of the seen sum (3,), with ``less`` errors taken off each."""
        true = np.maximum(size - less[:, None] * error, 0.0)
        mean, deviation, skewness = _seen(true, error, share, together)
        # Cornish and Fisher 1938: a sum of few folded normals is skewed. The estimate goes by the mean.
        skewed = np.where(quantiles == 0, 0.0, (quantiles**2 - 1) / 6 * skewness)
        return true @ share, mean + (quantiles + skewed) * deviation

    # Errors taken off, at most 8 added; the sum falls with them.
    low, high = np.full(3, -8.0), np.full(3, top)
    for _ in range(40):
        middle = (low + high) / 2
        above = at(middle)[1] > observed
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    value, lower, upper = at((low + high) / 2)[0].tolist()
    least = at(np.full(3, top))[1]
    if observed <= least[0]:
        value = observed - float(least[0])
    return NoisyError(value, lower if observed > least[1] else 0.0, upper if observed > least[2] else 0.0)


def _seen(true: Floats, error: Floats, share: Floats, together: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, standard deviation and skewness (k,) of the seen sum, for true gaps (k, b).

    Folded normal moments (Leone, Nelson, Nottingham 1961). Covariances of absolute values: the first two
    terms of their Hermite series (Mehler 1866).
    """
    from scipy.special import erf  # noqa: PLC0415 - a watch that estimates nothing does not load it

    z = true / error
    density = 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    inside = erf(z / math.sqrt(2))
    mean = error * (density + z * inside)
    square = true * true + error * error
    variance = np.maximum(square - mean * mean, 0.0)
    cube = error**3 * ((z * z + 2) * density + (z**3 + 3 * z) * inside)
    third = cube - 3 * mean * square + 2 * mean**3
    first, second = error * inside, error * density
    apart = together - np.diag(np.diag(together))
    off = np.einsum("ki,ij,kj->k", first, apart, first)
    # Products of two signs of correlations: only their shares remain.
    squares = np.divide(apart**2, np.outer(share, share), out=np.zeros_like(apart), where=apart != 0)
    off += np.einsum("ki,ij,kj->k", second, squares, second) / 2
    alone = variance @ share**2
    total = np.maximum(alone + off, alone / 10)
    return mean @ share, np.sqrt(total), (third @ share**3) / np.maximum(total, 1e-36) ** 1.5

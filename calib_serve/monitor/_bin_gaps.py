"""The gap of each confidence bin, estimated from its labels, and the noise of the estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.monitor.measured import SURPRISES_IN_VARIANCE
from calib_serve.receipts import Sums

LEAST = 5.0
"""Effective labels that a bin must hold to be estimated: with fewer, the noise itself is not known."""

_SURE = 0.01  # variance of a calibrated model's label at least: a confidence of 1 is no proof


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
    """Weighted means of the labels in each bin (bins,), NaN without labels, and their noise.

    ``served`` is what bins are weighed by. ``confidence`` is that of all that was served, where it is
    counted; ``accuracy`` is it less ``gap``, which corrects for labels chosen by confidence within a bin.
    ``calibrated`` is the variance of a calibrated model's gap, labels independent. ``effective`` labels are
    the independent ones of equal weights that would tell as much, and ``covered`` bins hold enough of them.
    """

    weighed_by: Literal["predictions", "labels"]
    served: Floats
    labels: Floats
    effective: Floats
    covered: NDArray[np.bool_]
    confidence: Floats
    accuracy: Floats
    gap: Floats
    brier: Floats
    calibrated: Floats
    groups: int
    gap_noise: Noise
    accuracy_noise: Noise
    brier_noise: Noise


@dataclass(frozen=True)
class _Score:
    """A score as sums: weighted ``total``, ``variance`` of one label, and ``calibrated`` variance."""

    total: Callable[[Sums], Floats]
    variance: Callable[[Sums], Floats]
    calibrated: Callable[[Sums], Floats]


def bin_gaps(sums: Sums, groups: Sequence[Sums] = (), *, least: float = LEAST) -> BinGaps:
    """The gaps of the bins of ``sums``; ``groups``: sums of random groups of (some of) its labels."""
    for one in (sums, *groups):
        if one.bins != sums.bins:
            raise ShapeError(f"groups over {one.bins} bins of sums over {sums.bins}; use one bin count")
        if not np.isfinite(one.vector).all():
            raise InputError("sums must be finite numbers, got NaN or infinity; count them anew")
    weight, labels = _weight(sums), np.maximum(sums.labels, 0.0)
    counted = bool((sums.predictions > 0).any())
    # A server that counts labels alone can bring a bin more labels than predictions.
    served = np.maximum(sums.predictions, labels) if counted else weight
    confidence = _ratio(sums["calib_feedback_confidence_total"], weight)
    if counted:
        whole = _ratio(sums.predictions_confidence, sums.predictions)
        confidence = np.where(np.isnan(whole), confidence, whole)
    holding = [one for one in groups if _weight(one).any()]
    gap = _ratio(GAP.total(sums), weight)
    gap_noise = _noise(GAP, sums, holding)
    effective = np.nan_to_num(_ratio(weight**2, _squared(sums))) / gap_noise.inflation
    return BinGaps(
        weighed_by="predictions" if counted else "labels",
        served=served,
        labels=labels,
        effective=effective,
        covered=(effective > least * (1 - 1e-9)) & (served > 0),
        confidence=confidence,
        accuracy=(confidence - gap).clip(0, 1),
        gap=gap,
        brier=_ratio(BRIER.total(sums), weight),
        calibrated=np.nan_to_num(_ratio(sums["calib_feedback_noise_total"], weight**2)).clip(0),
        groups=len(holding),
        gap_noise=gap_noise,
        accuracy_noise=gap_noise if counted else _noise(RIGHT, sums, holding),
        brier_noise=_noise(BRIER, sums, holding),
    )


def _noise(score: _Score, sums: Sums, groups: Sequence[Sums]) -> Noise:
    """Estimate the noise: label by label, or from random groups where labels name groups."""
    weight, squared = _weight(sums), _squared(sums)
    one, prior = score.variance(sums).clip(0), np.maximum(score.calibrated(sums), _SURE)
    n = np.maximum(_ratio(weight**2, squared), 1.0)
    # A bin whose labels all agree has no variance of its own, and one that errs more than it says has more.
    like = SURPRISES_IN_VARIANCE / np.maximum(_calibrated(sums), _SURE)
    smooth = np.maximum((n * one + prior) / n, (n * one + like * prior) / (n + like))
    independent = np.nan_to_num(smooth / n)
    if not groups:
        return Noise(np.diag(independent), np.zeros((len(n), len(n))), independent, 1.0)
    grouped = _grouped(score, sums, groups, np.sqrt(np.nan_to_num(smooth)))
    share = np.nan_to_num(_ratio(np.sum([_squared(g) for g in groups], axis=0), squared)).clip(0, 1)
    told = np.diag(grouped) + independent * (1 - share)
    alone = float(weight**2 @ independent)
    inflation = max(float(weight**2 @ told) / alone, 1.0) if alone > 0 else 1.0
    # Groups whose labels all agree show no spread either.
    least = np.nan_to_num(prior * (inflation / n) ** 2) * share
    short = np.maximum(independent * share - np.diag(grouped) - least, 0.0)
    return Noise(
        grouped + np.diag(independent * (1 - share) + least + short), grouped, independent, inflation
    )


def _grouped(score: _Score, sums: Sums, groups: Sequence[Sums], deviation: Floats) -> Floats:
    """Covariance (bins, bins) from the spread of random groups (Wolter 2007, chapter 2).

    A group that holds the share h of a bin's weight pulls the bin's mean along, so that its residual is too
    small: by 1 - h in its square (Bell and McCaffrey 2002).
    """
    weight = _weight(sums)
    if len(groups) == 1:  # one observation: nothing to compare it with
        moved = deviation * np.nan_to_num(_ratio(_weight(groups[0]), weight))
        return np.outer(moved, moved)
    mean = _ratio(score.total(sums), weight)
    residual = np.stack([score.total(g) - mean * _weight(g) for g in groups]) / np.maximum(weight, 1e-300)
    share = np.stack([_weight(g) for g in groups]) / np.maximum(weight, 1e-300)
    # Doubled at most: a bin of one group has no residual, and one of little more hardly any.
    residual = np.nan_to_num(residual) / np.sqrt(np.maximum(1 - share, 0.5))
    residual -= residual.mean(axis=0)
    covariance: Floats = residual.T @ residual
    return covariance


def _weight(sums: Sums) -> Floats:
    return np.maximum(sums["calib_feedback_weight_total"], 0.0)


def _squared(sums: Sums) -> Floats:
    return np.maximum(sums["calib_feedback_weight_squared"], 0.0)


def _ratio(a: Floats, b: Floats) -> Floats:
    """Quotients; NaN where ``b`` is 0."""
    quotient: Floats = np.divide(a, b, out=np.full(len(b), np.nan), where=b > 0)
    return quotient


# Variances of one label's score, each label counted by its weight's square as in the variance of the mean.


def _gap_variance(sums: Sums) -> Floats:
    mean = _ratio(GAP.total(sums), _weight(sums))
    first, second = (
        _ratio(sums[f"calib_feedback_gap_{of}"], _squared(sums)) for of in ("weighted", "squared")
    )
    return second - 2 * mean * first + mean**2


def _right_variance(sums: Sums) -> Floats:
    mean = _ratio(RIGHT.total(sums), _weight(sums))
    return _ratio(sums["calib_feedback_correct_weighted"], _squared(sums)) * (1 - 2 * mean) + mean**2


def _brier_variance(sums: Sums) -> Floats:
    """The variance of a label's Brier score by bin: (c - y)^2 = c^2 + y (1 - 2 c), to second order in c."""
    squared = _squared(sums)
    right = _ratio(sums["calib_feedback_correct_weighted"], squared)
    confidence = _ratio(sums["calib_feedback_gap_weighted"], squared) + right
    square = confidence - _ratio(sums["calib_feedback_noise_total"], squared)
    both = (square + right - _ratio(sums["calib_feedback_gap_squared"], squared)) / 2
    spread, binary = (square - confidence**2).clip(0), right * (1 - right)
    slope, off = 1 - 2 * confidence, confidence - right
    moving = 4 * slope * off * (both - confidence * right) + 4 * spread * (off**2 + binary)
    return slope**2 * binary + moving


def _calibrated(sums: Sums) -> Floats:
    return _ratio(sums["calib_feedback_noise_total"], _squared(sums))


def _calibrated_brier(sums: Sums) -> Floats:
    noise = _calibrated(sums)  # c (1 - c), and (1 - 2 c)^2 = 1 - 4 c (1 - c)
    return noise * (1 - 4 * noise)


GAP = _Score(
    lambda s: s["calib_feedback_confidence_total"] - s["calib_feedback_correct_total"],
    _gap_variance,
    _calibrated,
)
RIGHT = _Score(lambda s: s["calib_feedback_correct_total"], _right_variance, _calibrated)
BRIER = _Score(lambda s: s["calib_feedback_squared_error_total"], _brier_variance, _calibrated_brier)


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

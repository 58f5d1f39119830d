"""Confidence intervals: analytic where one exists, else bootstrapped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from statistics import NormalDist
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.errors import InputError
from calib_serve.metrics.grouped import mean_error
from calib_serve.metrics.scores import row_blocks
from calib_serve.metrics.tails import student_quantile

__all__ = ["Estimate", "mean_interval", "resamples", "wilson_interval"]

Floats = NDArray[np.float64]

_BLOCK = 1 << 22  # resampled counts held at once: 32 MiB of float64


class Estimate(float):
    """A number with its confidence interval; low and high are NaN where none was computed.

    It is a float: it compares, hashes and is formatted as its value, and arithmetic gives plain floats. Only
    ``repr`` and ``str`` show the interval. Immutable.

    >>> e = Estimate(0.0123, 0.0101, 0.015)
    >>> e, round(e, 3), f"{e:.1%}", e < 0.05, e - 0.0123
    (0.0123 [0.0101, 0.0150], 0.012, '1.2%', True, 0.0)
    """

    __slots__ = ("high", "low")
    low: float
    high: float

    def __new__(cls, value: float, low: float = math.nan, high: float = math.nan) -> Estimate:
        """Of numbers, or what ``float`` takes."""
        found = super().__new__(cls, value)
        object.__setattr__(found, "low", float(low))
        object.__setattr__(found, "high", float(high))
        return found

    @property
    def value(self) -> float:
        """The number, as a plain float."""
        return float(self)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to {name!r}: an Estimate does not change")

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, float, float]]:
        return type(self), (self.value, self.low, self.high)

    def as_dict(self) -> dict[str, float | None]:
        """For JSON; None stands for NaN and infinity."""
        return {
            name: number if math.isfinite(number) else None
            for name, number in (("value", self.value), ("low", self.low), ("high", self.high))
        }

    def __repr__(self) -> str:
        if math.isnan(self.low) and math.isnan(self.high):
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"

    __str__ = __repr__


def quantile_of(level: float) -> float:
    """The two-sided normal quantile of a level: 1.96 for 0.95."""
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}; 0.95 means 95 %")
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson_interval(successes: float, n: float, *, level: float = 0.95) -> Estimate:
    """A share and its score interval (Wilson 1927).

    >>> str(wilson_interval(8, 10))
    '0.8000 [0.4902, 0.9433]'
    """
    z2 = quantile_of(level) ** 2
    share = successes / n
    center = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # At a share of 0 or 1 one end equals the share up to rounding.
    return Estimate(share, min(max(center - half, 0.0), share), max(min(center + half, 1.0), share))


def mean_interval(
    values: ArrayLike, *, level: float = 0.95, groups: NDArray[np.intp] | None = None
) -> Estimate:
    """A mean and its normal interval, mean +- z s / sqrt(n); Student's over groups, where there are any."""
    v = as_floats(values)
    mean = float(v.mean())
    if len(v) < 2 or not math.isfinite(mean):
        return Estimate(mean)
    quantile = quantile_of(level) if groups is None else student_quantile(level, int(groups.max()))
    half = quantile * mean_error(v, groups)
    return Estimate(mean, mean - half, mean + half)


def share_interval(value: float, error: float, *, level: float) -> Estimate:
    """Value +- z error, within [0, 1], of a share with a known standard error."""
    if not math.isfinite(error):
        return Estimate(value)
    half = quantile_of(level) * error
    return Estimate(value, max(value - half, 0.0), min(value + half, 1.0))


def bootstrap_interval(
    value: float, replicates: Floats, *, level: float, lowest: float, highest: float
) -> Estimate:
    """The basic bootstrap interval (Davison and Hinkley 1997, eq. 5.6), within the metric's range.

    Errors such as ECE are absolute values: resampling adds its noise on top of the sample's, and
    replicates lie above the estimate as the estimate lies above the truth. Reflecting them about
    the estimate takes that bias off, where plain percentiles would double it. The interval is
    widened to hold the estimate itself. For errors that depend on nearly empty bins (MCE, ACE) no
    resampling is reliable: simulated 95 % intervals held their truth 82 and 65 times out of 100,
    where those of ECE held it 92 to 97 times.
    """
    known = replicates[np.isfinite(replicates)]
    if not math.isfinite(value) or not len(known):
        return Estimate(value)
    near, far = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    low, high = max(2 * value - far, lowest), min(2 * value - near, highest)
    return Estimate(value, float(min(low, value)), float(max(high, value)))


def widened_to_zero(error: Estimate, calibrated: Floats, *, level: float) -> Estimate:
    """The interval of an error, extended to 0 where a calibrated model often shows as large an error.

    ``calibrated`` are such errors under labels drawn from the probabilities themselves. Near 0, noise alone
    gives an error, which resampling cannot tell from a real one: without this, 95 % intervals of a calibrated
    model's ECE, n = 1000, hold 0 two times out of three.
    """
    if len(calibrated) and error.value <= np.quantile(calibrated, (1 + level) / 2):
        return Estimate(error.value, 0.0, error.high)
    return error


def calibrated_labels(
    probs: NDArray[np.floating[Any]], replicates: int, *, seed: int
) -> Iterator[NDArray[np.intp]]:
    """Class ids (r, n) drawn from probs (n, K), in blocks of bounded memory."""
    rng = np.random.default_rng([seed, 1])
    n, classes = probs.shape
    step = max(1, _BLOCK // n)
    for start in range(0, replicates, step):
        r = min(step, replicates - start)
        labels = np.empty((r, n), np.intp)
        for rows, p in row_blocks(probs):
            # Cumulative rows, each plus its row number, form one sorted array to search.
            cumulated = np.cumsum(p, axis=1)
            shift = np.arange(len(p))
            cumulated = cumulated / cumulated[:, -1:] + shift[:, None]
            found = np.searchsorted(cumulated.ravel(), rng.random((r, len(p))) + shift, side="right")
            labels[:, rows] = np.minimum(found - shift * classes, classes - 1)
        yield labels


def resamples(
    n: int, replicates: int, *, seed: int, groups: NDArray[np.intp] | None = None
) -> Iterator[Floats]:
    """How often each of n samples is drawn, (r, n), in blocks of bounded memory.

    ``groups`` (n,) are drawn whole (Davison and Hinkley 1997, section 3.8); as they differ in size, what is
    drawn is then scaled to n.
    """
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    units = n if groups is None else int(groups.max()) + 1
    for start in range(0, replicates, step):
        r = min(step, replicates - start)
        draws = rng.integers(units, size=(r, units), dtype=np.int32)
        draws = draws + units * np.arange(r, dtype=np.int64)[:, None]
        drawn = np.bincount(draws.ravel(), minlength=r * units).reshape(r, units).astype(np.float64)
        if groups is not None:
            drawn = drawn[:, groups]
            drawn *= n / drawn.sum(axis=1, keepdims=True)
        yield drawn

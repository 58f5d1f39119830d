"""Intervals: analytic, exact or bootstrapped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats, as_floats, finite, html_table
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError
from calib_serve.core.text import percent, span
from calib_serve.metrics.distributions import (
    accuracy_at_least,
    beta_quantile,
    scipy_special,
    student_quantile,
)
from calib_serve.metrics.samples import mean_error

NORMAL_95 = 1.96
"""``quantile_of(0.95)``, rounded."""
_BLOCK = 1 << 22  # resampled counts held at once: 32 MiB of float64


class Estimate(float):
    """A number with its confidence interval.

    It is a float: it compares, hashes and is formatted as its value, and arithmetic gives plain floats. Only
    ``repr`` and ``str`` show the rest. Immutable. The interval is that of the truth, and may lie below a
    biased number.

    Args:
        value: The number.
        low: Lower end; NaN where no interval was computed.
        high: Upper end; NaN where no interval was computed.
        debiased: The number less what chance adds to it, as it does to every absolute value; NaN where the
            number has no such bias.

    >>> e = Estimate(0.0123, 0.0101, 0.015)
    >>> e, round(e, 3), f"{e:.1%}", e < 0.05, e - 0.0123
    (0.0123 [0.0101, 0.0150], 0.012, '1.2%', True, 0.0)
    >>> Estimate(0.0123, 0.0, 0.011, debiased=0.004)
    0.0123 (debiased 0.0040) [0.0000, 0.0110]
    """

    __slots__ = ("debiased", "high", "low")
    debiased: float
    low: float
    high: float

    def __new__(
        cls, value: float, low: float = math.nan, high: float = math.nan, debiased: float = math.nan
    ) -> Estimate:
        """Take numbers, or anything that ``float`` takes."""
        found = super().__new__(cls, value)
        for name, number in (("low", low), ("high", high), ("debiased", debiased)):
            object.__setattr__(found, name, float(number))
        return found

    @property
    def value(self) -> float:
        """The number, as a plain float."""
        return float(self)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to {name!r}: an Estimate does not change")

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, float, float, float]]:
        return type(self), (self.value, self.low, self.high, self.debiased)

    def percent(self) -> str:
        r"""Write a share in percent with its interval, where it has one.

        >>> Estimate(0.8, 0.4439, 0.9748).percent()
        '80.0\xa0% (44.4 to 97.5)'
        """
        return percent(self) + ("" if math.isnan(self.low) else f" ({span(self.low, self.high)})")

    def as_dict(self) -> dict[str, float | None]:
        """As plain values for JSON.

        None stands for NaN and infinity, and ``debiased`` is left out where there is none.
        """
        ends = {"value": finite(self.value), "low": finite(self.low), "high": finite(self.high)}
        return ends if math.isnan(self.debiased) else {**ends, "debiased": self.debiased}

    def __repr__(self) -> str:
        shown = f"{self.value:.4f}"
        if not math.isnan(self.debiased):
            shown += f" (debiased {self.debiased:.4f})"
        if math.isnan(self.low) and math.isnan(self.high):
            return shown
        return f"{shown} [{self.low:.4f}, {self.high:.4f}]"

    __str__ = __repr__


class EstimateRecord:
    """Give a record of ``Estimate`` fields their common forms: a dict, JSON, a notebook's table."""

    HEADLINE: ClassVar[tuple[str, str, str]]
    """What the ECE to be named first is of, its name, and that of the ECE that chance alone gives."""
    _ENDS: ClassVar[tuple[str, ...]] = ("value", "debiased", "low", "high")
    _SHOWN: ClassVar[tuple[str, ...]] = ("accuracy", "ece", "nll")
    """Metrics in the record's ``repr``; none: all of them."""

    def __repr__(self) -> str:
        found = self.estimates()
        shown = {**self.counts(), **{name: found[name] for name in self._SHOWN or found}}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def estimates(self) -> dict[str, Estimate]:
        """The metrics by name."""
        return {name: e for name, e in vars(self).items() if isinstance(e, Estimate)}

    def counts(self) -> dict[str, int]:
        """The whole numbers of the record by name, such as n."""
        return {name: v for name, v in vars(self).items() if type(v) is int}

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON: counts, and each metric as {value, low, high}, debiased if biased."""
        return {**self.counts(), **{name: e.as_dict() for name, e in self.estimates().items()}}

    def _repr_html_(self) -> str:
        found = self.estimates().items()
        rows = [(name, *(_digits(getattr(e, end)) for end in self._ENDS)) for name, e in found]
        title = ", ".join(f"{number} {name}" for name, number in self.counts().items())
        return html_table(title, ("metric", *self._ENDS), rows)


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def quantile_of(level: float) -> float:
    """The two-sided normal quantile of a level: 1.96 for 0.95."""
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}; 0.95 means 95 %")
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson_interval(successes: float, n: float, *, level: float = 0.95) -> Estimate:
    """Return a share and its score interval (Wilson 1927).

    Args:
        successes: Number of them, 0 to n.
        n: Number of trials.
        level: Coverage of the interval, a fraction.

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
    values: ArrayLike,
    *,
    level: float = 0.95,
    groups: NDArray[np.intp] | None = None,
    weight: Floats | None = None,
) -> Estimate:
    """Return a mean and its normal interval, mean +- z s / sqrt(n); Student's over groups.

    Args:
        values: (n,).
        level: Coverage of the interval, a fraction.
        groups: Ids of the groups of dependent values (n,).
        weight: (n,).
    """
    v = as_floats(values)
    mean = float(np.average(v, weights=weight))
    if len(v) < 2 or not math.isfinite(mean):
        return Estimate(mean)
    quantile = quantile_of(level) if groups is None else student_quantile(level, int(groups.max()))
    half = quantile * mean_error(v, groups, weight)
    return Estimate(mean, mean - half, mean + half)


def share_interval(value: float, error: float, *, level: float, freedom: float = math.inf) -> Estimate:
    """The interval of a number in [0, 1] with a known standard error, symmetric in its log-odds.

    Near an end of the range the error itself grows with the number, so an interval symmetric in the number
    misses on one side (for an AUROC: Pepe 2003, section 5.2.6). ``freedom``: degrees of freedom of the error,
    where it is estimated from few samples.

    >>> str(share_interval(0.95, 0.03, level=0.95))
    '0.9500 [0.8464, 0.9850]'
    """
    if not (math.isfinite(value) and math.isfinite(error)):
        return Estimate(value)
    half = (quantile_of(level) if math.isinf(freedom) else student_quantile(level, freedom)) * error
    if not 0 < value < 1:
        return Estimate(value, max(value - half, 0.0), min(value + half, 1.0))
    log_odds = math.log(value / (1 - value))
    half /= value * (1 - value)
    low, high = (float(scipy_special().expit(end)) for end in (log_odds - half, log_odds + half))
    # Without an error both are the value, up to rounding.
    return Estimate(value, min(low, value), max(high, value))


def floor_influence(bins: Bins, probs: Floats, code: Codes, weight: Floats | None = None) -> Floats:
    """The influence (n,) of each probability on the noise floor of as many."""
    each = probs * (1 - probs) / np.sqrt(np.maximum(2 * math.pi * bins.noise, 1e-300))[code]
    return each if weight is None else each * weight


@lru_cache
def drawn_quantile(level: float, draws: int) -> float:
    """The normal quantile of a level, widened for a mean and a standard error from so many draws."""
    return student_quantile(level, draws - 1) * math.sqrt(1 + 1 / draws)


def resamples(
    n: int, replicates: int, *, seed: int, groups: NDArray[np.intp] | None = None
) -> Iterator[Floats]:
    """Draw how often each sample counts, (r, n), in blocks of bounded memory.

    Args:
        n: Number of samples.
        replicates: Number of resamples.
        seed: Seed of the draws.
        groups: Group of each sample, from 0 (n,), drawn whole (Davison and Hinkley 1997, section 3.8); as
            groups differ in size, the draws are then scaled to n.
    """
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    # Groups are drawn, not rows: rows of a group come together or not at all.
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


def exact_interval(successes: float, n: float, *, level: float = 0.95) -> Estimate:
    """Return a share and its exact interval (Clopper and Pearson 1934).

    Args:
        successes: Number of them, 0 to n; both numbers may be effective ones.
        n: Number of trials.
        level: Coverage of the interval, a fraction.

    >>> str(exact_interval(8, 10))
    '0.8000 [0.4439, 0.9748]'
    """
    quantile_of(level)  # raises for an invalid level
    low, high = _ends(successes, n, (1 - level) / 2)
    return Estimate(successes / n, min(low, successes / n), max(high, successes / n))


@lru_cache(maxsize=4096)  # classes of equally many samples ask the same again and again
def _ends(successes: float, n: float, risk: float) -> tuple[float, float]:
    low = accuracy_at_least(successes, n, risk=risk)
    return low, 1 - accuracy_at_least(n - successes, n, risk=risk)


def conformal_rank(n: int, coverage: float) -> int:
    """Return the rank k = ceil((n + 1) coverage): the k-th smallest of n scores is the threshold (Vovk 2005).

    Above n there is none: then no finite threshold keeps the promise. Computed without rounding.

    Args:
        n: Number of scores.
        coverage: Share of sets that are to hold the true class.

    >>> conformal_rank(99, 0.9), conformal_rank(9, 0.9), conformal_rank(8, 0.9)
    (90, 9, 9)
    """
    if not 0 < coverage < 1:
        raise InputError(f"coverage must lie between 0 and 1, got {coverage}; 0.9 means 90 %")
    # As a float, (n + 1) coverage may round up past a whole number, and the rank with it.
    return math.ceil((n + 1) * Fraction(repr(float(coverage))))


def coverage_range(n: int, coverage: float, *, level: float = 0.95) -> Estimate:
    """Return the share of new samples that sets from n samples hold: its mean, and its range.

    It is Beta(k, n + 1 - k) over the draws of the n samples, where no scores are tied (Vovk 2012, prop. 2a).

    Args:
        n: Number of samples that the threshold was found on.
        coverage: Share of sets that are to hold the true class.
        level: Coverage of the range, a fraction.

    >>> str(coverage_range(1000, 0.9))
    '0.9001 [0.8808, 0.9179]'
    """
    quantile_of(level)
    k = conformal_rank(n, coverage)
    if k > n:
        return Estimate(1.0, 1.0, 1.0)
    ends = (beta_quantile(share, k, n + 1 - k) for share in ((1 - level) / 2, (1 + level) / 2))
    return Estimate(k / (n + 1), *ends)

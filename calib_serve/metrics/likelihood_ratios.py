"""Likelihood ratios, as forensic science and speaker recognition judge them (Brümmer and du Preez 2006).

A likelihood ratio is P(evidence | y = 1) / P(evidence | y = 0). Log-ratios (n,) are natural logarithms, and
may be infinite; outcomes (n,) are 0 or 1. Both outcomes count alike, however often each occurs. Error
rates are of the convex hull of the ROC, as NIST's and BOSARIS' are: of log-ratios their order alone counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Codes, Floats, as_floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.benefit import Share, sum_of_shares
from calib_serve.metrics.calibration import cumulative
from calib_serve.metrics.event import checked_event
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.samples import weighing_rows


def log_ratios(probs: ArrayLike, *, prior: float) -> Floats:
    """The log-ratios (n,) that probabilities state: their log-odds less those of the prior they were made at.

    Args:
        probs: Probabilities of class 1 (n,), or (n, 2).
        prior: P(y = 1) before the evidence, such as the share of class 1 that the model was calibrated on.

    >>> log_ratios([0.5], prior=0.2).round(4).tolist()  # log 4
    [1.3863]
    """
    if not 0 < prior < 1:
        raise InputError(f"prior must lie between 0 and 1, got {prior}")
    p = as_floats(probs, "probs")
    positive = checked_event(p, np.zeros(len(p)))[0]
    # A column of its own knows how far class 0 is from 0, where 1 - p is rounded away.
    negative = p[:, 0] if p.ndim == 2 else 1 - positive
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(positive) - np.log(negative) - math.log(prior / (1 - prior)))


@dataclass(frozen=True, eq=False)
class _Trials:
    """Log-ratios (n,), whether each is of y = 1, weights that sum to 1 within each outcome, and groups."""

    ratios: Floats
    came: Floats
    hit: Floats
    other: Floats
    codes: Codes | None

    @classmethod
    def of(cls, ratios: Any, came_true: Any, sample_weight: Any, groups: Any) -> _Trials:
        r, y = as_floats(ratios, "log_ratios"), as_floats(came_true, "came_true")
        if r.ndim != 1 or y.shape != r.shape:
            raise ShapeError(f"log_ratios and came_true must both be (n,), got {r.shape} and {y.shape}")
        if np.isnan(r).any() or not np.isin(y, (0, 1)).all():
            raise InputError("log_ratios must be numbers, and came_true be 0 or 1")
        r, y, w, codes = weighing_rows(r, y, sample_weight, groups)
        w = np.ones(len(r)) if w is None else w
        if not 0 < w @ y < w.sum():
            raise InputError("came_true must hold both 0 and 1: a likelihood ratio tells these apart")
        return cls(r, y, w * y / (w @ y), w * (1 - y) / (w @ (1 - y)), codes)

    def cost(self, ratios: Floats, level: float) -> Estimate:
        """Cllr of other log-ratios (n,) of these trials."""
        loss = np.logaddexp(0, np.where(self.came == 1, -ratios, ratios)) / math.log(2)
        means = [float(loss[w > 0] @ w[w > 0]) for w in (self.hit, self.other)]
        value, half = sum(means) / 2, (self.hit + self.other) / 2
        if not math.isfinite(value):
            return Estimate(value)
        # Each trial's part in the error, as values whose mean is the cost (the delta method).
        parts = value + len(loss) * half * (loss - np.where(self.came == 1, *means))
        return mean_interval(parts, level=level, groups=self.codes)

    @cached_property
    def pool(self) -> Codes:
        """The pool of each trial (n,), rising with its log-ratio, by pooling adjacent violators."""
        from scipy.optimize import isotonic_regression  # noqa: PLC0415 - imported when it is first used

        distinct, place = np.unique(self.ratios, return_inverse=True)
        hit, other = (np.bincount(place, w, len(distinct)) for w in (self.hit, self.other))
        share = isotonic_regression(hit / (hit + other), weights=hit + other).x
        return np.concatenate([[0], np.cumsum(np.diff(share) > 0)])[place]

    @cached_property
    def best(self) -> Floats:
        """The rising log-ratios (n,) of least cost: each pool's share of all hits over that of others."""
        with np.errstate(divide="ignore"):
            hit, other = np.log(self.of_pools())
        # Pools that differ by a rounding alone may fall by one.
        return np.asarray(np.maximum.accumulate(hit - other)[self.pool])

    def of_pools(self) -> tuple[Floats, Floats]:
        """The shares of all hits and of all others in each pool (m,)."""
        hit, other = (np.bincount(self.pool, w).astype(np.float64) for w in (self.hit, self.other))
        return hit, other

    def equal_error(self, level: float) -> Estimate:
        """The equal error rate."""
        hit, other = self.of_pools()
        # Along the hull misses less false alarms rise from -1 to 1, and cross 0 within one pool.
        apart = np.concatenate([[-1.0], np.cumsum(hit + other) - 1])
        k = min(int(np.searchsorted(apart, 0.0, side="right")) - 1, len(hit) - 1)
        first = k + float(np.clip(-apart[k] / (hit[k] + other[k]), 0, 1))
        # The pool's slope weighs the two rates: moved along it, their sum stays.
        miss = float(other[k] / (hit[k] + other[k]))
        return self.rates(miss, 1 - miss, first, level=level, most=0.5)

    def least_detection(self, prior: float, level: float) -> Estimate:
        """The least cost of detection at P(y = 1) = ``prior``."""
        hit, other = self.of_pools()
        miss, alarm = (part / min(prior, 1 - prior) for part in (prior, 1 - prior))
        costs = miss * cumulative(hit) + alarm * (1 - cumulative(other))
        return self.rates(miss, alarm, int(costs.argmin()), level=level, most=1.0)

    def rates(self, miss: float, alarm: float, first: float, *, level: float, most: float) -> Estimate:
        """``miss`` x the rate of misses + ``alarm`` x that of false alarms: pools from ``first`` on are 1.

        A fraction is of a pool: so many of its trials are taken for 0, at random. ``most``: more than this is
        never the least.
        """
        called = np.clip(self.pool + 1 - first, 0, 1)
        parts = Share(miss, 1 - called, self.hit), Share(alarm, called, self.other)
        found = sum_of_shares(*parts, self.codes, level=level)
        return Estimate(found.value, max(found.low, 0.0), min(found.high, most))


def evaluate_ratios(
    log_ratios: ArrayLike,
    came_true: ArrayLike,
    *,
    prior: float = 0.01,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Return the costs of log-likelihood ratios: ``cllr``, ``min_cllr``, ``eer`` and ``min_dcf``.

    - ``cllr``, in bits: half the mean of log2(1 + 1 / LR) where y = 1, and half that of log2(1 + LR) where
      y = 0 (Brümmer and du Preez 2006, eq. 16). 1 for ratios that say nothing, infinite where evidence was
      taken for certain and was wrong.
    - ``min_cllr``: that of the rising log-ratios of least cost for these very outcomes (by pooling adjacent
      violators), which no calibration mends; without an interval.
    - ``eer``: the share of misses where the hull of the ROC has as many false alarms.
    - ``min_dcf``: the least prior x misses + (1 - prior) x false alarms of any threshold, over that of the
      better of all and none (NIST).

    All but ``cllr`` go by the order of the ratios alone, so they may be scores; and as they are the best of
    these very samples, they are too low of few. Intervals are normal, or of both rates by Wilson's.

    Args:
        log_ratios: Natural logarithms of likelihood ratios (n,).
        came_true: 0 or 1 (n,), both among them.
        prior: P(y = 1) where decisions are made; 0.01 as in NIST's evaluation of 2016. Costs are a part of
            it: P times that of a miss, over itself plus (1 - P) times that of a false alarm.
        sample_weight: (n,).
        groups: Which samples belong together (n,).
        level: Coverage of the intervals, a fraction.

    >>> found = evaluate_ratios([0.0, 1.0, 2.0, 3.0], [0, 1, 0, 1])
    >>> found["min_cllr"].value, found["eer"].value, found["min_dcf"].value  # half of the trials at 1 bit
    (0.5, 0.25, 0.5)
    >>> evaluate_ratios([0.0, 0.0, 0.0], [1, 0, 0])["cllr"].value
    1.0
    """
    if not 0 < prior < 1:
        raise InputError(f"prior must lie between 0 and 1, got {prior}")
    found = _Trials.of(log_ratios, came_true, sample_weight, groups)
    return {
        "cllr": found.cost(found.ratios, level),
        "min_cllr": Estimate(float(found.cost(found.best, level))),
        "eer": found.equal_error(level),
        "min_dcf": found.least_detection(prior, level),
    }

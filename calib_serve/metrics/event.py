"""Calibration of P(y = 1) over [0, 1], as clinical prediction models are judged (Van Calster 2019).

Probabilities (n,) are of class 1, or (n, 2) with class 1's in the second column; outcomes (n,) are 0 or 1.
Logarithms are taken of probabilities within [1e-10, 1 - 1e-10].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Codes, Floats, as_floats
from calib_serve.core.bins import Bins, Edges
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.intervals import Estimate, EstimateRecord, quantile_of
from calib_serve.metrics.samples import weighing_rows
from calib_serve.metrics.smooth import smooth_curve

Strategy = Literal["uniform", "quantile"]

_LEAST_P = 1e-10


def checked_event(
    probs: ArrayLike,
    came_true: ArrayLike,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> tuple[Floats, Floats, Floats, Codes | None]:
    """Check P(y = 1) (n,), outcomes (n,) of 0 and 1, weights (n,) and groups; drop rows of weight 0."""
    p = as_floats(probs, "probs")
    p = p[:, 1] if p.ndim == 2 and p.shape[1] == 2 else p
    y = as_floats(came_true, "came_true")
    if p.ndim != 1 or not len(p) or y.shape != p.shape:
        raise ShapeError(f"probs and came_true must be (n,), got {p.shape} and {y.shape}")
    if not ((p >= 0) & (p <= 1)).all() or not np.isin(y, (0, 1)).all():
        raise InputError("probs must lie in [0, 1], and came_true be 0 or 1")
    p, y, w, codes = weighing_rows(p, y, sample_weight, groups)
    return p, y, np.ones(len(p)) if w is None else w, codes


def _logit(p: Floats) -> Floats:
    inside = np.clip(p, _LEAST_P, 1 - _LEAST_P)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _logistic(columns: Floats, offset: Floats, y: Floats, w: Floats, groups: Any) -> tuple[Floats, Floats]:
    """Coefficients (k,) of y on columns (k, n), and robust standard errors (by groups)."""
    theta = np.zeros(len(columns))
    for _ in range(50):
        # Beyond 30 exp gains nothing in float64, and may overflow.
        fitted = 1 / (1 + np.exp(-np.clip(offset + theta @ columns, -30, 30)))
        curvature = (columns * (w * fitted * (1 - fitted))) @ columns.T
        step = np.linalg.lstsq(curvature, columns @ (w * (y - fitted)), rcond=None)[0]
        theta = theta + np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-12:
            break
    return theta, logistic_errors(columns, fitted, y, w, groups)


def logistic_errors(
    columns: Floats, fitted: Floats, came_true: Floats, weight: Floats, groups: Codes | None
) -> Floats:
    """Robust standard errors (k,) of the coefficients of a logistic regression (White 1982, theorem 3.2).

    Args:
        columns: Features (k, n).
        fitted: Probabilities that the regression gives (n,).
        came_true: 0 or 1 (n,).
        weight: (n,).
        groups: Group of each sample, from 0 (n,); None: each is its own.
    """
    scores = columns * (weight * (came_true - fitted))
    if groups is not None:
        scores = np.stack([np.bincount(groups, row) for row in scores])
    inverse = np.linalg.pinv((columns * (weight * fitted * (1 - fitted))) @ columns.T)
    return np.asarray(np.sqrt(np.diag(inverse @ (scores @ scores.T) @ inverse)))


def _wald(value: float, error: float, level: float) -> Estimate:
    half = quantile_of(level) * error
    return Estimate(value, value - half, value + half)


def _intercept(p: Floats, y: Floats, w: Floats, codes: Codes | None, level: float) -> Estimate:
    """The intercept of logit P(y = 1) = a + logit p (Cox 1958); NaN where all outcomes are alike."""
    if y.min() == y.max():
        return Estimate(math.nan)
    theta, errors = _logistic(np.ones((1, len(p))), _logit(p), y, w, codes)
    return _wald(float(theta[0]), float(errors[0]), level)


def _slope(p: Floats, y: Floats, w: Floats, codes: Codes | None, level: float) -> Estimate:
    """The slope of logit P(y = 1) = a + b logit p (Cox 1958); NaN where it has no finite value."""
    events, others = p[y == 1], p[y == 0]
    # Separated outcomes have no finite slope: Newton would run away.
    if not (len(events) and len(others) and events.min() < others.max() and others.min() < events.max()):
        return Estimate(math.nan)
    columns = np.stack([np.ones(len(p)), _logit(p)])
    theta, errors = _logistic(columns, np.zeros(len(p)), y, w, codes)
    return _wald(float(theta[1]), float(errors[1]), level)


def _observed_expected(p: Floats, y: Floats, w: Floats, codes: Codes | None, level: float) -> Estimate:
    """Events observed over those expected, the sum of p; its interval is on the log scale."""
    observed, expected = float(w @ y), float(w @ p)
    ratio = observed / expected
    if ratio == 0:
        return Estimate(0.0)
    if codes is None:
        error = math.sqrt(float((w**2) @ (p * (1 - p)))) / observed
    else:  # each group's part in the logarithm of the ratio
        error = float(np.linalg.norm(np.bincount(codes, w * (y / observed - p / expected))))
    half = quantile_of(level) * error
    return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def loess(x: Floats, y: Floats, weight: Floats, at: Floats) -> Floats:
    """Smooth y (n,) on x (n,) at points (m,) by local quadratic regression (Cleveland 1979): R's, span 0.75.

    Each point sees the nearest three quarters of the samples, by the tricube kernel.
    """
    near = min(max(math.ceil(0.75 * len(x)), 3), len(x))
    order = np.argsort(x)
    x, y, weight = x[order], y[order], weight[order]
    found = np.empty(len(at))
    for i, point in enumerate(at):
        distance = np.abs(x - point)
        far = max(float(np.partition(distance, near - 1)[near - 1]), 1e-12)
        kernel = weight * np.clip(1 - (distance / far) ** 3, 0, None) ** 3
        d = x - point
        columns = np.stack([np.ones_like(d), d, d * d])
        gram = (columns * kernel) @ columns.T
        found[i] = np.linalg.lstsq(gram, columns @ (kernel * y), rcond=1e-12)[0][0]
    return found


def _errors(p: Floats, y: Floats, w: Floats) -> Floats:
    """Distances of p from the smoothed y (n,), by loess at each p, or interpolated where p are many."""
    at = np.unique(p)
    if len(at) > 400:
        at = np.unique(np.quantile(p, np.linspace(0, 1, 400)))
    smoothed = np.clip(loess(p, y, w, at), 0, 1)
    return np.abs(p - np.interp(p, at, smoothed))


def _weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    if (weights == weights[0]).all():
        return float(np.quantile(values, share))
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share)])


def event_bins(
    probs: ArrayLike,
    came_true: ArrayLike,
    *,
    bins: int = 15,
    strategy: Strategy = "uniform",
    edges: Edges = "right",
    sample_weight: ArrayLike | None = None,
) -> tuple[Bins, Floats]:
    """Sums over bins of P(y = 1), and the bins' edges (bins + 1,).

    Args:
        probs: Probabilities of class 1 (n,), or (n, 2).
        came_true: 0 or 1 (n,).
        bins: Number of bins.
        strategy: "uniform": of equal width; "quantile": of equal counts, numpy's quantiles, right-closed as
            scikit-learn's ``calibration_curve`` has them.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        sample_weight: (n,).
    """
    p, y, w, _ = checked_event(probs, came_true, sample_weight)
    if strategy not in ("uniform", "quantile") or bins < 1:
        raise InputError(f"strategy must be uniform or quantile, and bins positive, got {strategy!r}, {bins}")
    ends = (
        np.linspace(0, 1, bins + 1) if strategy == "uniform" else np.quantile(p, np.linspace(0, 1, bins + 1))
    )
    index = np.searchsorted(ends[1:-1], p, side="left" if edges == "right" else "right")
    sums = (np.bincount(index, row, bins).astype(np.float64) for row in (w, w * p, w * y))
    return Bins(*sums), ends


@dataclass(frozen=True, repr=False)
class EventEvaluation(EstimateRecord):
    """Hold the result of ``evaluate_event``: counts, and metrics of P(y = 1) against whether it came true.

    Args:
        n: Number of samples.
        events: How many came true.
        intercept: Of logit P(y = 1) = a + logit p (Cox 1958): 0 where calibrated in the large, above 0 where
            the probabilities are too low on average. NaN where all outcomes are alike.
        slope: Of logit P(y = 1) = a + b logit p: 1 where calibrated, below 1 where p is too extreme. NaN
            where all outcomes are alike, or one p tells all events from the others.
        observed_expected: Events observed over those expected, the sum of p.
        ece: ECE of P(y = 1) over bins of equal width.
        smooth_ece: Smooth ECE of P(y = 1); NaN of weighted samples.
        ici: Integrated calibration index, the mean of |p - loess(y on p)| (Austin and Steyerberg 2019).
        e50: Median of these distances.
        e90: Their 90th percentile.
        brier: Mean of (p - y)^2.
        nll: Mean of -log of what the outcome was given, in nats.
    """

    _ENDS = ("value", "low", "high")
    _SHOWN = ()

    n: int
    events: int
    intercept: Estimate
    slope: Estimate
    observed_expected: Estimate
    ece: Estimate
    smooth_ece: Estimate
    ici: Estimate
    e50: Estimate
    e90: Estimate
    brier: Estimate
    nll: Estimate


def evaluate_event(
    probs: ArrayLike,
    came_true: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    bins: int = 15,
    level: float = 0.95,
) -> EventEvaluation:
    """Return every metric of P(y = 1) against outcomes, as clinical models are judged.

    Intervals of intercept and slope are Wald's, robust; over groups that of the ratio is robust, too.

    Args:
        probs: Probabilities of class 1 (n,), or (n, 2).
        came_true: 0 or 1 (n,).
        sample_weight: (n,).
        groups: Which samples belong together (n,).
        bins: Number of bins of the ECE, of equal width.
        level: Coverage of the intervals of intercept, slope and observed over expected, a fraction.

    >>> found = evaluate_event([0.5] * 4, [1, 1, 1, 0])
    >>> found.events, found.observed_expected.value, round(found.intercept, 6) == round(math.log(3), 6)
    (3, 1.5, True)
    """
    rows = checked_event(probs, came_true, sample_weight, groups)
    p, y, w, _ = rows
    errors = _errors(p, y, w)
    smooth = (
        smooth_curve(p, y > 0, level=level, replicates=0, seed=0).ece if sample_weight is None else math.nan
    )
    likely = np.where(y == 1, p, 1 - p)
    return EventEvaluation(
        n=len(p),
        events=int(y.sum()),
        intercept=_intercept(*rows, level),
        slope=_slope(*rows, level),
        observed_expected=_observed_expected(*rows, level),
        ece=Estimate(event_bins(p, y, bins=bins, sample_weight=w)[0].ece()),
        smooth_ece=Estimate(smooth),
        ici=Estimate(float(np.average(errors, weights=w))),
        e50=Estimate(_weighted_quantile(errors, w, 0.5)),
        e90=Estimate(_weighted_quantile(errors, w, 0.9)),
        brier=Estimate(float(np.average((p - y) ** 2, weights=w))),
        nll=Estimate(float(np.average(-np.log(np.maximum(likely, _LEAST_P)), weights=w))),
    )

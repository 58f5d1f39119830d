"""Calibrators of two classes, maps of the one number z = z1 - z0.

Platt scaling and beta calibration; and those that clinics and banks update a model by, whose numbers have
standard errors: its intercept alone, and its intercept and slope.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.lbfgs import ARMIJO, Minimum
from calib_serve.fit.samples import Samples
from calib_serve.metrics import logistic_errors
from calib_serve.scores import sigmoid


def fit_platt(samples: Samples) -> Artifact:
    """Fit P(y = 1) = sigmoid(w z + b), w > 0, by least cross-entropy with Platt's targets.

    z is the one logit, or the difference of two. Raises InputError for other numbers of classes, FitError
    where z does not rise with the share of class 1. Platt 1999; Lin 2007.

    >>> fit_platt(Samples.of([-1.0, 0.0, 1.0, 2.0] * 5, [0, 0, 1, 1] * 5)).steps[0].bias.shape
    (2,)
    """
    z, weight = _margin(samples, "platt"), samples.weights
    w, b, found = platt(z, samples.labels, weight)
    return complete(
        [LogitMap(np.array(w), np.array([0.0, b]))],
        samples,
        method="platt",
        fit={
            "objective": "cross-entropy with Platt's targets",
            "weight": w,
            "bias": b,
            **found.certificate(),
            "nll_before": _nll(z, samples.labels, weight),
            "nll_after": _nll(w * z + b, samples.labels, weight),
        },
    )


def fit_intercept(samples: Samples) -> Artifact:
    """Fit P(y = 1) = sigmoid(z + a), a recalibration in the large, by least cross-entropy.

    The mean probability is then the share of class 1, and no order of samples changes. ``intercept_error`` is
    robust, over groups where there are any. Errors as in ``fit_logistic``. Cox 1958; Steyerberg 2004.

    >>> artifact = fit_intercept(Samples.of([0.0] * 4, [1, 1, 1, 0]))
    >>> round(artifact.fit["intercept"], 6)  # log 3
    1.098612
    """
    return _recalibrated(samples, "intercept")


def fit_logistic(samples: Samples) -> Artifact:
    """Fit P(y = 1) = sigmoid(b z + a), b > 0, the logistic recalibration, by least cross-entropy.

    Unlike Platt's its targets are 0 and 1 themselves, so that slope and intercept are those of a logistic
    regression. Raises InputError for other than two classes, FitError where no slope above 0 is best, and
    where outcomes are all alike or told apart by a threshold: none is finite then. Cox 1958.
    """
    return _recalibrated(samples, "logistic")


def _recalibrated(samples: Samples, method: Literal["intercept", "logistic"]) -> Artifact:
    z, weight, came = _margin(samples, method), samples.weights, (samples.labels == 1).astype(np.float64)
    if came.min() == came.max():
        raise FitError(
            f"every label is {int(came[0])}, so that no intercept is finite; give samples of both classes"
        )
    slope, mean = 1.0, float(weight @ z / weight.sum())
    if method == "logistic":
        events, others = z[came == 1], z[came == 0]
        if events.min() >= others.max() or others.min() >= events.max():
            raise FitError(
                "a threshold of the score tells the classes apart, so that no slope is finite; choose platt, "
                "or give more samples"
            )
        columns = np.stack([z - mean, np.ones(len(z))])
        found = logistic(columns.T, came, weight)
        slope, intercept = float(found.x[0]), float(found.x[1] - found.x[0] * mean)
        _check_rising(slope, z)
    else:
        columns = np.ones((1, len(z)))
        found = logistic(columns.T, came, weight, z)
        intercept = float(found.x[0])
    # Errors of the intercept itself, not of that at the mean score.
    columns = columns if method == "intercept" else np.stack([z, np.ones(len(z))])
    errors = logistic_errors(columns, sigmoid(slope * z + intercept), came, weight, samples.groups)
    of_slope = {"slope": slope, "slope_error": float(errors[0])} if method == "logistic" else {}
    return complete(
        [LogitMap(np.array(slope), np.array([0.0, intercept]))],
        samples,
        method=method,
        fit={
            "objective": "cross-entropy",
            "intercept": intercept,
            "intercept_error": float(errors[-1]),
            **of_slope,
            **found.certificate(),
            "nll_before": _nll(z, samples.labels, weight),
            "nll_after": _nll(slope * z + intercept, samples.labels, weight),
        },
    )


def _check_rising(slope: float, z: Floats) -> None:
    if not slope > 0:
        raise FitError(
            f"the scores, logits from {z.min():.4g} to {z.max():.4g}, do not rise with the share of class 1, "
            "so that no weight above 0 is best; check that the labels belong to these scores, and that 1 is "
            "the class that they speak of"
        )


def platt(z: Floats, positive: NDArray[np.intp], weight: Floats) -> tuple[float, float, Minimum]:
    """The weight w > 0 and the bias of logits z (n,), of checked range; FitError where none is best."""
    mean = float(weight @ z / weight.sum())  # of scores far from zero, 1 and z are nearly one feature
    x = np.stack([z - mean, np.ones(len(z))], axis=1)
    found = logistic(x, platt_targets(positive, weight), weight)
    _check_rising(float(found.x[0]), z)
    return float(found.x[0]), float(found.x[1] - found.x[0] * mean), found


def fit_beta(samples: Samples) -> Artifact:
    """Fit P(y = 1) = sigmoid(a ln p - b ln(1 - p) + c), a, b >= 0, by cross-entropy with Platt's targets.

    p is the uncalibrated P(y = 1). With a = b it is Platt scaling; with two numbers it bends each end of
    [0, 1] on its own. As steps, a scale and a bias for each of two log-probabilities. Errors as in
    ``fit_platt``. Kull 2017, eq. 4.
    """
    z, weight = _margin(samples, "beta"), samples.weights
    features = np.stack([-np.logaddexp(0, -z), np.logaddexp(0, z), np.ones(len(z))], axis=1)
    theta, found = _not_negative(features, platt_targets(samples.labels, weight), weight)
    a, b, c = map(float, theta)
    return complete(
        [LogitMap(np.array([b, a]), np.array([0.0, c]), "log_probs")],
        samples,
        method="beta",
        fit={
            "objective": "cross-entropy with Platt's targets",
            "a": a,
            "b": b,
            "c": c,
            **found.certificate(),
            "nll_before": _nll(z, samples.labels, weight),
            "nll_after": _nll(features @ theta, samples.labels, weight),
        },
    )


def _not_negative(x: Floats, targets: Floats, weight: Floats) -> tuple[Floats, Minimum]:
    """The best of a, b >= 0: the optimum itself, or the better one with a or b at 0."""
    # Convex: where the free optimum lies outside, the best lies on one of the two edges.
    best: tuple[Floats, Minimum] | None = None
    for kept in ([0, 1, 2], [0, 2], [1, 2]):
        found = logistic(x[:, kept], targets, weight)
        theta = np.zeros(3)
        theta[kept] = found.x
        if (theta[:2] >= 0).all() and theta[:2].any() and (best is None or found.value < best[1].value):
            best = theta, found
        if best is not None and len(kept) == 3:
            break
    if best is None:
        raise FitError(
            "the scores do not rise with the share of class 1, so that a and b are both 0; check that the "
            "labels belong to these scores, and that 1 is the class that they speak of"
        )
    return best


def check_range(z: NDArray[np.floating[Any]]) -> None:
    """Raise InputError for logits too large to be squared."""
    if not float(np.abs(z).max()) <= 1e100:
        raise InputError(
            f"logits go up to {np.abs(z).max():g}; clip them first, as by np.clip(logits, -1e4, 1e4)"
        )


def _margin(samples: Samples, method: str) -> Floats:
    if samples.classes != 2:
        raise InputError(
            f"{method} is for two classes or for labels, and there are {samples.classes} classes; choose "
            "vector, structured-vector or dirichlet-odir"
        )
    z = samples.read(slice(0, len(samples)), np.float64)
    margin = z[:, 1] - z[:, 0]
    check_range(margin)
    return np.asarray(margin)


def _nll(z: Floats, positive: NDArray[np.intp], weight: Floats) -> float:
    return float(weight @ np.logaddexp(0, np.where(positive == 1, -z, z)) / weight.sum())


def platt_targets(positive: NDArray[np.intp], weight: Floats) -> Floats:
    """Targets (n,) in place of 0 and 1, drawn inwards by one sample's weight (Platt 1999).

    They keep the optimum finite where a threshold tells the two apart.

    >>> platt_targets(np.array([0, 1]), np.ones(2)).round(3).tolist()
    [0.333, 0.667]
    """
    ones = float(weight @ positive)
    zeros = float(weight.sum()) - ones
    return np.where(positive == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))


def logistic(x: Floats, targets: Floats, weight: Floats, offset: Floats | float = 0.0) -> Minimum:
    """The coefficients (d,) of least weighted mean cross-entropy of sigmoid(x @ coefficients + offset).

    ``x`` (n, d) finite, its constant a column like any other; ``targets`` (n,) within [0, 1]; ``weight``
    (n,); ``offset`` (n,). Raises FitError where Newton's method does not converge.
    """
    # Columns of size 1, whose squares neither overflow nor vanish.
    scale = np.abs(x).max(axis=0)
    scale[scale == 0] = 1
    x, share = x / scale, weight / weight.sum()
    theta = np.zeros(x.shape[1])
    value, p = _objective(x @ theta + offset, targets, share)
    # The gap is of a cross-entropy of order 1; below the smallest step rounding decides.
    closed, smallest, most = 1e-14, 1e-9, 200
    for iteration in range(1, most + 1):
        gradient = x.T @ (share * (p - targets))
        step = _newton((x * (share * p * (1 - p))[:, None]).T @ x, gradient)
        gap = float(gradient @ step) / 2
        length = 1.0
        # Half steps, until the gain is a share of what the gradient promises (Armijo).
        while gap > closed and length > smallest:
            trial = _objective(x @ (theta - length * step) + offset, targets, share)
            if trial[0] <= value - 2 * ARMIJO * length * gap:
                break
            length /= 2
        if gap <= closed or length <= smallest:
            # A last step costs nothing and doubles the digits.
            theta = theta - step if gap <= closed else theta
            return Minimum(theta / scale, value, gradient * scale, max(gap, 0.0), iteration, iteration)
        theta, (value, p) = theta - length * step, trial
    raise FitError(f"the logistic regression did not converge in {most} steps; look for extreme scores")


def _objective(s: Floats, targets: Floats, share: Floats) -> tuple[float, Floats]:
    e = np.exp(-np.abs(s))
    losses = np.maximum(s, 0) + np.log1p(e) - targets * s
    return float(share @ losses), np.where(s >= 0, 1.0, e) / (1 + e)


def _newton(hessian: Floats, gradient: Floats) -> Floats:
    """The Newton step; features of very unlike sizes are scaled alike first."""
    size = np.sqrt(np.diag(hessian))
    size[size == 0] = 1
    # Features that are multiples of one another, as of a constant score, make the Hessian singular.
    found = np.linalg.lstsq(hessian / np.outer(size, size), gradient / size, rcond=1e-13)[0]
    return np.asarray(found / size)

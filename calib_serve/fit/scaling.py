"""Temperature scaling: one number T > 0 that divides every logit (Guo 2017, section 4.2).

The negative log-likelihood is convex in s = 1 / T, so its derivative has one root; we find it by
Newton on log s inside a bracket, with sums in float64, and the artifact carries the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import ClassWeight, Samples

__all__ = ["fit_temperature"]

_TOLERANCE = 1e-10  # of |d NLL / d log T|, next to an NLL of order 1
_MAX_ITERATIONS = 100
# A first guess from this many logits is within a few percent of the optimum, so that only two or
# three passes over all of them remain.
_GUESS = 1 << 18


@dataclass(frozen=True)
class Slope:
    """The mean NLL at s = 1 / T, and its first and second derivative with respect to s."""

    nll: float
    first: float
    second: float


def fit_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """The temperature that minimises the NLL of the calibration set.

    ``logits`` (n, K) of any float type, or (n,) for one binary logit, may be memory-mapped;
    ``labels`` (n,) class ids. ``artifact.fit`` holds T, the gradient with respect to log T where
    the search ended, the iterations, and the NLL before and after. Raises InputError for arrays
    that cannot be right, FitError where no finite T is best: every sample right, or labels that
    the logits say nothing about. Guo 2017, section 4.2.

    >>> artifact = fit_temperature([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> round(artifact.fit["temperature"] * math.log(3), 6)  # sigmoid(2 / T) = 3 / 4
    2.0
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    found = temperature(samples)
    return complete(
        [LogitMap.temperature(found["temperature"])],
        samples,
        method="temperature",
        fit={"objective": "nll", "solver": "newton on log T", **found},
    )


def temperature(samples: Samples) -> dict[str, Any]:
    """T of least NLL and the certificate that it is: what ``fit_temperature`` writes down."""
    _refuse_without_optimum(samples)
    start = 1.0
    stride = samples.logits.size // _GUESS
    if stride > 1:
        part = samples.take(slice(None, None, stride))
        if not _no_optimum(part):
            start = _newton(lambda s: slope(part, s), 1.0, tolerance=1e-4)[0]
    s, end, iterations = _newton(lambda s: slope(samples, s), start, tolerance=_TOLERANCE)
    return {
        "temperature": 1 / s,
        "gradient_norm": abs(end.first * s),
        "iterations": iterations,
        "nll_before": slope(samples, 1.0).nll,
        "nll_after": end.nll,
    }


def slope(samples: Samples, s: float) -> Slope:
    """NLL(s) = mean of logsumexp(s z) - s z_y, with E_p[z] - z_y and Var_p[z] as derivatives."""
    sums = np.zeros(3)
    for rows, z in samples.chunks(np.float64):
        y = samples.labels[rows]
        d = z - z.max(axis=1, keepdims=True)
        p = np.exp(d * s)
        total = p.sum(axis=1)
        p *= d
        mean = p.sum(axis=1) / total
        variance = np.einsum("nk,nk->n", p, d) / total - mean**2
        d_y = d[np.arange(len(y)), y]
        terms = np.stack([np.log(total) - s * d_y, mean - d_y, np.maximum(variance, 0)])
        w = samples.weight
        sums += terms.sum(axis=1) if w is None else terms @ w[rows]
    return Slope(*(sums / len(samples)).tolist())


def _newton(f: Callable[[float], Slope], start: float, *, tolerance: float) -> tuple[float, Slope, int]:
    """The root of f(s).first over s > 0, by Newton on log s kept inside a bracket that shrinks."""
    low, high, t = -math.inf, math.inf, math.log(start)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        s = math.exp(t)
        at = f(s)
        if abs(at.first * s) <= tolerance * max(1.0, at.nll):
            return s, at, iteration
        low, high = (t, high) if at.first < 0 else (low, t)
        step = -at.first / (at.second * s) if at.second > 0 else math.copysign(math.inf, -at.first)
        t_next = t + min(max(step, -2.0), 2.0)
        if not low < t_next < high:
            t_next = (low + high) / 2
        if t_next in (low, high):  # the bracket is down to neighbouring floats
            return s, at, iteration
        t = t_next
    raise FitError(
        f"the temperature did not converge in {_MAX_ITERATIONS} steps: T = {1 / s:g}, gradient "
        f"{at.first * s:g}; look for a few samples with extreme logits"
    )


def _no_optimum(samples: Samples) -> str | None:
    """Why the NLL has no minimum at a finite T > 0: its slope never crosses zero."""
    gain, loss = 0.0, 0.0
    for rows, z in samples.chunks(np.float64):
        y = samples.labels[rows]
        w = np.ones(len(y)) if samples.weight is None else samples.weight[rows]
        z_y = z[np.arange(len(y)), y]
        gain += float(w @ (z_y - z.mean(axis=1)))
        loss += float(w @ (z.max(axis=1) - z_y))
    if gain <= 0:
        return (
            "the logits of the true classes are no higher than those of the others, so that T would be "
            "infinite; check that the labels belong to these logits and classes are in one order"
        )
    if loss <= 0:
        return (
            "every sample is classified right, so that T would be 0 and all confidences 1; "
            "calibrate on more samples, and none that the model was trained on"
        )
    return None


def _refuse_without_optimum(samples: Samples) -> None:
    reason = _no_optimum(samples)
    if reason:
        raise FitError(f"no finite temperature is best: {reason}")

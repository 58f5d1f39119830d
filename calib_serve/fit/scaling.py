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
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.bins import Bins
from calib_serve.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.parallel import each
from calib_serve.fit.samples import ClassWeight, Samples

__all__ = ["fit_temperature"]

_TOLERANCE = 1e-10  # of |d NLL / d log T|, next to an NLL of order 1
_TOLERANCE_SINGLE = 1e-6  # where passes are in float32: the NLL is then within 1e-12 of its least
_MAX_ITERATIONS = 100
# Logits above which passes are in float32; sums over samples stay in float64. By size alone, so that
# the same numbers in another float type give the same answer.
_SINGLE = 1 << 22
# A first guess from about this many logits is within some percent of the optimum, so that only two
# or three passes over all of them remain.
_GUESS = 1 << 15
_CHUNK = 1 << 16  # logits of one chunk: with its copies it stays in a core's cache
_FLAT = 1e-5  # a logit spread, over T, that no data tells from T = infinity


@dataclass(frozen=True)
class Slope:
    """The mean NLL at s = 1 / T, and its first and second derivative with respect to s.

    ``lost`` is how far the true class's logit lies below the largest, on average; ``reference`` the
    bins of the confidences.
    """

    nll: float
    first: float
    second: float
    lost: float
    reference: Bins


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
    found, end = _optimum(samples)
    return complete(
        [LogitMap.temperature(found["temperature"])],
        samples,
        method="temperature",
        fit={
            "objective": "nll",
            "solver": "newton on log T",
            **found,
            "nll_before": slope(samples, 1.0).nll,
        },
        reference=end.reference,
    )


def temperature(samples: Samples) -> dict[str, Any]:
    """T of least NLL and the certificate that it is: what ``fit_temperature`` writes down."""
    return {**_optimum(samples)[0], "nll_before": slope(samples, 1.0).nll}


def _optimum(samples: Samples) -> tuple[dict[str, Any], Slope]:
    start = 1.0
    stride = samples.logits.size // _GUESS
    if stride > 1:
        part = samples.take(slice(None, None, stride))
        guess, end, _ = _newton(lambda s: slope(part, s), 1.0, tolerance=1e-4)
        start = guess if _why_none(part, guess, end) is None else 1.0
    tolerance = _TOLERANCE_SINGLE if _dtype(samples) is np.float32 else _TOLERANCE
    s, end, iterations = _newton(lambda s: slope(samples, s), start, tolerance=tolerance)
    reason = _why_none(samples, s, end)
    if reason:
        raise FitError(f"no finite temperature is best: {reason}")
    facts = {
        "temperature": 1 / s,
        "gradient_norm": abs(end.first * s),
        "iterations": iterations,
        "nll_after": end.nll,
    }
    return facts, end


def slope(samples: Samples, s: float) -> Slope:
    """NLL(s) = mean of logsumexp(s z) - s z_y, with E_p[z] - z_y and Var_p[z] as derivatives."""
    dtype = _dtype(samples)

    def of(part: slice) -> tuple[NDArray[np.float64], Bins]:
        z, y = samples.read(part, dtype), samples.labels[part]
        rows = np.arange(len(y))
        d = z - z.max(axis=1, keepdims=True)
        p = d * dtype(s)
        np.exp(p, out=p)
        total = p.sum(axis=1)
        p *= d
        mean = p.sum(axis=1) / total
        variance = np.einsum("nk,nk->n", p, d) / total - mean**2
        d_y = d[rows, y].astype(np.float64)
        total = total.astype(np.float64)
        terms = np.stack([np.log(total) - s * d_y, mean - d_y, np.maximum(variance, 0), -d_y])
        sums = terms.sum(axis=1) if samples.weight is None else terms @ samples.weight[part]
        # argmax and not d_y == 0: of tied logits only the first is predicted.
        return sums, Bins.tally(np.minimum(1 / total, 1.0), z.argmax(axis=1) == y)

    found = each(of, samples.parts(_CHUNK), values=len(samples) * samples.classes)
    sums = sum(part for part, _ in found) / len(samples)
    reference = Bins.zeros()
    for _, bins in found:
        reference += bins
    nll, first, second, lost = (float(v) for v in np.asarray(sums))
    return Slope(nll, first, second, lost, reference)


def _dtype(samples: Samples) -> type[np.floating[Any]]:
    return np.float32 if len(samples) * samples.classes > _SINGLE else np.float64


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


def _why_none(samples: Samples, s: float, end: Slope) -> str | None:
    """Why the NLL has no minimum at a finite T > 0: its slope never crosses zero."""
    if end.lost > 0 and s * math.sqrt(end.second) > _FLAT:
        return None
    gain = 0.0
    for part, z in samples.chunks(np.float64):
        y = samples.labels[part]
        above = z[np.arange(len(y)), y] - z.mean(axis=1)
        gain += float(above.sum() if samples.weight is None else above @ samples.weight[part])
    if gain <= 1e-12 * len(samples):
        return (
            "the logits of the true classes are no higher than those of the others, so that T would be "
            "infinite; check that the labels belong to these logits and classes are in one order"
        )
    if end.lost == 0:
        return (
            "every sample is classified right, so that T would be 0 and all confidences 1; calibrate on "
            "more samples, none that the model was trained on, or use temperature-mixture"
        )
    return None

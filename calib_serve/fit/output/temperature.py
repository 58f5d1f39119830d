"""Temperature scaling: one number T > 0 that divides every logit (Guo 2017, section 4.2).

The negative log-likelihood is convex in s = 1 / T, so its derivative has one root; we find it by
Halley's method on log s inside a bracket, with sums in float64, and the artifact holds the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.bins import Bins
from calib_serve.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import ClassWeight, Samples, over_cores

__all__ = ["fit_temperature", "temperature"]

_TOLERANCE = 1e-10  # of |d NLL / d log T|, next to an NLL of order 1
_TOLERANCE_SINGLE = 1e-6  # where passes are in float32: the NLL is then within 1e-12 of its least
_MAX_ITERATIONS = 100
# Logits above which passes are in float32; sums over samples stay in float64. By size alone, so that
# the same numbers in another float type give the same answer.
_SINGLE = 1 << 22
_GUESSES = (1 << 15, 1 << 21)  # logits that the search begins with
_CHUNK = 1 << 16  # logits of one chunk: with its copies it stays in a core's cache
_FLAT = 1e-5  # a logit spread, over T, that counts as T = infinity


@dataclass(frozen=True)
class Slope:
    """The mean NLL at s = 1 / T, and its first three derivatives with respect to s.

    ``lost`` is how far the true class's logit lies below the largest, on average; ``reference`` the
    bins of the confidences.
    """

    nll: float
    first: float
    second: float
    third: float
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
    the search ended, the iterations, and the NLL before and after. Raises InputError for invalid arrays,
    FitError where no finite T is best: every sample right, or labels that the logits say nothing about. Guo
    2017, section 4.2.

    >>> artifact = fit_temperature([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> round(artifact.fit["temperature"] * math.log(3), 6)  # sigmoid(2 / T) = 3 / 4
    2.0
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    rows = Rows.of(samples)
    found, end = _optimum(rows)
    return complete(
        [LogitMap.temperature(found["temperature"])],
        samples,
        method="temperature",
        fit={
            "objective": "nll",
            "solver": "halley on log T",
            **found,
        },
        reference=(end.reference, rows.predicted),
    )


def temperature(samples: Samples) -> dict[str, Any]:
    """T of least NLL with its certificate, as ``fit_temperature`` stores it."""
    return _optimum(Rows.of(samples))[0]


def _optimum(rows: Rows) -> tuple[dict[str, Any], Slope]:
    samples, start = rows.samples, 1.0
    # Start from subsets of the samples, so that one or two passes over all suffice.
    for values in _GUESSES:
        stride = samples.size // values
        if stride > 1:
            part = rows.every(stride)
            guess, end, _ = _root(part.slope, start, tolerance=1e-4)
            start = guess if _why_none(part.samples, guess, end) is None else start
    tolerance = _TOLERANCE_SINGLE if rows.dtype is np.float32 else _TOLERANCE
    s, end, iterations = _root(rows.slope, start, tolerance=tolerance)
    reason = _why_none(samples, s, end)
    if reason:
        raise FitError(f"no finite temperature is best: {reason}")
    facts = {
        "temperature": 1 / s,
        "gradient_norm": abs(end.first * s),
        "iterations": iterations,
        "nll_before": rows.slope(1.0, order=0).nll,
        "nll_after": end.nll,
    }
    return facts, end


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples with what every pass needs: each row's largest logit and whether it is the label's.

    ``predicted`` (K,): how often each class has the largest logit, of all rows before any subset.
    """

    samples: Samples
    largest: NDArray[np.floating[Any]]
    right: NDArray[np.bool_]
    predicted: NDArray[np.intp]
    dtype: type[np.floating[Any]]

    @classmethod
    def of(cls, samples: Samples) -> Rows:
        """The rows of some samples, their predictions found."""
        dtype = np.float32 if samples.size > _SINGLE else np.float64
        largest: NDArray[np.floating[Any]] = np.empty(len(samples), dtype)
        right = np.empty(len(samples), bool)

        def find(span: slice) -> NDArray[np.intp]:
            counts = np.zeros(samples.classes, np.intp)
            for part in samples.parts(_CHUNK, within=span):
                z = samples.read(part)
                predicted = z.argmax(axis=1)
                largest[part] = z[np.arange(len(z)), predicted]
                right[part] = predicted == samples.labels[part]
                counts += np.bincount(predicted, minlength=samples.classes)
            return counts

        counts = over_cores(find, len(samples), values=samples.size)
        return cls(samples, largest, right, sum(counts[1:], counts[0]), dtype)

    def every(self, stride: int) -> Rows:
        """Every ``stride``-th row."""
        few = slice(None, None, stride)
        return replace(self, samples=self.samples.take(few), largest=self.largest[few], right=self.right[few])

    def slope(self, s: float, *, order: int = 2) -> Slope:
        """NLL(s) = mean of logsumexp(s z) - s z_y; cumulants of z under p are its derivatives.

        ``order`` 0 leaves the derivatives out.
        """
        samples = self.samples

        def of(span: slice) -> tuple[NDArray[np.float64], Bins]:
            # Two arrays for all chunks of a span: making new ones costs more than the sums.
            parts = list(samples.parts(_CHUNK, within=span))
            work = np.empty((2, parts[0].stop - parts[0].start, samples.classes), self.dtype)
            sums, confidence = np.zeros(5), np.empty(span.stop - span.start)
            for part in parts:
                terms, total = self._terms(part, s, order, work[:, : part.stop - part.start])
                sums += terms.sum(axis=1) if samples.weight is None else terms @ samples.weight[part]
                confidence[part.start - span.start : part.stop - span.start] = 1 / total
            return sums, Bins.tally(np.minimum(confidence, 1.0), self.right[span])

        found = over_cores(of, len(samples), values=samples.size)
        reference = sum((bins for _, bins in found), Bins.zeros())
        means = np.sum([sums for sums, _ in found], axis=0) / len(samples)
        nll, first, second, third, lost = (float(mean) for mean in means)
        return Slope(nll, first, second, third, lost, reference)

    def _terms(
        self, part: slice, s: float, order: int, work: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each sample's (NLL, its three derivatives, distance to the largest logit), and the divisors."""
        d, p = work
        ones = np.ones(d.shape[1], self.dtype)
        largest = self.largest[part, None]
        np.subtract(self.samples.read(part), largest, out=d, dtype=self.dtype, casting="same_kind")
        np.exp(np.multiply(d, self.dtype(s), out=p), out=p)
        # einsum: a sum along short rows is several times slower.
        total = np.einsum("nk,k->n", p, ones).astype(np.float64)
        d_y = d[np.arange(len(d)), self.samples.labels[part]].astype(np.float64)
        mean = variance = third = np.zeros(len(d))
        if order:
            p *= d
            mean = np.einsum("nk,k->n", p, ones) / total
            p *= d
            square = np.einsum("nk,k->n", p, ones) / total
            variance = np.maximum(square - mean**2, 0)
            third = np.einsum("nk,nk->n", p, d) / total - mean * (3 * square - 2 * mean**2)
        return np.stack([np.log(total) - s * d_y, mean - d_y, variance, third, -d_y]), total


def _root(f: Callable[[float], Slope], start: float, *, tolerance: float) -> tuple[float, Slope, int]:
    """The root of f(s).first over s > 0, by steps of log s kept inside a bracket that shrinks."""
    low, high, t = -math.inf, math.inf, math.log(start)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        s = math.exp(t)
        at = f(s)
        if abs(at.first * s) <= tolerance * max(1.0, at.nll):
            return s, at, iteration
        low, high = (t, high) if at.first < 0 else (low, t)
        t_next = t + min(max(_step(at, s), -2.0), 2.0)
        if not low < t_next < high:
            t_next = (low + high) / 2
        if t_next in (low, high):  # the bracket is down to neighbouring floats
            return s, at, iteration
        t = t_next
    raise FitError(
        f"the temperature did not converge in {_MAX_ITERATIONS} steps: T = {1 / s:g}, gradient "
        f"{at.first * s:g}; look for a few samples with extreme logits"
    )


def _step(at: Slope, s: float) -> float:
    """The step of log s: Halley's, or Newton's where Halley's is unreliable."""
    if at.second <= 0:
        return math.copysign(math.inf, -at.first)
    newton = -at.first / (at.second * s)
    bend = newton * (1 + s * at.third / at.second) / 2
    return newton / (1 + bend) if abs(bend) < 0.5 else newton


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

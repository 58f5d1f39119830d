"""Temperature scaling: one number T > 0 that divides every logit.

The negative log-likelihood is convex in s = 1 / T (Guo 2017, section 4.2), so its derivative has one root;
we find it by Halley's method on T squared, inside a bracket, with sums in float64, and the artifact holds
the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.samples import Samples

# Logits above which passes are in float32; sums over samples stay in float64. By size alone, so that
# the same numbers in another float type give the same answer.
_SINGLE = 1 << 22
CHUNK = 1 << 16  # logits of one chunk: with its copies it stays in a core's cache


@dataclass(frozen=True)
class Slope:
    """The mean NLL at s = 1 / T, and its first three derivatives with respect to s.

    ``lost`` is how far the true class's logit lies below the largest, on average.
    """

    s: float
    nll: float
    first: float
    second: float
    third: float
    lost: float


class Optimum(NamedTuple):
    """The temperature of least NLL, and what certifies it."""

    temperature: float
    gradient_norm: float
    iterations: int
    nll_before: float
    nll_after: float


def fit_temperature(samples: Samples) -> Artifact:
    """Fit the temperature that minimises the NLL of the calibration set.

    ``artifact.fit`` holds T, the gradient with respect to log T where the search ended, the iterations, and
    the NLL before and after. Raises FitError where no finite T is best: every sample right, or labels that
    the logits say nothing about. Guo 2017, section 4.2.

    >>> artifact = fit_temperature(Samples.of([[0.0, 2.0]] * 4, [1, 1, 1, 0]))
    >>> round(artifact.fit["temperature"] * math.log(3), 6)  # sigmoid(2 / T) = 3 / 4
    2.0
    """
    rows = TopLogits.of(samples)
    found = _optimum(rows)
    return complete(
        [LogitMap.temperature(found.temperature)],
        samples,
        method="temperature",
        fit={"objective": "nll", "solver": "halley on T squared", **found._asdict()},
        reference=None if samples.part else (rows.reference(), rows.predicted),
    )


def temperature(samples: Samples) -> Optimum:
    """The T of least NLL; FitError as of ``fit_temperature``."""
    return _optimum(TopLogits.of(samples))


def _optimum(rows: TopLogits) -> Optimum:
    samples = rows.samples
    before = start = rows.slope(1.0)
    stride = samples.size // (1 << 21)
    if stride > 1:  # a search in a part of the samples saves passes over all
        part = samples.take(slice(None, None, stride))
        few = TopLogits.of(part)
        guess, _ = _search(few.slope, few.slope(1.0), tolerance=1e-4)
        start = before if _why_none(part, guess) else rows.slope(guess.s)
    # Of |d NLL / d log T|, next to an NLL of order 1.
    tolerance = MEASURED.slope_in_float32 if rows.dtype is np.float32 else 1e-10
    end, steps = _search(rows.slope, start, tolerance=tolerance)
    if reason := _why_none(samples, end):
        raise FitError(f"no finite temperature is best: {reason}")
    return Optimum(1 / end.s, abs(end.first * end.s), steps, before.nll, end.nll)


@dataclass(frozen=True, eq=False)
class TopLogits:
    """Samples with the values that every pass needs: each row's largest logit, and whether it is the label's.

    ``predicted`` (K,): how often each class has the largest logit. ``confidence`` (n,): the probability of
    each row's predicted class, as the last call of ``slope`` found it.
    """

    samples: Samples
    largest: NDArray[np.floating[Any]]
    right: NDArray[np.bool_]
    predicted: NDArray[np.intp]
    confidence: NDArray[np.floating[Any]]
    dtype: type[np.floating[Any]]

    @classmethod
    def of(cls, samples: Samples) -> TopLogits:
        """Make the rows of some samples, with their predictions."""
        dtype = np.float32 if samples.size > _SINGLE else np.float64
        largest: NDArray[np.floating[Any]] = np.empty(len(samples), dtype)
        right = np.empty(len(samples), bool)

        def find(span: slice) -> NDArray[np.intp]:
            counts = np.zeros(samples.classes, np.intp)
            for part in samples.parts(CHUNK, within=span):
                z = samples.read(part)
                predicted = z.argmax(axis=1)
                largest[part] = z[np.arange(len(z)), predicted]
                right[part] = predicted == samples.labels[part]
                counts += np.bincount(predicted, minlength=samples.classes)
            return counts

        counts = samples.over_cores(find)
        return cls(samples, largest, right, sum(counts[1:], counts[0]), np.empty_like(largest), dtype)

    def slope(self, s: float) -> Slope:
        """Compute NLL(s) = mean of logsumexp(s z) - s z_y; cumulants of z under p are its derivatives."""
        samples = self.samples

        def of(span: slice) -> NDArray[np.float64]:
            # Two arrays for all chunks of a span: making new ones costs more than the sums.
            parts = list(samples.parts(CHUNK, within=span))
            work = np.empty((2, parts[0].stop - parts[0].start, samples.classes), self.dtype)
            sums = np.zeros(5)
            for part in parts:
                terms, total = self._terms(part, s, work[:, : part.stop - part.start])
                sums += samples.weighted_sum(terms, part)
                self.confidence[part] = np.minimum(1 / total, 1)
            return sums

        means = np.sum(samples.over_cores(of), axis=0) / len(samples)
        nll, first, second, third, lost = (float(mean) for mean in means)
        return Slope(s, nll, first, second, third, lost)

    def reference(self) -> Bins:
        """Bin the confidences of the last call of ``slope``."""

        def of(span: slice) -> Bins:
            return Bins.tally(self.confidence[span], self.right[span])

        return sum(self.samples.over_cores(of), Bins.zeros())

    def _terms(
        self, part: slice, s: float, work: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each sample's NLL, its three derivatives, distance to the largest logit; and divisors."""
        d, p = work
        largest = self.largest[part, None]
        np.subtract(self.samples.read(part), largest, out=d, dtype=self.dtype, casting="same_kind")
        np.exp(np.multiply(d, self.dtype(s), out=p), out=p)
        # einsum: a sum along short rows is several times slower.
        total = np.einsum("nk->n", p).astype(np.float64)
        p *= d
        mean = np.einsum("nk->n", p) / total
        p *= d
        square = np.einsum("nk->n", p) / total
        cube = np.einsum("nk,nk->n", p, d) / total
        d_y = d[np.arange(len(d)), self.samples.labels[part]].astype(np.float64)
        variance = np.maximum(square - mean**2, 0)
        third = cube - mean * (3 * square - 2 * mean**2)
        return np.stack([np.log(total) - s * d_y, mean - d_y, variance, third, -d_y]), total


def _search(f: Callable[[float], Slope], at: Slope, *, tolerance: float) -> tuple[Slope, int]:
    """Find the root of f(s).first over s > 0; return f there and the number of steps.

    Steps are of log s, kept inside a bracket that shrinks.
    """
    low, high, t, most = -math.inf, math.inf, math.log(at.s), 100
    for steps in range(most):
        if abs(at.first * at.s) <= tolerance * max(1.0, at.nll):
            return at, steps
        low, high = (t, high) if at.first < 0 else (low, t)
        t_next = t + min(max(_step(at), -2.0), 2.0)
        if not low < t_next < high:
            t_next = (low + high) / 2
        if t_next in (low, high):  # the bracket is down to neighbouring floats
            return at, steps
        t = t_next
        at = f(math.exp(t))
    raise FitError(
        f"the temperature did not converge in {most} steps: T = {1 / at.s:g}, gradient "
        f"{at.first * at.s:g}; look for a few samples with extreme logits"
    )


def _step(at: Slope) -> float:
    """The step of log s to the root by Halley's method on T squared, or Newton's where that fails.

    The slope is nearly linear in T squared: what it counts are samples whose best two logits are less than
    some T apart, times how far.
    """
    if at.second <= 0:
        return math.copysign(math.inf, -at.first)
    newton = 2 * at.first / (at.second * at.s)  # relative, of T squared
    bend = -newton * (3 + at.s * at.third / at.second) / 4
    grown = 1 + (newton / (1 + bend) if abs(bend) < 0.5 else newton)
    return -math.log(grown) / 2 if grown > 0 else math.inf


def _why_none(samples: Samples, end: Slope) -> str | None:
    """Say why the NLL has no minimum at a finite T > 0: its slope never crosses zero."""
    # A smaller spread of logits, over T, counts as T = infinity.
    if end.lost > 0 and end.s * math.sqrt(end.second) > 1e-5:
        return None
    if true_above(samples) <= 1e-12:
        return (
            "the logits of the true classes are no higher than those of the others, so that T would be "
            "infinite; "
            + (
                "each class's logits are higher where it is true, and want an offset, as structured-vector "
                "and, of two classes, platt fit it"
                if true_above(samples, samples.mean()) > 1e-12
                else "check that the labels belong to these logits and classes are in one order"
            )
        )
    if end.lost == 0:
        return (
            "every sample is classified right, so that T would be 0 and all confidences 1; calibrate on "
            "more samples, none that the model was trained on, or use auto"
        )
    return None


def true_above(samples: Samples, level: NDArray[np.float64] | None = None) -> float:
    """The mean of the true class's logit less that of all classes, or less ``level`` (K,) of its class."""
    total = 0.0
    for part, z in samples.chunks(np.float64):
        above = z - (z.mean(axis=1, keepdims=True) if level is None else level)
        total += float(samples.weighted_sum(above[np.arange(len(z)), samples.labels[part]], part))
    return total / len(samples)

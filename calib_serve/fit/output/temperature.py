"""Temperature scaling, alone and beside a uniform share: one number T > 0 that divides every logit.

The negative log-likelihood is convex in s = 1 / T (Guo 2017, section 4.2), so its derivative has one root;
we find it by Halley's method on T squared, inside a bracket, with sums in float64, and the artifact holds
the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize

from calib_serve.artifact import Artifact, LogitMap, Mixture
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import Samples
from calib_serve.scores import softmax

_TOLERANCE = 1e-10  # of |d NLL / d log T|, next to an NLL of order 1
_TOLERANCE_SINGLE = 1e-6  # where passes are in float32: the NLL is then within 1e-12 of its least
_MAX_STEPS = 100
# Logits above which passes are in float32; sums over samples stay in float64. By size alone, so that
# the same numbers in another float type give the same answer.
_SINGLE = 1 << 22
_SOME = 1 << 21  # logits that a search begins with
_CHUNK = 1 << 16  # logits of one chunk: with its copies it stays in a core's cache
_FLAT = 1e-5  # a logit spread, over T, that counts as T = infinity


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
        [LogitMap.temperature(found["temperature"])],
        samples,
        method="temperature",
        fit={
            "objective": "nll",
            "solver": "halley on T squared",
            **found,
        },
        reference=(rows.reference(), rows.predicted),
    )


def temperature(samples: Samples) -> dict[str, Any]:
    """T of least NLL with its certificate, as ``fit_temperature`` stores it."""
    return _optimum(TopLogits.of(samples))


def _optimum(rows: TopLogits) -> dict[str, Any]:
    samples = rows.samples
    before = start = rows.slope(1.0)
    stride = samples.size // _SOME
    if stride > 1:  # a search in a part of the samples saves passes over all
        part = samples.take(slice(None, None, stride))
        few = TopLogits.of(part)
        guess, _ = _search(few.slope, few.slope(1.0), tolerance=1e-4)
        start = before if _why_none(part, guess) else rows.slope(guess.s)
    tolerance = _TOLERANCE_SINGLE if rows.dtype is np.float32 else _TOLERANCE
    end, steps = _search(rows.slope, start, tolerance=tolerance)
    if reason := _why_none(samples, end):
        raise FitError(f"no finite temperature is best: {reason}")
    return {
        "temperature": 1 / end.s,
        "gradient_norm": abs(end.first * end.s),
        "iterations": steps,
        "nll_before": before.nll,
        "nll_after": end.nll,
    }


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
            for part in samples.parts(_CHUNK, within=span):
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
            parts = list(samples.parts(_CHUNK, within=span))
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
    low, high, t = -math.inf, math.inf, math.log(at.s)
    for steps in range(_MAX_STEPS):
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
        f"the temperature did not converge in {_MAX_STEPS} steps: T = {1 / at.s:g}, gradient "
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
    if end.lost > 0 and end.s * math.sqrt(end.second) > _FLAT:
        return None
    gain = 0.0
    for part, z in samples.chunks(np.float64):
        y = samples.labels[part]
        above = z[np.arange(len(y)), y] - z.mean(axis=1)
        gain += float(samples.weighted_sum(above, part))
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


_GAP = 1e-6


def fit_ensemble_temperature(samples: Samples) -> Artifact:
    """Fit w1 softmax(z / T) + w2 softmax(z) + w3 / K: T by NLL, then the weights by NLL.

    The second problem is convex, and its certificate is an upper bound on how far the NLL is above its
    least. Raises FitError where no temperature is best. Zhang 2020, section 3.1.
    """
    begin = temperature(samples)
    scales = np.array([1 / begin["temperature"], 1.0])
    p_true = np.full((len(samples), 3), 1 / samples.classes)
    for part, z in samples.chunks(np.float64):
        for m, scale in enumerate(scales):
            p_true[part, m] = softmax(z * scale)[np.arange(len(z)), samples.labels[part]]
        weights, certificate = mixture_weights(p_true, samples.weights / len(samples))
    return complete(
        [Mixture(scales=scales, weights=weights)],
        samples,
        method="ensemble-temperature",
        fit={
            "objective": "nll, of T, then of the weights",
            "temperature": begin["temperature"],
            "weights": weights,
            **certificate,
            "nll_before": begin["nll_before"],
        },
    )


def mixture_weights(
    p_true: NDArray[np.float64], share: NDArray[np.float64]
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Weights (M,) of least NLL for the true class's probabilities (n, M), under each part.

    ``share`` (n,) sums to 1. With g_m = mean(p_m / mixture) no other weights can have an NLL lower
    by more than log max g: the gap.

    >>> mixture_weights(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0.5, 0.5]))[0].round(3).tolist()
    [1.0, 0.0]
    """
    parts = p_true.shape[1]

    def nll(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mixed = np.maximum(p_true @ weights, 1e-300)
        return -float(share @ np.log(mixed)), -(share / mixed) @ p_true

    found = minimize(
        nll,
        np.full(parts, 1 / parts),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * parts,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    weights = np.maximum(found.x, 0) / np.maximum(found.x, 0).sum()
    value, gradient = nll(weights)
    gap = math.log(max(float(-gradient.min()), 1.0))
    if gap > _GAP:
        raise FitError(f"the mixture's weights did not converge: NLL within {gap:.3g} of its least")
    return weights, {"gap": gap, "iterations": int(found.nit), "nll_after": value}


def fit_temperature_mixture(samples: Samples) -> Artifact:
    """Fit (1 - e) softmax(z / T) + e / K: T and e together by NLL, with e at least 1 / (n + 1).

    The uniform part is the rate of errors that logits do not predict; its floor, one sample's weight, keeps
    confidences below 1 even where every sample is right. The NLL is not convex, so the certificate is a
    gradient, projected on the bounds.
    """
    found, bounds = _fit_mixture(samples)
    log_s, e = (float(v) for v in found.x)
    projected = np.clip(found.x - found.jac, *np.transpose(bounds)) - found.x
    return complete(
        [Mixture(scales=np.array([math.exp(log_s)]), weights=np.array([1 - e, e]))],
        samples,
        method="temperature-mixture",
        fit={
            "objective": "nll",
            "temperature": math.exp(-log_s),
            "uniform": e,
            "gradient_norm": float(np.linalg.norm(projected)),
            "iterations": int(found.nit),
            "nll_after": float(found.fun),
        },
        packages=("scipy",),
    )


def mixture(samples: Samples, near: tuple[float, float]) -> tuple[float, float]:
    """T and e of the least NLL near a guess of both: a few passes."""
    found, _ = _fit_mixture(samples, near)
    return math.exp(-float(found.x[0])), float(found.x[1])


def _fit_mixture(
    samples: Samples, near: tuple[float, float] | None = None
) -> tuple[Any, list[tuple[float, float]]]:
    """Minimise the NLL over (log 1 / T, e), from the guess or two starts; return the optimum and bounds."""
    wide = max(spread(samples), 1e-12)
    # For logits of spread 1, values of T beyond this range make no visible difference.
    bounds = [(math.log(1e-3 / wide), math.log(1e4 / wide)), (1 / (len(samples) + 1), 0.999)]
    rough = near is not None
    if near is not None:
        starts = [(-math.log(near[0]), max(near[1], 2 * bounds[1][0]))]
    else:
        starts = [(-math.log(wide), 0.05)]
        try:
            starts.insert(0, (-math.log(temperature(samples)["temperature"]), bounds[1][0]))
        except FitError:
            starts.append((math.log(1e2 / wide), bounds[1][0]))
    found = min(
        (
            minimize(
                lambda x: _mixture_nll(samples, x[0], x[1]),
                np.clip(start, *np.transpose(bounds)),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"ftol": 1e-6 if rough else 1e-15, "gtol": 1e-4 if rough else 1e-9},
            )
            for start in starts
        ),
        key=lambda result: float(result.fun),
    )
    return found, bounds


def _mixture_nll(samples: Samples, log_s: float, e: float) -> tuple[float, NDArray[np.float64]]:
    """The NLL at 1 / T = exp(log_s) and uniform part e, and its gradient in both."""
    s, k = math.exp(log_s), samples.classes
    total = np.zeros(3)
    for part, z in samples.chunks(np.float64):
        y = samples.labels[part]
        rows = np.arange(len(y))
        d = z - z.max(axis=1, keepdims=True)
        p = np.exp(s * d)
        p /= p.sum(axis=1, keepdims=True)
        mixed = (1 - e) * p[rows, y] + e / k
        slope = s * p[rows, y] * (d[rows, y] - np.einsum("nk,nk->n", p, d))
        terms = np.stack([-np.log(mixed), -(1 - e) * slope / mixed, -(1 / k - p[rows, y]) / mixed])
        total += samples.weighted_sum(terms, part)
    total /= len(samples)
    return float(total[0]), total[1:]


def spread(samples: Samples) -> float:
    """The mean distance of a sample's largest logit from its mean one: the scale of T."""
    return sum(float((z.max(axis=1) - z.mean(axis=1)).sum()) for _, z in samples.chunks(np.float64)) / len(
        samples
    )


Floats = NDArray[np.float64]

# With 50 samples of three easy classes a whole sample's weight raises the NLL by a tenth; without any, a
# forest's certain errors double it.
_LEAST = 0.25
_MORE = 3.0  # samples' weight, below which a larger share is not tried
_CLEAR = 2.0  # nats over all samples, by which it must be likelier


@dataclass(frozen=True)
class Base:
    """(1 - ``uniform``) softmax(z / ``t``) + ``uniform`` / K."""

    t: float
    uniform: float

    def log_p_true(self, samples: Samples) -> Floats:
        """The log-probability (n,) of each sample's class, without the uniform share."""
        scale = 1 / self.t

        def of(span: slice) -> Floats:
            found = []
            for part in samples.parts(_CHUNK, within=span):
                z = samples.read(part, np.float64) * scale
                z -= z.max(axis=1, keepdims=True)
                true = z[np.arange(len(z)), samples.labels[part]]
                found.append(true - np.log(np.einsum("nk->n", np.exp(z, out=z))))
            return np.concatenate(found)

        return np.concatenate(samples.over_cores(of))

    def mixed(self, log_p: Floats, classes: int) -> Floats:
        """Log-probabilities with the uniform share."""
        return np.asarray(np.log((1 - self.uniform) * np.exp(log_p) + self.uniform / classes))

    def losses(self, samples: Samples) -> Floats:
        """The NLL (n,) of each sample, weighted."""
        found = -self.mixed(self.log_p_true(samples), samples.classes)
        return found * samples.weights

    def trust(self, samples: Samples) -> Floats:
        """The posterior (n,) that a sample is not of the uniform share of the mixture."""
        p = (1 - self.uniform) * np.exp(self.log_p_true(samples))
        return p / (p + self.uniform / samples.classes)


def base(samples: Samples) -> Base:
    """Fit a temperature and a small uniform share; the mixture's where its likelihood is clearly higher.

    Raises FitError where the logits say nothing about the labels.
    """
    try:
        t = temperature(samples)["temperature"]
    except FitError:
        t = _smoothed(samples)
    n = len(samples)
    plain = Base(t, _LEAST / (n + 1))
    if samples.classes == 2:  # beta calibration bends both ends of the curve itself
        return plain
    mixed = Base(*mixture(samples, (t, 1 / (n + 1))))
    if mixed.uniform < _MORE / (n + 1):
        return plain
    return mixed if (plain.losses(samples) - mixed.losses(samples)).sum() > _CLEAR else plain


def _smoothed(samples: Samples) -> float:
    """T of least NLL of smoothed labels: one sample's weight is spread over all classes."""
    smooth, wide = 1 / (len(samples) + 1), max(spread(samples), 1e-12)
    low, high = math.log(1e-6 / wide), math.log(1e6 / wide)
    if _slope(samples, math.exp(low), smooth) >= 0:
        raise FitError(
            "the logits of the true classes are no higher than those of the others: they say nothing about "
            "these labels; check that the labels belong to these logits and classes are in one order"
        )
    return math.exp(-brentq(lambda log_s: _slope(samples, math.exp(log_s), smooth), low, high))


def _slope(samples: Samples, s: float, smooth: float) -> float:
    """The derivative in s = 1 / T of the NLL of smoothed labels."""
    total = 0.0
    for part, z in samples.chunks(np.float64):
        d = z - z.max(axis=1, keepdims=True)
        p = np.exp(s * d)
        p /= p.sum(axis=1, keepdims=True)
        true = d[np.arange(len(d)), samples.labels[part]]
        terms = np.einsum("nk,nk->n", p, d) - (1 - smooth) * true - smooth * d.mean(axis=1)
        total += float(samples.weighted_sum(terms, part))
    return total

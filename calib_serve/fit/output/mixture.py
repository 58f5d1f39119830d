"""Mixtures with a temperature: ensemble temperature scaling, and a temperature with a uniform part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from calib_serve.artifact import Artifact, Mixture
from calib_serve.errors import FitError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import ClassWeight, Samples

__all__ = ["fit_ensemble_temperature", "fit_temperature_mixture", "mixture", "spread"]

_GAP = 1e-6


def fit_ensemble_temperature(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """w1 softmax(z / T) + w2 softmax(z) + w3 / K: T by NLL, then the weights by NLL.

    ``logits`` (n, K), ``labels`` (n,). The second problem is convex, and its certificate is an upper
    bound on how far the NLL is above its least. Raises InputError for invalid arrays, FitError where no
    temperature is best. Zhang 2020, section 3.1.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    begin = temperature(samples)
    scales = np.array([1 / begin["temperature"], 1.0])
    p_true = np.full((len(samples), 3), 1 / samples.classes)
    for part, z in samples.chunks(np.float64):
        for m, scale in enumerate(scales):
            p_true[part, m] = np.exp(_log_p_true(z * scale, samples.labels[part]))
    share = np.full(len(samples), 1.0) if samples.weight is None else samples.weight
    weights, certificate = mixture_weights(p_true, share / len(samples))
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


def fit_temperature_mixture(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """(1 - e) softmax(z / T) + e / K: T and e together by NLL, with e at least 1 / (n + 1).

    ``logits`` (n, K), ``labels`` (n,). The uniform part is the rate of errors that logits do not predict; its
    floor, one sample's weight, keeps confidences below 1 even where every sample is right. The NLL is not
    convex, so the certificate is a gradient, projected on the bounds. Raises InputError for invalid arrays.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
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
    """T and e of the least NLL beside a guess of both: a few passes."""
    found, _ = _fit_mixture(samples, near)
    return math.exp(-float(found.x[0])), float(found.x[1])


def _fit_mixture(
    samples: Samples, near: tuple[float, float] | None = None
) -> tuple[Any, list[tuple[float, float]]]:
    """What scipy finds for (log 1 / T, e), and their bounds; from the best of two starts without a guess."""
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
        total += terms.sum(axis=1) if samples.weight is None else terms @ samples.weight[part]
    total /= len(samples)
    return float(total[0]), total[1:]


def _log_p_true(z: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.float64]:
    d = z - z.max(axis=1, keepdims=True)
    return np.asarray(d[np.arange(len(labels)), labels] - np.log(np.exp(d).sum(axis=1)))


def spread(samples: Samples) -> float:
    """The mean distance of a sample's largest logit from its mean one: the scale of T."""
    return sum(float((z.max(axis=1) - z.mean(axis=1)).sum()) for _, z in samples.chunks(np.float64)) / len(
        samples
    )

"""What structured scaling starts from: a temperature, and a small share of uniform probabilities.

The uniform share is the rate of errors that logits do not predict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.temperature import CHUNK, temperature
from calib_serve.fit.samples import Samples


def _mixture(samples: Samples, t: float) -> Base:
    """The mixture of about the least NLL over (log 1 / T, e), from a temperature; the NLL is not convex."""
    wide, least = max(spread(samples), 1e-12), 1 / (len(samples) + 1)
    # For logits of spread 1, values of T beyond this range make no visible difference.
    bounds = [(math.log(1e-3 / wide), math.log(1e4 / wide)), (least, 0.999)]
    found = minimize(
        lambda x: _mixture_nll(samples, x[0], x[1]),
        np.clip((-math.log(t), 2 * least), *np.transpose(bounds)),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"ftol": 1e-6, "gtol": 1e-4},
    )
    return Base(math.exp(-float(found.x[0])), float(found.x[1]))


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


@dataclass(frozen=True)
class Base:
    """(1 - ``uniform``) softmax(z / ``temperature``) + ``uniform`` / K."""

    temperature: float
    uniform: float

    def log_p_true(self, samples: Samples) -> Floats:
        """The log-probability (n,) of each sample's class, without the uniform share."""
        scale = 1 / self.temperature

        def of(span: slice) -> Floats:
            found = []
            for part in samples.parts(CHUNK, within=span):
                z = np.asfortranarray(samples.read(part, np.float64)) * scale
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
        t = temperature(samples).temperature
    except FitError:
        t = _smoothed(samples)
    n = len(samples)
    plain = Base(t, MEASURED.uniform_share_of_a_base / (n + 1))
    if samples.classes == 2:  # beta calibration bends both ends of the curve itself
        return plain
    mixed = _mixture(samples, t)
    # Below three samples' weight a larger share is not tried.
    if mixed.uniform < 3.0 / (n + 1):
        return plain
    # By 2 nats over all samples it is clearly likelier.
    return mixed if (plain.losses(samples) - mixed.losses(samples)).sum() > 2 else plain


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

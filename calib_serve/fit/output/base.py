"""A temperature and a uniform share for every calibration set: what structured scaling starts from.

Where a temperature has no finite optimum, every sample being right, the labels are smoothed by one sample's
weight, as Platt's targets are (Platt 1999). The uniform share, which keeps probabilities above 0, is a
quarter of a sample's weight, or what ``temperature-mixture`` finds where that is clearly likelier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError
from calib_serve.fit.output.mixture import mixture, spread
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import Samples, over_cores

__all__ = ["Base", "base"]

Floats = NDArray[np.float64]

_BISECTIONS = 60
# With 50 samples of three easy classes a whole sample's weight raises the NLL by a tenth; without any, a
# forest's certain errors double it.
_LEAST = 0.25
_MORE = 3.0  # samples' weight, below which a larger share is not tried
_CLEAR = 2.0  # nats over all samples, by which it must be likelier
_CHUNK = 1 << 16


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

        return np.concatenate(over_cores(of, len(samples), values=samples.size))

    def mixed(self, log_p: Floats, classes: int) -> Floats:
        """Log-probabilities with the uniform share."""
        return np.asarray(np.log((1 - self.uniform) * np.exp(log_p) + self.uniform / classes))

    def losses(self, samples: Samples) -> Floats:
        """The NLL (n,) of each sample, weighted."""
        found = -self.mixed(self.log_p_true(samples), samples.classes)
        return found if samples.weight is None else found * samples.weight

    def trust(self, samples: Samples) -> Floats:
        """How likely each sample (n,) is not one of the uniform share: the mixture's posterior."""
        p = (1 - self.uniform) * np.exp(self.log_p_true(samples))
        return p / (p + self.uniform / samples.classes)


def base(samples: Samples) -> Base:
    """A temperature and a small uniform share; the mixture's where its likelihood is clearly higher.

    Raises FitError where the logits say nothing about the labels.
    """
    try:
        t = temperature(samples)["temperature"]
    except FitError:
        t = _smoothed(samples)
    n = len(samples)
    plain = Base(t, _LEAST / (n + 1))
    if samples.classes == 2:  # whose maps bend both ends of the curve themselves
        return plain
    mixed = Base(*mixture(samples, (t, 1 / (n + 1))))
    if mixed.uniform < _MORE / (n + 1):
        return plain
    return mixed if (plain.losses(samples) - mixed.losses(samples)).sum() > _CLEAR else plain


def _smoothed(samples: Samples) -> float:
    """T by the NLL of labels of which one sample's weight is spread over all classes."""
    smooth, wide = 1 / (len(samples) + 1), max(spread(samples), 1e-12)
    low, high = math.log(1e-6 / wide), math.log(1e6 / wide)
    if _slope(samples, math.exp(low), smooth) >= 0:
        raise FitError(
            "the logits of the true classes are no higher than those of the others: they say nothing about "
            "these labels; check that the labels belong to these logits and classes are in one order"
        )
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = _slope(samples, math.exp(middle), smooth) < 0
        low, high = (middle, high) if below else (low, middle)
    return math.exp(-low)


def _slope(samples: Samples, s: float, smooth: float) -> float:
    """The derivative in s = 1 / T of the NLL of smoothed labels."""
    total = 0.0
    for part, z in samples.chunks(np.float64):
        d = z - z.max(axis=1, keepdims=True)
        p = np.exp(s * d)
        p /= p.sum(axis=1, keepdims=True)
        true = d[np.arange(len(d)), samples.labels[part]]
        terms = np.einsum("nk,nk->n", p, d) - (1 - smooth) * true - smooth * d.mean(axis=1)
        total += float(terms.sum() if samples.weight is None else terms @ samples.weight[part])
    return total

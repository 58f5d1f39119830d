"""A temperature and a uniform share for every calibration set: what structured scaling starts from.

Where a temperature has no finite optimum, every sample being right, the labels are smoothed by one sample's
weight, as Platt's targets are (Platt 1999). The uniform share, which keeps probabilities above 0, is one
sample's weight, or what ``temperature-mixture`` finds where held-out samples say that this is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError
from calib_serve.fit.output.mixture import mixture, spread
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import Samples
from calib_serve.fit.solve.parallel import over_cores

__all__ = ["Base", "base", "bases", "losses"]

Floats = NDArray[np.float64]

_BISECTIONS = 60
_RATE = 3.0  # uniform shares below so many samples' weight are not worth cross-validation
_SHARED = 2000
_SURE = 1.0  # standard errors by which a larger uniform share must be better
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

    def trust(self, samples: Samples) -> Floats:
        """How likely each sample (n,) is not one of the uniform share: the mixture's posterior."""
        p = (1 - self.uniform) * np.exp(self.log_p_true(samples))
        return p / (p + self.uniform / samples.classes)


def base(samples: Samples) -> Base:
    """The temperature, and a uniform share of one sample's weight.

    Raises FitError where the logits say nothing about the labels.
    """
    try:
        t = temperature(samples)["temperature"]
    except FitError:
        t = _smoothed(samples)
    return Base(t, 1 / (len(samples) + 1))


def bases(samples: Samples, fold: NDArray[np.intp], *, most: int) -> list[list[Base]]:
    """For each fold the base of all other samples, in one or two ways: ``most`` says how many may stay.

    The uniform share is one sample's weight; then, where it is well above that, the mixture's. Of both the
    one stays alone that is better on held-out samples, the mixture by ``_SURE`` standard errors.
    """
    whole = base(samples)
    trains = [samples.take(fold != f) for f in range(int(fold.max()) + 1)]
    # One or two parameters of many samples: what a held-out part adds to them does not show.
    shared = len(samples) >= _SHARED
    plain = [whole] * len(trains) if shared else [_or(whole, train) for train in trains]
    mixed = _mixture(samples, whole)
    if mixed.uniform < _RATE * whole.uniform:
        return [plain]
    other = [mixed] * len(trains) if shared else [_mixture(train, mixed) for train in trains]
    if most > 1:
        return [plain, other]
    gain = losses(samples, fold, plain) - losses(samples, fold, other)
    return [other if gain.mean() > _SURE * gain.std() / math.sqrt(len(gain)) else plain]


def losses(samples: Samples, fold: NDArray[np.intp], parts: Sequence[Base]) -> Floats:
    """The held-out NLL (n,) of each fold's base, weighted."""
    out = np.empty(len(samples))
    for f, b in enumerate(parts):
        test = samples.take(fold == f)
        out[fold == f] = -b.mixed(b.log_p_true(test), samples.classes)
    return out if samples.weight is None else out * samples.weight


def _or(whole: Base, train: Samples) -> Base:
    """A fold's base; the ``whole`` one where chance left the fold without an optimum."""
    try:
        return base(train)
    except FitError:
        return replace(whole, uniform=1 / (len(train) + 1))


def _mixture(samples: Samples, near: Base) -> Base:
    t, uniform = mixture(samples, (near.t, near.uniform))
    return Base(t, uniform)


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

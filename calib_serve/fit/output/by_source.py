"""One calibration for each source of samples, such as a hospital, shrunk to the common one (empirical Bayes).

Parameters of sources are draws from a normal distribution: without variance all have the map of one fit to
all samples; as it grows, each has its own. Estimates and errors are those of a quadratic at the shrunk
parameters (penalised quasi-likelihood, Breslow and Clayton 1993): a source without a finite optimum, as all
its samples are right, then says what it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from calib_serve.artifact import Artifact, SourceMaps
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.text import a_few
from calib_serve.fit.facts import complete, remarked
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.scores import sigmoid, softmax

BY_SOURCE: Mapping[str, tuple[str, ...]] = {
    "temperature": ("log_temperature",),
    "intercept": ("intercept",),
    "logistic": ("log_slope", "intercept"),
}
"""Methods whose maps can be fitted by source, with their parameters."""

FEWEST = 10
"""Samples, or groups of them, of which a source with fewer keeps the common map."""
_TURNS, _CLOSE = 500, 1e-6  # of a logarithm or a logit, far below any standard error


class Pooled(NamedTuple):
    """The distribution of parameters over sources: ``mean`` (d,), ``between`` (d,), the variances."""

    mean: Floats
    between: Floats


def between_sources(estimates: Floats, variances: Floats) -> float:
    """Return the variance between sources by Paule and Mandel's estimate, which is the empirical Bayes one.

    Squared distances to the weighted mean, over their variances, then sum to S - 1; it is 0 where they sum to
    less. Paule and Mandel 1982; Morris 1983.

    Args:
        estimates: Of one parameter, by source (S,).
        variances: Their sampling variances (S,), positive.

    >>> round(between_sources(np.array([-1.0, 1.0]), np.array([0.5, 0.5])), 9)
    1.5
    """

    def excess(between: float) -> float:
        weight = 1 / (variances + between)
        mean = float(weight @ estimates / weight.sum())
        return float(weight @ (estimates - mean) ** 2) - (len(estimates) - 1)

    if len(estimates) < 2 or excess(0.0) <= 0:
        return 0.0
    high = 2 * float(np.sum((estimates - estimates.mean()) ** 2))  # where they sum to less than 1
    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=1000))


def shrunk(estimates: Floats, covariances: Floats) -> tuple[Pooled, Floats, Floats]:
    """Shrink estimates of sources (S, d) with ``covariances`` (S, d, d) to their mean.

    Returns their distribution, the shrunk ones, and the weights (S, d, d) of the own ones.
    """
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    between = np.array([between_sources(*one) for one in zip(estimates.T, variances.T, strict=True)])
    precision = np.linalg.inv(covariances + np.diag(between))
    mean = np.linalg.solve(precision.sum(axis=0), np.einsum("sij,sj->i", precision, estimates))
    weights = np.diag(between) @ precision
    return Pooled(mean, between), mean + np.einsum("sij,sj->si", weights, estimates - mean), weights


def fit_by_source(method: str, samples: Samples, by: str) -> Artifact:
    """Fit a method's map for each source of samples, shrunk to the common one.

    ``artifact.fit`` holds the mean and standard deviation of each parameter ``between`` sources, and of each
    source ``n``, and of each parameter the ``own`` estimate, its ``standard_error``, its ``weight`` against
    the mean, and what it is ``shrunk`` to. Where samples of a group depend on one another, variances are
    multiplied by their design effect (Rao and Scott 1992). Raises InputError for methods without few
    parameters and a likelihood, FitError where no source has enough samples, and as the method itself does.
    """
    if method not in BY_SOURCE:
        can = ", ".join(BY_SOURCE)
        raise InputError(f"{method} cannot be fitted by {by}: choose {can}, which have few parameters")
    if samples.sources is None:
        raise InputError(f"these samples do not say their {by}")
    common = fit_by_name(method, samples)  # which refuses what it cannot be fitted to
    names, code = np.unique(samples.sources, return_inverse=True)
    level = samples.mean()
    # Around the mean score slope and intercept are nearly independent.
    centre = float(level[1] - level[0]) if method == "logistic" else 0.0
    parts = [_Part.of(method, samples, np.flatnonzero(code == s), centre) for s in range(len(names))]
    enough = [s for s, part in enumerate(parts) if part.units >= FEWEST]
    if not enough:
        raise FitError(f"no value of {by} has {FEWEST} samples, or groups of them: fit one map for all")
    pooled, found = _fitted(parts, parts[0].start(common))
    weight, bias = _maps(method, np.stack([pooled.mean, *found.shrunk[enough]]), centre, samples.classes)
    few = {str(names[s]): len(parts[s].labels) for s in range(len(names)) if s not in enough}
    each = zip(BY_SOURCE[method], pooled.mean, np.sqrt(pooled.between), strict=True)
    artifact = complete(
        [SourceMaps(by, tuple(map(str, names[enough])), weight, bias)],
        samples,
        method=method,
        fit={
            "objective": "empirical Bayes by source",
            "by": by,
            "design_effect": found.design,
            "centre": centre,
            **{name: {"mean": mean, "between": between} for name, mean, between in each},
            "sources": {str(names[s]): found.facts(method, s, len(parts[s].labels)) for s in enough},
            "too_few": few,
        },
    )
    what = f"{len(few)} of {len(names)} values of {by} have fewer than {FEWEST} samples, or groups of them"
    return remarked(artifact, after=[f"{what}, and get the common map: {a_few(few)}"] if few else [])


class _Found(NamedTuple):
    """Own estimates (S, d), covariances and weights (S, d, d), what they shrink to, and the design effect."""

    own: Floats
    covariances: Floats
    weights: Floats
    shrunk: Floats
    design: float

    def facts(self, method: str, s: int, n: int) -> dict[str, Any]:
        error, weight = np.sqrt(np.diag(self.covariances[s])), np.diag(self.weights[s])
        keys = ("own", "standard_error", "weight", "shrunk")
        each = zip(BY_SOURCE[method], self.own[s], error, weight, self.shrunk[s], strict=True)
        return {"n": n, **{name: dict(zip(keys, of, strict=True)) for name, *of in each}}


def _fitted(parts: Sequence[_Part], start: Floats) -> tuple[Pooled, _Found]:
    """Shrink, and linearise where that leads, in turn until nothing moves."""
    theta = np.tile(start, (len(parts), 1))
    for turn in range(_TURNS):
        at = [part.quadratic(one) for part, one in zip(parts, theta, strict=True)]
        information = np.stack([one.information for one in at])
        # A source whose samples say nothing of a parameter has an infinite variance: as good as that.
        information += 1e-12 * np.trace(information.sum(axis=0)) * np.eye(len(start))
        spread = np.linalg.solve(information.sum(axis=0), np.sum([one.spread for one in at], axis=0))
        design = 1.0 if parts[0].groups is None else max(1.0, float(np.trace(spread)) / len(start))
        inverse = np.linalg.inv(information)
        own = theta + np.einsum("sij,sj->si", inverse, np.stack([one.gradient for one in at]))
        covariances = np.asarray(design * inverse, np.float64)
        pooled, new, weights = shrunk(own, covariances)
        if turn and np.abs(new - theta).max() <= _CLOSE:
            return pooled, _Found(own, covariances, weights, new, design)
        # Half way, and later less: two states may take turns, as the variance answers each move.
        # And never far: of one score and an outlier the quadratic may lead to a slope that overflows.
        theta = theta + np.clip(new - theta, -2, 2) / (2 + turn // 25)
    raise FitError(f"the fit by source did not converge in {_TURNS} turns; look for extreme scores")


class _Quadratic(NamedTuple):
    """A log-likelihood near some parameters; ``spread``: the outer products of its groups' gradients."""

    gradient: Floats
    information: Floats
    spread: Floats


@dataclass(frozen=True, eq=False)
class _Part:
    """The samples of one source: logits (n, K), or of two classes the margin (n,) less ``centre``."""

    method: str
    z: Floats
    labels: NDArray[np.intp]
    weight: Floats
    groups: NDArray[np.intp] | None
    centre: float

    @classmethod
    def of(cls, method: str, samples: Samples, index: NDArray[np.intp], centre: float) -> _Part:
        z = np.concatenate([z for _, z in replace(samples.take(index), weight=None).chunks(np.float64)])
        z = z if method == "temperature" else z[:, 1] - z[:, 0] - centre
        groups = None if samples.groups is None else samples.groups[index]
        return cls(method, z, samples.labels[index], samples.weights[index], groups, centre)

    @property
    def units(self) -> int:
        return len(self.labels) if self.groups is None else len(np.unique(self.groups))

    def start(self, common: Artifact) -> Floats:
        """The parameters of the map of all samples."""
        if self.method == "temperature":
            return np.array([np.log(common.fit["temperature"])])
        slope = common.fit.facts.get("slope", 1.0)
        intercept = common.fit["intercept"] + slope * self.centre
        return np.array([intercept] if self.method == "intercept" else [np.log(slope), intercept])

    def quadratic(self, theta: Floats) -> _Quadratic:
        """The gradient and information of the log-likelihood."""
        columns, residual, variance = self._each(theta)
        gradients = columns * (residual * self.weight)[:, None]
        information = (columns * (variance * self.weight)[:, None]).T @ columns
        # Towards flatter maps the Hessian of a logarithm is above Fisher's information, by the gradient:
        # beyond chance it counts, or one sample that is surely wrong would lead far away.
        flatter = {"temperature": 1.0, "logistic": -1.0, "intercept": 0.0}[self.method]
        excess = flatter * float(gradients[:, 0].sum()) - 2 * float(np.sqrt(information[0, 0]))
        information[0, 0] += max(0.0, excess)
        summed = gradients
        if self.groups is not None:
            summed = np.zeros((int(self.groups.max()) + 1, columns.shape[1]))
            np.add.at(summed, self.groups, gradients)
        return _Quadratic(gradients.sum(axis=0), information, summed.T @ summed)

    def _each(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Of each sample the derivatives (n, d) of its score, its residual and its variance."""
        if self.method == "temperature":
            z, rows = self.z * np.exp(-theta[0]), np.arange(len(self.z))
            p = softmax(z)
            mean = np.einsum("nk,nk->n", p, z)
            variance = np.einsum("nk,nk->n", p, (z - mean[:, None]) ** 2)
            # d log p_y / d log T = mean of z / T under p, less the true class's.
            return np.ones((len(z), 1)), mean - z[rows, self.labels], variance
        scaled = self.z * (np.exp(theta[0]) if self.method == "logistic" else 1.0)
        sign, ones = np.where(self.labels == 1, 1.0, -1.0), np.ones(len(scaled))
        wrong = sigmoid(-sign * (scaled + theta[-1]))
        columns = np.stack([scaled, ones], axis=1) if self.method == "logistic" else ones[:, None]
        return columns, sign * wrong, wrong * (1 - wrong)


def _maps(method: str, theta: Floats, centre: float, classes: int) -> tuple[Floats, Floats | None]:
    """Scales (S + 1,) and biases (S + 1, K) of parameters (S + 1, d)."""
    if method == "temperature":
        return np.exp(-theta[:, 0]), None
    slope = np.exp(theta[:, 0]) if method == "logistic" else np.ones(len(theta))
    bias = np.zeros((len(theta), classes))
    bias[:, 1] = theta[:, -1] - slope * centre
    return slope, bias

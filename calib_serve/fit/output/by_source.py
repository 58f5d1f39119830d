"""One calibration for each source of samples, such as a hospital, shrunk to the common one.

The parameters of the sources are taken as draws from one normal distribution (empirical Bayes). Its variance
is Paule and Mandel's, of each parameter; a source's own estimate is shrunk towards the mean by how little its
samples say next to that variance. With a variance of 0 all sources have the map that one fit to all samples
has; as it grows, each has its own.

Estimates and their errors are those of a quadratic at the shrunk parameters themselves, not at each source's
own optimum (penalised quasi-likelihood, Breslow and Clayton 1993): a source that has no finite optimum, as
all its samples are right, then says what it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from calib_serve.artifact import Artifact, SourceMaps
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.text import a_few
from calib_serve.fit.facts import complete
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.scores import log_softmax

Floats = NDArray[np.float64]

BY_SOURCE: Mapping[str, tuple[str, ...]] = {
    "temperature": ("log_temperature",),
    "intercept": ("intercept",),
    "logistic": ("log_slope", "intercept"),
}
"""Methods whose maps can be fitted by source, with their parameters."""

FEWEST = 10
"""Samples, or groups of them, of which a source with fewer keeps the common map."""
_MOST_TURNS, _TURNS_ALONE, _MOST_STEPS = 200, 20, 50
_CLOSE = 1e-6  # of a logarithm or a logit, far below any standard error


class Quadratic(NamedTuple):
    """A source's log-likelihood near its parameters: ``value``, ``gradient`` (d,), ``information`` (d, d).

    ``spread`` (d, d): the sum over groups of samples of the outer products of their gradients.
    """

    value: float
    gradient: Floats
    information: Floats
    spread: Floats


class Pooled(NamedTuple):
    """The distribution of parameters over sources: ``mean`` (d,), ``between`` (d,), the variances."""

    mean: Floats
    between: Floats


def between_sources(estimates: Floats, variances: Floats) -> float:
    """Return the variance between sources by Paule and Mandel's estimate, which is the empirical Bayes one.

    It is where the squared distances to the weighted mean, over their variances, sum to S - 1, or 0.

    Args:
        estimates: Of one parameter, by source (S,).
        variances: Their sampling variances (S,), positive.

    Source: Paule and Mandel 1982; Morris 1983.

    >>> between_sources(np.array([-1.0, 1.0]), np.array([0.5, 0.5]))
    1.5
    """

    def excess(between: float) -> float:
        weight = 1 / (variances + between)
        mean = float(weight @ estimates / weight.sum())
        return float(weight @ (estimates - mean) ** 2) - (len(estimates) - 1)

    if len(estimates) < 2 or excess(0.0) <= 0:
        return 0.0
    # At this variance each term is below 1, and so their sum below S - 1.
    high = 2 * float(np.sum((estimates - estimates.mean()) ** 2))
    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=1000))


def shrunk(estimates: Floats, covariances: Floats) -> tuple[Pooled, Floats, Floats]:
    """Shrink the estimates of sources to their mean.

    Args:
        estimates: Parameters by source (S, d).
        covariances: Of each (S, d, d).

    Returns the distribution, the shrunk parameters (S, d), and the weights (S, d, d) of the own estimates.
    """
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    between = np.array([between_sources(*one) for one in zip(estimates.T, variances.T, strict=True)])
    precision = np.linalg.inv(covariances + np.diag(between))
    mean = np.linalg.solve(precision.sum(axis=0), np.einsum("sij,sj->i", precision, estimates))
    weights = np.diag(between) @ precision
    return Pooled(mean, between), mean + np.einsum("sij,sj->si", weights, estimates - mean), weights


def fit_by_source(method: str, samples: Samples, by: str) -> Artifact:
    """Fit a method's map for each source of samples, shrunk to the common one.

    ``artifact.fit`` holds the mean and standard deviation of each parameter over sources, and of each source
    ``n``, and of each parameter the ``own`` estimate, its ``standard_error``, its ``weight`` against the
    mean, and what it was ``shrunk`` to. Samples of one group are dependent: the variances of all estimates
    are multiplied by their design effect (Rao and Scott 1992). Raises InputError for methods without few
    parameters and a likelihood, FitError where no source has enough samples, and as the method itself does.
    """
    if method not in BY_SOURCE:
        raise InputError(
            f"{method} cannot be fitted by {by}: choose {', '.join(BY_SOURCE)}, whose maps have a few "
            "parameters with standard errors"
        )
    if samples.sources is None:
        raise InputError(f"these samples do not say their {by}")
    common = fit_by_name(method, samples)  # which refuses what it cannot be fitted to
    names, code = np.unique(samples.sources, return_inverse=True)
    centre = _centre(samples) if method == "logistic" else 0.0
    parts = [_Part.of(method, samples, np.flatnonzero(code == s), centre) for s in range(len(names))]
    enough = [s for s, part in enumerate(parts) if part.units >= FEWEST]
    if not enough:
        raise FitError(f"no value of {by} has {FEWEST} samples, or groups of them: fit one map for all")
    pooled, found = _fitted(parts, parts[0].start(common))
    wanted = [pooled.mean, *(found.shrunk[s] for s in enough)]
    weight, bias = _Part.maps(method, np.array(wanted), centre, samples.classes)
    few = {str(names[s]): parts[s].n for s in range(len(names)) if s not in enough}
    told = f"{len(few)} of {len(names)} values of {by} have fewer than {FEWEST} samples, or groups of them, "
    artifact = complete(
        [SourceMaps(by, tuple(map(str, names[enough])), weight, bias)],
        samples,
        method=method,
        fit={
            "objective": "empirical Bayes by source",
            "by": by,
            "design_effect": found.design,
            "centre": centre,
            **_of_parameters(method, pooled),
            "sources": {str(names[s]): found.facts(method, s, parts[s].n) for s in enough},
            "too_few": few,
        },
    )
    if not few:
        return artifact
    remark = f"{told}and get the common map: {a_few(list(few))}"
    return replace(artifact, fit=replace(artifact.fit, remarks=(*artifact.fit.remarks, remark)))


def _of_parameters(method: str, pooled: Pooled) -> dict[str, Any]:
    each = zip(BY_SOURCE[method], pooled.mean, np.sqrt(pooled.between), strict=True)
    return {name: {"mean": mean, "between": between} for name, mean, between in each}


@dataclass(frozen=True, eq=False)
class _Found:
    """Of all sources: own estimates (S, d), covariances and weights (S, d, d), and shrunk parameters."""

    own: Floats
    covariances: Floats
    weights: Floats
    shrunk: Floats
    design: float

    def facts(self, method: str, s: int, n: int) -> dict[str, Any]:
        """The record of one source."""
        numbers = (self.own[s], np.sqrt(np.diag(self.covariances[s])), np.diag(self.weights[s]), self.shrunk[s])
        keys = ("own", "standard_error", "weight", "shrunk")
        each = zip(BY_SOURCE[method], *numbers, strict=True)
        return {"n": n, **{name: dict(zip(keys, of, strict=True)) for name, *of in each}}


def _fitted(parts: Sequence[_Part], start: Floats) -> tuple[Pooled, _Found]:
    """Shrink, and linearise where that leads, in turn until nothing moves."""
    theta = np.tile(start, (len(parts), 1))
    held = Pooled(start, np.zeros(len(start)))
    for turn in range(_MOST_TURNS):
        found = [part.quadratic(one) for part, one in zip(parts, theta, strict=True)]
        information = np.array([one.information for one in found])
        # A source whose samples say nothing of a parameter has an infinite variance: as good as that.
        information = information + 1e-12 * np.trace(information.sum(axis=0)) * np.eye(len(start))
        design = _design_effect(found, information) if parts[0].groups is not None else 1.0
        covariances = np.linalg.inv(information)
        own = theta + np.einsum("sij,sj->si", covariances, np.array([one.gradient for one in found]))
        pooled, new, weights = shrunk(own, design * covariances)
        if turn and np.abs(new - theta).max() <= _CLOSE:
            return pooled, _Found(own, design * covariances, weights, new, design)
        # Two states may take turns, as the variance answers each move: their mean ends that.
        share = 1.0 if turn < _TURNS_ALONE else 0.5
        held = Pooled(*(old + share * (to - old) for old, to in zip(held, pooled, strict=True)))
        theta = np.array([_likeliest(part, one, held, design) for part, one in zip(parts, theta, strict=True)])
    raise FitError(
        f"the calibration by source did not converge in {_MOST_TURNS} turns; look for sources with extreme "
        "scores, or fit one map for all"
    )


def _likeliest(part: _Part, theta: Floats, prior: Pooled, design: float) -> Floats:
    """The parameters (d,) of the largest posterior density, from ``theta``, by Fisher scoring with half steps."""
    size = np.sqrt(prior.between)  # theta = mean + size u: a parameter without variance stays at the mean

    def at(u: Floats) -> tuple[float, Floats, Floats]:
        found = part.quadratic(prior.mean + size * u)
        information = size[:, None] * found.information * size / design + np.eye(len(u))
        return found.value / design - float(u @ u) / 2, size * found.gradient / design - u, information

    u = np.where(size > 0, (theta - prior.mean) / np.where(size > 0, size, 1), 0.0)
    value, gradient, information = at(u)
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(information, gradient)
        if np.abs(step).max() <= _CLOSE / 100:
            break
        # Near the top rounding hides a gain, and the gradient shows it.
        for length in 0.5 ** np.arange(20):
            new = at(u + length * step)
            if new[0] > value + 1e-9 * abs(value) or np.abs(new[1]).max() < 0.9 * np.abs(gradient).max():
                break
        u, (value, gradient, information) = u + length * step, new
    return np.asarray(prior.mean + size * u)


def _design_effect(found: Sequence[Quadratic], information: Floats) -> float:
    """How much larger the variance of gradients is than that of as many independent samples, at least 1."""
    whole = information.sum(axis=0)
    spread = np.sum([one.spread for one in found], axis=0)
    return max(1.0, float(np.trace(np.linalg.solve(whole, spread))) / len(whole))


def _centre(samples: Samples) -> float:
    """The mean margin: around it slope and intercept are nearly independent."""
    level = samples.mean()
    return float(level[1] - level[0])


@dataclass(frozen=True, eq=False)
class _Part:
    """The samples of one source: ``z`` (n, K), or of two classes the margin (n,) less ``centre``."""

    method: str
    z: Floats
    labels: NDArray[np.intp]
    weight: Floats
    groups: NDArray[np.intp] | None
    centre: float
    n: int

    @classmethod
    def of(cls, method: str, samples: Samples, index: NDArray[np.intp], centre: float) -> _Part:
        z = np.concatenate([z for _, z in replace(samples.take(index), weight=None).chunks(np.float64)])
        if method != "temperature":
            z = z[:, 1] - z[:, 0] - centre
        groups = None if samples.groups is None else samples.groups[index]
        return cls(method, z, samples.labels[index], samples.weights[index], groups, centre, len(index))

    @property
    def units(self) -> int:
        return self.n if self.groups is None else len(np.unique(self.groups))

    def start(self, common: Artifact) -> Floats:
        """The parameters of the map that is fitted to all samples."""
        facts = common.fit.facts
        if self.method == "temperature":
            return np.array([np.log(facts["temperature"])])
        slope = facts.get("slope", 1.0)
        intercept = facts["intercept"] + slope * self.centre
        return np.array([intercept] if self.method == "intercept" else [np.log(slope), intercept])

    def quadratic(self, theta: Floats) -> Quadratic:
        """The log-likelihood with its gradient and information."""
        value, columns, residual, variance = self._each(theta)
        gradients = columns * (residual * self.weight)[:, None]
        information = (columns * (variance * self.weight)[:, None]).T @ columns
        # Towards flatter maps the likelihood of a logarithm bends more than Fisher's information says: by the
        # gradient, as the Hessian has it. Without that, one sample that is surely wrong would lead far away.
        flatter = {"temperature": 1.0, "logistic": -1.0, "intercept": 0.0}[self.method]
        information[0, 0] += max(0.0, flatter * float(gradients[:, 0].sum()))
        summed = gradients
        if self.groups is not None:
            summed = np.zeros((int(self.groups.max()) + 1, columns.shape[1]))
            np.add.at(summed, self.groups, gradients)
        return Quadratic(float(self.weight @ value), gradients.sum(axis=0), information, summed.T @ summed)

    def _each(self, theta: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Of each sample (n,) log-likelihood, the derivatives (n, d) of its score, its residual and variance."""
        if self.method == "temperature":
            z = self.z * np.exp(-theta[0])
            logs = log_softmax(z)
            mean = np.einsum("nk,nk->n", np.exp(logs), z)
            variance = np.einsum("nk,nk->n", np.exp(logs), (z - mean[:, None]) ** 2)
            rows = np.arange(len(z))
            # d log p_y / d log T = mean of z / T under p, less the true class's.
            return logs[rows, self.labels], np.ones((len(z), 1)), mean - z[rows, self.labels], variance
        scaled = self.z * (np.exp(theta[0]) if self.method == "logistic" else 1.0)
        sign = np.where(self.labels == 1, 1.0, -1.0)
        signed = sign * (scaled + theta[-1])
        wrong = np.exp(-np.logaddexp(0, signed))
        ones = np.ones(len(scaled))
        columns = np.stack([scaled, ones], axis=1) if self.method == "logistic" else ones[:, None]
        return -np.logaddexp(0, -signed), columns, sign * wrong, wrong * (1 - wrong)

    @staticmethod
    def maps(method: str, theta: Floats, centre: float, classes: int) -> tuple[Floats, Floats | None]:
        """Scales and biases of parameters (S + 1, d)."""
        if method == "temperature":
            return np.exp(-theta[:, 0]), None
        slope = np.exp(theta[:, 0]) if method == "logistic" else np.ones(len(theta))
        bias = np.zeros((len(theta), classes))
        bias[:, 1] = theta[:, -1] - slope * centre
        return slope, bias

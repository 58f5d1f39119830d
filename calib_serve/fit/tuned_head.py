"""The tuned head: the deployed last layer, moved a little by the calibration set, and a calibration behind.

    artifact = fit_tuned_head(model.features(images), labels, model.head)

Logits are z / T + D x: those of the deployed head at its temperature, and a change D (K, d + 1) of its
weights and biases. D has the least mean NLL plus ``strength`` |D|^2, in features of mean square 1: a convex
problem, the most likely D where a normal prior lies around the deployed head (Chelba and Acero 2006). The
strength is that of least NLL on samples that D was not fitted to, the change served is the mean of the
folds', and what follows is fitted to the same cross-fitted logits: all of the calibration set serves all
three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Head, ModelFacts
from calib_serve.core.arrays import AnyFloats, finite
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.folds import stratified
from calib_serve.fit.lbfgs import minimise
from calib_serve.fit.output.candidates import fit_by_name, options_of
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import PATIENCE
from calib_serve.models import Progress
from calib_serve.scores import softmax

Exact = NDArray[np.float64]

STRENGTHS: tuple[float, ...] = (np.inf, *(10 ** (-i / 2) for i in range(13)))
"""What is tried, strongest first: infinity, which leaves the head as it is, and 1 to 1e-6."""


def fit_tuned_head(
    features: AnyFloats,
    labels: ArrayLike,
    head: Head,
    *,
    strength: float | None = None,
    folds: int = 5,
    then: str = "temperature",
    model: ModelFacts | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Fit a change of the deployed head to the calibration set.

    Args:
        features: (n, d), of the last linear layer.
        labels: Class ids (n,).
        head: The deployed one.
        strength: Of the penalty on the change, above 0, infinity for no change; by default the best of
            ``STRENGTHS`` on the folds.
        folds: Number of folds.
        then: Output method behind it, fitted to the logits of each fold under a change that was fitted to the
            others; "none" for none.
        model: The classifier's ``facts()``.
        class_names: Names of the classes (K,).
        seed: Seed by which folds are drawn.
        progress: Called with how many steps are done, and of how many.

    Raises:
        InputError: For arrays and options that cannot be right.
        ShapeError: For arrays of other shapes.
        FitError: Where the logits say nothing about the labels.

    >>> x, y = np.array([[1.0], [-1.0]] * 40), np.array([1, 0, 1, 0, 1, 0, 0, 1] * 10)  # right 3 times of 4
    >>> deployed = Head((np.array([[0.0], [2.0]]),), (np.zeros(2),))
    >>> artifact = fit_tuned_head(x, y, deployed, strength=np.inf)
    >>> artifact.of_logits(artifact.head(np.array([[1.0]]))).round(2).tolist()
    [[0.25, 0.75]]
    """
    options_of(then)  # refuses a name that does not exist before anything is fitted
    if strength is not None and not strength > 0:
        raise InputError(f"strength must be above 0, infinity for no change, got {strength}")
    problem, t = _Problem.of(features, labels, head)
    fold = stratified(problem.labels, folds=folds, seed=seed)
    tried = _path(problem, fold, STRENGTHS if strength is None else (strength,), progress)
    # The mean of its folds' changes is served; each was judged on the fold that it was not fitted to.
    best = min(tried, key=lambda one: one.nll)
    logits = problem.offset + best.added
    behind = fit_by_name(then, logits, problem.labels, seed=seed)
    return complete(
        [problem.moved(head, t, best.change), *behind.steps],
        Samples.of(logits, problem.labels, outputs="logits"),
        method="tuned-head",
        fit={
            "objective": "nll + strength |D|^2, D the change of the head in features of mean square 1",
            "strength": finite(best.strength),  # None: left as it is
            "held_out_nll": {f"{one.strength:.3g}": one.nll for one in tried},
            "folds": folds,
            "temperature_before": t,
            "moved": float(np.linalg.norm(best.change)),
            "then": then,
            "behind": behind.fit.as_dict(),
            "seed": seed,
        },
        data={"features_sha256": data_fingerprint(np.asarray(features), problem.labels)},
        model=model,
        class_names=class_names,
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """``offset`` (n, K) + D x, against ``labels`` (n,); x (n, d + 1) are features along their own axes.

    ``axes`` (d + 1, d + 1) turn features of mean square 1, and a column of ones, into x: along them
    features are uncorrelated, so that the curvature is nearly diagonal. A turn changes no |D|.
    """

    offset: Exact
    x: Exact
    labels: NDArray[np.intp]
    axes: Exact
    unit: float

    @classmethod
    def of(cls, features: AnyFloats, labels: ArrayLike, head: Head) -> tuple[_Problem, float]:
        """Make the problem of the calibration set; return the deployed head's temperature on it, too."""
        if len(head.weights) != 1:
            raise InputError(f"the deployed head must be one linear layer, got {len(head.weights)}")
        if features.ndim != 2 or features.dtype.kind != "f":
            raise ShapeError(f"features must be floats (n, d), got {features.dtype} {features.shape}")
        if not np.isfinite(features).all():
            raise InputError("features hold NaN or infinity; fix or drop such inputs before fitting")
        z = head(features.astype(np.float64))
        samples = Samples.of(z, labels, outputs="logits")
        t = float(temperature(samples)["temperature"])
        unit = float(np.sqrt(np.mean(np.square(features, dtype=np.float64)))) or 1.0
        scaled = np.hstack([features / unit, np.ones((len(features), 1))])
        _, axes = np.linalg.eigh(scaled.T @ scaled / len(scaled))
        return cls(np.asarray(z / t, np.float64), scaled @ axes, samples.labels, axes, unit), t

    def take(self, rows: NDArray[np.bool_]) -> _Problem:
        """Take a part of the samples."""
        return _Problem(self.offset[rows], self.x[rows], self.labels[rows], self.axes, self.unit)

    def solve(self, strength: float, start: Exact) -> Exact:
        """D (K, d + 1) of least mean NLL plus ``strength`` |D|^2."""
        if np.isinf(strength):
            return np.zeros_like(start)
        n, shape = len(self.x), start.shape
        rows = np.arange(n)

        def objective(theta: Exact) -> tuple[float, Exact]:
            s = self.offset + self.x @ theta.reshape(shape).T
            s -= s.max(axis=1, keepdims=True)
            p = np.exp(s)
            total = p.sum(axis=1)
            value = float((np.log(total) - s[rows, self.labels]).mean() + strength * theta @ theta)
            p /= total[:, None]
            p[rows, self.labels] -= 1
            return value, ((p.T @ self.x) / n).ravel() + 2 * strength * theta

        # The Hessian's diagonal where the search begins: along these axes the rest of it is small.
        p = softmax(self.offset + self.x @ start.T)
        curved = np.outer((p * (1 - p)).mean(axis=0), np.square(self.x).mean(axis=0)).ravel() + 2 * strength
        found = minimise(objective, start.ravel(), lambda g: g / curved, gap=1e-7)
        return np.asarray(found.x.reshape(shape))

    def moved(self, head: Head, t: float, change: Exact) -> Head:
        """The deployed head at temperature ``t``, moved by ``change``, for features as they come."""
        step = change @ self.axes.T
        weight = head.weights[0].astype(np.float64) / t + step[:, :-1] / self.unit
        return Head((weight,), (head.biases[0].astype(np.float64) / t + step[:, -1],))


@dataclass(frozen=True, eq=False)
class _Tried:
    """One strength: the folds' changes to the logits (n, K) of samples that they were not fitted to.

    ``nll`` is that of these logits, ``change`` the folds' mean.
    """

    strength: float
    nll: float
    added: Exact
    change: Exact


def _path(
    problem: _Problem, fold: NDArray[np.intp], strengths: Sequence[float], progress: Progress | None
) -> list[_Tried]:
    """Try each strength on all folds, from where the one before ended, until weaker ones only get worse."""
    parts = [problem.take(fold != f) for f in range(int(fold.max()) + 1)]
    changes = [np.zeros((problem.offset.shape[1], problem.x.shape[1])) for _ in parts]
    tried: list[_Tried] = []
    for done, strength in enumerate(strengths, 1):
        changes = [part.solve(strength, near) for part, near in zip(parts, changes, strict=True)]
        added = np.empty_like(problem.offset)
        for f, change in enumerate(changes):
            added[fold == f] = problem.x[fold == f] @ change.T
        p = softmax(problem.offset + added)[np.arange(len(added)), problem.labels]
        nll = float(-np.log(np.maximum(p, np.finfo(float).tiny)).mean())
        tried.append(_Tried(strength, nll, added, np.asarray(sum(changes) / len(changes))))
        if progress:
            progress(done, len(strengths))
        # The NLL along the path has one valley but for noise.
        if len(tried) > PATIENCE and tried[-1].nll >= tried[-2].nll >= tried[-3].nll > min(
            one.nll for one in tried
        ):
            break
    return tried

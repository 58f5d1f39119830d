"""The objective of Neural Clamping in the shift delta and the temperature T (Tang 2024, eq. 8 and 9).

Mean focal loss of f(x + delta) / T plus lambda times the norm of delta; one evaluation is one
forward and backward pass over the calibration set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, Union

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from calib_serve.artifact import Artifact, InputShift, LogitMap
from calib_serve.core.arrays import AnyFloats, as_floats, some_of
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.lbfgs import Vector, minimise
from calib_serve.fit.losses import focal
from calib_serve.fit.samples import Samples
from calib_serve.models import Classifier, Progress
from calib_serve.scores import softmax

_LOG_T = (-4.0, 5.0)  # T from 0.018 to 148

Penalty = Union[float, Literal["tenth"]]


@dataclass(frozen=True, eq=False)
class Objective:
    """Eq. 9 as a function of one vector: delta's coefficients, then log T.

    ``gamma`` of the focal loss (0 is cross-entropy), ``weight`` is lambda, of the L2 norm. ``scale``
    (input_shape or broadcast to it) multiplies delta, and is the preprocessing's standard deviation where
    delta lives after normalisation. ``resolution`` r gives each channel of delta r x r coefficients and
    enlarges them bilinearly. ``unshifted`` are the inputs' own logits, where they are known.
    """

    classifier: Classifier
    inputs: AnyFloats
    labels: NDArray[np.intp]
    gamma: float = 0.0
    weight: float = 0.0
    scale: float | AnyFloats = 1.0
    resolution: int | None = None
    unshifted: NDArray[np.float32] | None = None
    _enlarge: tuple[Vector, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_enlarge", _enlargers(self.classifier.input_shape, self.resolution))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of delta's coefficients."""
        if self.resolution is None:
            return self.classifier.input_shape
        return (self.classifier.input_shape[0], self.resolution, self.resolution)

    def delta(self, coefficients: AnyFloats) -> Vector:
        """The shift of these coefficients, before ``scale``."""
        theta: Vector = np.asarray(coefficients, np.float64).reshape(self.shape)
        if not self._enlarge:
            return theta
        return np.asarray(np.einsum("hr,crs,ws->chw", self._enlarge[0], theta, self._enlarge[1]))

    def shift(self, coefficients: AnyFloats) -> InputShift:
        """The step that adds the shift of these coefficients to the model's inputs."""
        return InputShift(self.delta(coefficients) * self.scale)

    def __call__(self, vector: Vector) -> tuple[float, Vector, NDArray[np.float32]]:
        """The objective, its gradient, and the logits of the shifted inputs."""
        theta, t = vector[:-1], math.exp(vector[-1])
        labels = torch.from_numpy(self.labels)

        def loss(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            y = labels[rows].to(logits.device)
            return focal(logits / t, y, gamma=self.gamma, reduction="none")

        gradient, logits = self.classifier.input_gradient(self.inputs, loss, shift=self.shift(theta))
        # In float64, from the logits: the model's own pass is in float32.
        value, slope = focal_loss(logits, self.labels, t, self.gamma)
        along = self.reduced(gradient * self.scale / len(self.inputs))
        # The gradient of a norm is its direction.
        along += theta * (self.weight / max(float(np.linalg.norm(theta)), 1e-300))
        if not theta.any():
            # The norm is not differentiable at 0: take the objective's subgradient of least norm.
            along *= max(0.0, 1 - self.weight / max(float(np.linalg.norm(along)), 1e-300))
        return value + self.penalty(theta), np.append(along, slope), logits

    def logits(self, coefficients: AnyFloats) -> NDArray[np.float32]:
        """Logits of the shifted inputs."""
        if self.unshifted is not None and not np.any(coefficients):
            return self.unshifted
        return self.classifier.logits(self.inputs, shift=self.shift(coefficients))

    def curvatures(self, vector: Vector, logits: NDArray[np.float32], ahead: Vector) -> tuple[float, float]:
        """The loss's second derivatives along ``ahead``, by some inputs shifted a little, and by log T."""
        t, some = math.exp(vector[-1]), some_of(len(self.labels), 256)
        near = replace(self, inputs=self.inputs[some], labels=self.labels[some], unshifted=None)
        direction = ahead / max(float(np.linalg.norm(ahead)), 1e-300)
        size = float(np.sqrt(np.mean((self.delta(direction) * self.scale) ** 2)))
        length = 0.01 * (float(near.inputs.std()) or 1.0) / (size or 1.0)
        moved = (near.logits(vector[:-1] + length * direction) - logits[some]) / (length * t)
        p = softmax(logits[some] / t)
        along = ((p * moved**2).sum(axis=1) - (p * moved).sum(axis=1) ** 2).mean()
        slopes = [focal_loss(logits, self.labels, t * by, self.gamma)[1] for by in (0.99, 1.01)]
        return max(float(along), 1e-8), max((slopes[1] - slopes[0]) / math.log(1.01 / 0.99), 1e-8)

    def divided(self, vector: Vector, theta: Vector, along: float, by_t: float) -> Vector:
        """Divide a gradient at ``theta`` by the loss's second derivatives and the penalty's."""
        g, norm = vector[:-1], float(np.linalg.norm(theta))
        bent = self.weight / norm if norm else 0.0
        out = g / (along + bent)
        if norm:  # the norm bends around 0, and not away from it
            out += theta * (float(g @ theta) / norm**2 * (1 / along - 1 / (along + bent)))
        return np.append(out, vector[-1] / by_t)

    def penalty(self, coefficients: AnyFloats) -> float:
        """The penalty: lambda times the norm of delta, which is the norm of its coefficients."""
        return self.weight * float(np.linalg.norm(coefficients))

    def reduced(self, delta: Vector) -> Vector:
        """Apply the adjoint of ``delta``, to a gradient of the shift or to a shift."""
        if not self._enlarge:
            return delta.ravel()
        return np.asarray(np.einsum("hr,chw,ws->crs", self._enlarge[0], delta, self._enlarge[1])).ravel()


def focal_loss(logits: AnyFloats, labels: NDArray[np.intp], t: float, gamma: float) -> tuple[float, float]:
    """The mean focal loss of logits (n, K) / T and its derivative by log T, in float64."""
    z = torch.from_numpy(np.asarray(logits, np.float64))
    log_t = torch.tensor(math.log(t), dtype=torch.float64, requires_grad=True)
    value = focal(z / log_t.exp(), torch.from_numpy(labels), gamma=gamma).mean()
    (slope,) = torch.autograd.grad(value, log_t)
    return float(value.detach()), float(slope)


def best_temperature(logits: AnyFloats, labels: NDArray[np.intp], gamma: float) -> float:
    """The T of least mean focal loss of logits (n, K) / T; FitError where there is none."""
    # Over log T, so that T > 0 needs no check.
    found = minimize_scalar(
        lambda log_t: focal_loss(logits, labels, math.exp(log_t), gamma)[0],
        bounds=_LOG_T,
        method="bounded",
        options={"xatol": 1e-7},
    )
    if min(found.x - _LOG_T[0], _LOG_T[1] - found.x) < 1e-3:
        raise FitError(
            f"no finite temperature is best (it runs to {math.exp(found.x):g}): every sample is right, or "
            "the labels say nothing of these logits; calibrate on samples the model was not trained on"
        )
    return math.exp(found.x)


def _enlargers(shape: tuple[int, ...], resolution: int | None) -> tuple[Vector, ...]:
    """Orthonormal bases (size, r) of bilinear enlargement from r coefficients, by axis."""
    if resolution is None:
        return ()
    if len(shape) != 3 or not (isinstance(resolution, int) and 1 <= resolution <= min(shape[1:])):
        raise InputError(
            f"resolution {resolution!r} needs inputs (C, H, W) of at least that size, got {shape}"
        )
    eye = torch.eye(resolution, dtype=torch.float64)[None]
    enlarged = (
        torch.nn.functional.interpolate(eye, size=size, mode="linear", align_corners=False)[0].T
        for size in shape[1:]
    )
    # Orthonormal, so that the norm of delta is the norm of its coefficients.
    return tuple(torch.linalg.qr(matrix).Q.numpy() for matrix in enlarged)


@dataclass(frozen=True, eq=False)
class Solution:
    """Delta's coefficients and T, the objective there, and how many gradients of all the data it took.

    ``logits`` are those of the shifted calibration inputs.
    """

    coefficients: Vector
    temperature: float
    objective: float
    passes: int
    logits: NDArray[np.float32]


@dataclass(frozen=True)
class QuasiNewton:
    """L-BFGS over delta and log T together, with T solved exactly before and after.

    Args:
        passes: Gradients over the data, at most.
        tolerance: Of the objective; it stops where it expects to gain less.
        progress: Called with how many passes are done, and of how many.
    """

    passes: int = 25
    tolerance: float = 2e-5
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """Search from these coefficients on."""
        logits = objective.logits(start)
        t = best_temperature(logits, objective.labels, objective.gamma)
        best, least, calls = np.append(start, math.log(t)), math.inf, 0
        curved: list[float] = []

        def evaluate(vector: Vector) -> tuple[float, Vector]:
            nonlocal best, least, calls, logits
            if calls == self.passes:
                raise StopIteration  # no passes are left
            value, gradient, shifted = objective(vector)
            if value < least:
                best, least, logits = vector, value, shifted
            calls += 1
            if self.progress:
                self.progress(calls, self.passes)
            return value, gradient

        def precondition(vector: Vector) -> Vector:
            if not curved:  # of the first step, along the gradient
                curved.extend(objective.curvatures(best, logits, vector[:-1]))
            return objective.divided(vector, best[:-1], *curved)

        with suppress(StopIteration):
            minimise(evaluate, best, precondition, gap=self.tolerance, rounding=1e-7, last_step=0.5)
        try:
            t = best_temperature(logits, objective.labels, objective.gamma)
        except FitError:  # delta made every sample right: held-out folds will show the overfit
            t = math.exp(best[-1])
        return solution(objective, best[:-1], t, logits, passes=calls)


def solution(
    objective: Objective, coefficients: Vector, t: float, logits: NDArray[np.float32], *, passes: int
) -> Solution:
    """The solution at these coefficients and T, with their known logits."""
    value = focal_loss(logits, objective.labels, t, objective.gamma)[0] + objective.penalty(coefficients)
    return Solution(coefficients, t, value, passes, logits)


@dataclass(frozen=True)
class Candidate:
    """Settings of the objective that a search may choose among."""

    gamma: float
    penalty: Penalty
    resolution: int | None

    def objective(self, base: Objective, logits: NDArray[np.float32]) -> Objective:
        """Eq. 9 under these settings; ``logits`` (n, K) are the model's where the search begins."""
        weight = self.penalty
        if weight == "tenth":  # "to be 1/10 of the initial loss" (section 4.1)
            weight = focal_loss(logits, base.labels, 1.0, self.gamma)[0] / 10
        return replace(base, gamma=self.gamma, weight=float(weight), resolution=self.resolution)


def candidates(
    gamma: float | Sequence[float], penalty: Penalty, resolution: int | Sequence[int | None] | None
) -> list[Candidate]:
    """Every combination, resolutions outermost so that neighbours can start from each other."""
    every = itertools.product(_several(resolution), _several(gamma))
    settings = list(dict.fromkeys(Candidate(g, penalty, r) for r, g in every))
    for one in settings:
        if not (isinstance(one.gamma, Real) and 0 <= one.gamma <= 10):
            raise InputError(f"gamma must lie in 0..10, got {one.gamma!r}")
        if not (one.penalty == "tenth" or (isinstance(one.penalty, Real) and 0 <= one.penalty < math.inf)):
            raise InputError(f"penalty must be 'tenth' or a number of at least 0, got {one.penalty!r}")
    return settings


def _several(value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError("an empty list leaves nothing to choose from")
        return value
    return (value,)


def unit_of_delta(
    normalisation: tuple[ArrayLike, ArrayLike] | None, shape: tuple[int, ...]
) -> float | AnyFloats:
    """The unit of delta in input space: each channel's standard deviation, or 1 before normalisation."""
    if normalisation is None:
        return 1.0
    std = np.atleast_1d(as_floats(normalisation[1], "normalisation's std"))
    if std.shape not in ((1,), (shape[0],)) or not (std > 0).all():
        raise InputError(f"normalisation's std must be {shape[0]} positive numbers, got {std.tolist()}")
    return np.broadcast_to(std.reshape(-1, *[1] * (len(shape) - 1)), shape)


def clamped(
    objective: Objective,
    setting: Candidate,
    found: Solution,
    *,
    uncalibrated: NDArray[np.float32],
    facts: Mapping[str, Any],
    class_names: Sequence[str],
    temperature: float | None = None,
    logits: NDArray[np.float32] | None = None,
) -> Artifact:
    """The artifact of a solution, with the search's results and those of temperature scaling alone.

    ``temperature`` and ``logits`` are the solution's unless held-out folds gave others.
    """
    y, gamma = objective.labels, objective.gamma
    t = found.temperature if temperature is None else temperature
    alone = best_temperature(uncalibrated, y, gamma)
    return complete(
        [objective.shift(found.coefficients), LogitMap.temperature(t)],
        Samples(found.logits if logits is None else logits, y),
        method="neural-clamping",
        fit={
            "temperature": t,
            "objective": "focal loss" if gamma else "nll",
            "gamma": gamma,
            "penalty": setting.penalty,
            "lambda": objective.weight,
            "resolution": setting.resolution,
            "temperature_fitted": found.temperature,
            "temperature_alone": alone,
            "delta_norm": float(np.linalg.norm(found.coefficients)),
            "loss_before": focal_loss(uncalibrated, y, 1.0, gamma)[0],
            "loss_of_temperature_alone": focal_loss(uncalibrated, y, alone, gamma)[0],
            "loss": found.objective - objective.penalty(found.coefficients),
            "objective_value": found.objective,
            "passes": found.passes,
            **facts,
        },
        data={"inputs_sha256": data_fingerprint(np.asarray(objective.inputs))},
        model=objective.classifier.facts(),
        class_names=class_names,
        packages=("torch", "scipy"),
    )

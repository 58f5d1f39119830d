"""Two solvers for Neural Clamping's objective: L-BFGS, and the paper's schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from calib_serve.errors import FitError
from calib_serve.fit.clamping.objective import Objective, best_temperature, focal_loss
from calib_serve.model import Progress

__all__ = ["PaperSchedule", "QuasiNewton", "Solution", "Solver"]

Vector = NDArray[np.float64]


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


Solver = Callable[[Objective, Vector], Solution]
"""(objective, first coefficients) -> solution."""


@dataclass(frozen=True)
class QuasiNewton:
    """L-BFGS over delta and log T together, with T solved exactly before and after.

    Stops after ``passes`` gradients over the data, or when a step gains less than the share
    ``tolerance`` of the objective.
    """

    passes: int = 25
    tolerance: float = 1e-4
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """The solution from these coefficients on."""
        t = best_temperature(objective.logits(start), objective.labels, objective.gamma)
        best, least, calls = np.append(start, math.log(t)), math.inf, 0

        def evaluate(vector: Vector) -> tuple[float, Vector]:
            nonlocal best, least, calls
            value, gradient = objective(vector)
            if value < least:
                best, least = vector.copy(), value
            calls += 1
            if self.progress:
                self.progress(min(calls, self.passes), self.passes)
            return value, gradient

        minimize(
            evaluate,
            best,
            jac=True,
            method="L-BFGS-B",
            options={"maxfun": self.passes, "ftol": self.tolerance, "gtol": 1e-7},
        )
        theta = best[:-1]
        logits = objective.logits(theta)
        try:
            t = best_temperature(logits, objective.labels, objective.gamma)
        except FitError:  # delta made every sample right: held-out folds will show the overfit
            t = math.exp(best[-1])
        return _solution(objective, theta, t, logits, passes=calls)


@dataclass(frozen=True)
class PaperSchedule:
    """Stochastic gradient descent as in the paper: T from 1, fixed rate, no early stop (section 4.1)."""

    rate: float = 0.001
    batch: int = 512
    epochs: int = 100
    momentum: float = 0.0
    seed: int = 0
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """The solution from these coefficients on."""
        rng = np.random.default_rng(self.seed)
        theta, t = start.astype(np.float64).copy(), 1.0
        velocity = np.zeros(len(theta) + 1)
        n = len(objective.labels)
        for epoch in range(self.epochs):
            for drawn in np.split(rng.permutation(n), range(self.batch, n, self.batch)):
                rows = np.sort(drawn)  # in order, so that memory-mapped inputs are read forwards
                part = replace(objective, inputs=objective.inputs[rows], labels=objective.labels[rows])
                _, gradient = part(np.append(theta, math.log(t)))
                gradient[-1] /= t  # the paper steps on T, not on log T
                velocity = self.momentum * velocity + gradient
                theta = theta - self.rate * velocity[:-1]
                t = max(t - self.rate * float(velocity[-1]), 1e-3)
            if self.progress:
                self.progress(epoch + 1, self.epochs)
        return _solution(objective, theta, t, objective.logits(theta), passes=self.epochs)


def _solution(
    objective: Objective, coefficients: Vector, t: float, logits: NDArray[np.float32], *, passes: int
) -> Solution:
    value = focal_loss(logits, objective.labels, t, objective.gamma)[0] + objective.penalty(coefficients)
    return Solution(coefficients, t, value, passes, logits)

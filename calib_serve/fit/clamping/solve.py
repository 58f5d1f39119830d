"""What a solver of Neural Clamping's objective returns, and the default one: L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from calib_serve.errors import FitError
from calib_serve.fit.clamping.objective import Objective, best_temperature, focal_loss
from calib_serve.model import Progress

__all__ = ["QuasiNewton", "Solution", "Solver", "solution"]

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
        return solution(objective, theta, t, logits, passes=calls)


def solution(
    objective: Objective, coefficients: Vector, t: float, logits: NDArray[np.float32], *, passes: int
) -> Solution:
    """The solution at these coefficients and T, whose logits are known."""
    value = focal_loss(logits, objective.labels, t, objective.gamma)[0] + objective.penalty(coefficients)
    return Solution(coefficients, t, value, passes, logits)

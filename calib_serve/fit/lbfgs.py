"""L-BFGS around a preconditioner (Nocedal 2006, algorithm 7.4).

scipy's L-BFGS takes none, and with a good one the convex problems of calibration need a handful of gradients
instead of hundreds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

ARMIJO = 1e-4
"""Share of the slope that a step must gain (Nocedal 2006, section 3.1)."""


@dataclass(frozen=True)
class Minimum:
    """The end of a search: the point, its value and gradient, the iterations and evaluations it took.

    ``gap`` estimates how far the value is above the optimum: half the squared gradient in the
    preconditioner's norm.
    """

    x: Vector
    value: float
    gradient: Vector
    gap: float
    iterations: int
    evaluations: int

    def certificate(self) -> dict[str, Any]:
        """The manifest's entry of the search."""
        return {
            "gradient_norm": float(np.linalg.norm(self.gradient)),
            "gap": self.gap,
            "iterations": self.iterations,
            "evaluations": self.evaluations,
        }


def minimise(
    objective: Objective,
    start: Vector,
    precondition: Callable[[Vector], Vector],
    *,
    gap: float,
    rounding: float = 1e-13,
    max_iterations: int = 500,
    last_step: float | None = None,
) -> Minimum:
    """Follow ``objective`` (value and gradient) from ``start`` until its ``gap`` is closed.

    ``precondition`` applies an approximate inverse Hessian; values are exact to ``rounding``. Ends
    at ``max_iterations`` too, and where rounding leaves nothing to gain: look at the ``gap``. ``last_step``
    bounds each step of the last parameter; the preconditioner is then taken to be of the right size.
    """
    x, (value, gradient) = start, objective(start)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=12)
    iteration, evaluations = 0, 1
    scale = 1.0  # how far the preconditioner is off along the last step
    while True:
        step = -_two_loops(gradient, pairs, precondition, scale)
        slope = float(gradient @ step)
        here = Minimum(x, value, gradient, max(-slope / 2, 0.0), iteration, evaluations)
        if here.gap <= gap or iteration == max_iterations:
            return here
        if last_step is not None and (far := abs(float(step[-1])) / last_step) > 1:
            step, slope = step / far, slope / far
        found = _line_search(objective, here, step, slope, rounding * max(1.0, abs(value)))
        if found is None:
            if not pairs:
                return here
            pairs.clear()  # the pairs are unreliable: start again
            continue
        x_next, value_next, gradient_next, tried = found
        iteration, evaluations = iteration + 1, evaluations + tried
        s, y = x_next - x, gradient_next - gradient
        if (curvature := float(s @ y)) > 0:
            pairs.append((s, y, curvature))
            scale = curvature / float(y @ precondition(y)) if last_step is None else 1.0
        x, value, gradient = x_next, value_next, gradient_next


def _two_loops(
    gradient: Vector,
    pairs: deque[tuple[Vector, Vector, float]],
    precondition: Callable[[Vector], Vector],
    scale: float,
) -> Vector:
    """The inverse Hessian, estimated from preconditioner and pairs, times the gradient."""
    q = gradient.copy()
    alphas = []
    for s, y, curvature in reversed(pairs):
        alphas.append(float(s @ q) / curvature)
        q -= alphas[-1] * y
    r = scale * precondition(q)
    for (s, y, curvature), alpha in zip(pairs, reversed(alphas), strict=True):
        r += (alpha - float(y @ r) / curvature) * s
    return r


def _line_search(
    objective: Objective, here: Minimum, step: Vector, slope: float, noise: float
) -> tuple[Vector, float, Vector, int] | None:
    """The first point along ``step`` that gains enough: backtracking with a parabola."""
    t = 1.0
    for tried in range(1, 30):
        x = here.x + t * step
        value, gradient = objective(x)
        # A gain below ``noise`` is within rounding: accept the step.
        if here.value - value >= -ARMIJO * t * slope - noise:
            return x, value, gradient, tried
        bend = value - here.value - t * slope
        best = -slope * t * t / (2 * bend) if np.isfinite(bend) and bend > 0 else t / 10
        t = min(max(best, t / 10), t / 2)
    return None

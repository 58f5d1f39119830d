"""Neural Clamping as its paper prints it.

Stochastic gradient descent of a fixed length (``PAPER``) on a full-size delta, with T as it was fitted with
delta. ``fit_neural_clamping`` is this package's own way to the same objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.clamping.efficient import checked_inputs, entropy_shift
from calib_serve.fit.clamping.objective import (
    Objective,
    Penalty,
    Solution,
    candidates,
    clamped,
    solution,
    unit_of_delta,
)
from calib_serve.fit.lbfgs import Vector
from calib_serve.metrics import ece
from calib_serve.models import Classifier, Progress
from calib_serve.scores import softmax


@dataclass(frozen=True)
class Schedule:
    """Settings of a descent; T begins at 1, the rate stays constant, and nothing stops it early.

    Args:
        rate: Learning rate.
        momentum: Of the descent.
        batch: Inputs of a step.
        epochs: Passes over the data.
        spread: Standard deviation of delta's first entries, drawn around 0.
        gamma: Of the focal loss, unless a fit has its own.
        penalty: Of delta: a number, or "tenth" of the loss where the descent begins; unless a fit has
            its own.
    """

    rate: float
    momentum: float
    batch: int
    epochs: int
    spread: float
    gamma: float
    penalty: Penalty


PAPER = Schedule(
    rate=0.001,
    momentum=0.0,
    batch=512,
    epochs=100,
    spread=0.1,  # a variance of 0.01
    gamma=1.0,
    penalty="tenth",
)
"""Tang 2024, section 4.1 and appendix A."""


def fit_neural_clamping_paper(
    classifier: Classifier,
    inputs: AnyFloats,
    labels: ArrayLike,
    *,
    gamma: float | Sequence[float] = PAPER.gamma,
    penalty: Penalty = PAPER.penalty,
    start: Literal["random", "data"] = "random",
    normalisation: tuple[ArrayLike, ArrayLike] | None = None,
    input_range: tuple[float, float] | None = None,
    schedule: Schedule = PAPER,
    solver: Descent | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Fit delta and T by the paper's schedule (section 4.1, appendix A).

    Several values of ``gamma`` are tried in separate runs, and the one of least calibration ECE is taken.
    Where delta acts is not printed, nor is the power of the norm, here 1.

    Args:
        classifier: The model.
        inputs: (n, *input_shape), as it takes them.
        labels: Class ids (n,).
        gamma: Of the focal loss.
        penalty: "tenth" of the loss where the descent begins, or lambda itself.
        start: First delta: "random", drawn from N(0, 0.01), or "data", that of Theorem 3.2.
        normalisation: (mean, std) of the preprocessing, behind which delta then is; None: on the inputs.
        input_range: Feasible [a, b] of the inputs, for ``start``.
        schedule: Settings of the descent.
        solver: The descent; by default that of the schedule.
        class_names: Names of the classes (K,).
        seed: Seed of the random draws.
        progress: Called with how many epochs are done, and of how many.

    Raises:
        InputError: For data that does not fit the model.
        ShapeError: For data of another shape.
        FitError: Where T falls to 0.
    """
    y = checked_inputs(classifier, inputs, labels)
    base = Objective(classifier, inputs, y, scale=unit_of_delta(normalisation, classifier.input_shape))
    first = first_coefficients(base, start, spread=schedule.spread, seed=seed, input_range=input_range)
    settings, solve = candidates(gamma, penalty, None), solver or Descent(schedule, seed, progress=progress)
    # "Initial loss", of which the penalty is a tenth, is read as the one at the first delta, with T = 1.
    logits = base.logits(first)
    done = [(one, one.objective(base, logits)) for one in settings]
    runs = [(one, objective, solve(objective, first)) for one, objective in done]
    # Section 3.3: the calibration set's own ECE decides on gamma.
    eces = [float(ece(softmax(found.logits / found.temperature), y)) for *_, found in runs]
    tried = [{**vars(one), "score": score} for one, score in zip(settings, eces, strict=True)]
    setting, objective, found = runs[int(np.argmin(eces))]
    return clamped(
        objective,
        setting,
        found,
        uncalibrated=classifier.logits(inputs),
        facts={
            "place": "input" if normalisation is None else "after normalisation",
            "solver": "Descent",
            "schedule": asdict(schedule),
            "start": start,
            "judge": "calibration-ece",
            "candidates": tried if len(tried) > 1 else [],
            "seed": seed,
        },
        class_names=class_names,
    )


def first_coefficients(
    objective: Objective,
    start: Literal["random", "data"],
    *,
    spread: float,
    seed: int,
    input_range: tuple[float, float] | None = None,
) -> Vector:
    """First coefficients of delta: drawn from N(0, ``spread``^2), or by Theorem 3.2 of the data."""
    if start not in ("random", "data"):
        raise InputError(f"the paper's schedule starts 'random' or 'data', got {start!r}")
    if start == "data":
        found = entropy_shift(objective.classifier, objective.inputs, input_range=input_range)
        return objective.reduced(found.delta / objective.scale)
    if input_range is not None:
        raise InputError("input_range bounds the data-driven start; give start='data' with it")
    return np.random.default_rng(seed).normal(0, spread, int(np.prod(objective.shape)))


@dataclass(frozen=True)
class Descent:
    """A solver: from first coefficients on, by a schedule."""

    schedule: Schedule
    seed: int = 0
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """Search to the last step; FitError where T falls to 0 or below."""
        rng, how = np.random.default_rng(self.seed), self.schedule
        theta, t = start.astype(np.float64).copy(), 1.0
        velocity = np.zeros(len(theta) + 1)
        n = len(objective.labels)
        for epoch in range(how.epochs):
            for drawn in np.split(rng.permutation(n), range(how.batch, n, how.batch)):
                gradient = self._gradient(objective, np.sort(drawn), theta, t)
                velocity = how.momentum * velocity + gradient
                theta = theta - how.rate * velocity[:-1]
                # T itself descends and not log T, as in the paper, so that it can fall below 0.
                t -= how.rate * float(velocity[-1])
                if not t > 0:
                    raise FitError(
                        f"the schedule drove T to {t:.3g} in epoch {epoch + 1}; take the default schedule"
                    )
            if self.progress:
                self.progress(epoch + 1, how.epochs)
        return solution(objective, theta, t, objective.logits(theta), passes=how.epochs)

    def _gradient(self, objective: Objective, rows: NDArray[np.intp], theta: Vector, t: float) -> Vector:
        """The gradient of one batch with respect to delta and T."""
        # In order, so that memory-mapped inputs are read forwards.
        part = replace(objective, inputs=objective.inputs[rows], labels=objective.labels[rows])
        gradient = part(np.append(theta, math.log(t)))[1].copy()
        gradient[-1] /= t  # the objective's is with respect to log T
        return gradient

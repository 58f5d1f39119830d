"""Stochastic gradient descent on delta and T, as Neural Clamping's paper and its toolkit do it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError, InputError
from calib_serve.fit.clamping.augmentation import Augmentation
from calib_serve.fit.clamping.choice import Penalty
from calib_serve.fit.clamping.objective import Objective
from calib_serve.fit.clamping.solve import Solution, solution
from calib_serve.model import Progress

__all__ = ["Descent", "Schedule"]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """What a descent is made of; T begins at 1, the rate stays, and nothing stops it early.

    ``spread`` is the standard deviation of delta's first entries, drawn around 0. ``gamma`` of the focal
    loss and ``penalty`` of delta (a number, or "tenth" of the loss where the descent begins) hold unless a
    fit is told others.
    """

    rate: float
    momentum: float
    batch: int
    epochs: int
    spread: float
    gamma: float
    penalty: Penalty
    augmented: bool

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1 and self.batch >= 1 and self.epochs >= 1):
            raise InputError(f"a schedule has a rate above 0, momentum in 0..1, batches and epochs: {self}")


@dataclass(frozen=True)
class Descent:
    """A solver: from first coefficients on, by a schedule; ``augmentation`` varies every batch's images."""

    schedule: Schedule
    seed: int = 0
    augmentation: Augmentation | None = None
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """The solution after the last step; FitError where T falls to 0 or below."""
        rng, how = np.random.default_rng(self.seed), self.schedule
        theta, t = start.astype(np.float64).copy(), 1.0
        velocity = np.zeros(len(theta) + 1)
        n = len(objective.labels)
        for epoch in range(how.epochs):
            for drawn in np.split(rng.permutation(n), range(how.batch, n, how.batch)):
                gradient = self._gradient(objective, np.sort(drawn), theta, t, rng)
                velocity = how.momentum * velocity + gradient
                theta = theta - how.rate * velocity[:-1]
                t -= how.rate * float(velocity[-1])
                if not t > 0:
                    raise FitError(
                        f"the schedule drove T to {t:.3g} in epoch {epoch + 1}; take the default schedule"
                    )
            if self.progress:
                self.progress(epoch + 1, how.epochs)
        return solution(objective, theta, t, objective.logits(theta), passes=how.epochs)

    def _gradient(
        self, objective: Objective, rows: NDArray[np.intp], theta: Vector, t: float, rng: np.random.Generator
    ) -> Vector:
        """Of one batch, with respect to delta and T."""
        # In order, so that memory-mapped inputs are read forwards.
        images = objective.inputs[rows]
        if self.augmentation is not None:
            images = self.augmentation(images, rng)
        part = replace(objective, inputs=images, labels=objective.labels[rows])
        gradient = part(np.append(theta, math.log(t)))[1].copy()
        gradient[-1] /= t  # the objective's is with respect to log T
        return gradient

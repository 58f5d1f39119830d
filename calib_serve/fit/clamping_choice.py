"""Which gamma, penalty and resolution Neural Clamping uses: the candidates and their judges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError
from calib_serve.fit.clamping_objective import Objective, best_temperature, focal_loss
from calib_serve.fit.clamping_solve import Solution, Solver
from calib_serve.fit.facts import reference_bins
from calib_serve.metrics import softmax

__all__ = ["Candidate", "Judge", "Penalty", "candidates", "choose", "held_out_nll_of_temperature", "solved"]

Penalty = Union[float, Literal["tenth"]]
Judge = Literal["folds", "calibration-ece"]
Start = Callable[[Objective, NDArray[np.float32]], NDArray[np.float64]]
"""(objective, uncalibrated logits) -> delta's first coefficients."""


@dataclass(frozen=True)
class Candidate:
    """One setting of what is chosen."""

    gamma: float
    penalty: Penalty
    resolution: int | None

    def objective(self, base: Objective, logits: NDArray[np.float32]) -> Objective:
        """Eq. 9 under this setting; ``logits`` are the uncalibrated ones of ``base``'s inputs."""
        weight = self.penalty
        if weight == "tenth":  # "to be 1/10 of the initial loss" (section 4.1)
            weight = focal_loss(logits, base.labels, 1.0, self.gamma)[0] / 10
        return replace(base, gamma=self.gamma, weight=float(weight), resolution=self.resolution)


def candidates(
    gamma: float | Sequence[float],
    penalty: Penalty | Sequence[Penalty],
    resolution: int | Sequence[int | None] | None,
) -> list[Candidate]:
    """Every combination, resolutions outermost so that neighbours can start from each other."""
    settings = [
        Candidate(g, p, r)
        for r, p, g in itertools.product(_several(resolution), _several(penalty), _several(gamma))
    ]
    for one in settings:
        if not 0 <= one.gamma <= 10:
            raise InputError(f"gamma must lie in 0..10, got {one.gamma}")
        if not (one.penalty == "tenth" or (not isinstance(one.penalty, str) and one.penalty >= 0)):
            raise InputError(f"penalty must be 'tenth' or a number of at least 0, got {one.penalty!r}")
    return settings


def solved(
    base: Objective,
    logits: NDArray[np.float32],
    settings: Sequence[Candidate],
    solve: Solver,
    start: Start,
) -> list[tuple[Objective, Solution]]:
    """Each setting's solution; each starts where its neighbour of the same resolution ended."""
    found: list[tuple[Objective, Solution]] = []
    for setting in settings:
        objective = setting.objective(base, logits)
        near = found[-1][1] if found and found[-1][0].resolution == setting.resolution else None
        first = start(objective, logits) if near is None else near.coefficients
        found.append((objective, solve(objective, first)))
    return found


def choose(
    base: Objective,
    logits: NDArray[np.float32],
    settings: Sequence[Candidate],
    solve: Solver,
    start: Start,
    *,
    judge: Judge,
    folds: int,
    seed: int,
) -> tuple[Candidate, list[dict[str, Any]]]:
    """The best setting and every score: NLL on held-out folds, or ECE of the calibration set itself."""
    if judge == "calibration-ece":
        scores = [
            reference_bins(softmax(one.logits / one.temperature), base.labels).ece()
            for _, one in solved(base, logits, settings, solve, start)
        ]
    elif judge == "folds":
        scores = _held_out_nll(base, logits, settings, solve, start, folds=folds, seed=seed)
    else:
        raise InputError(f"judge must be 'folds' or 'calibration-ece', got {judge!r}")
    table = [
        {"gamma": s.gamma, "penalty": s.penalty, "resolution": s.resolution, "score": score}
        for s, score in zip(settings, scores, strict=True)
    ]
    return settings[int(np.argmin(scores))], table


def _held_out_nll(
    base: Objective,
    logits: NDArray[np.float32],
    settings: Sequence[Candidate],
    solve: Solver,
    start: Start,
    *,
    folds: int,
    seed: int,
) -> list[float]:
    total = np.zeros(len(settings))
    for kept, held in _folds(len(base.labels), folds, seed):
        part = replace(base, inputs=base.inputs[kept], labels=base.labels[kept])
        for i, (objective, one) in enumerate(solved(part, logits[kept], settings, solve, start)):
            z = base.classifier.logits(base.inputs[held], shift=objective.shift(one.coefficients))
            total[i] += focal_loss(z, base.labels[held], one.temperature, 0.0)[0] * len(held)
    return list(total / len(base.labels))


def held_out_nll_of_temperature(
    logits: NDArray[np.float32], labels: NDArray[np.intp], *, folds: int, seed: int
) -> float:
    """What temperature alone scores on the folds that judge candidates."""
    total = 0.0
    for kept, held in _folds(len(labels), folds, seed):
        t = best_temperature(logits[kept], labels[kept], 0.0)
        total += focal_loss(logits[held], labels[held], t, 0.0)[0] * len(held)
    return total / len(labels)


def _folds(n: int, folds: int, seed: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    if not 2 <= folds <= n // 2:
        raise InputError(f"folds must lie in 2..{n // 2} for {n} samples, got {folds}")
    fold = np.random.default_rng(seed).permutation(n) % folds
    for k in range(folds):
        yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)


def _several(value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError("an empty list leaves nothing to choose from")
        return value
    return (value,)

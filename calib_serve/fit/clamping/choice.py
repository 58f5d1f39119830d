"""Choose gamma, penalty and resolution of Neural Clamping among candidates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError
from calib_serve.fit.clamping.objective import Objective, Solution, Solver, best_temperature, focal_loss
from calib_serve.fit.facts import reference_bins
from calib_serve.metrics import softmax

Penalty = Union[float, Literal["tenth"]]
Judge = Literal["folds", "calibration-ece"]
Start = Callable[[Objective, NDArray[np.float32]], NDArray[np.float64]]
"""(objective, uncalibrated logits) -> delta's first coefficients."""


@dataclass(frozen=True)
class Candidate:
    """One candidate setting."""

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


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best setting, every score, and held-out results of the best.

    ``logits`` are those of every calibration input under a shift that was fitted without its fold, and
    ``temperature`` is the one of least NLL for them; both None where nothing was held out.
    """

    setting: Candidate
    scores: list[dict[str, Any]]
    logits: NDArray[np.float32] | None = None
    temperature: float | None = None


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
) -> Chosen:
    """The setting of least NLL on held-out folds, or of least ECE of the calibration set itself."""
    if judge == "calibration-ece":
        if len(settings) == 1:
            return Chosen(settings[0], [])
        scores = [
            reference_bins(softmax(one.logits / one.temperature), base.labels).ece()
            for _, one in solved(base, logits, settings, solve, start)
        ]
        return Chosen(settings[int(np.argmin(scores))], _table(settings, scores))
    if judge != "folds":
        raise InputError(f"judge must be 'folds' or 'calibration-ece', got {judge!r}")
    fold = _fold_of(len(base.labels), folds, seed)
    held_out = _held_out_logits(base, logits, settings, solve, start, fold=fold)
    scores = [_held_out_nll(z, base.labels, fold) for z in held_out]
    best = int(np.argmin(scores))
    t = best_temperature(held_out[best], base.labels, 0.0)
    return Chosen(settings[best], _table(settings, scores), held_out[best], t)


def _table(settings: Sequence[Candidate], scores: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"gamma": s.gamma, "penalty": s.penalty, "resolution": s.resolution, "score": score}
        for s, score in zip(settings, scores, strict=True)
    ]


def _held_out_logits(
    base: Objective,
    logits: NDArray[np.float32],
    settings: Sequence[Candidate],
    solve: Solver,
    start: Start,
    *,
    fold: NDArray[np.intp],
) -> list[NDArray[np.float32]]:
    """For every setting, each sample's logits under the shift that was fitted without its fold."""
    found = [np.empty_like(logits) for _ in settings]
    for k in np.unique(fold):
        kept, held = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        part = replace(base, inputs=base.inputs[kept], labels=base.labels[kept])
        for z, (objective, one) in zip(
            found, solved(part, logits[kept], settings, solve, start), strict=True
        ):
            z[held] = base.classifier.logits(base.inputs[held], shift=objective.shift(one.coefficients))
    return found


def held_out_nll_of_temperature(
    logits: NDArray[np.float32], labels: NDArray[np.intp], *, folds: int, seed: int
) -> float:
    """The score of temperature scaling alone on the same folds."""
    return _held_out_nll(logits, labels, _fold_of(len(labels), folds, seed))


def held_out_probs(
    logits: NDArray[np.float32], labels: NDArray[np.intp], *, folds: int, seed: int
) -> NDArray[np.float64]:
    """Probabilities (n, K) of held-out logits, each fold's at the temperature of least NLL for the others."""
    fold = _fold_of(len(labels), folds, seed)
    probs = np.empty(logits.shape)
    for k in np.unique(fold):
        probs[fold == k] = softmax(
            logits[fold == k] / best_temperature(logits[fold != k], labels[fold != k], 0.0)
        )
    return probs


def _held_out_nll(logits: NDArray[np.float32], labels: NDArray[np.intp], fold: NDArray[np.intp]) -> float:
    """NLL of each fold at the temperature of least NLL for the other folds."""
    total = 0.0
    for k in np.unique(fold):
        kept, held = fold != k, fold == k
        t = best_temperature(logits[kept], labels[kept], 0.0)
        total += focal_loss(logits[held], labels[held], t, 0.0)[0] * int(held.sum())
    return total / len(labels)


def _fold_of(n: int, folds: int, seed: int) -> NDArray[np.intp]:
    if not 2 <= folds <= n // 2:
        raise InputError(f"folds must lie in 2..{n // 2} for {n} samples, got {folds}")
    return np.random.default_rng(seed).permutation(n) % folds


def _several(value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError("an empty list leaves nothing to choose from")
        return value
    return (value,)

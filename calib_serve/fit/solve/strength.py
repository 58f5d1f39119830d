"""How strongly to regularise: K-fold cross-validation along a path of penalties, warm-started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calib_serve.errors import FitError
from calib_serve.fit.samples import folds_of
from calib_serve.fit.solve.lbfgs import Vector
from calib_serve.fit.solve.preconditioner import Solve
from calib_serve.fit.solve.softmax_regression import Penalty, Problem

__all__ = ["Path", "along_path"]

_GAP = 1e-4  # of the objective; far below what folds can tell apart
_PATIENCE = 2
_BEATEN = 4


@dataclass(frozen=True, eq=False)
class Path:
    """Held-out NLL (mean over all samples) of each penalty that was tried, and the best's index.

    ``thetas`` are the folds' parameters under the best.
    """

    scores: tuple[float, ...]
    best: int
    thetas: tuple[Vector, ...]

    def mean(self) -> Vector:
        """Close to the parameters that all samples together give."""
        return np.asarray(sum(self.thetas) / len(self.thetas))


def along_path(
    problem: Problem,
    penalties: Sequence[Penalty],
    start: Vector | Sequence[Vector],
    *,
    folds: int,
    seed: int,
) -> Path:
    """Score ``penalties``, strongest first, by held-out NLL; each starts where the last one ended.

    ``start`` is where the first one starts, or one such place a fold.

    The path ends early once the score has risen ``_PATIENCE`` times in a row: weaker penalties only overfit
    more, and are slow to fit. A penalty that the first fold shows to be worse than the best, by ``_BEATEN``
    standard errors, is not tried on the others: its score is the best's and the first fold's difference.
    """
    problem = replace(problem, rough=True)
    weight = np.ones(len(problem.samples)) if problem.samples.weight is None else problem.samples.weight
    fold = folds_of(problem.samples, folds=folds, seed=seed)
    train = [problem.take(fold != f) for f in range(folds)]
    held_out = [problem.take(fold == f) for f in range(folds)]
    thetas = [start] * folds if isinstance(start, np.ndarray) else list(start)
    best = list(thetas)
    best_losses: list[Vector] = []
    scores: list[float] = []
    for penalty in penalties:
        about: Solve | None = None
        losses: list[Vector] = []
        try:
            for f in range(folds):
                # Folds are alike: the curvature of the first serves them all.
                about = about or train[f].preconditioner(penalty, thetas[f])
                thetas[f] = train[f].solve(penalty, thetas[f], gap=_GAP, about=about).x
                losses.append(held_out[f].losses(thetas[f]) * weight[fold == f])
                if scores and _beaten(losses[0], best_losses[0]):
                    break
        except FitError:
            break
        if len(losses) < folds:
            scores.append(min(scores) + float((losses[0] - best_losses[0]).mean()))
        else:
            scores.append(float(np.concatenate(losses).mean()))
        if scores[-1] == min(scores):
            best, best_losses = list(thetas), losses
        tail = scores[-_PATIENCE - 1 :]
        if len(tail) > _PATIENCE and tail == sorted(tail):
            break
    if not scores:
        raise FitError("even the strongest penalty did not converge; choose a simpler method")
    return Path(tuple(scores), len(scores) - 1 - int(np.argmin(scores[::-1])), tuple(best))


def _beaten(losses: Vector, best: Vector) -> bool:
    difference = losses - best
    return bool(difference.mean() > _BEATEN * difference.std() / np.sqrt(len(difference)))

"""Structured scaling averaged over its strengths, each weighed by how well it predicts held-out samples.

Members are no calibration, a temperature, and structured vectors and matrices (Berta 2025) of falling
penalties, all maps W ln p + b of the same log-probabilities. Maps are averaged with weights proportional to
exp(-RATE sum of held-out NLL) (Yang 2001, with a rate below 1), and over the folds. As the NLL is convex in W
and b, that of the average is at most the average of the members': a noisy choice of one strength costs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap, Mixture, Step
from calib_serve.fit.facts import complete
from calib_serve.fit.output.base import Base, bases, losses
from calib_serve.fit.output.learnable import folds_of
from calib_serve.fit.output.members import Folds, Member, scalars, structured
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.solve.parallel import one_thread

__all__ = ["Averaged", "fit_structured_average"]

Floats = NDArray[np.float64]

_RATE = 0.3
_PRIOR = 1.5  # of a temperature, in the weights of all other members
_LEAST = 0.01  # of the largest weight; members below are left out
_MATRIX = 1024  # classes above which a matrix is not tried
_ONE_WAY = 1 << 18  # logits above which the base is chosen alone
_MISSING = 0.1  # share of the classes without a label, above which no class gets a map of its own


@dataclass(frozen=True, eq=False)
class Averaged:
    """The average and what it is made of; ``t`` is the temperature of the log-probabilities it maps."""

    samples: Samples
    fold: NDArray[np.intp]
    t: float
    bases: tuple[Base, ...]
    members: tuple[Member, ...]

    @classmethod
    def of(cls, samples: Samples, fold: NDArray[np.intp]) -> Averaged:
        """Fit all members on all folds but one, in turn."""
        with one_thread(samples.size):
            ways = bases(samples, fold, most=1 if samples.size > _ONE_WAY else 2)
            return min(
                (cls._on(samples, fold, parts) for parts in ways), key=lambda found: found.soft_least()
            )

    @classmethod
    def _on(cls, samples: Samples, fold: NDArray[np.intp], parts: Sequence[Base]) -> Averaged:
        # Of two classes, log-probabilities without a temperature: beta calibration is then among the maps.
        t = 1.0 if samples.classes == 2 else float(np.mean([b.t for b in parts]))
        folds = Folds.of(samples, fold, t, parts)
        members = scalars(folds, losses(samples, fold, parts))
        if len(np.unique(samples.labels)) >= (1 - _MISSING) * samples.classes:
            members += structured(folds, "diagonal", members)
            if 2 < samples.classes <= _MATRIX:
                members += structured(folds, "full", members)
        return cls(samples, fold, t, tuple(parts), tuple(members))

    def soft_least(self) -> float:
        """The members' held-out NLL as their weights see it."""
        total = self._totals()
        return float(total.min() - np.log(np.exp(-_RATE * (total - total.min())).mean()) / _RATE)

    def _totals(self, kept: slice | NDArray[np.bool_] = slice(None)) -> Floats:
        """Each member's held-out NLL over the kept samples, as if all were."""
        return np.array([m.losses[kept].mean() for m in self.members]) * len(self.samples)

    def weights(self, without: int | None = None) -> dict[str, float]:
        """Each member's weight by the held-out samples, of all folds or all ``without`` one."""
        kept = slice(None) if without is None else self.fold != without
        total = self._totals(kept)
        weight = np.exp(-_RATE * (total - total.min()))
        weight[0] *= 1 + _PRIOR * (len(weight) - 1)
        weight[weight < _LEAST * weight.max()] = 0
        return dict(zip((m.name for m in self.members), (weight / weight.sum()).tolist(), strict=True))

    def held_out(self, f: int) -> Artifact:
        """Fitted and weighed without fold ``f``."""
        steps = self._steps([f], self.weights(without=f))
        return Artifact(tuple(steps), method="structured-average", classes=self.samples.classes)

    def artifact(self) -> Artifact:
        """The average over all folds."""
        weights = self.weights()
        facts = {
            "objective": "held-out nll of the members, whose maps are averaged with these weights",
            "members": {name: weight for name, weight in weights.items() if weight > 0},
            "held_out_nll": {member.name: float(member.losses.mean()) for member in self.members},
            "folds": len(self.bases),
            "temperature": float(np.mean([b.t for b in self.bases])),
            "uniform": float(np.mean([b.uniform for b in self.bases])),
        }
        steps = self._steps(range(len(self.bases)), weights)
        return complete(steps, self.samples, method="structured-average", fit=facts, packages=("scipy",))

    def _steps(self, folds: Sequence[int], weights: dict[str, float]) -> list[Step]:
        used = [member for member in self.members if weights[member.name] > 0]
        dims = max(w.ndim for member in used for w, _ in member.maps)
        k = self.samples.classes
        weight, bias = np.zeros((k, k) if dims == 2 else k), np.zeros(k)
        for member in used:
            share = weights[member.name] / len(folds)
            for f in folds:
                w, b = member.maps[f]
                weight += share * (np.diag(np.broadcast_to(w, k)) if w.ndim < dims == 2 else w)
                bias += share * b
        uniform = float(np.mean([self.bases[f].uniform for f in folds]))
        mixture = Mixture(scales=np.array([1.0]), weights=np.array([1 - uniform, uniform]))
        if not bias.any() and dims < 2 and np.ptp(weight) <= 1e-12 * weight.max():
            return [LogitMap.temperature(self.t / float(weight[0])), mixture]
        first = [] if self.t == 1 else [LogitMap.temperature(self.t)]
        return [*first, LogitMap(weight, bias, "log_probs"), mixture]


def fit_structured_average(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    folds: int = 5,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """Structured scaling averaged over strengths, with a uniform share: what ``auto`` begins with.

    ``logits`` (n, K), ``labels`` (n,). Weights, temperature and uniform share come from ``folds`` folds.
    Raises InputError for invalid arrays, FitError where the logits say nothing about the labels. Berta 2025;
    Yang 2001.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10  # right three times of four
    >>> artifact = fit_structured_average(z, y)
    >>> artifact.probs(np.array([[0.0, 2.0]])).round(1).tolist()
    [[0.3, 0.7]]
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return Averaged.of(samples, folds_of(samples, folds=folds, seed=seed)).artifact()

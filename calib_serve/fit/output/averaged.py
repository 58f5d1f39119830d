"""Structured scaling averaged over its strengths, and drawn to a temperature where evidence is weak.

Members are no calibration, a temperature, and structured vectors and matrices (Berta 2025) of falling
penalties, all maps W ln p + b of the same log-probabilities. Each is weighed by the likelihood that it gives
to held-out samples (Yang 2001). The average of their maps is then averaged with the temperature alone: its
share is gain^2 / (gain^2 + variance), by its gain in held-out NLL over the temperature. As the NLL is convex
in W and b, that of an average is at most the average of the NLLs.

Folds cannot see that samples resemble each other more than they resemble what will be served, as paraphrases
by one writer do: then the weakest penalties, which learn single samples by heart, look best. None is tried
that a few samples of a class outweigh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap, Mixture, Step
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import CalibServeError, FitError
from calib_serve.core.text import percent
from calib_serve.fit.facts import complete
from calib_serve.fit.folds import FOLDS, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.binary import check_range, platt
from calib_serve.fit.output.linear import penalty_of
from calib_serve.fit.output.mixture import Base, base
from calib_serve.fit.output.offset import tempered, with_offset
from calib_serve.fit.preconditioners import Solve
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import SINGLE_ROUGH, Problem, Shape, risen
from calib_serve.fit.threads import one_thread
from calib_serve.metrics import mean_error
from calib_serve.scores import log_softmax

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
_FEWER = (3.0, 0.3, 0.03, 0.003)  # of many classes
_MANY = 64  # classes, of more of which fewer strengths are tried, and a matrix where it is better than others


@dataclass(frozen=True)
class HeldOutGain:
    """Evidence of held-out samples for more than a temperature: mean gain in NLL, and its standard error."""

    gain: float
    standard_error: float

    @property
    def share(self) -> float:
        """The weight of members beyond a temperature in their average with the temperature."""
        if not (self.gain > 0 and math.isfinite(self.standard_error)):
            return 0.0
        odds = float(self.standard_error) / float(self.gain)
        return 1 / (1 + odds * odds)  # which rises with the gain as rounded, too

    def __str__(self) -> str:
        return (
            f"more than a temperature is taken, by {percent(self.share)}: without it the NLL of held-out "
            f"samples is {self.gain:.4f} higher (standard error {self.standard_error:.4f})"
        )


@dataclass(frozen=True, eq=False)
class Averaged:
    """The average and its members; ``t`` is the temperature of the log-probabilities that members map.

    ``offset`` (K,) is added to the logits first, where no temperature does without.
    """

    samples: Samples
    offset: Floats | None
    fold: NDArray[np.intp]
    t: float
    base: Base
    members: tuple[Member, ...]

    @classmethod
    def of(cls, samples: Samples, fold: NDArray[np.intp]) -> Averaged:
        """Fit all members on all folds but one, in turn; samples of fold -1 are never held out.

        The offset, the temperature and the uniform share are of all samples: one or two numbers overfit
        little, and a temperature of few samples, all of which are right, would spoil the mean over folds.
        """
        with one_thread(samples.size):
            near, offset, found = with_offset(samples, base)
            # Of two log-odds, log-probabilities without a temperature: beta calibration is among their maps.
            t = 1.0 if samples.classes == 2 and offset is None else found.temperature
            folds = Folds.of(near, fold, t, found)
            members = scalars(folds, found.losses(near), offset)
            # Where a tenth of the classes or more have no label, no class gets a map of its own.
            if len(np.unique(samples.labels)) >= (1 - 0.1) * samples.classes:
                members += structured(folds, "diagonal", members)
                if 2 < samples.classes <= 1024:
                    members += structured(folds, "full", members)
            return cls(samples, offset, fold, t, found, tuple(members))

    def weighed(self, without: int | None = None) -> tuple[dict[str, float], HeldOutGain]:
        """Each member's weight, and the evidence that decided on the temperature's share.

        Both are by the held-out samples of all folds, or of all but the fold ``without``.
        """
        kept = np.flatnonzero((self.fold >= 0) & (self.fold != without))
        losses = np.stack([member.losses[kept] for member in self.members])
        total = losses.sum(axis=1)
        weight = np.exp(total.min() - total)
        weight /= weight.sum()
        gain = losses[0] - weight @ losses
        groups = None if self.samples.groups is None else self.samples.groups[kept]
        evidence = HeldOutGain(float(gain.mean()), mean_error(gain, groups))
        weight *= evidence.share
        weight[0] += 1 - evidence.share
        weight[weight < 0.01 * weight.max()] = 0
        names = (member.name for member in self.members)
        return dict(zip(names, (weight / weight.sum()).tolist(), strict=True)), evidence

    def held_out(self, f: int) -> Artifact:
        """Fit and weigh without fold ``f``."""
        steps = self._steps([f], self.weighed(without=f)[0])
        return Artifact(tuple(steps), method="structured-average", classes=self.samples.classes)

    def artifact(self, samples: Samples | None = None) -> Artifact:
        """The average over all folds; ``samples`` are the whole set that these samples were drawn from."""
        weights, evidence = self.weighed()
        folds = int(self.fold.max()) + 1
        facts = {
            "objective": "held-out nll of the members, whose maps are averaged with these weights",
            "members": {name: weight for name, weight in weights.items() if weight > 0},
            "held_out_nll": {
                member.name: float(member.losses[self.fold >= 0].mean()) for member in self.members
            },
            "beyond_temperature": {**vars(evidence), "share": evidence.share, "says": str(evidence)},
            "folds": folds,
            "temperature": self.base.temperature,
            **({} if self.offset is None else {"offset": self.offset}),
            "uniform": self.base.uniform,
        }
        steps = self._steps(range(folds), weights)
        of = self.samples if samples is None else samples
        return complete(steps, of, method="structured-average", fit=facts, packages=("scipy",))

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
        uniform = self.base.uniform
        mixture = Mixture(scales=np.array([1.0]), weights=np.array([1 - uniform, uniform]))
        if not bias.any() and dims < 2 and np.ptp(weight) <= 1e-12 * weight.max():
            return [tempered(self.t / float(weight[0]), self.offset), mixture]
        first = [] if self.t == 1 and self.offset is None else [tempered(self.t, self.offset)]
        return [*first, LogitMap(weight, bias, "log_probs"), mixture]


def fit_structured_average(samples: Samples, *, seed: int = 0) -> Artifact:
    """Fit structured scaling averaged over strengths, with a uniform share: what ``auto`` begins with.

    Weights, temperature and uniform share come from five folds. Raises FitError where the logits say
    nothing about the labels. Berta 2025; Yang 2001.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10  # right three times of four
    >>> artifact = fit_structured_average(Samples.of(z, y))
    >>> bool(abs(artifact.of_logits(np.array([[0.0, 2.0]]))[0, 1] - 0.75) < 0.01)
    True
    """
    part = samples.some(MEASURED.most_samples_compared)
    fold = folds_of(part, folds=FOLDS, seed=seed)
    # One fold of so many samples weighs as well as all, in a fifth of the time.
    held = fold if len(part) <= MEASURED.most_samples_cross_validated else np.where(fold == 0, 0, -1)
    return Averaged.of(part, held).artifact(samples)


@dataclass(frozen=True, eq=False)
class Member:
    """A calibration under one strength: its map for each fold, and its held-out losses (n,), weighted."""

    name: str
    maps: tuple[tuple[Floats, Floats], ...]
    losses: Floats


@dataclass(frozen=True, eq=False)
class Folds:
    """Log-probabilities that maps act on, by fold: ``train`` holds all folds but one, ``test`` that fold.

    Those to train on are times ``ratio``, which makes them those of the base's temperature.
    """

    samples: int
    base: Base
    ratio: float
    train: tuple[Samples, ...]
    test: tuple[Samples, ...]
    index: tuple[NDArray[np.intp], ...]

    @classmethod
    def of(cls, samples: Samples, fold: NDArray[np.intp], t: float, base: Base) -> Folds:
        """Make samples of features log-softmax(z / t); the mixture's noise weighs little in training."""
        x = np.empty(
            (len(samples), samples.classes), np.float32 if samples.size > SINGLE_ROUGH else np.float64
        )
        for part, z in samples.chunks(np.float64):
            x[part] = log_softmax(z / t)
        whole, ratio = replace(samples, logits=x, rows=None), t / base.temperature
        index = [np.flatnonzero(fold == f) for f in range(int(fold.max()) + 1)]
        rests = [np.flatnonzero(fold != f) for f in range(len(index))]
        trust = base.trust(samples)
        train = []
        for rest in rests:
            others = _copied(whole, rest, ratio)
            weight = trust[rest] * others.weights
            train.append(replace(others, weight=weight * (len(weight) / weight.sum())))
        test = [_copied(whole, i) for i in index]
        return cls(len(samples), base, ratio, tuple(train), tuple(test), tuple(index))

    def losses(self, log_p: Sequence[Floats]) -> Floats:
        """Held-out losses (n,) in the samples' order from each fold's log-probabilities."""
        out = np.full(self.samples, np.nan)  # where no fold holds them out
        for test, index, of_fold in zip(self.test, self.index, log_p, strict=True):
            out[index] = -self.base.mixed(of_fold, test.classes) * test.weights
        return out


def _copied(samples: Samples, rows: NDArray[np.intp], ratio: float = 1.0) -> Samples:
    """Copy rows, times ``ratio``: gathering them in every pass would cost as much as the pass."""
    part = samples.take(rows)
    if ratio == 1 and samples.size > 1 << 22:  # of so many logits none are copied
        return part
    x = samples.logits[rows]
    return replace(part, logits=x if ratio == 1 else x * x.dtype.type(ratio), rows=None)


def scalars(folds: Folds, held: Floats, offset: Floats | None) -> list[Member]:
    """Make members of no calibration and of a temperature; of two classes Platt's too."""
    k, count = folds.train[0].classes, len(folds.index)
    zero = np.zeros(k)
    as_given = zero if offset is None else -offset
    found = [
        Member("temperature", ((np.full(k, folds.ratio), zero),) * count, held),
        _member("none", folds, [(np.full(k, folds.ratio * folds.base.temperature), as_given)] * count),
    ]
    if k == 2:
        with suppress(CalibServeError):  # a weight below 0: the other members say as much
            found.append(_member("platt", folds, [_platt(train, folds.ratio) for train in folds.train]))
    return found


def _platt(samples: Samples, ratio: float) -> tuple[Floats, Floats]:
    x = samples.read(slice(0, len(samples)), np.float64) / ratio
    check_range(x)
    w, b, _ = platt(x[:, 1] - x[:, 0], samples.labels, samples.weights)
    return np.full(2, w), np.array([0.0, b])


def _member(name: str, folds: Folds, maps: Sequence[tuple[Floats, Floats]]) -> Member:
    log_p = [_log_p_true(test, *m) for test, m in zip(folds.test, maps, strict=True)]
    return Member(name, tuple(maps), folds.losses(log_p))


def _log_p_true(samples: Samples, weight: Floats, bias: Floats) -> Floats:
    shape: Shape = "full" if weight.ndim == 2 else "diagonal"
    identity = np.eye(len(bias)) if weight.ndim == 2 else np.ones(len(bias))
    theta = np.concatenate([(weight - identity).ravel(), bias])
    return -Problem(samples, shape).losses(theta)


def strengths_of(n: int, classes: int) -> list[float]:
    """Strengths to try for n samples, strongest first, down to where a few samples a class outweigh them."""
    tried = _FEWER if classes > _MANY else STRENGTHS
    return [
        s for s in tried if s >= min(MEASURED.least_strength_by_samples_of_a_class * classes / n, tried[0])
    ]


def structured(folds: Folds, shape: Shape, rivals: Sequence[Member]) -> list[Member]:
    """Fit members of falling strength; members beaten on the first fold are fitted on that fold alone.

    A matrix of many classes must be better than its ``rivals`` on the first fold.
    """
    k = folds.train[0].classes
    strengths = strengths_of(len(folds.train[0]) + len(folds.test[0]), k)
    problems = [replace(Problem(train, shape), rough=True) for train in folds.train]
    first = _first_fold(folds, problems[0], strengths)
    least = min(float(rival.losses[folds.index[0]].mean()) for rival in rivals)
    best = min((step.loss for step in first), default=math.inf)
    if k > _MANY and shape == "full" and best >= least:
        return []
    # By 15 nats over the first fold's samples a strength may be beaten there and yet matter.
    close = 15.0 / len(folds.index[0])
    name = "structured-vector" if shape == "diagonal" else "structured-matrix"
    members = []
    for step in first:
        if step.loss - best > close:
            continue
        thetas = [step.theta]
        for problem in problems[1:]:
            # Folds are alike: the others begin at the first fold's solution, with its curvature.
            penalty = penalty_of(len(problem.samples), k, step.strength)
            thetas.append(problem.solve(penalty, step.theta, gap=step.gap, about=step.about).x)
        maps = [problems[f].map(theta) for f, theta in enumerate(thetas)]
        scaled = [(w * folds.ratio, b) for w, b in maps]
        members.append(_member(f"{name} {step.strength:g}", folds, scaled))
    return members


@dataclass(frozen=True, eq=False)
class _PathStep:
    """The first fold's parameters under one strength, its held-out loss, and the preconditioner there."""

    strength: float
    theta: Floats
    loss: float
    gap: float
    about: Solve


def _first_fold(folds: Folds, problem: Problem, strengths: Sequence[float]) -> list[_PathStep]:
    """Follow the first fold's path, until its held-out loss has ``risen``."""
    n, k = len(problem.samples), problem.samples.classes
    theta = np.zeros(problem.size)
    gap = MEASURED.gap_of_folds * max(problem.nll(theta), 1e-2)
    found: list[_PathStep] = []
    curved = None
    for strength in strengths:
        penalty = penalty_of(n, k, strength)
        curved = curved or problem.curvature(theta)
        about = curved(penalty)
        try:
            end = problem.solve(penalty, theta, gap=gap, about=about)
        except FitError:
            break
        # A new preconditioner pays after eight iterations.
        theta, curved = end.x, None if end.iterations > 8 else curved
        w, b = problem.map(theta)
        log_p = _log_p_true(folds.test[0], w * folds.ratio, b)
        found.append(_PathStep(strength, theta, float(-folds.base.mixed(log_p, k).mean()), gap, about))
        if risen([step.loss for step in found]):
            break
    return found

"""Decisions on calibrated probabilities: sets, abstention and actions, and what they promise."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact.steps import tensor
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import check_names, shown
from calib_serve.scores import Places

SetScore = Literal["lac", "aps", "raps"]
"""How unlikely a class is the true one: 1 - p (LAC), or the mass of the likelier classes (APS), with a
penalty on the rank (RAPS)."""

Goal = Literal["cost", "precision", "recall", "budget"]
"""What chosen actions promise: the largest mean cost; the least share of what is chosen as class 1 that is of
it; the least share of class 1 that is chosen; the largest share of all samples that is chosen."""
MOST_COST = 1e9
"""The largest cost, and how many times larger than another one it may be."""


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """The classes whose score is at most a threshold; the top class is always in.

    Of equal probabilities the first class ranks first.

    Args:
        threshold: () or (K,), one a class.
        coverage: Promised share of sets that hold the true class; for thresholds of classes, of every class.
        score: "lac", 1 - p_k (Sadinle 2019); "aps", the sum of the probabilities above p_k (Romano 2020,
            without its random part, so that the class that completes the mass is in, and one of probability 0
            behind it is not); "raps", the same with a penalty on ranks (Angelopoulos 2021, eq. 4).
        penalty: Of "raps", added for every rank after ``free_ranks``.
        free_ranks: Of "raps", ranks without a penalty.

    >>> sets = PredictionSets(np.array(0.625), coverage=0.9, score="aps")
    >>> sets(np.array([[0.5, 0.25, 0.25], [0.875, 0.125, 0.0]])).tolist()
    [[True, True, False], [True, False, False]]
    """

    threshold: AnyFloats
    coverage: float
    score: SetScore = "lac"
    penalty: float = 0.0
    free_ranks: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", tensor(self.threshold, "the sets' threshold"))
        if self.threshold.ndim > 1 or (self.threshold < 0).any():
            raise ShapeError(
                f"the sets' threshold must be () or (K,) and not negative, got {self.threshold.shape}"
            )
        if not 0 < self.coverage < 1:
            raise InputError(f"coverage must lie between 0 and 1, got {self.coverage}; 0.9 means 90 %")
        if self.score not in get_args(SetScore):
            raise InputError(f"score must be lac, aps or raps, got {self.score!r}")
        if not (0 <= self.penalty < math.inf) or self.free_ranks < 0:
            raise InputError(
                f"penalty and free_ranks must not be negative, got {self.penalty}, {self.free_ranks}"
            )
        if self.score != "raps" and (self.penalty or self.free_ranks):
            raise InputError("penalty and free_ranks belong to the score raps")

    @property
    def classes(self) -> int | None:
        """K where each class has its own threshold, None for any."""
        return len(self.threshold) if self.threshold.ndim else None

    def scores(self, probs: AnyFloats) -> NDArray[np.float64]:
        """Nonconformity scores (n, K): how unlikely it is that a class is true.

        Args:
            probs: Probabilities (n, K).
        """
        p = np.asarray(probs, np.float64)
        if self.score == "lac":
            return np.asarray(1 - p)
        order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.zeros_like(p)
        np.cumsum(np.take_along_axis(p, order, axis=1)[:, :-1], axis=1, out=ranked[:, 1:])
        ranked += self.penalty * np.maximum(np.arange(1, p.shape[1] + 1) - self.free_ranks, 0)
        found = np.empty_like(p)
        np.put_along_axis(found, order, ranked, axis=1)
        return found

    def __call__(self, probs: AnyFloats, *, class_axis: int | None = None) -> NDArray[np.bool_]:
        """Whether each class is in the set (n, K), of calibrated probabilities (n, K).

        Args:
            probs: Probabilities (n, K); with ``class_axis`` of more axes, and a set for each place.
            class_axis: Axis of the classes among more axes, 1 or -1.
        """
        if (places := _places(probs, class_axis)) is not None:
            return places.restored(self(places.rows(np.asarray(probs))))
        inside = self.scores(probs) <= self.threshold
        # An empty set would say that no class is possible.
        inside[np.arange(len(inside)), np.argmax(probs, axis=1)] = True
        return inside

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry, without the thresholds."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "threshold"}


@dataclass(frozen=True)
class Abstain:
    """No answer where the top probability is below a threshold, which makes one of two promises.

    Args:
        threshold: Least probability that is answered.
        risk: Share of the answers that is wrong, at most; None where another promise is made.
        level: Probability of that, over the samples that the threshold was found on; 0.95 by default.
        known_refused: Share of the samples of the known classes that gets no answer, at most, on average over
            those samples; None where another promise is made. Of samples of other classes none is made.

    Raises:
        InputError: For no promise or two, and for shares beyond [0, 1].

    >>> Abstain(0.75, risk=0.05)(np.array([[0.5, 0.5], [0.25, 0.75]])).tolist()
    [True, False]
    """

    threshold: float
    risk: float | None = None
    level: float | None = None
    known_refused: float | None = None

    def __post_init__(self) -> None:
        if (self.risk is None) == (self.known_refused is None):
            raise InputError("an abstention promises a risk or a share of known_refused, one of both")
        if self.risk is None and self.level is not None:
            raise InputError("level of abstention goes with a risk; known_refused is promised on average")
        if self.risk is not None and self.level is None:
            object.__setattr__(self, "level", 0.95)
        for name, share in {"threshold": self.threshold, **self.facts}.items():
            if not 0 <= share <= 1:
                raise InputError(f"{name} of abstention must lie in [0, 1], got {share}")

    @property
    def answered(self) -> float | None:
        """Share of the samples of the known classes that is answered, at least; None of another promise."""
        # Without rounding: as a float, 1 - 0.1 lies below 0.9, and a rank may with it.
        return None if self.known_refused is None else float(1 - Fraction(repr(float(self.known_refused))))

    def __call__(self, probs: AnyFloats, *, class_axis: int | None = None) -> NDArray[np.bool_]:
        """Whether to abstain (n,) at calibrated probabilities (n, K); NaN abstains.

        Args:
            probs: Probabilities (n, K); with ``class_axis`` of more axes, and an answer for each place.
            class_axis: Axis of the classes among more axes, 1 or -1.
        """
        if (places := _places(probs, class_axis)) is not None:
            return places.restored(self(places.rows(np.asarray(probs))))
        # Written so that NaN abstains.
        return np.asarray(~(np.max(probs, axis=1) >= self.threshold))

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, eq=False)
class Choice:
    """One action for each sample: that of least expected cost, or of two classes class 1 from a threshold.

    Of equal expected costs the first action is chosen (Elkan 2001, equation 1).

    Args:
        actions: Names (A,); of a threshold those of class 0 and of class 1.
        goal: "cost", "precision", "recall" or "budget".
        promised: Mean cost of new samples, at most; or the precision or recall, at least; or the share of
            samples that is chosen, at most.
        level: Probability of that, over the samples that it was found on.
        costs: Cost of each action for a sample of each class (K, A); of "cost" alone.
        threshold: Least probability of class 1 that is chosen; of all others.

    >>> choice = Choice(("sell", "review"), "cost", 0.2, costs=np.array([[0.0, 0.25], [1.0, 0.25]]))
    >>> choice([[0.8, 0.2], [0.75, 0.25], [0.7, 0.3], [np.nan, 0.3]]).tolist()
    [0, 0, 1, -1]
    """

    actions: tuple[str, ...]
    goal: Goal
    promised: float
    level: float = 0.95
    costs: AnyFloats | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(self.actions))
        check_names(self.actions)
        if len(self.actions) < 2 or len(set(self.actions)) < len(self.actions) or "" in self.actions:
            raise InputError(
                f"a decision is among two or more actions by different names, got {self.actions}"
            )
        if self.goal not in get_args(Goal):
            raise InputError(f"the goal must be one of {', '.join(get_args(Goal))}, got {shown(self.goal)}")
        of_cost = self.goal == "cost"
        if (self.costs is not None) != of_cost or (self.threshold is None) != of_cost:
            raise InputError(
                "a decision is by costs where the goal is cost, else by a threshold; never by both"
            )
        if not 0 < self.level < 1 or not (math.isfinite(self.promised) if of_cost else 0 < self.promised < 1):
            raise InputError(f"{self.goal} of {self.promised} is no promise at a level of {self.level}")
        if self.threshold is not None and (len(self.actions) != 2 or not 0 <= self.threshold <= 1):
            raise InputError(f"the threshold of two actions must lie in [0, 1], got {self.threshold}")
        if self.costs is not None:
            object.__setattr__(self, "costs", tensor(self.costs, "costs", most=MOST_COST))
            self._check_costs(self.costs)

    def _check_costs(self, costs: AnyFloats) -> None:
        if costs.ndim != 2 or len(costs) < 2 or costs.shape[1] != len(self.actions):
            raise ShapeError(f"costs must be (K, {len(self.actions)}) with K >= 2, got {costs.shape}")
        _, first = np.unique(costs, axis=1, return_index=True)
        if len(first) < len(self.actions):
            same = next(a for a in range(len(self.actions)) if a not in first)
            raise InputError(
                f"action {shown(self.actions[same])} costs what another one does for every class, and would "
                "never be chosen; leave it out"
            )
        above = self.regrets[self.regrets > 0]
        if above.min() * MOST_COST < above.max():
            raise InputError(
                f"costs of a class differ by {above.min():.3g} and by {above.max():.3g}, more than float32 "
                f"tells apart: keep them within {MOST_COST:.0e}"
            )

    @cached_property
    def regrets(self) -> NDArray[np.float64]:
        """Costs above the least one of each class (K, A): not negative, and with the same decisions."""
        costs = np.zeros((2, 2)) if self.costs is None else self.costs
        return np.asarray(costs - costs.min(axis=1, keepdims=True))

    @property
    def classes(self) -> int:
        """K: the number of classes that it decides on."""
        return 2 if self.costs is None else len(self.costs)

    def __call__(self, probs: AnyFloats, *, class_axis: int | None = None) -> NDArray[np.int64]:
        """The id of each sample's action (n,), of calibrated probabilities (n, K); -1 where they are NaN.

        Args:
            probs: Probabilities (n, K); with ``class_axis`` of more axes, and an action for each place.
            class_axis: Axis of the classes among more axes, 1 or -1.
        """
        if (places := _places(probs, class_axis)) is not None:
            return places.restored(self(places.rows(np.asarray(probs))))
        p = np.asarray(probs, np.float64)
        best = (p @ self.regrets).argmin(axis=1) if self.threshold is None else p[:, 1] >= self.threshold
        return np.where(np.isnan(p).any(axis=1), -1, best).astype(np.int64)

    def names(self, probs: AnyFloats) -> list[str]:
        """The name of each sample's action; "" where its probabilities are NaN.

        Args:
            probs: Calibrated probabilities (n, K).
        """
        return [self.actions[a] if a >= 0 else "" for a in self(probs).tolist()]

    def outcomes(
        self, probs: AnyFloats, labels: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Values (n,), and the rows (n,) over which their mean is what is promised.

        Args:
            probs: Calibrated probabilities (n, K).
            labels: Class ids (n,).
        """
        chosen, every = self(probs), np.ones(len(labels), np.bool_)
        if self.costs is not None:
            return np.asarray(self.costs[labels, chosen], np.float64), every
        one, true = chosen == 1, labels == 1
        values, rows = {"precision": (true, one), "recall": (one, true), "budget": (one, every)}[self.goal]
        return values.astype(np.float64), rows

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry, without the costs."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "costs"}
        return {**held, "actions": list(self.actions)}


def _places(probs: AnyFloats, class_axis: int | None) -> Places | None:
    """The places of probabilities of more axes than (n, K); ShapeError where no class axis is said."""
    shape = np.shape(probs)
    if len(shape) < 3:
        return None
    if class_axis is None:
        raise ShapeError(f"probabilities {shape} are of places: say class_axis=1 or class_axis=-1")
    return Places.of(shape, shape[class_axis], axis=class_axis, what="the probabilities")


@dataclass(frozen=True, kw_only=True)
class ThresholdFacts:
    """The samples that a threshold was found on.

    Args:
        samples: Number of samples.
        sha256: Hash of their scores and labels.
        seed: Seed of the draws among them.
        groups: Number of groups they are in; None without groups.
    """

    samples: int
    sha256: str
    seed: int
    groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class SetFacts(ThresholdFacts):
    """Facts of prediction sets, on the samples that their thresholds were found on.

    Args:
        samples: Number of samples.
        sha256: Hash of their scores and labels.
        seed: Seed of the draws among them.
        groups: Number of groups they are in; None without groups.
        threshold_samples: Number of samples that no option was chosen on.
        top_right: Share of the samples whose top class is true.
        held: Share of the samples whose set holds the true class.
        always_in: Ids of classes that are in every set.
    """

    threshold_samples: int
    top_right: float
    held: float
    always_in: tuple[int, ...] = ()

    def exact(self, sets: PredictionSets) -> int | None:
        """Return the samples of which the coverage's range is known: of one threshold, without groups."""
        return None if sets.classes or self.groups else self.threshold_samples


@dataclass(frozen=True, kw_only=True)
class AbstainFacts(ThresholdFacts):
    """Facts of an abstention, on the samples that its threshold was found on.

    Args:
        samples: Number of samples.
        sha256: Hash of their scores and labels.
        seed: Seed of the draws among them.
        groups: Number of groups they are in; None without groups.
        answered: Share of the samples that gets an answer.
    """

    answered: float


@dataclass(frozen=True, kw_only=True)
class ChoiceFacts(ThresholdFacts):
    """Facts of chosen actions, on the samples that their promise was found on.

    Args:
        samples: Number of samples.
        sha256: Hash of their scores and labels.
        seed: Seed of the draws among them.
        groups: Number of groups they are in; None without groups.
        measured: What the promise is of, on these samples.
        taken: Share of these samples that gets each action (A,).
    """

    measured: float
    taken: tuple[float, ...]


@dataclass(frozen=True)
class DecisionFacts:
    """The samples that prediction sets, abstention and actions were found on.

    Args:
        sets: Of prediction sets; None where not known.
        abstain: Of abstention; None where not known.
        choice: Of chosen actions; None where not known.
    """

    sets: SetFacts | None = None
    abstain: AbstainFacts | None = None
    choice: ChoiceFacts | None = None

"""Decisions on calibrated probabilities: prediction sets and abstention, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact.steps import tensor
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores import Places

SetScore = Literal["lac", "aps", "raps"]
"""How unlikely a class is the true one: 1 - p (LAC), or the mass of the likelier classes (APS), with a
penalty on the rank (RAPS)."""

_SCORES: tuple[SetScore, ...] = ("lac", "aps", "raps")


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
        if self.score not in _SCORES:
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
    """The samples that a threshold was found on."""

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


@dataclass(frozen=True)
class DecisionFacts:
    """The samples that prediction sets and abstention were found on.

    Args:
        sets: Of prediction sets; None where not known.
        abstain: Of abstention; None where not known.
    """

    sets: SetFacts | None = None
    abstain: AbstainFacts | None = None


def sets_of(facts: Mapping[str, Any] | None, threshold: AnyFloats | None) -> PredictionSets | None:
    """Rebuild prediction sets from a manifest's entry and their thresholds; None without an entry."""
    if facts is None:
        return None
    if threshold is None:
        raise ShapeError("the manifest names prediction sets, and there are no thresholds of them")
    return PredictionSets(threshold, **facts)

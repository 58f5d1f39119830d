"""Decide by calibrated probabilities: which classes it may be, whether to answer, and what that promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact.steps import Floats, tensor
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import (
    SelectiveEvaluation,
    SetEvaluation,
    checked,
    coverage_range,
    evaluate_abstention,
    evaluate_sets,
)

if TYPE_CHECKING:
    from calib_serve.artifact.artifact import Artifact

SetScore = Literal["lac", "aps", "raps"]
"""How unlike a class is to be the true one: 1 - p (LAC), or the mass of the likelier classes (APS), with a
penalty on the rank (RAPS)."""

_SCORES: tuple[SetScore, ...] = ("lac", "aps", "raps")


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """The classes whose score is at most ``threshold``, () or (K,) one a class; the top class is always in.

    ``coverage`` is the promised share of sets that hold the true class; for thresholds of classes, of every
    class. ``score``: "lac", 1 - p_k (Sadinle 2019); "aps", the sum of the probabilities above p_k (Romano
    2020, without its random part, so that the class that completes the mass is in, and one of probability 0
    behind it is not); "raps" adds ``penalty`` for every rank after ``free_ranks`` (Angelopoulos
    2021, eq. 4). Of equal probabilities the first class ranks first.

    >>> sets = PredictionSets(np.array(0.625), coverage=0.9, score="aps")
    >>> sets(np.array([[0.5, 0.25, 0.25], [0.875, 0.125, 0.0]])).tolist()
    [[True, True, False], [True, False, False]]
    """

    threshold: Floats
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

    def scores(self, probs: Floats) -> NDArray[np.float64]:
        """Score how unlike each class is to be true (n, K), from probabilities (n, K)."""
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

    def __call__(self, probs: Floats) -> NDArray[np.bool_]:
        """Tell whether each class is in the set (n, K), of calibrated probabilities (n, K)."""
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
    """No answer where the top probability is below ``threshold``.

    Of the answers at most the share ``risk`` is wrong, with probability ``level`` over the samples that
    the threshold was found on.

    >>> Abstain(0.75, risk=0.05)(np.array([[0.5, 0.5], [0.25, 0.75]])).tolist()
    [True, False]
    """

    threshold: float
    risk: float
    level: float = 0.95

    def __post_init__(self) -> None:
        for name in ("threshold", "risk", "level"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} of abstention must lie in [0, 1], got {getattr(self, name)}")

    def __call__(self, probs: Floats) -> NDArray[np.bool_]:
        """Tell whether there is no answer (n,), of calibrated probabilities (n, K); none of NaN either."""
        # Written so that NaN abstains.
        return np.asarray(~(np.max(probs, axis=1) >= self.threshold))

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry."""
        return dict(vars(self))


def sets_of(facts: Mapping[str, Any] | None, threshold: Floats | None) -> PredictionSets | None:
    """Return the inverse of ``facts``, of a manifest that may have none."""
    if facts is None:
        return None
    if threshold is None:
        raise ShapeError("the manifest names prediction sets, and there are no thresholds of them")
    return PredictionSets(threshold, **facts)


_NAMED = 10  # classes in a sentence


@dataclass(frozen=True, eq=False)
class DecisionsEvaluation:
    """Measures of an artifact's sets and abstention on labelled samples; None for what it has not."""

    sets: SetEvaluation | None
    abstain: SelectiveEvaluation | None

    def __bool__(self) -> bool:
        return self.sets is not None or self.abstain is not None

    def says(self, class_names: tuple[str, ...] = ()) -> list[str]:
        """Say it in sentences."""
        return [
            *([self.sets.says(class_names)] if self.sets else []),
            *([self.abstain.says()] if self.abstain else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: those that there are."""
        found = {"sets": self.sets, "abstain": self.abstain}
        return {name: one.as_dict() for name, one in found.items() if one is not None}


def evaluate_decisions(
    artifact: Artifact,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> DecisionsEvaluation:
    """Measure them on calibrated probabilities (n, K) and class ids (n,) that nothing was fitted to.

    ``groups`` (n,) say which samples belong together.
    """
    sets, abstain = artifact.sets, artifact.abstain
    if sets is None and abstain is None:
        return DecisionsEvaluation(None, None)
    p, y = checked(probs, labels)
    facts = _facts(artifact, "sets")
    one_threshold = sets is not None and sets.classes is None and "groups" not in facts
    return DecisionsEvaluation(
        None
        if sets is None
        else evaluate_sets(
            sets(p),
            y,
            confidence=np.clip(p.max(axis=1).astype(np.float64), 0, 1),
            promised=sets.coverage,
            fitted_on=facts.get("threshold_samples") if one_threshold else None,
            level=level,
            groups=groups,
        ),
        None
        if abstain is None
        else evaluate_abstention(
            p, y, threshold=abstain.threshold, promised=abstain.risk, level=level, groups=groups
        ),
    )


def promises(artifact: Artifact) -> list[str]:
    """Say it in sentences: what is promised, by how many samples, and what to know of it.

    >>> from calib_serve.artifact import Artifact, LogitMap
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> promises(artifact)
    []
    """
    sets, abstain = artifact.sets, artifact.abstain
    return [
        *(_of_sets(sets, artifact, _facts(artifact, "sets")) if sets else ()),
        *(_of_abstain(abstain, _facts(artifact, "abstain")) if abstain else ()),
        *(artifact.contract.says(artifact.class_names) if artifact.contract else ()),
    ]


def _facts(artifact: Artifact, of: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = artifact.fit.get("decisions", {}).get(of, {})
    return found


def _of_sets(sets: PredictionSets, artifact: Artifact, facts: Mapping[str, Any]) -> list[str]:
    whom = "the samples of every class" if sets.classes else "new samples"
    said = [
        f"Sets hold the true class of {_percent(sets.coverage)} of {whom} ({sets.score}), {_ground(facts)}."
    ]
    if "threshold_samples" in facts and not sets.classes and "groups" not in facts:
        reached = coverage_range(facts["threshold_samples"], sets.coverage)
        said.append(
            "Over draws of so many samples the share lies between "
            f"{_percent(reached.low)} and {_percent(reached.high)}, 95 times in 100."
        )
        if facts["held"] > reached.high:
            why = "as many samples have the same score"
            if facts.get("top_right", 1.0) > reached.high:
                why = "as the most likely class is in every set; a higher coverage says more"
            said.append(f"They hold more, {_percent(facts['held'])} of these samples, {why}.")
    always = facts.get("always_in", [])
    if always:
        names = [artifact.class_names[k] if artifact.class_names else str(k) for k in always[:_NAMED]]
        more = f" and {len(always) - _NAMED} more" if len(always) > _NAMED else ""
        said.append(
            f"Every set holds {', '.join(names)}{more} ({len(always)} of {artifact.classes} classes): so few "
            "samples, or so many at probability 0, allow none of them to be left out."
        )
    return said


def _of_abstain(abstain: Abstain, facts: Mapping[str, Any]) -> list[str]:
    answered = f"; {_percent(facts['answered'])} of these are answered" if "answered" in facts else ""
    return [
        f"Answers from {abstain.threshold:.4f} confidence on are wrong in at most {_percent(abstain.risk)}, "
        f"with probability {abstain.level:.4g}, {_ground(facts)}{answered}."
    ]


def _ground(facts: Mapping[str, Any]) -> str:
    if "samples" not in facts:
        return "on whatever ground its maker had"
    groups = f" in {facts['groups']} groups" if "groups" in facts else ""
    return f"by {facts['samples']} samples{groups}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"

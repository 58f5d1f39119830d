"""Predictions of a handler: what it answers for each row, and why it answers none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.receipts import LabelChoice, SignedReceipt

T = TypeVar("T")


class RowDecisions(NamedTuple):
    """A set's class ids, likeliest first; whether to abstain; whether it may be acted on; the action's name.

    None where not decided.
    """

    in_set: tuple[int, ...] | None = None
    abstain: bool | None = None
    act: bool | None = None
    decision: str | None = None


NOTHING = RowDecisions()


@dataclass(frozen=True, eq=False)
class Prediction:
    """One prediction: calibrated probabilities (K,), and the model's logits (K,) of them.

    ``receipt`` is None if receipts are off; ``decisions`` are those of the artifact, or of the archive.
    """

    probabilities: NDArray[np.float64]
    predicted: int
    confidence: float
    logits: NDArray[Any]
    receipt: SignedReceipt | None = None
    decisions: RowDecisions = NOTHING


@dataclass(frozen=True, eq=False)
class LabelsPrediction:
    """One prediction of a multi-label model: probabilities and logits (L,), and ``choices`` for receipts.

    ``predicted``: the labels whose probability is the archive's threshold or more.
    """

    probabilities: NDArray[np.float64]
    predicted: tuple[int, ...]
    choices: Sequence[LabelChoice]
    logits: NDArray[Any]


@dataclass(frozen=True)
class Failure:
    """Why one item has no prediction: the HTTP status, and words that are shown to the client."""

    status: int
    reason: str


INVALID = Failure(500, "the model's output for this input is NaN or infinite")


class Row(NamedTuple):
    """One row's calibrated probabilities (K,), and its logits (K,)."""

    probs: NDArray[np.float64]
    logits: NDArray[Any]


AnyPrediction = Union[Prediction, LabelsPrediction]
Result = Union[AnyPrediction, Failure]


def all_or_none(rows: Sequence[T | Failure]) -> list[T | Failure]:
    """Fail a request of several rows by its worst failure, as it has one status; else return the rows.

    >>> all_or_none([1, Failure(500, "no"), Failure(400, "too short")])
    [Failure(status=400, reason='instance 2: too short')]
    """
    failures = [(row.status, i, row.reason) for i, row in enumerate(rows) if isinstance(row, Failure)]
    if not failures:
        return list(rows)
    status, i, reason = min(failures)  # errors of the client, which it can mend, come first
    return [Failure(status, f"instance {i}: {reason}")]


def row_decisions(
    artifact: Artifact,
    probs: Sequence[NDArray[np.float64]],
    *,
    abstain_below: float | None = None,
    segments: str | Sequence[str] = "",
) -> list[RowDecisions]:
    """Decide by calibrated probabilities, each (K,), as artifact and archive (``abstain_below``) say.

    ``segments`` of each, or of all: what may be acted on there may depend on them.
    """
    # Most archives decide nothing: then there is no array to stack.
    rules = (artifact.sets, artifact.abstain, abstain_below, artifact.contract, artifact.choice)
    if not probs or all(rule is None for rule in rules):
        return [NOTHING] * len(probs)
    p = np.stack(probs)
    sets: Sequence[Any] = [None] * len(p)
    if artifact.sets is not None:
        inside = artifact.sets(p)
        likeliest_first = np.argsort(-p, axis=1, kind="stable")
        sets = [tuple(ids[of[ids]].tolist()) for ids, of in zip(likeliest_first, inside, strict=True)]
    below: Sequence[Any] = [None] * len(p)
    if artifact.abstain is not None:
        below = artifact.abstain(p).tolist()
    elif abstain_below is not None:
        below = (p.max(axis=1) < abstain_below).tolist()
    acts: Sequence[Any] = [None] * len(p)
    if artifact.contract is not None:
        acts = artifact.contract.acts(p.max(axis=1), p.argmax(axis=1), segments).tolist()
    named = [None] * len(p) if artifact.choice is None else artifact.choice.names(p)
    return [RowDecisions(*one) for one in zip(sets, below, acts, named, strict=True)]

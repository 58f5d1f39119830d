"""What becomes of a row that a classifier is asked about: a prediction, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.receipts import SignedReceipt
from calib_serve.reporter.decisions import Decision
from calib_serve.serve.decided import NOTHING, Decided

__all__ = ["AnyPrediction", "Failure", "LabelsPrediction", "Prediction", "Result", "all_or_none"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """One prediction: ``probabilities`` (K,) float64 of ``logits``; ``receipt`` None if receipts are off.

    ``decided``: the classes in its set, whether to abstain and whether it may be acted on, where the artifact
    or the archive says so.
    """

    probabilities: NDArray[np.float64]
    predicted: int
    confidence: float
    logits: NDArray[Any]
    receipt: SignedReceipt | None = None
    decided: Decided = NOTHING


@dataclass(frozen=True, eq=False)
class LabelsPrediction:
    """One prediction of a multi-label model: ``probabilities`` (L,) float64 of ``logits``.

    ``predicted``: the labels whose probability is the archive's threshold or more; ``decisions``: those about
    labels that receipts are for.
    """

    probabilities: NDArray[np.float64]
    predicted: tuple[int, ...]
    decisions: Sequence[Decision]
    logits: NDArray[Any]


@dataclass(frozen=True)
class Failure:
    """Why one item has no prediction; ``reason`` is shown to the client."""

    status: int
    reason: str


AnyPrediction = Union[Prediction, LabelsPrediction]
Result = Union[AnyPrediction, Failure]
T = TypeVar("T")


def all_or_none(rows: Sequence[T | Failure]) -> list[T | Failure]:
    """The rows of one request of several, which has one status: if one fails, the request fails for it.

    >>> all_or_none([1, Failure(500, "no"), Failure(400, "too short")])
    [Failure(status=400, reason='instance 2: too short')]
    """
    failures = [(row.status, i, row.reason) for i, row in enumerate(rows) if isinstance(row, Failure)]
    if not failures:
        return list(rows)
    status, i, reason = min(failures)  # what the client can mend comes first
    return [Failure(status, f"instance {i}: {reason}")]

"""What is said of a multi-label prediction: the decisions about its labels, with their receipts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.receipts import SignedReceipt
from calib_serve.reporter.recorder import Recorder, Tag
from calib_serve.watch.classes import decide

__all__ = ["MOST", "Decision", "decisions"]

MOST = 32
"""Labels of one row that get a receipt; of more, so many are drawn by chance."""


class Decision(NamedTuple):
    """Whether ``label`` is true, and the probability that this is right."""

    label: int
    true: bool
    confidence: float
    receipt: SignedReceipt | None

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """For JSON; ``names`` of the labels, or none."""
        told: dict[str, Any] = {"label": names[self.label] if names else self.label}
        told |= {"predicted": self.true, "confidence": self.confidence}
        if self.receipt is None:
            return told
        told["receipt"] = str(self.receipt)
        return told if self.receipt.wanted else {**told, "label_wanted": False}


def decisions(
    recorder: Recorder,
    probs: Sequence[NDArray[np.float64]],
    *,
    threshold: float,
    tags: Sequence[Tag],
    invalid: int = 0,
) -> list[list[Decision]]:
    """Count what is decided of every label in rows ``probs`` (L,); of each row ``MOST`` at most, signed.

    These are drawn anew for each row, and their receipts say with which chance. Decisions of one row depend
    on one another, so that a row is a group where its ``tags`` name none.
    """
    if not probs:
        recorder.served([], invalid=invalid)
        return []
    classes, confidence = decide(np.stack(probs), threshold)
    rows, labels = classes.shape
    drawn = [sorted(random.sample(range(labels), min(labels, MOST))) for _ in range(rows)]
    at = [(row, label) for row, some in enumerate(drawn) for label in some]
    given = tags if len(tags) == rows else [Tag()] * rows
    own = [one._replace(group=one.group or f"row {random.getrandbits(64):x}") for one in given]
    receipts = iter(
        recorder.served(
            [(int(classes[i]), float(confidence[i])) for i in at],
            tags=[own[row].of_row(label, labels) for row, label in at],
            invalid=invalid,
            counted=list(zip(classes.ravel().tolist(), confidence.ravel().tolist(), strict=True)),
        )
    )
    return [
        [Decision(k, bool(classes[row, k] % 2), float(confidence[row, k]), next(receipts)) for k in some]
        for row, some in enumerate(drawn)
    ]

"""A few of the scores that a calibration was fitted on, with the probabilities that it gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact.step import Floats, tensor
from calib_serve.errors import InputError, ShapeError

__all__ = ["Examples"]

MOST = 8
_NUMBERS = 20_000  # of scores; a manifest's tensors stay small for many classes


@dataclass(frozen=True, eq=False)
class Examples:
    """Logits (m, K) as the output steps take them, and their calibrated probabilities (m, K).

    Whoever puts the calibration somewhere else proves the end result by them: the fit's own scores must come
    out as the fit's own probabilities. ``rows`` says which samples are kept.
    """

    logits: Floats
    probs: Floats

    def __post_init__(self) -> None:
        logits, probs = tensor(self.logits, "examples"), tensor(self.probs, "examples' probabilities")
        if logits.ndim != 2 or logits.shape != probs.shape or not len(logits):
            raise ShapeError(f"examples must be (m, K) twice, got {logits.shape} and {probs.shape}")
        if probs.min() < 0 or probs.max() > 1:
            raise InputError("the examples' probabilities must lie in [0, 1]")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "probs", probs)

    @staticmethod
    def rows(samples: int, classes: int) -> NDArray[np.intp]:
        """Which of so many samples are kept, evenly spread: 8, fewer of very many classes, perhaps none.

        >>> Examples.rows(100, 10).tolist()
        [0, 14, 28, 42, 56, 70, 84, 99]
        """
        kept = min(MOST, samples, _NUMBERS // classes)
        return np.linspace(0, samples - 1, kept).astype(np.intp)

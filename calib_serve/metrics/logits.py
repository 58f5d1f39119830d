"""Every number of (probs, labels) that is not a plain sum over bins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_softmax", "softmax"]

Floats = NDArray[np.floating[Any]]


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Log-probabilities of logits (..., K), in float64."""
    z: NDArray[np.float64] = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return z


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Probabilities of logits (..., K), in float64.

    >>> softmax(np.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    z = np.asarray(logits, np.float64)
    e: NDArray[np.float64] = np.exp(z - z.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e

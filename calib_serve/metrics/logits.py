"""From logits to probabilities, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_softmax", "softmax"]

Floats = NDArray[np.floating[Any]]


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Log-probabilities of logits (..., K), in float64.

    >>> log_softmax(np.array([0.0, -1000.0])).tolist()
    [0.0, -1000.0]
    """
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
    e: NDArray[np.float64] = z - z.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e

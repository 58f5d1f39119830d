"""Between logits and probabilities: softmax, and the one logarithm of a probability."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "log_probs", "log_softmax", "softmax"]

Floats = NDArray[np.floating[Any]]

LEAST = float(np.finfo(np.float32).tiny)
"""What a probability of 0 counts as where its logarithm is taken: float32's least normal number.

Models that are served return float32, whose probabilities round to 0 from here on. Files, fits, fused
graphs and handlers must all take the same number: a fitted temperature depends on it.
"""


def log_probs(probs: Floats) -> Floats:
    """The logarithm of probabilities of any shape, at least ``log(LEAST)``; NaN stays NaN.

    float64 stays float64, all else becomes float32.

    >>> log_probs(np.array([1.0, 0.0])).round(2).tolist()
    [0.0, -87.34]
    """
    p = probs if probs.dtype == np.float64 else probs.astype(np.float32, copy=False)
    return np.asarray(np.log(np.maximum(p, p.dtype.type(LEAST))))


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

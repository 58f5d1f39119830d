"""Convert between logits and probabilities: softmax, and a bounded logarithm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array, as_floats
from calib_serve.errors import InputError, ShapeError

__all__ = ["LARGEST", "LEAST", "log_probs", "log_softmax", "sigmoid", "softmax", "two_columns"]

Floats = NDArray[np.floating[Any]]

LEAST = float(np.finfo(np.float32).tiny)
"""The lower bound of a probability before its logarithm is taken: float32's least normal number.

Served models return float32 probabilities, which round to 0 below it. Files, fits, fused graphs and handlers
must all use the same bound: a fitted temperature depends on it.
"""


LARGEST = 1e100
"""The largest logit of which numbers are computed: squares of what is beyond it overflow."""


def log_probs(probs: ArrayLike, *, least: float = LEAST) -> Floats:
    """The logarithm of probabilities of any shape, at least ``log(least)``; NaN stays NaN.

    In float32 for float16 and float32, else in float64.

    >>> log_probs(np.array([1.0, 0.0])).round(2).tolist()
    [0.0, -87.34]
    """
    p = as_array(probs, "probs")
    narrow = p.dtype.kind == "f" and p.dtype.itemsize <= 4
    p = p.astype(np.float32 if narrow else np.float64, copy=False)
    return np.asarray(np.log(np.maximum(p, p.dtype.type(least))))


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Log-probabilities of logits (..., K), in float64.

    >>> log_softmax(np.array([0.0, -1000.0])).tolist()
    [0.0, -1000.0]
    """
    z: NDArray[np.float64] = as_floats(logits, "logits")
    with np.errstate(over="ignore", invalid="ignore"):  # of -1e308 and 1e308: the one is impossible
        z = z - z.max(axis=-1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return z


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of logits (..., K), in float64.

    >>> softmax(np.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    z = as_floats(logits, "logits")
    with np.errstate(over="ignore", invalid="ignore"):
        e: NDArray[np.float64] = z - z.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """The probability of each logit on its own, of any shape, in float64.

    >>> sigmoid([0.0, -1000.0]).tolist()
    [0.5, 0.0]
    """
    z: NDArray[np.float64] = as_floats(logits, "logits")
    e = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1.0, e) / (1 + e))


def two_columns(logits: ArrayLike) -> Floats:
    """Logits as (n, K) with K at least 2; float16, float32 and float64 keep their dtype.

    One logit per sample, (n,) or (n, 1), is a binary model's: class 0 gets logit 0.

    >>> two_columns([1.5]).tolist()
    [[0.0, 1.5]]
    """
    z = as_array(logits, "logits")
    if z.dtype.kind not in "fiu":
        raise InputError(f"logits must be numbers, got dtype {z.dtype}")
    if z.dtype.kind != "f":
        z = z.astype(np.float64)
    if z.ndim == 1:
        z = z[:, None]
    if z.ndim != 2 or z.shape[1] == 0:
        raise ShapeError(f"logits must be (n, K), or (n,) for one logit, got {z.shape}")
    return z if z.shape[1] > 1 else np.concatenate([np.zeros_like(z), z], axis=1)

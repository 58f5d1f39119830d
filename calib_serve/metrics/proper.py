"""Proper scores: what a probability costs once the label is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.logits import log_softmax
from calib_serve.metrics.scores import (
    checked,
    checked_labels,
    entropies,
    negative_log,
    row_blocks,
    top_label,
)

__all__ = ["brier", "brier_top_label", "entropy", "nll", "nll_from_logits"]


def nll(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean of -log p_y in nats; infinite where a true class was given probability 0.

    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    p, y = checked(probs, labels)
    return float(negative_log(p[np.arange(len(p)), y].astype(np.float64)).mean())


def nll_from_logits(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean cross-entropy in nats, finite where the softmax would round to 0.

    >>> nll_from_logits([[0.0, -1000.0]], [1])
    1000.0
    """
    return float(nll_per_sample(logits, labels).mean())


def nll_per_sample(logits: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """-log softmax(z)_y of each row (n,)."""
    z = checked_logits(logits)
    y = checked_labels(labels, len(z), z.shape[1])
    return np.abs(log_softmax(z)[np.arange(len(z)), y])


def checked_logits(logits: ArrayLike) -> NDArray[np.float64]:
    """Finite logits (n, K) in float64, or an error that says what to pass."""
    z = np.asarray(logits)
    if z.dtype.kind not in "fiu":
        raise InputError(f"logits must be numbers, got dtype {z.dtype}")
    if z.ndim != 2 or not len(z) or z.shape[1] < 2:
        raise ShapeError(
            f"logits must be (n, K) with n >= 1 and K >= 2, got {z.shape}; for a single logit z "
            "pass np.stack([np.zeros_like(z), z], axis=1)"
        )
    if not np.isfinite(z).all():
        raise InputError("logits must be finite, got NaN or infinity; check the model's outputs")
    return z.astype(np.float64)


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean over samples of sum_k (p_k - y_k)^2 (Brier 1950): between 0 and 2.

    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    p, y = checked(probs, labels)
    squares = sum(float(np.einsum("ij,ij->", block, block)) for _, block in row_blocks(p))
    p_true = p[np.arange(len(p)), y].astype(np.float64)
    return squares / len(p) + float((1 - 2 * p_true).mean())


def brier_top_label(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean of (confidence - correct)^2: between 0 and 1."""
    confidence, correct = top_label(probs, labels)
    return float(((confidence - correct) ** 2).mean())


def entropy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean predictive entropy in nats; labels are checked and not used."""
    p, _ = checked(probs, labels)
    return sum(float(entropies(block).sum()) for _, block in row_blocks(p)) / len(p)

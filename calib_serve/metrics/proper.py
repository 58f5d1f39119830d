"""Proper scores (NLL, Brier), and predictive entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array, as_floats
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics.samples import (
    checked,
    checked_labels,
    checked_weights,
    entropies,
    negative_log,
    row_blocks,
    top_label,
)
from calib_serve.scores.links import LARGEST, two_columns

__all__ = ["brier", "brier_top_label", "entropy", "nll", "nll_from_logits", "soft_or_hard"]

Floats = NDArray[np.float64]

_ROUNDED = 1e-6  # sums of soft labels


def soft_or_hard(
    probs: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Floats, Floats, Floats | None]:
    """Probabilities (n, K), labels as shares of classes (n, K), and weights (n,) or None; checked."""
    y = as_array(labels, "labels")
    if y.ndim != 2:
        p, ids = checked(probs, y)
        shares = np.eye(p.shape[1])[ids]
    else:
        p, _ = checked(probs, np.zeros(len(y), np.intp))
        shares = as_floats(y, "labels")
        whole = shares.shape == p.shape and bool((shares >= 0).all())
        if not whole or np.abs(shares.sum(axis=1) - 1).max() > _ROUNDED:
            raise InputError(f"soft labels are {p.shape}, shares that sum to 1; got {shares.shape}")
    return p.astype(np.float64), shares, checked_weights(sample_weight, len(p))


def nll(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean of -log p_y in nats; infinite where a true class was given probability 0.

    Of soft labels (n, K), shares q of the classes, of -sum_k q_k log p_k.

    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    p, q, w = soft_or_hard(probs, labels, sample_weight)
    with np.errstate(invalid="ignore"):
        losses = np.where(q > 0, q * negative_log(p), 0).sum(axis=1)
    return float(np.average(losses, weights=w))


def nll_from_logits(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean cross-entropy in nats, finite where the softmax would round to 0; logits (n, K), binary (n,).

    >>> nll_from_logits([[0.0, -1000.0]], [1])
    1000.0
    """
    z, y = checked_logits(logits, labels)
    return sum(float(nll.sum()) for _, _, nll in softmax_blocks(z, y)) / len(z)


def softmax_blocks(
    logits: NDArray[np.floating[Any]], labels: NDArray[np.intp]
) -> Iterator[tuple[slice, Floats, Floats]]:
    """Blocks of rows, their probabilities (m, K) and their -log p_y (m,), in float64."""
    for rows, z in row_blocks(logits):
        np.subtract(z, z.max(axis=1, keepdims=True), out=z)
        z_true = z[np.arange(len(z)), labels[rows]]
        np.exp(z, out=z)
        total = z.sum(axis=1)
        np.divide(z, total[:, None], out=z)
        yield rows, z, np.log(total) - z_true


def checked_logits(
    logits: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.floating[Any]], NDArray[np.intp]]:
    """Finite logits (n, K), K at least 2, and class ids (n,), or an error that says what to pass."""
    z = two_columns(logits)
    if not len(z):
        raise ShapeError(f"there is no sample: logits are {z.shape}")
    low, high = float(z.min()), float(z.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError("logits must be finite, got NaN or infinity; check the model's outputs")
    if max(-low, high) > LARGEST:
        raise InputError(
            f"logits go up to {max(-low, high):g}; clip them first, as by np.clip(logits, -1e4, 1e4)"
        )
    return z, checked_labels(labels, len(z), z.shape[1])


def brier(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean over samples of sum_k (p_k - y_k)^2 (Brier 1950): between 0 and 2.

    Of soft labels (n, K), shares of the classes, y_k is the share.

    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    p, q, w = soft_or_hard(probs, labels, sample_weight)
    return float(np.average(np.einsum("nk,nk->n", p - q, p - q), weights=w))


def brier_top_label(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean of (confidence - correct)^2: between 0 and 1."""
    confidence, correct = top_label(probs, labels)
    weights = checked_weights(sample_weight, len(confidence))
    return float(np.average((confidence - correct) ** 2, weights=weights))


def entropy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean predictive entropy in nats; labels are checked and not used."""
    p, _ = checked(probs, labels)
    return sum(float(entropies(block).sum()) for _, block in row_blocks(p)) / len(p)

"""Smooth calibration error: no bins, and a bandwidth that the data choose."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.metrics.scores import top_label

__all__ = ["smooth_ece"]

Floats = NDArray[np.float64]

NODES = 2048  # grid cells on [0, 1]
_NARROWEST = 1 / 1024  # the smallest bandwidth that this grid resolves
_STEPS = 40


def on_grid(confidence: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The grid node below each confidence (n,), and how far towards the next one it lies."""
    place = np.minimum(confidence, 1) * NODES
    node = np.minimum(place.astype(np.intp), NODES - 1)
    return node, place - node


def smooth(mass: Floats) -> Floats:
    """Smooth ECE (...,) of residuals (confidence - correct) / n that lie on grid nodes (..., nodes + 1).

    A Gaussian kernel reflected at 0 and 1 is a factor exp(-(pi k sigma)^2 / 2) on the k-th cosine.
    The nodes 0 and 1 are their own mirror images, so they enter the even extension once.
    """
    inner = mass[..., 1:-1] / 2
    mirrored = np.concatenate([mass[..., :1], inner, mass[..., -1:], inner[..., ::-1]], axis=-1)
    cosines = np.fft.rfft(mirrored).real
    low = np.full(mass.shape[:-1], _NARROWEST)
    high = np.ones(mass.shape[:-1])
    found = _error_at(low, cosines)
    narrow = found <= low  # calibrated finer than the grid can tell
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = _error_at(middle, cosines) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        if (high - low).max() < 1e-9:
            break
    return np.where(narrow, found, (low + high) / 2)


def _error_at(sigma: Floats, cosines: Floats) -> Floats:
    """Integral over [0, 1] of the absolute smoothed residual, by the trapezoid rule."""
    k = np.arange(cosines.shape[-1])
    kernel = np.exp(-((np.pi * sigma[..., None] * k) ** 2) / 2)
    return np.asarray(np.abs(np.fft.irfft(cosines * kernel)).sum(axis=-1))


def smooth_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """Smooth ECE of the top class (Blasiok and Nakkiran 2023, def. 3.3): the sigma at which it equals sigma.

    The kernel is reflected with the boundary nodes counted once; code that leaves them out or
    counts them twice differs where many confidences are 0 or 1.
    """
    confidence, correct = top_label(probs, labels)
    node, share = on_grid(confidence)
    residual = (confidence - correct) / len(confidence)
    mass = np.bincount(node, weights=residual * (1 - share), minlength=NODES + 1)
    mass = mass + np.bincount(node + 1, weights=residual * share, minlength=NODES + 1)
    return float(smooth(mass))

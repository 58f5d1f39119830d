"""Smooth calibration error: a kernel instead of bins, with a bandwidth chosen by the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.metrics.scores import top_label

__all__ = ["smooth_ece"]

Floats = NDArray[np.float64]

NODES = 2048  # grid cells on [0, 1]
_NARROWEST = 1 / 1024  # the smallest bandwidth that this grid resolves
_TOLERANCE = 1e-9
_STEPS = 60
_BLOCK = 32  # replicates smoothed at once: 1 MiB of float64


def smooth_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """Smooth ECE of the top class (Blasiok and Nakkiran 2023, def. 3.3): the sigma at which it equals sigma.

    The Gaussian kernel is reflected at 0 and 1 with the boundary itself counted once; code that
    leaves it out differs where many confidences are 0 or 1.

    >>> round(smooth_ece([[1.0, 0.0], [1.0, 0.0]], [0, 1]), 4)  # as ECE: all mass in one place
    0.5
    """
    confidence, correct = top_label(probs, labels)
    node, share = on_grid(confidence)
    residual = (confidence - correct) / len(confidence)
    mass = np.zeros((1, NODES + 1))
    mass[0] += np.bincount(node, weights=residual * (1 - share), minlength=NODES + 1)
    mass[0] += np.bincount(node + 1, weights=residual * share, minlength=NODES + 1)
    return float(smoothed(mass)[0])


def on_grid(confidence: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The grid node below each confidence (n,), and how far towards the next one it lies."""
    place = confidence * NODES
    node = np.minimum(place.astype(np.intp), NODES - 1)
    return node, place - node


def smoothed(mass: Floats) -> Floats:
    """Smooth ECE (r,) of residuals (confidence - correct) / n that lie on grid nodes (r, NODES + 1)."""
    blocks = [_fixed_point(_cosines(mass[i : i + _BLOCK])) for i in range(0, len(mass), _BLOCK)]
    return np.concatenate(blocks)


def _cosines(mass: Floats) -> Floats:
    """Sums of mass * cos(pi k t), the Fourier transform of the even extension to a circle.

    The nodes 0 and 1 are their own mirror images, so they enter it once.
    """
    inner = mass[:, 1:-1] / 2
    return np.fft.rfft(np.concatenate([mass[:, :1], inner, mass[:, -1:], inner[:, ::-1]], axis=1)).real


def _error_at(sigma: Floats, cosines: Floats) -> Floats:
    """Integral over [0, 1] of the absolute smoothed residual, by the trapezoid rule.

    A reflected Gaussian kernel is a factor exp(-(pi k sigma)^2 / 2) on the k-th cosine.
    """
    # Where pi k sigma > 8.6 the factor is below 1e-16.
    k = np.arange(min(cosines.shape[1], int(8.6 / (np.pi * sigma.min())) + 2))
    kernel = np.exp(-((np.pi * sigma[:, None] * k) ** 2) / 2)
    return np.asarray(np.abs(np.fft.irfft(cosines[:, : len(k)] * kernel, 2 * NODES)).sum(axis=1))


def _fixed_point(cosines: Floats) -> Floats:
    """Where the error, which falls with sigma, crosses sigma: the Illinois variant of regula falsi."""
    widest = _error_at(np.full(len(cosines), _NARROWEST), cosines)
    if (narrow := widest <= _NARROWEST).any():  # the error is below the grid's resolution
        crossing = np.array(widest)
        if not narrow.all():
            crossing[~narrow] = _fixed_point(cosines[~narrow])
        return crossing
    # As the error falls, error(widest) <= error(crossing) = crossing <= widest.
    high, at_high = widest, _error_at(widest, cosines) - widest
    low = np.maximum(widest + at_high, _NARROWEST)
    at_low = _error_at(low, cosines) - low
    stayed = np.zeros(len(low))  # -1: low did not move last time, 1: high did not
    for _ in range(_STEPS):
        fall = at_low - at_high
        middle = np.where(fall > 0, low + (high - low) * at_low / np.where(fall > 0, fall, 1), low)
        at_middle = _error_at(middle, cosines) - middle
        if np.abs(at_middle).max() < _TOLERANCE:
            break
        above = at_middle > 0
        # An end that stays twice counts half, so that both ends keep moving.
        at_low = np.where(above, at_middle, np.where(stayed < 0, at_low / 2, at_low))
        at_high = np.where(above, np.where(stayed > 0, at_high / 2, at_high), at_middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        stayed = np.where(above, 1, -1)
    return middle

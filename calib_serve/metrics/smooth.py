"""The smooth ECE and the reliability diagram without bins, by a kernel on a grid (Blasiok 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.metrics.intervals import quantile_of, resamples
from calib_serve.metrics.samples import top_label

NODES = 2048  # grid cells on [0, 1]
_NARROWEST = 1 / 1024  # the smallest bandwidth that this grid resolves


def smooth_ece(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return the smooth ECE of the top class, the sigma that equals it (Blasiok 2023, def. 3.3).

    The Gaussian kernel is reflected at 0 and 1 with the boundary itself counted once; code that
    leaves it out differs where many confidences are 0 or 1.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> round(smooth_ece([[1.0, 0.0], [1.0, 0.0]], [0, 1]), 4)  # as ECE: all mass in one place
    0.5
    """
    return _smooth_ece(*top_label(probs, labels))


@dataclass(frozen=True, eq=False)
class SmoothReliability:
    """A reliability diagram without bins, over g rising confidences.

    Args:
        confidence: (g,), rising.
        accuracy: Kernel regression of right answers (g,).
        low: Lower end of its pointwise band (g,), NaN where hardly any prediction lies.
        high: Upper end of its pointwise band (g,), NaN where hardly any prediction lies.
        density: Density of the confidences (g,), which integrates to 1.
        sigma: Width of the kernel: the smooth ECE, at least 1 / 1024.
        ece: Smooth ECE.
        n: Number of samples.
    """

    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    density: Floats
    sigma: float
    ece: float
    n: int


def smooth_reliability(
    probs: ArrayLike, labels: ArrayLike, *, level: float = 0.95, replicates: int = 200, seed: int = 0
) -> SmoothReliability:
    """Return the smooth reliability diagram of the predicted class (Blasiok and Nakkiran 2023).

    Kernel regression (Nadaraya 1964) of right answers on the top class's confidence, by the reflected
    Gaussian kernel whose width is the smooth ECE (section 4). The band is how far chance moves the curve, not
    what a calibrated model shows.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        level: Coverage of the pointwise band, a fraction.
        replicates: Resamples, at that width, between whose quantiles the band is; 0: no band.
        seed: Seed of the resamples.

    >>> curve = smooth_reliability([[0.75, 0.25]] * 4, [0, 0, 0, 1], replicates=0)
    >>> float(curve.accuracy[192].round(6)), curve.sigma  # at 0.75: calibrated, so the narrowest kernel
    (0.75, 0.0009765625)
    """
    return smooth_curve(*top_label(probs, labels), level=level, replicates=replicates, seed=seed)


def smooth_curve(
    confidence: Floats, correct: NDArray[np.bool_], *, level: float, replicates: int, seed: int
) -> SmoothReliability:
    """Compute ``smooth_reliability`` from confidences.

    Args:
        confidence: (n,), in [0, 1].
        correct: Whether each came true (n,).
        level: Coverage of the pointwise band, a fraction.
        replicates: Resamples that the band is made of; 0: no band.
        seed: Seed of the resamples.
    """
    quantile_of(level)  # raises for an invalid level
    if replicates < 0:
        raise InputError(f"replicates must be 0 or more, got {replicates}")
    n, ece = len(confidence), _smooth_ece(confidence, correct)
    # A narrower kernel than the grid's resolution would draw its nodes, not the data.
    sigma = max(ece, _NARROWEST)
    node, share = on_grid(confidence)
    shown = slice(None, None, 8)

    def curve(weight: Floats) -> tuple[Floats, Floats]:
        mass = np.stack([_mass(node, share, weight), _mass(node, share, weight * correct)])
        total, right = _at_nodes(mass, sigma)[:, shown]
        # Kernel weights of a tenth of a sample are no curve.
        few = total * n * sigma * math.sqrt(2 * math.pi) < 0.1
        return np.where(few, np.nan, np.clip(right / np.where(few, 1, total), 0, 1)), total

    accuracy, density = curve(np.full(n, 1 / n))
    drawn = [curve(weight / n)[0] for block in resamples(n, replicates, seed=seed) for weight in block]
    low = high = np.full(len(accuracy), np.nan)
    if drawn:
        ends = [(1 - level) / 2, (1 + level) / 2]
        known = np.isfinite(accuracy)
        low, high = low.copy(), high.copy()
        # Where a resample has no curve it says nothing.
        low[known], high[known] = np.nanquantile(np.stack([accuracy, *drawn])[:, known], ends, axis=0)
    points = np.linspace(0, 1, NODES + 1)[shown]
    return SmoothReliability(points, accuracy, low, high, np.maximum(density, 0), sigma, ece, n)


def _smooth_ece(confidence: Floats, correct: NDArray[np.bool_]) -> float:
    residual = (confidence - correct) / len(confidence)
    return float(smoothed(_mass(*on_grid(confidence), residual)[None])[0])


def _mass(node: NDArray[np.intp], share: Floats, weight: Floats) -> Floats:
    """Weights (n,) on the grid's nodes (NODES + 1,)."""
    low = np.bincount(node, weights=weight * (1 - share), minlength=NODES + 1)
    return np.asarray(low + np.bincount(node + 1, weights=weight * share, minlength=NODES + 1))


def _at_nodes(mass: Floats, sigma: float) -> Floats:
    """Densities on [0, 1] at the nodes, of masses (r, NODES + 1) under the reflected kernel."""
    cosines = _cosines(mass)
    kernel = np.exp(-((np.pi * sigma * np.arange(cosines.shape[1])) ** 2) / 2)
    return np.asarray(np.fft.irfft(cosines * kernel, 2 * NODES)[:, : NODES + 1] * (2 * NODES))


def on_grid(confidence: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The grid node below each confidence (n,), and the share of the way to the next node."""
    place = confidence * NODES
    node = np.minimum(place.astype(np.intp), NODES - 1)
    return node, place - node


def smoothed(mass: Floats, *, tolerance: float = 1e-9) -> Floats:
    """Smooth ECEs (r,) of residuals (confidence - correct) / n on grid nodes (r, NODES + 1)."""
    some = 32  # at once: 1 MiB of float64
    parts = (mass[start : start + some] for start in range(0, len(mass), some))
    return np.concatenate([_fixed_point(_cosines(part), tolerance) for part in parts])


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


def _fixed_point(cosines: Floats, tolerance: float) -> Floats:
    """Find where the error, which falls with sigma, crosses sigma (Illinois variant of regula falsi)."""
    widest = _error_at(np.full(len(cosines), _NARROWEST), cosines)
    if (narrow := widest <= _NARROWEST).any():  # the error is below the grid's resolution
        crossing = np.array(widest)
        if not narrow.all():
            crossing[~narrow] = _fixed_point(cosines[~narrow], tolerance)
        return crossing
    # As the error falls, error(widest) <= error(crossing) = crossing <= widest.
    high, at_high = widest, _error_at(widest, cosines) - widest
    low = np.maximum(widest + at_high, _NARROWEST)
    at_low = _error_at(low, cosines) - low
    stayed = np.zeros(len(low))  # -1: low did not move last time, 1: high did not
    for _ in range(60):
        fall = at_low - at_high
        middle = np.where(fall > 0, low + (high - low) * at_low / np.where(fall > 0, fall, 1), low)
        at_middle = _error_at(middle, cosines) - middle
        if np.abs(at_middle).max() < tolerance:
            break
        above = at_middle > 0
        # An end that stays twice counts half, so that both ends keep moving.
        at_low = np.where(above, at_middle, np.where(stayed < 0, at_low / 2, at_low))
        at_high = np.where(above, np.where(stayed > 0, at_high / 2, at_high), at_middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        stayed = np.where(above, 1, -1)
    return middle

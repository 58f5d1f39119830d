"""Decompositions of scores into calibration and refinement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, Edges, bin_index
from calib_serve.metrics.proper import brier, brier_top_label
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.scores import checked, row_blocks, top_label

__all__ = [
    "BrierTerms",
    "EceTerms",
    "brier_terms",
    "brier_top_label_terms",
    "ece_terms",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EceTerms:
    """ECE = confidence - refinement - base_rate + residual (Singh 2021, eq. 9).

    ``confidence`` is the mean confidence (alpha), ``refinement`` 2 r P N / n^2 (beta), ``base_rate``
    (P^2 + N^2) / (2 n^2) (gamma), for P right and N wrong predictions and r their AUROC. The paper
    assumes that every bin is overconfident and puts the accuracy averaged over all operating points
    in place of the accuracy; ``residual`` is what these assumptions leave unexplained.
    """

    ece: float
    confidence: float
    refinement: float
    base_rate: float
    residual: float


def ece_terms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> EceTerms:
    """Mean confidence, refinement and base rate in the ECE, and the residual.

    Without right or without wrong predictions the refinement term is 0: there is no pair to rank.
    """
    confidence, correct = top_label(probs, labels)
    ece = Bins.tally(confidence, correct, bins=bins, edges=edges).ece()
    right = float(correct.mean())
    auroc = float(Separation.of(confidence, correct).auroc()) if 0 < right < 1 else 0.0
    mean = float(confidence.mean())
    refinement = 2 * auroc * right * (1 - right)
    base_rate = (right**2 + (1 - right) ** 2) / 2
    return EceTerms(ece, mean, refinement, base_rate, ece - (mean - refinement - base_rate))


@dataclass(frozen=True)
class BrierTerms:
    """Brier score = calibration - resolution + uncertainty + within_bins (Murphy 1973, eq. 9).

    ``calibration`` is the mean squared gap of a bin (reliability), ``resolution`` how far the bins'
    frequencies lie from the base rate, ``uncertainty`` the variance of the outcome. ``within_bins`` is the
    effect of forecasts that differ inside a bin (Stephenson 2008); in Murphy's bins they are equal.
    """

    brier: float
    calibration: float
    resolution: float
    uncertainty: float
    within_bins: float

    @property
    def refinement(self) -> float:
        """Uncertainty less resolution: the Brier score of the recalibrated bins (DeGroot 1983)."""
        return self.uncertainty - self.resolution


def brier_top_label_terms(
    probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right"
) -> BrierTerms:
    """The terms of mean (confidence - correct)^2.

    >>> t = brier_top_label_terms([[0.75, 0.25]] * 4, [0, 0, 1, 1])
    >>> t.brier, t.calibration, t.resolution, t.uncertainty, t.within_bins
    (0.3125, 0.0625, 0.0, 0.25, 0.0)
    """
    confidence, correct = top_label(probs, labels)
    tally = Bins.tally(confidence, correct, bins=bins, edges=edges)
    sums = [s[None] for s in (tally.count, tally.confidence, tally.correct)]
    return _terms(brier_top_label(probs, labels), *sums)


def brier_terms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> BrierTerms:
    """The terms of the multiclass Brier score: each class's terms, summed over classes."""
    p, y = checked(probs, labels)
    classes = p.shape[1]
    size, shape = classes * bins, (classes, bins)
    count, confidence, correct = np.zeros(size), np.zeros(size), np.zeros(size)
    offset = np.arange(classes) * bins
    for rows, block in row_blocks(p):
        code = bin_index(np.minimum(block, 1), bins=bins, edges=edges) + offset
        count += np.bincount(code.ravel(), minlength=size)
        confidence += np.bincount(code.ravel(), block.ravel(), minlength=size)
        correct += np.bincount(code[np.arange(len(block)), y[rows]], minlength=size)
    return _terms(brier(p, y), *(s.reshape(shape) for s in (count, confidence, correct)))


def _terms(score: float, count: Floats, confidence: Floats, correct: Floats) -> BrierTerms:
    """From sums (classes, bins)."""
    n = count.sum(axis=1, keepdims=True)
    size = np.maximum(count, 1)  # an empty bin adds 0
    base = correct.sum(axis=1, keepdims=True) / n
    calibration = float(((confidence - correct) ** 2 / size / n).sum())
    resolution = float((count * (correct / size - base) ** 2 / n).sum())
    uncertainty = float((base * (1 - base)).sum())
    within = score - (calibration - resolution + uncertainty)
    return BrierTerms(score, calibration, resolution, uncertainty, within)

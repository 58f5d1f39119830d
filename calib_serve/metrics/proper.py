"""Proper scores, and their decomposition into calibration and refinement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, as_array, as_floats
from calib_serve.core.bins import Bins, Edges, bin_index
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import (
    checked,
    checked_weights,
    entropies,
    negative_log,
    of_classes,
    row_blocks,
    top_label,
    weighing_rows,
)


def _soft(
    probs: ArrayLike, labels: NDArray[Any], sample_weight: ArrayLike | None
) -> tuple[Floats, Floats, Floats | None]:
    """Check probabilities (n, K), labels as shares of classes (n, K), and weights (n,) or None."""
    p, _ = checked(probs, np.zeros(len(labels), np.intp))
    shares = as_floats(labels, "labels")
    whole = shares.shape == p.shape and bool((shares >= 0).all())
    if not whole or np.abs(shares.sum(axis=1) - 1).max() > 1e-6:
        raise InputError(f"soft labels are {p.shape}, shares that sum to 1; got {shares.shape}")
    return p.astype(np.float64), shares, checked_weights(sample_weight, len(p))


def _mean_loss(
    probs: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None, score: Literal["nll", "brier"]
) -> float:
    """The mean loss of class ids, without the other classes' logarithms."""
    p, y = checked(probs, labels)
    return float(np.average(sample_losses(p, y, score), weights=checked_weights(sample_weight, len(y))))


def nll(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Return the mean of -log p_y in nats; infinite where a true class was given probability 0.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,); or shares q of the classes (n, K), of which it is -sum_k q_k log p_k.
        sample_weight: (n,).

    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    if (y := as_array(labels, "labels")).ndim != 2:
        return _mean_loss(probs, y, sample_weight, "nll")
    p, q, w = _soft(probs, y, sample_weight)
    with np.errstate(invalid="ignore"):
        losses = np.where(q > 0, q * negative_log(p), 0).sum(axis=1)
    return float(np.average(losses, weights=w))


def brier(probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Return the mean over samples of sum_k (p_k - y_k)^2 (Brier 1950): between 0 and 2.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,), or shares y_k of the classes (n, K).
        sample_weight: (n,).

    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    if (y := as_array(labels, "labels")).ndim != 2:
        return _mean_loss(probs, y, sample_weight, "brier")
    p, q, w = _soft(probs, y, sample_weight)
    return float(np.average(np.einsum("nk,nk->n", p - q, p - q), weights=w))


def entropy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean predictive entropy in nats.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,), which are checked and not used.
    """
    p, _ = checked(probs, labels)
    return sum(float(entropies(block).sum()) for _, block in row_blocks(p)) / len(p)


@dataclass(frozen=True)
class EceTerms:
    """ECE = confidence - refinement - base_rate + residual (Singh 2021, eq. 9).

    Of P right and N wrong predictions, r is the AUROC. ``residual`` is what the paper's two assumptions leave
    unexplained, the sum of ``of_bins`` and ``of_equation_8``. Of real networks the latter is nearly the whole
    residual, and larger than the ECE. So equation 9 does not describe the ECE, and a higher AUROC need not
    lower it.

    Args:
        ece: Expected calibration error.
        confidence: Mean confidence (alpha).
        refinement: 2 r P N / n^2 (beta).
        base_rate: (P^2 + N^2) / (2 n^2) (gamma).
        of_bins: The ECE less the confidence less the accuracy (eq. 7): 0 where every bin is overconfident, as
            the paper assumes, and otherwise twice the gaps of the bins that are not.
        of_equation_8: The E[A] that equation 8 has, less the accuracy. That E[A] is an accuracy averaged over
            all thresholds that could tell right from wrong predictions, and lies near 1/2 for any good
            network: it is not the accuracy that equation 7 needs.
    """

    ece: float
    confidence: float
    refinement: float
    base_rate: float
    of_bins: float
    of_equation_8: float

    @property
    def residual(self) -> float:
        """ECE less (confidence - refinement - base_rate)."""
        return self.of_bins + self.of_equation_8


def ece_terms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> EceTerms:
    """Return the mean confidence, refinement and base rate in the ECE, and the residual of each assumption.

    Without right or without wrong predictions the refinement term is 0: there is no pair to rank.

    Three right at .75 and one wrong: calibrated, yet by equation 9 the ECE is .75 - .1875 - .3125 = .25.
    The AUROC is 1/2 (all tie), so that equation 8 has 1/2 in the place of the accuracy of 3/4.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> t = ece_terms([[0.75, 0.25]] * 4, [0, 0, 0, 1])
    >>> t.ece, t.confidence - t.refinement - t.base_rate
    (0.0, 0.25)
    >>> t.residual, t.of_bins, t.of_equation_8
    (-0.25, 0.0, -0.25)
    """
    confidence, correct = top_label(probs, labels)
    ece = Bins.tally(confidence, correct, bins=bins, edges=edges).ece()
    right = float(correct.mean())
    auroc = float(Separation.of(confidence, correct).auroc()) if 0 < right < 1 else 0.0
    mean = float(confidence.mean())
    refinement = 2 * auroc * right * (1 - right)
    base_rate = (right**2 + (1 - right) ** 2) / 2
    return EceTerms(ece, mean, refinement, base_rate, ece - (mean - right), refinement + base_rate - right)


@dataclass(frozen=True)
class BrierTerms:
    """Brier score = calibration - resolution + uncertainty + within_bins (Murphy 1973, eq. 9).

    Args:
        brier: Brier score.
        calibration: Mean squared gap of a bin (reliability).
        resolution: How far the bins' frequencies lie from the base rate.
        uncertainty: Variance of the outcome.
        within_bins: Effect of forecasts that differ inside a bin (Stephenson 2008); in Murphy's bins they are
            equal.
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


def brier_terms(probs: ArrayLike, labels: ArrayLike, *, bins: int = 15, edges: Edges = "right") -> BrierTerms:
    """Return the terms of the multiclass Brier score: each class's terms, summed over classes.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".

    >>> t = brier_terms([[0.75, 0.25]] * 4, [0, 0, 1, 1])
    >>> t.brier, t.calibration, t.resolution, t.uncertainty, t.within_bins
    (0.625, 0.125, 0.0, 0.5, 0.0)
    """
    p, y = checked(probs, labels)
    n, classes = p.shape
    size, shape = classes * bins, (classes, bins)
    count, said, came = np.zeros((3, size))
    offset = np.arange(classes) * bins
    for rows, block in row_blocks(p):
        code = bin_index(np.minimum(block, 1), bins=bins, edges=edges) + offset
        count += np.bincount(code.ravel(), minlength=size)
        said += np.bincount(code.ravel(), block.ravel(), minlength=size)
        came += np.bincount(code[np.arange(len(block)), y[rows]], minlength=size)
    score, base = brier(p, y), came.reshape(shape).sum(axis=1) / n
    each = np.maximum(count, 1)  # an empty bin adds 0
    calibration = float(((said - came) ** 2 / each).sum() / n)
    resolution = float((count * (came / each - np.repeat(base, bins)) ** 2).sum() / n)
    uncertainty = float((base * (1 - base)).sum())
    within = score - (calibration - resolution + uncertainty)
    return BrierTerms(score, calibration, resolution, uncertainty, within)


@dataclass(frozen=True)
class LossTerms:
    """A proper loss = calibration + refinement (Bröcker 2009, eq. 9), each with its interval.

    Args:
        loss: Mean loss.
        calibration: Fall of the loss by recalibration, in pairs: below 0 where it rises.
        refinement: Loss after recalibration.
    """

    loss: Estimate
    calibration: Estimate
    refinement: Estimate

    @classmethod
    def of(
        cls,
        before: ArrayLike,
        after: ArrayLike,
        *,
        level: float = 0.95,
        groups: NDArray[np.intp] | None = None,
        weight: NDArray[np.float64] | None = None,
    ) -> LossTerms:
        """Split losses of the same samples, before and after recalibration, into the terms.

        Args:
            before: (n,).
            after: (n,).
            level: Coverage of the intervals, a fraction.
            groups: Ids of the groups of dependent samples (n,).
            weight: (n,).
        """
        old, new = np.asarray(before, np.float64), np.asarray(after, np.float64)
        if old.ndim != 1 or old.shape != new.shape:
            raise ShapeError(f"losses before and after must both be (n,), got {old.shape} and {new.shape}")
        # An infinite loss is wholly calibration where recalibration makes it finite.
        with np.errstate(invalid="ignore"):
            how: dict[str, Any] = {"level": level, "groups": groups, "weight": weight}
            return cls(*(mean_interval(loss, **how) for loss in (old, old - new, new)))


def sample_losses(
    probs: NDArray[np.floating[Any]], labels: NDArray[np.intp], score: Literal["nll", "brier"]
) -> Floats:
    """The NLL or the Brier score of each sample (n,).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        score: "nll" in nats, or "brier" from 0 to 2.
    """
    true = of_classes(probs, labels)
    if score == "nll":
        return np.asarray(negative_log(true))
    # (p - y)^2 = p^2 - 2 p_y + 1, and y takes no memory.
    squares = [np.einsum("ij,ij->i", block, block) for _, block in row_blocks(probs)]
    return np.asarray(np.concatenate(squares) - 2 * true + 1)


def skill(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    score: Literal["nll", "brier"] = "brier",
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
) -> Estimate:
    """Return 1 - loss / loss of the classes' shares among these very labels, given for each sample.

    1 is perfect, 0 as good as the shares, below 0 worse. Of the Brier score it is the BSS, of the NLL NIST's
    normalised cross-entropy (NCE); both are ratios of means, with the interval of such (the delta method).
    NaN where one class alone occurs, and minus infinity where a true class was given probability 0.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        score: "nll" or "brier".
        sample_weight: (n,).
        groups: Which samples belong together (n,).
        level: Coverage of the interval, a fraction.

    >>> skill([[0.9, 0.1], [0.1, 0.9]], [0, 1]).value  # 1 - 0.02 / 0.5
    0.96
    """
    if score not in ("nll", "brier"):
        raise InputError(f"score must be 'nll' or 'brier', got {score!r}")
    p, y, w, codes = weighing_rows(*checked(probs, labels), sample_weight, groups)
    shares = np.bincount(y, w, p.shape[1]) / np.bincount(y, w).sum()
    own, other = (sample_losses(q, y, score) for q in (p, np.broadcast_to(shares, p.shape)))
    mean, of_shares = (float(np.average(loss, weights=w)) for loss in (own, other))
    if not of_shares:
        return Estimate(math.nan)
    ratio = mean / of_shares
    if not math.isfinite(mean):
        return Estimate(1 - ratio)
    return mean_interval(1 - ratio - (own - ratio * other) / of_shares, level=level, groups=codes, weight=w)

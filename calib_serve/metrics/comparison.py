"""Comparison of two models on the same samples: what changes, and whether it is chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats, finite
from calib_serve.core.text import p_value, percent, percent_change
from calib_serve.metrics.distributions import student_beyond
from calib_serve.metrics.intervals import Estimate, mean_interval, quantile_of
from calib_serve.metrics.refinement import auroc_influence
from calib_serve.metrics.samples import checked_weights, group_codes, mean_error, row_blocks


@dataclass(frozen=True)
class Change:
    """After minus before.

    Args:
        difference: With its interval.
        p: Two-sided p-value of no change; NaN if undefined.
    """

    difference: Estimate
    p: float

    def moved(self, to: float, *, level: float = 0.95) -> Change:
        """Shift the difference, with as wide an interval around it, and test it by that interval.

        Args:
            to: Where the difference is.
            level: Coverage of the interval, a fraction: p is below 1 - ``level`` where it excludes 0.
        """
        one = self.difference
        by = to - one.value
        low, high = one.low + by, one.high + by
        half, p = (high - low) / 2, self.p
        if half > 0 and abs(by) > 1e-9 * half:
            p = 2 * NormalDist().cdf(-abs(low + half) / half * quantile_of(level))
        return Change(Estimate(to, low, high, one.debiased + by), p)


def change_of_mean(
    differences: Floats,
    level: float = 0.95,
    groups: NDArray[np.intp] | None = None,
    weight: Floats | None = None,
) -> Change:
    """The mean of paired differences and its z-test, by Student's distribution over groups.

    Args:
        differences: After minus before (n,).
        level: Coverage of the interval, a fraction.
        groups: Group of each pair, from 0 (n,); None: pairs are independent.
        weight: (n,); None: all weigh the same.
    """
    if not np.isfinite(differences).all():
        return Change(Estimate(math.nan), math.nan)
    estimate = mean_interval(differences, level=level, groups=groups, weight=weight)
    error = mean_error(differences, groups, weight) if len(differences) > 1 else 0.0
    if error == 0:
        return Change(estimate, 1.0 if estimate.value == 0 else math.nan)
    if groups is not None:
        return Change(estimate, student_beyond(estimate.value / error, float(groups.max())))
    return Change(estimate, 2 * NormalDist().cdf(-abs(estimate.value) / error))


@dataclass(frozen=True, eq=False)
class Tops:
    """The predictions of samples, each (n,).

    Args:
        predicted: Class ids.
        confidence: Probability of the predicted class.
        right: 1 where the prediction is right, else 0.
    """

    predicted: Codes
    confidence: Floats
    right: Floats

    @classmethod
    def of(cls, probs: Any, labels: Codes) -> Tops:
        """Read the top class of each row.

        Args:
            probs: Probabilities (n, K), an array or a view of scores.
            labels: Class ids (n,).
        """
        predicted, confidence = np.empty(len(probs), np.intp), np.empty(len(probs))
        for rows, p in row_blocks(probs):
            predicted[rows], confidence[rows] = p.argmax(axis=1), p.max(axis=1)
        return cls(predicted, confidence, (predicted == labels).astype(np.float64))


@dataclass(frozen=True)
class Moved:
    """Changes between two models of the same samples: classes, accuracy, and the AUROC of confidence.

    The AUROC says how well confidence tells right from wrong predictions. NaN where none is right or all are.

    Args:
        share: Share of the predictions that change class.
        accuracy: Before, after, and their change.
        auroc: Before, after, and their change.
    """

    share: float
    accuracy: tuple[float, float, Change]
    auroc: tuple[float, float, Change]

    @classmethod
    def between(
        cls,
        before: Tops,
        after: Tops,
        *,
        weight: Floats | None = None,
        groups: Codes | None = None,
        level: float = 0.95,
    ) -> Moved:
        """Compare the same samples before and after; both differences are tested in pairs.

        The AUROC's by the influence of each sample on it (DeLong 1988), which may change class in between.

        Args:
            before: Predictions of the first model.
            after: Predictions of the second, of the same samples.
            weight: (n,), of mean 1; None: all weigh the same.
            groups: Group of each sample, from 0 (n,); None: each is its own.
            level: Coverage of the intervals, a fraction.

        >>> p = np.tile([[0.6, 0.4], [0.55, 0.45], [0.2, 0.8], [0.3, 0.7]], (10, 1))
        >>> y = np.tile([0, 1, 1, 0], 10)
        >>> found = Moved.between(Tops.of(p, y), Tops.of(p - [0.1, -0.1], y))
        >>> found.share, found.accuracy[:2], found.says()[0].replace(chr(160), " ")
        (0.25, (0.5, 0.75), '25.0 % of predictions change class: accuracy 50.0 -> 75.0 % (p < 0.001).')
        """
        w = np.ones(len(before.right)) if weight is None else weight
        share = float(np.average(before.predicted != after.predicted, weights=w))
        right = change_of_mean(after.right - before.right, level, groups, weight)
        areas, parts = zip(
            *(auroc_influence(tops.confidence, tops.right, w) for tops in (before, after)), strict=True
        )
        auroc = change_of_mean(parts[1] - parts[0] + (areas[1] - areas[0]), level, groups, weight)
        means = [float(np.average(tops.right, weights=w)) for tops in (before, after)]
        return cls(share, (means[0], means[1], right), (areas[0], areas[1], auroc))

    @classmethod
    def of_probs(
        cls,
        before: Any,
        after: Any,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Moved:
        """Compare probabilities before and after.

        Args:
            before: Probabilities (n, K), an array or a view of scores.
            after: Probabilities (n, K) of the same samples.
            labels: Class ids (n,).
            sample_weight: (n,).
            groups: Which samples belong together (n,), numbers or text.
        """
        y = np.asarray(labels)
        weight, codes = checked_weights(sample_weight, len(y)), group_codes(groups, len(y))
        tops = (Tops.of(p, y) for p in (before, after))
        return cls.between(*tops, weight=weight, groups=codes)

    def says(self) -> list[str]:
        """The changes in sentences."""
        (old, new, accuracy), (low, high, auroc) = self.accuracy, self.auroc
        classes = (
            f"{percent(self.share)} of predictions change class: accuracy "
            f"{percent_change(old, new)}{_chance(accuracy)}."
            if self.share
            else f"No prediction changes class: accuracy {percent(new)}."
        )
        if not math.isfinite(high - low):
            return [classes]
        before = "stays at" if low == high else f"{low:.4f} ->"
        return [classes, f"AUROC of right against wrong {before} {high:.4f}{_chance(auroc)}."]

    def as_dict(self) -> dict[str, Any]:
        """As plain values for a manifest: the share, and accuracy and AUROC with the change's interval."""
        return {"share": self.share, "accuracy": _facts(self.accuracy), "auroc": _facts(self.auroc)}


def _facts(one: tuple[float, float, Change]) -> dict[str, Any]:
    before, after, change = one
    ends = {"low": change.difference.low, "high": change.difference.high, "p": change.p}
    return {name: finite(value) for name, value in {"before": before, "after": after, **ends}.items()}


def _chance(change: Change) -> str:
    return "" if change.difference.value == 0 else p_value(change.p)

"""What a calibration does to predictions: how many change class, and what that does to being right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.metrics.calibration import cumulative, tie_ends
from calib_serve.metrics.comparison import Change, change_of_mean
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import checked_weights, group_codes, row_blocks
from calib_serve.words import p_value, percent

__all__ = ["Moved", "Tops"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Tops:
    """Of each sample the predicted class, its probability, and whether it is right, each (n,)."""

    predicted: Codes
    confidence: Floats
    right: Floats

    @classmethod
    def of(cls, probs: Any, labels: Codes) -> Tops:
        """Of probabilities (n, K), an array or what makes its rows when they are read, and class ids (n,)."""
        predicted, confidence = np.empty(len(probs), np.intp), np.empty(len(probs))
        for rows, p in row_blocks(probs):
            predicted[rows], confidence[rows] = p.argmax(axis=1), p.max(axis=1)
        return cls(predicted, confidence, (predicted == labels).astype(np.float64))


@dataclass(frozen=True)
class Moved:
    """The ``share`` of predictions that change class, and accuracy and AUROC, each (before, after, change).

    The AUROC is that of confidence: how well it tells right from wrong predictions. NaN where none is right
    or all are.
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
        """Of the same samples before and after; both differences are tested in pairs.

        The AUROC's by the influence of each sample on it (DeLong 1988), which may change class in between.

        >>> p = np.tile([[0.6, 0.4], [0.55, 0.45], [0.2, 0.8], [0.3, 0.7]], (10, 1))
        >>> y = np.tile([0, 1, 1, 0], 10)
        >>> found = Moved.between(Tops.of(p, y), Tops.of(p - [0.1, -0.1], y))
        >>> found.share, found.accuracy[:2], found.says()[0].replace(chr(160), " ")
        (0.25, (0.5, 0.75), '25.0 % of predictions change class: accuracy 50.0 -> 75.0 % (p < 0.001).')
        """
        w = np.ones(len(before.right)) if weight is None else weight
        share = float(np.average(before.predicted != after.predicted, weights=w))
        right = change_of_mean(after.right - before.right, level, groups, weight)
        areas, parts = zip(*(_influence(tops, w) for tops in (before, after)), strict=True)
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
        """Of probabilities (n, K) before and after, and class ids (n,)."""
        y = np.asarray(labels)
        weight, codes = checked_weights(sample_weight, len(y)), group_codes(groups, len(y))
        tops = (Tops.of(p, y) for p in (before, after))
        return cls.between(*tops, weight=weight, groups=codes)

    def says(self) -> list[str]:
        """In sentences."""
        (old, new, accuracy), (low, high, auroc) = self.accuracy, self.auroc
        classes = (
            f"{percent(self.share)} of predictions change class: accuracy {100 * old:.1f} -> {percent(new)}"
            f"{_chance(accuracy)}."
            if self.share
            else f"No prediction changes class: accuracy {percent(new)}."
        )
        if not math.isfinite(high - low):
            return [classes]
        before = "stays at" if low == high else f"{low:.4f} ->"
        return [classes, f"AUROC of right against wrong {before} {high:.4f}{_chance(auroc)}."]

    def as_dict(self) -> dict[str, Any]:
        """For a manifest: the share, and of accuracy and AUROC the ends of the change and its p."""
        return {"share": self.share, "accuracy": _facts(self.accuracy), "auroc": _facts(self.auroc)}


def _influence(tops: Tops, w: Floats) -> tuple[float, Floats]:
    """The AUROC of confidence, and the influence (n,) of each sample on it, of mean 0."""
    order = np.argsort(tops.confidence, kind="stable")
    weight, right = w[order], tops.right[order]
    ends = tie_ends(tops.confidence[order])
    ranks = Separation(*(cumulative(weight * part)[ends] for part in (right, 1 - right)))
    area, sizes = float(ranks.auroc()), np.diff(ends)
    wrong_below, right_below = (np.repeat(one, sizes) for one in ranks.placements())
    with np.errstate(invalid="ignore", divide="ignore"):
        won = (wrong_below - area) * w.sum() / ranks.rights[-1]
        lost = (1 - right_below - area) * w.sum() / ranks.wrongs[-1]
    found = np.empty(len(order))
    found[order] = np.where(right > 0, won, lost)
    return area, found


def _facts(one: tuple[float, float, Change]) -> dict[str, Any]:
    before, after, change = one
    ends = {"low": change.difference.low, "high": change.difference.high, "p": change.p}
    found = {"before": before, "after": after, **ends}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _chance(change: Change) -> str:
    return "" if change.difference.value == 0 else p_value(change.p)

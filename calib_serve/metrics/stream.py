"""Metrics of more samples than memory holds: sums that parts add to, and that workers merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics._sums import class_cells
from calib_serve.metrics.samples import negative_log, of_classes
from calib_serve.scores import Scores

Floats = NDArray[np.float64]

_SHOWN = 5  # names in a message


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over samples, from which metrics follow as from all of them at once.

    ``top`` are the bins of the predicted class's confidence, ``said`` and ``came`` (K, bins) the sums of each
    class's probability and how often it was true, ``nll_sum`` and ``brier_sum`` sums over samples, and
    ``class_names`` those of the first samples that had names, or ().

    >>> first = Tally.empty(2).update([[0.7, 0.3]], [0])
    >>> both = first + Tally.empty(2).update([[0.6, 0.4]], [1])
    >>> both.n, both.accuracy, round(both.ece, 12)
    (2.0, 0.5, 0.45)
    """

    top: Bins
    said: Floats
    came: Floats
    nll_sum: float = 0.0
    brier_sum: float = 0.0
    class_names: tuple[str, ...] = ()

    @classmethod
    def empty(cls, classes: int, *, bins: int = 15) -> Tally:
        """A tally of no samples."""
        return cls(Bins.zeros(bins), np.zeros((classes, bins)), np.zeros((classes, bins)))

    def update(self, scores: Any, labels: Any, **how: Any) -> Tally:
        """Add these samples: scores and labels as ``Scores.of`` takes them, with its keywords.

        Without ``outputs`` they are probabilities. ``ignore_label`` leaves samples out, and scores may be
        (n, K, H, W) with labels (n, H, W). Classes that have names are in the order of the first samples';
        InputError for other names, ShapeError for another number of classes.
        """
        given = Scores.of(scores, labels, expected="probabilities", **how).in_order(
            self.class_names, of="these sums"
        )
        p, y = given.probs[:], given.labelled()
        classes, bins = self.said.shape
        if p.shape[1] != classes:
            raise ShapeError(f"these sums are of {classes} classes, the samples of {p.shape[1]}")
        w = np.ones(len(p)) if given.weights is None else given.weights
        true = of_classes(p, y)
        said, came, _ = class_cells(p, y, w, bins, "right")
        squares = np.einsum("nk,nk->n", p, p) - 2 * true + 1
        return Tally(
            self.top + Bins.tally(np.minimum(p.max(axis=1), 1), p.argmax(axis=1) == y, bins=bins, weight=w),
            self.said + said,
            self.came + came,
            self.nll_sum + float(w @ negative_log(true)),
            self.brier_sum + float(w @ squares),
            self.class_names or given.class_names,
        )

    def merge(self, other: Tally) -> Tally:
        """The tally of the samples of both.

        Associative and commutative. InputError where they are of other classes.
        """
        names = self.class_names or other.class_names
        if self.said.shape != other.said.shape or other.class_names not in ((), names):
            raise InputError(
                f"sums of {self.said.shape} classes and bins {list(self.class_names[:_SHOWN])} and of "
                f"{other.said.shape} {list(other.class_names[:_SHOWN])} do not add up"
            )
        return Tally(
            self.top + other.top,
            self.said + other.said,
            self.came + other.came,
            self.nll_sum + other.nll_sum,
            self.brier_sum + other.brier_sum,
            names,
        )

    __add__ = merge

    @property
    def n(self) -> float:
        """The number of samples, or their weight."""
        return self.top.n

    @property
    def accuracy(self) -> float:
        """The share of predictions that are right."""
        return self.top.accuracy()

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class."""
        return self.top.mean_confidence()

    @property
    def ece(self) -> float:
        """See ``calib_serve.metrics.ece``."""
        return self.top.ece()

    @property
    def mce(self) -> float:
        """See ``calib_serve.metrics.mce``."""
        return self.top.mce()

    @property
    def noise_floor(self) -> float:
        """See ``calib_serve.metrics.noise_floor``."""
        return self.top.noise_floor()

    @property
    def classwise_ece(self) -> float:
        """See ``calib_serve.metrics.classwise_ece``."""
        return float(np.abs(self.said - self.came).sum() / (len(self.said) * self.n)) if self.n else math.nan

    @property
    def nll(self) -> float:
        """See ``calib_serve.metrics.nll``."""
        return self.nll_sum / self.n if self.n else math.nan

    @property
    def brier(self) -> float:
        """See ``calib_serve.metrics.brier``."""
        return self.brier_sum / self.n if self.n else math.nan

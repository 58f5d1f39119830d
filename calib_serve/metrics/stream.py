"""Metrics of more samples than memory holds: sums that parts add to, and that workers merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import NAMED_IN_A_MESSAGE
from calib_serve.metrics._sums import class_cells
from calib_serve.metrics.samples import negative_log, of_classes
from calib_serve.scores import Outputs, Scores


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over samples, from which metrics follow as from all of them at once.

    Args:
        top: Bins of the predicted class's confidence.
        said: Sums of each class's probability (K, bins).
        came: How often each class was true (K, bins).
        nll_sum: Sum of the samples' NLL.
        brier_sum: Sum of the samples' Brier scores.
        class_names: Names of the first samples that had names (K,), or ().

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
        """A tally of no samples.

        Args:
            classes: Number of classes.
            bins: Number of bins, of equal width.
        """
        return cls(Bins.zeros(bins), np.zeros((classes, bins)), np.zeros((classes, bins)))

    def update(
        self,
        scores: Any,
        labels: Any,
        *,
        outputs: Outputs | None = None,
        columns: Sequence[str] | None = None,
        class_names: Sequence[Any] = (),
        sample_weight: Any = None,
        ignore_label: Any = None,
    ) -> Tally:
        """Add these samples.

        Args:
            scores: As ``Scores.of`` takes them, also (n, K, H, W) with labels (n, H, W).
            labels: Ids, names or booleans (n,).
            outputs: Kind of the scores; probabilities by default.
            columns: Names of the classes' columns.
            class_names: Names of the classes (K,), put into the order of the first samples'.
            sample_weight: (n,).
            ignore_label: One or more labels whose samples are left out.

        Raises:
            InputError: For other names of classes.
            ShapeError: For another number of classes.
        """
        given = Scores.of(
            scores,
            labels,
            outputs=outputs,
            columns=columns,
            class_names=class_names,
            sample_weight=sample_weight,
            ignore_label=ignore_label,
            expected="probabilities",
        ).in_order(self.class_names, of="these sums")
        p, y = given.probs[:], given.labelled()
        classes, bins = self.said.shape
        if p.shape[1] != classes:
            raise ShapeError(f"these sums are of {classes} classes, the samples of {p.shape[1]}")
        w = np.ones(len(p)) if given.weights is None else given.weights
        true = of_classes(p, y)
        said, came, *_ = class_cells(p, y, w, bins, "right")
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
        """The tally of the samples of both; associative and commutative.

        Raises:
            InputError: Where they are of other classes.
        """
        names = self.class_names or other.class_names
        if self.said.shape != other.said.shape or other.class_names not in ((), names):
            raise InputError(
                f"sums of {self.said.shape} classes and bins {list(self.class_names[:NAMED_IN_A_MESSAGE])} "
                f"and of {other.said.shape} {list(other.class_names[:NAMED_IN_A_MESSAGE])} do not add up"
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

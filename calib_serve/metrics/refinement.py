"""How well confidence tells right from wrong predictions, whatever its scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.metrics.scores import top_label

__all__ = ["Separation", "aupr_correct", "aupr_incorrect", "aurc", "e_aurc", "refinement_auroc"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Separation:
    """Right and wrong predictions (..., g) at each distinct confidence, in rising order.

    Leading axes are replicates. Equal confidences are one group: ties count half.
    """

    right: Floats
    wrong: Floats

    @classmethod
    def of(cls, score: ArrayLike, positive: ArrayLike) -> Separation:
        """Group samples (n,) by equal score; the positive ones are ``right``."""
        s, y = np.asarray(score, np.float64), np.asarray(positive, np.float64)
        order = np.argsort(s, kind="stable")
        s, y = s[order], y[order]
        ties = np.flatnonzero(np.concatenate([[True], np.diff(s) > 0]))
        return cls(np.add.reduceat(y, ties), np.add.reduceat(1 - y, ties))

    def auroc(self) -> Floats:
        """P(right above wrong) + P(tie) / 2; NaN when either is missing."""
        below = np.cumsum(self.wrong, axis=-1) - self.wrong / 2
        with np.errstate(invalid="ignore"):
            return (self.right * below).sum(axis=-1) / (self.right.sum(axis=-1) * self.wrong.sum(axis=-1))

    def aupr_right(self) -> Floats:
        """Average precision of finding the right ones from the highest confidence down."""
        return _average_precision(self.right[..., ::-1], self.wrong[..., ::-1])

    def aupr_wrong(self) -> Floats:
        """Average precision of finding the wrong ones from the lowest confidence up."""
        return _average_precision(self.wrong, self.right)

    def aurc(self) -> Floats:
        """Mean over coverages i / n of the error among the i most confident (Geifman 2018)."""
        wrong = self.wrong[..., ::-1]
        size = (self.right + self.wrong)[..., ::-1]
        count, errors = np.cumsum(size, axis=-1), np.cumsum(wrong, axis=-1)
        harmonic = _harmonic(round(float(count[..., -1].max())))
        steps = harmonic[count.astype(np.intp)] - harmonic[(count - size).astype(np.intp)]
        # Within a tie errors come evenly: sum_j (E + j e / m) / (C + j) has this closed form.
        rate = wrong / np.where(size > 0, size, 1)
        risk = wrong + (errors - wrong - (count - size) * rate) * steps
        return np.asarray(risk.sum(axis=-1) / count[..., -1])

    def e_aurc(self) -> Floats:
        """AURC less that of the best possible order, all errors last (Geifman 2018).

        The best order's AURC is its exact sum, not the paper's integral r + (1 - r) ln(1 - r).
        """
        errors, right = self.wrong.sum(axis=-1), self.right.sum(axis=-1)
        n = errors + right
        harmonic = _harmonic(round(float(n.max())))
        steps = harmonic[n.astype(np.intp)] - harmonic[right.astype(np.intp)]
        return np.asarray(np.maximum(self.aurc() - (errors - right * steps) / n, 0))


def _average_precision(found: Floats, other: Floats) -> Floats:
    hits = np.cumsum(found, axis=-1)
    seen = hits + np.cumsum(other, axis=-1)
    precision = hits / np.where(seen > 0, seen, 1)
    with np.errstate(invalid="ignore"):
        return np.asarray((found * precision).sum(axis=-1) / hits[..., -1])


def _harmonic(n: int) -> Floats:
    """H(0) to H(n)."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])


def refinement_auroc(probs: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC of right against wrong predictions by confidence; ties count half.

    NaN when all predictions are right or all are wrong.

    >>> refinement_auroc([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 1, 0])  # one pair of two
    0.5
    """
    return float(Separation.of(*top_label(probs, labels)).auroc())


def aupr_correct(probs: ArrayLike, labels: ArrayLike) -> float:
    """Average precision of finding right predictions by high confidence."""
    return float(Separation.of(*top_label(probs, labels)).aupr_right())


def aupr_incorrect(probs: ArrayLike, labels: ArrayLike) -> float:
    """Average precision of finding wrong predictions by low confidence."""
    return float(Separation.of(*top_label(probs, labels)).aupr_wrong())


def aurc(probs: ArrayLike, labels: ArrayLike) -> float:
    """Area under the risk-coverage curve (Geifman 2018); lower is better."""
    return float(Separation.of(*top_label(probs, labels)).aurc())


def e_aurc(probs: ArrayLike, labels: ArrayLike) -> float:
    """AURC less that of the best possible order (Geifman 2018); 0 is best."""
    return float(Separation.of(*top_label(probs, labels)).e_aurc())

"""Metrics of a multi-label model: of every label's probability, and their means over the labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, are_counts, as_array, as_floats, repeated
from calib_serve.core.bins import Bins, Edges
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.evaluate import MeasureOptions
from calib_serve.metrics.intervals import (
    Estimate,
    EstimateRecord,
    calibrated_share,
    inverted,
    mean_interval,
    wilson_interval,
)
from calib_serve.metrics.plausible import REACH, Event, recalibrate_event, signs
from calib_serve.metrics.samples import checked_weights, weighing_rows
from calib_serve.scores import LEAST, labels01

_STEPS = np.linspace(0, 1, 16) ** 1.5
_FARTHEST = 200.0  # times what the recalibration finds
"""Where possible truths lie between calibrated and much further off than it looks."""


@dataclass(frozen=True)
class LabelEvaluation:
    """One label: how often it is true, its accuracy at 0.5, and the calibration of its probability.

    Args:
        positives: Samples in which it is true.
        prevalence: Share of them.
        accuracy: Share of right decisions at 0.5.
        positive_gap: Mean of P(label) less the prevalence.
        positive_ece: ECE of P(label) over bins of [0, 1].
        positive_noise_floor: ECE that chance alone gives.
        positive_brier: Mean of (P - y)^2.
        nll: Mean of -log of what the truth was given, in nats.
    """

    positives: int
    prevalence: Estimate
    accuracy: Estimate
    positive_gap: Estimate
    positive_ece: Estimate
    positive_noise_floor: float
    positive_brier: Estimate
    nll: Estimate


@dataclass(frozen=True, repr=False)
class LabelsEvaluation(EstimateRecord):
    """The result of ``evaluate_labels``.

    Decisions are of all labels: the confidence max(p, 1 - p) of each against whether it is right.

    Args:
        n: Number of samples.
        bins: Bins of the decisions.
        labels: Each label by itself (L,).
        accuracy: Share of right decisions.
        mean_confidence: Mean confidence of the decisions.
        signed_gap: Mean confidence minus accuracy of the decisions.
        ece: ECE of the decisions.
        noise_floor: ECE of the decisions that chance alone gives.
        positive_ece: Mean over the labels of their ECE.
        positive_noise_floor: Mean over the labels of the ECE that chance alone gives.
        positive_brier: Mean over the labels of (P - y)^2.
        nll: Mean over the labels of their NLL, in nats.
        critical: Largest ``positive_ece`` that a calibrated model shows 19 times in 20; NaN without
            replicates.
        p: How often a calibrated model shows as large a one; NaN without replicates.
    """

    HEADLINE = ("P(label)", "positive_ece", "positive_noise_floor")

    n: int
    bins: Bins
    labels: tuple[LabelEvaluation, ...]
    accuracy: Estimate
    mean_confidence: Estimate
    signed_gap: Estimate
    ece: Estimate
    noise_floor: Estimate
    positive_ece: Estimate
    positive_noise_floor: Estimate
    positive_brier: Estimate
    nll: Estimate
    critical: float
    p: float

    def worst(self) -> list[int]:
        """Sort the labels (L,) by how miscalibrated they surely are, then by ECE beyond chance."""

        def badness(k: int) -> tuple[float, float]:
            ece = self.labels[k].positive_ece
            sure = 0.0 if np.isnan(ece.low) else ece.low
            return -sure, self.labels[k].positive_noise_floor - ece.value

        return sorted(range(len(self.labels)), key=badness)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: n, each metric as {value, low, high}, and the same of every label."""
        rows = [
            {name: v.as_dict() if isinstance(v, Estimate) else v for name, v in vars(row).items()}
            for row in self.labels
        ]
        return {**super().as_dict(), "labels": rows}

    def __repr__(self) -> str:
        counts = f"n={self.n}, labels={len(self.labels)}"
        found = f"accuracy={self.accuracy}, positive_ece={self.positive_ece}, nll={self.nll}"
        return f"LabelsEvaluation({counts}, {found})"


def checked_label_probs(
    probs: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.floating[Any]], NDArray[np.intp]]:
    """Check probabilities of labels, and return them as floats beside the labels.

    Args:
        probs: Probabilities (n, L), each in [0, 1].
        labels: Whether each is true (n, L), 0 or 1.

    Raises:
        InputError: Where a number is no probability, or no 0 or 1.
        ShapeError: Where shapes do not fit.
    """
    p = as_array(probs, "probs")
    if p.ndim != 2 or not p.size:
        raise ShapeError(f"probs of labels must be (n, L), one probability a label, got {p.shape}")
    if p.dtype.kind not in "fiub" or not (p.min() >= 0 and p.max() <= 1):  # also true for NaN
        raise InputError("probs of labels must lie in [0, 1]; pass sigmoid(logits) if these are logits")
    return p if p.dtype.kind == "f" else p.astype(np.float64), labels01(labels, p.shape)


def confidence_of_labels(probs: NDArray[Any], labels: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each label's confidence max(p, 1 - p) and whether its decision, p > 0.5, is right; both (n, L).

    Args:
        probs: Probabilities of labels (n, L).
        labels: 0 or 1 (n, L).

    >>> confidence, right = confidence_of_labels(np.array([[0.9, 0.25]]), np.array([[1, 1]]))
    >>> confidence.tolist(), right.tolist()
    ([[0.9, 0.75]], [[True, False]])
    """
    p = np.asarray(probs, np.float64)
    return np.clip(np.maximum(p, 1 - p), 0.5, 1), (p > 0.5) == (labels == 1)


def evaluate_label_probs(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    level: float = MeasureOptions.level,
    replicates: int = MeasureOptions.replicates,
    bins: int = MeasureOptions.bins,
    edges: Edges = MeasureOptions.edges,
    seed: int = MeasureOptions.seed,
) -> LabelsEvaluation:
    """Evaluate probabilities of labels with intervals.

    Samples are independent and labels of a sample are not: intervals of means over the labels are those of
    samples. ECEs are debiased and have the interval of the true errors under which what is observed is no
    surprise, from draws in which the signs of each sample's errors turn, of all its labels at once (Cameron,
    Gelbach and Miller 2008).

    Args:
        probs: Probabilities (n, L).
        labels: Whether each is true (n, L), 0 or 1.
        sample_weight: (n,); None: all weigh the same.
        level: Coverage of the intervals, a fraction.
        replicates: Number of draws, of which 200 are used at most; 0: no intervals.
        bins: Number of bins, of equal width.
        edges: Whether a bin holds its upper end, "right", or its lower one, "left".
        seed: Seed of the draws.

    >>> e = evaluate_label_probs([[0.7, 0.2], [0.6, 0.2]], [[1, 0], [0, 0]], bins=1, replicates=0)
    >>> round(e.positive_ece.value, 12), e.accuracy.value  # (|1.3 - 1| + |0.4 - 0|) / 2 samples / 2 labels
    (0.175, 0.75)
    """
    options = MeasureOptions(level=level, replicates=replicates, bins=bins, edges=edges, seed=seed)
    p, y = checked_label_probs(probs, labels)
    if checked_weights(sample_weight, len(p)) is not None:
        raw = as_floats(sample_weight, "sample_weight")
        # Weights that are counts stand for repeated rows, each a sample of its own.
        if are_counts(raw):
            p, y, sample_weight = p[repeated(raw)], y[repeated(raw)], None
    p, y, given, _ = weighing_rows(p, y, sample_weight)
    w = np.ones(len(p)) if given is None else given
    n, count = p.shape
    # Wilson's interval needs a number of samples: as many equal ones as are as much evidence.
    worth = float(w.sum() ** 2 / (w**2).sum())  # equal weights that are as much evidence
    gaps = _Gaps(p, y, w, bins=options.bins, edges=options.edges)
    true, drawn = gaps.eces(min(options.replicates, 200), options.seed)

    def error(value: float, column: int, elsewhere: float) -> Estimate:
        return inverted(value, true[:, column], drawn[:, :, column], level=level, elsewhere=elsewhere)

    rows, shares, means = [], [], np.zeros((4, n))
    for k in range(count):
        column, came_true = p[:, k].astype(np.float64), y[:, k]
        own = Bins.tally(np.clip(column, 0, 1), came_true, weight=w, bins=options.bins, edges=options.edges)
        shares.append(calibrated_share(own.gaps(), own.noise))
        confidence, right = confidence_of_labels(column, came_true)
        squares, losses = (column - came_true) ** 2, _nll(column, came_true)
        means += np.stack([right, confidence, squares, losses])
        rows.append(
            LabelEvaluation(
                positives=int(came_true.sum()),
                prevalence=wilson_interval(float(w @ came_true) * worth / n, worth, level=level),
                accuracy=wilson_interval(float(w @ right) * worth / n, worth, level=level),
                positive_gap=mean_interval(column - came_true, level=level, weight=w),
                positive_ece=error(own.ece(), k, shares[k]),
                positive_noise_floor=own.noise_floor(),
                positive_brier=mean_interval(squares, level=level, weight=w),
                nll=mean_interval(losses, level=level, weight=w),
            )
        )
    accuracy, mean_confidence, brier, nll = (mean_interval(m, level=level, weight=w) for m in means / count)
    # The last two columns are of the decisions, and of the mean over the labels.
    ece = float(np.mean([row.positive_ece for row in rows]))
    null_mean = drawn[0, :, -1]
    # Chance adds to the mean what it adds to each label.
    of_mean = float(np.average(shares, weights=drawn[0, :, :count].sum(axis=0) + 1e-300))
    return LabelsEvaluation(
        n=n,
        bins=gaps.choices,
        labels=tuple(rows),
        accuracy=accuracy,
        mean_confidence=mean_confidence,
        signed_gap=mean_interval((means[1] - means[0]) / count, level=level, weight=w),
        ece=error(gaps.choices.ece(), -2, gaps.choices_share()),
        noise_floor=Estimate(gaps.choices.noise_floor()),
        positive_ece=error(ece, -1, of_mean),
        positive_noise_floor=Estimate(float(np.mean([row.positive_noise_floor for row in rows]))),
        positive_brier=brier,
        nll=nll,
        critical=float(np.quantile(null_mean, 0.95)) if len(null_mean) else np.nan,
        # Equal sums may differ in their last bits.
        p=(1 + float((null_mean >= ece - 1e-12).sum())) / (1 + len(null_mean)) if len(null_mean) else np.nan,
    )


def _nll(p: Floats, came_true: NDArray[np.intp]) -> Floats:
    return np.asarray(-np.log(np.maximum(np.where(came_true == 1, p, 1 - p), LEAST)))


class _Gaps:
    """Each sample's part in the gaps of a label's bins, and in the gaps of all decisions."""

    def __init__(
        self, p: NDArray[Any], y: NDArray[np.intp], weight: Floats, *, bins: int, edges: Edges
    ) -> None:
        self.p, self.y, self.weight = p, y, weight
        self.binning: Any = {"bins": bins, "edges": edges}
        self.choices = Bins.zeros(bins)
        self._of_choices = np.zeros((len(p), bins))
        for k in range(p.shape[1]):
            confidence, right = confidence_of_labels(p[:, k], y[:, k])
            event = Event(confidence, **self.binning)
            self.choices += Bins.tally(confidence, right, weight=weight, **self.binning)
            self._of_choices[np.arange(len(p)), event.code] += weight * (confidence - right)

    def choices_share(self) -> float:
        """The share of chance in bins of the decisions that may be calibrated."""
        # A sample's decisions are not independent, so their variance is that of its part in the bin.
        return calibrated_share(self.choices.gaps(), (self._of_choices**2).sum(axis=0))

    def event(self, k: int) -> Event:
        """The event that label k is true."""
        return Event(self.p[:, k], **self.binning)

    def eces(self, draws: int, seed: int) -> tuple[Floats, Floats]:
        """ECEs of possible truths (16, L + 2), and ECEs that their samples show (16, draws, L + 2).

        Of each label, of all decisions, and the labels' mean.
        """
        n, labels = self.p.shape
        far = [self._far(k) for k in range(labels)] if draws else []
        choices = self.choices.gaps()
        size = np.sqrt(labels * float((self.weight**2).sum()))
        reach = 1 + 4 * size / max(n * labels * self.choices.ece(), 1e-12)
        true, drawn = np.zeros((len(_STEPS), labels + 2)), np.empty((len(_STEPS), draws, labels + 2))
        start, step = 0, _STEPS[:, None, None]
        for block in signs(n, draws, seed=seed):
            part = slice(start, start := start + len(block))
            for k, (gap, residual) in enumerate(far):
                event = self.event(k)
                # Summed in order of the bins: far fewer steps than a product with (n, bins).
                noise = np.add.reduceat((block * residual)[:, event.order], event.starts, axis=1)
                true[:, k] = _STEPS * np.abs(gap).sum() / n
                drawn[:, part, k] = np.abs(step * gap + noise).sum(axis=2) / n
            noise = block @ self._of_choices
            true[:, -2] = _STEPS * reach * np.abs(choices).sum() / (n * labels)
            drawn[:, part, -2] = np.abs(step * reach * choices + noise).sum(axis=2) / (n * labels)
        true[:, -1], drawn[:, :, -1] = true[:, :-2].mean(axis=1), drawn[:, :, :-2].mean(axis=2)
        return true, drawn

    def _far(self, k: int) -> tuple[Floats, Floats]:
        """A label's gaps by filled bin, were it far worse calibrated than it looks, and residuals (n,)."""
        event, came_true = self.event(k), self.y[:, k].astype(np.float64)
        fitted = recalibrate_event(event.probs, came_true, event.code, event.bins)
        observed = float(event.ece(came_true[None])[0])
        # Four wrong predictions more: where all are right, the variance that is seen is 0.
        noise = math.sqrt(4 + float(np.maximum(*(q * (1 - q) for q in (event.probs, fitted))).sum()))
        shown = max(float(event.ece(fitted[None])[0]), 1e-12)
        far = min((observed + REACH * noise / len(came_true)) / shown, _FARTHEST)
        gaps, residuals = self.weight * far * (event.probs - fitted), self.weight * (fitted - came_true)
        return np.add.reduceat(gaps[event.order], event.starts), residuals

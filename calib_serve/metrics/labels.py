"""Metrics of a multi-label model: of every label's probability, and their means over the labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats, are_counts, as_array, as_floats, repeated
from calib_serve.core.bins import Bins, bin_index
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import EvaluateOptions, MeasureOptions
from calib_serve.metrics.intervals import Estimate, EstimateRecord, mean_interval, wilson_interval
from calib_serve.metrics.plausible import Drawn
from calib_serve.metrics.samples import checked_weights, weighing_rows
from calib_serve.scores import LEAST, Scores, check_ungrouped, labels01

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import EvaluateKeywords

_SUMS = ("count", "confidence", "correct", "noise")


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
    """

    HEADLINE = ("P(label)", "positive_ece", "positive_noise_floor")
    _SHOWN = ("accuracy", "positive_ece", "nll")

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
    options: MeasureOptions | None = None,
    *,
    sample_weight: ArrayLike | None = None,
) -> LabelsEvaluation:
    """Evaluate probabilities of labels with intervals.

    Samples are independent and labels of a sample are not: intervals of means over the labels are those of
    samples. ECEs are debiased and have the interval of the true errors under which what is observed is no
    surprise, as in ``evaluate``; those of decisions and of the mean over the labels are wider as
    errors of a sample's labels move together.

    Args:
        probs: Probabilities (n, L).
        labels: Whether each is true (n, L), 0 or 1.
        options: How it is measured; None: the defaults.
        sample_weight: (n,); None: all weigh the same.

    >>> one_bin = MeasureOptions(bins=1, replicates=0)
    >>> e = evaluate_label_probs([[0.7, 0.2], [0.6, 0.2]], [[1, 0], [0, 0]], one_bin)
    >>> round(e.positive_ece.value, 12), e.accuracy.value  # (|1.3 - 1| + |0.4 - 0|) / 2 samples / 2 labels
    (0.175, 0.75)
    """
    asked = options or MeasureOptions()
    p, y = checked_label_probs(probs, labels)
    if checked_weights(sample_weight, len(p)) is not None:
        raw = as_floats(sample_weight, "sample_weight")
        # Weights that are counts stand for repeated rows, each a sample of its own.
        if are_counts(raw):
            p, y, sample_weight = p[repeated(raw)], y[repeated(raw)], None
    p, y, given, _ = weighing_rows(p, y, sample_weight)
    w = np.ones(len(p)) if given is None else given
    n, count = p.shape
    draw, level = Drawn.by(asked), asked.level
    binning: dict[str, Any] = {"bins": asked.bins, "edges": asked.edges}
    rows, events, means = [], [], np.zeros((4, n))
    # The labels of a sample move together: its part in the errors of all of them, towards the side on which
    # their bins are off, and its part in the gap of each bin of decisions; with the squares of each alone.
    pull, pulls_alone = np.zeros(n), 0.0
    decisions, parts = Bins.zeros(asked.bins), np.zeros((n, asked.bins))
    parts_alone = np.zeros(asked.bins)
    for k in range(count):
        column, came_true = np.clip(p[:, k].astype(np.float64), 0, 1), y[:, k]
        confidence, right = confidence_of_labels(column, came_true)
        means += np.stack([right, confidence, (column - came_true) ** 2, _nll(column, came_true)])
        own = Bins.tally(column, came_true, weight=w, **binning)
        events.append(own)
        rows.append(_of_label(column, came_true, w, own, draw))
        gaps, code = own.gaps(), bin_index(column, **binning)
        apart = w * (column - came_true - (gaps / np.maximum(own.count, 1e-300))[code]) * np.sign(gaps)[code]
        pull, pulls_alone = pull + apart, pulls_alone + float(apart @ apart)
        decisions += Bins.tally(confidence, right, weight=w, **binning)
        errors, code = w * (confidence - right), bin_index(confidence, **binning)
        parts[np.arange(n), code] += errors
        parts_alone += np.bincount(code, errors**2, asked.bins)
    accuracy, mean_confidence, brier, nll = (mean_interval(m, level=level, weight=w) for m in means / count)
    # Bins of all labels one beside another: their ECE is the mean of the labels'.
    every = Bins(*(np.concatenate([getattr(b, name) for b in events]) for name in _SUMS))
    wider = math.sqrt(max(float(pull @ pull) / max(pulls_alone, 1e-300), 1.0))
    effect = np.maximum((parts**2).sum(axis=0) / np.maximum(parts_alone, 1e-300), 1)
    return LabelsEvaluation(
        n=n,
        bins=decisions,
        labels=tuple(rows),
        accuracy=accuracy,
        mean_confidence=mean_confidence,
        signed_gap=mean_interval((means[1] - means[0]) / count, level=level, weight=w),
        ece=draw.ece(replace(decisions, noise=effect * decisions.noise)),
        noise_floor=Estimate(decisions.noise_floor()),
        positive_ece=draw.ece(every, wider=wider),
        positive_noise_floor=Estimate(float(np.mean([row.positive_noise_floor for row in rows]))),
        positive_brier=brier,
        nll=nll,
    )


def _of_label(p: Floats, came: NDArray[np.intp], w: Floats, own: Bins, draw: Drawn) -> LabelEvaluation:
    """Measure one label's probabilities (n,), whose bins are ``own``."""
    n, level = len(p), draw.level
    # Wilson's interval needs a number of samples: as many equal ones as are as much evidence.
    worth = float(w.sum() ** 2 / (w**2).sum())
    _, right = confidence_of_labels(p, came)
    return LabelEvaluation(
        positives=int(came.sum()),
        prevalence=wilson_interval(float(w @ came) * worth / n, worth, level=level),
        accuracy=wilson_interval(float(w @ right) * worth / n, worth, level=level),
        positive_gap=mean_interval(p - came, level=level, weight=w),
        positive_ece=draw.ece(own),
        positive_noise_floor=own.noise_floor(),
        positive_brier=mean_interval((p - came) ** 2, level=level, weight=w),
        nll=mean_interval(_nll(p, came), level=level, weight=w),
    )


def _nll(p: Floats, came_true: NDArray[np.intp]) -> Floats:
    return np.asarray(-np.log(np.maximum(np.where(came_true == 1, p, 1 - p), LEAST)))


def evaluate_labels(
    scores: Any,
    labels: Any = None,
    options: EvaluateOptions | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> LabelsEvaluation:
    """Evaluate a multi-label model's scores against its labels, with intervals.

    Args:
        scores: Log-odds or probabilities (n, L), each label's own; without ``outputs`` probabilities.
        labels: Whether each label is true (n, L), 0 or 1; by default those in ``scores``.
        options: An ``EvaluateOptions``; keywords replace its fields.
        **keywords: Fields of ``EvaluateOptions``, of which ``groups`` are refused: ``bins``,
            ``class_names``, ``columns``, ``edges``, ``ignore_label``, ``level``, ``missing``, ``outputs``,
            ``replicates``, ``sample_weight``, ``schema``, ``seed``.

    Raises:
        InputError: For arrays, names and options that cannot be right; ShapeError for other shapes.
    """
    asked = changed(options or EvaluateOptions(), keywords, evaluate_labels)
    found = Scores.of(scores, labels, expected="label_probabilities", **asked.of_scores)
    if not found.is_multilabel:
        raise InputError(f"these scores are {found.outputs}, one class a sample: evaluate measures them")
    check_ungrouped(found.groups)
    return evaluate_label_probs(found.probs[:], found.labelled(), asked, sample_weight=found.weights)

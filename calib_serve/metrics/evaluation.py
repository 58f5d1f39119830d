"""Evaluate every metric of (scores, labels) at once, each with its interval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import EvaluateOptions, MeasureOptions
from calib_serve.metrics._sums import Rows, estimates
from calib_serve.metrics.intervals import Estimate, EstimateRecord
from calib_serve.metrics.likelihood_ratios import evaluate_ratios, log_ratios
from calib_serve.metrics.proper import skill
from calib_serve.metrics.samples import checked, weighing_rows
from calib_serve.scores import ProbsView, Scores

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import EvaluateKeywords


@dataclass(frozen=True, repr=False)
class Evaluation(EstimateRecord):
    """Hold the result of ``evaluate``: counts, the bins, and an Estimate of each metric.

    Fractions, not percent. Metrics of P(y = 1), the probability of class 1, are there for two classes alone.

    Args:
        n: Number of samples.
        classes: Number of classes.
        bins: Sums by confidence of the predicted class.
        accuracy: Share of right predictions.
        mean_confidence: Mean confidence.
        signed_gap: Mean confidence minus accuracy.
        ece: Expected calibration error over equal-width bins.
        adaptive_ece: The same over equal-mass bins.
        classwise_ece: Mean over classes of each class's ECE.
        mce: Largest gap of a bin.
        ace: Unweighted mean gap of the bins in use.
        overconfidence_error: Mean over bins of confidence times its excess over accuracy.
        underconfidence_error: Mean over bins of confidence times its shortfall below accuracy.
        rms: Root mean squared gap.
        rms_debiased: Root of the debiased mean squared gap.
        sweep_ece: ECE over as many equal-mass bins as keep accuracy rising.
        smooth_ece: Smooth ECE.
        noise_floor: ECE that a calibrated model with these confidences shows on average.
        nll: Mean of -log p_y, in nats.
        brier: Mean of sum_k (p_k - y_k)^2.
        brier_top_label: Mean of (confidence - correct)^2.
        entropy: Mean predictive entropy, in nats.
        refinement_auroc: Area under the ROC of right against wrong predictions by confidence.
        aupr_correct: Average precision of finding right predictions.
        aupr_incorrect: Average precision of finding wrong predictions.
        aurc: Area under the risk-coverage curve.
        e_aurc: AURC less that of the best possible order.
        positive_ece: ECE of P(y = 1).
        positive_gap: Mean excess of P(y = 1) over the share of class 1.
        positive_brier: Mean of (P(y = 1) - y)^2.
        positive_noise_floor: ECE of P(y = 1) that chance alone gives.
        positive_cllr: Cllr of the odds of P(y = 1) over those of the share of class 1.
        positive_min_cllr: The same behind the best rising map.
        positive_eer: Equal error rate.
        positive_min_dcf: Least cost of detection at a prior of 0.01, NIST's.
        positive_brier_skill: ``skill`` by the Brier score over the classes' shares.
        positive_nll_skill: The same by the NLL.
        positive_bins: Sums by P(y = 1) over [0, 1].
        remarks: Guesses about the scores, a line each.
    """

    HEADLINE = ("", "ece", "noise_floor")

    n: int
    classes: int
    bins: Bins
    accuracy: Estimate
    mean_confidence: Estimate
    signed_gap: Estimate
    ece: Estimate
    adaptive_ece: Estimate
    classwise_ece: Estimate
    mce: Estimate
    ace: Estimate
    overconfidence_error: Estimate
    underconfidence_error: Estimate
    rms: Estimate
    rms_debiased: Estimate
    sweep_ece: Estimate
    smooth_ece: Estimate
    noise_floor: Estimate
    nll: Estimate
    brier: Estimate
    brier_top_label: Estimate
    entropy: Estimate
    refinement_auroc: Estimate
    aupr_correct: Estimate
    aupr_incorrect: Estimate
    aurc: Estimate
    e_aurc: Estimate
    positive_ece: Estimate | None = None
    positive_gap: Estimate | None = None
    positive_brier: Estimate | None = None
    positive_noise_floor: Estimate | None = None
    positive_cllr: Estimate | None = None
    positive_min_cllr: Estimate | None = None
    positive_eer: Estimate | None = None
    positive_min_dcf: Estimate | None = None
    positive_brier_skill: Estimate | None = None
    positive_nll_skill: Estimate | None = None
    positive_bins: Bins | None = None
    remarks: tuple[str, ...] = ()


def evaluate_probs(
    probs: Any,
    labels: ArrayLike,
    options: MeasureOptions | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Evaluation:
    """Evaluate probabilities with intervals.

    See ``evaluate``, which takes scores of any kind.

    Args:
        probs: Probabilities (n, K), an array or a view of scores.
        labels: Class ids (n,).
        options: How it is measured; None: the defaults.
        sample_weight: (n,); None: all weigh the same.
        groups: Which samples belong together (n,), numbers or text; None: each is its own.

    >>> e = evaluate_probs([[0.7, 0.3], [0.6, 0.4]], [0, 1], MeasureOptions(bins=10, replicates=0))
    >>> e.accuracy.value, round(e.ece.value, 12)  # (|0.7 - 1| + |0.6 - 0|) / 2
    (0.5, 0.45)
    """
    asked = options or MeasureOptions()
    p, y = (probs, np.asarray(labels)) if isinstance(probs, ProbsView) else checked(probs, labels)
    # Counts stay counts: divided by their mean they would not say how many rows there are.
    raw = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    p, y, _, codes = weighing_rows(p, y, sample_weight, groups)
    rows = Rows.of(p, y, None if raw is None else raw[raw > 0], codes, bins=asked.bins, edges=asked.edges)
    found, top, of_event = estimates(rows, asked)
    return Evaluation(n=len(y), classes=p.shape[1], bins=top, positive_bins=of_event, **dict[str, Any](found))


def evaluate(
    scores: Any,
    labels: Any = None,
    options: EvaluateOptions | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Evaluate a model's scores against its labels: every metric, with intervals of the given level.

    Of logits the NLL stays finite where a probability rounds to 0. Means, shares, areas and noise
    floors have analytic intervals. Errors have none with 0 ``replicates``; else they
    are debiased and have the interval of the true errors under which what is observed is no surprise; it
    starts at 0 where a calibrated model often shows as much, and may end below an observed error that is
    mostly chance. Intervals hold although samples of one of the ``groups`` move together.
    ``Evaluation.remarks`` says what was guessed of the scores.

    Args:
        scores: Probabilities or logits (n, K), an array or a frame, or ``Scores``; as in ``Scores.of``.
        labels: Class ids or names (n,); by default those in ``scores``.
        options: An ``EvaluateOptions``; keywords replace its fields.
        **keywords: Fields of ``EvaluateOptions``: ``bins``, ``class_names``, ``columns``, ``edges``,
            ``groups``, ``ignore_label``, ``level``, ``missing``, ``outputs``, ``replicates``,
            ``sample_weight``, ``schema``, ``seed``.

    Raises:
        InputError: For arrays, names and options that cannot be right; ShapeError for other shapes.

    >>> e = evaluate([[0.75, 0.25], [0.65, 0.35]], [0, 1], bins=10, replicates=0)
    >>> e.accuracy.value, round(e.ece.value, 12)  # (|0.75 - 1| + |0.65 - 0|) / 2
    (0.5, 0.45)
    """
    asked = changed(options or EvaluateOptions(), keywords, evaluate)
    found = Scores.of(scores, labels, **asked.of_scores)
    y = found.labelled()
    if found.is_multilabel:
        raise InputError("any number of labels may be true of these samples: evaluate_labels measures them")
    if y.ndim > 1:
        raise InputError("soft labels are for fits, nll and brier; evaluate wants one class a sample")
    beside: dict[str, Any] = {"sample_weight": found.weights, "groups": found.clusters}
    metrics = evaluate_probs(found.probs, y, asked, **beside)
    of_two = found.classes == 2
    more = measures_of_decisions(found.probs[:], y, **beside, level=asked.level) if of_two else {}
    return replace(metrics, **more, remarks=found.remarks)


def measures_of_decisions(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    level: float = MeasureOptions.level,
) -> dict[str, Any]:
    """The fields of an ``Evaluation`` that say how well P(y = 1) decides; none where one class alone occurs.

    Args:
        probs: Probabilities (n, 2).
        labels: Class ids (n,).
        sample_weight: (n,); None: all weigh the same.
        groups: Which samples belong together (n,); None: each is its own.
        level: Coverage of the intervals, a fraction.
    """
    p, y = checked(probs, labels)
    p, y, w, codes = weighing_rows(p, y, sample_weight, groups)
    if y.min() == y.max():
        return {}
    how: dict[str, Any] = {"sample_weight": w, "groups": codes, "level": level}
    of_ratios = evaluate_ratios(log_ratios(p, prior=float(np.average(y, weights=w))), y, **how)
    return {
        **{f"positive_{name}": one for name, one in of_ratios.items()},
        "positive_brier_skill": skill(p, y, score="brier", **how),
        "positive_nll_skill": skill(p, y, score="nll", **how),
    }

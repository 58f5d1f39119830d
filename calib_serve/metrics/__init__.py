"""Metrics of (probs, labels): one by one, or all at once with ``evaluate``.

Probabilities are (n, K), labels class ids (n,); logits are taken only where a name says so.
Everything is computed in float64; errors and shares are fractions.
"""

from calib_serve.metrics.calibration import (
    Split,
    accuracy,
    ace,
    adaptive_ece,
    ece,
    mce,
    mean_confidence,
    noise_floor,
    overconfidence_error,
    rms,
    rms_debiased,
    signed_gap,
    sweep_ece,
    underconfidence_error,
)
from calib_serve.metrics.classwise import adaptive_classwise_ece, classwise_ece, classwise_rms_debiased
from calib_serve.metrics.comparison import Change, paired_changes, welch
from calib_serve.metrics.decomposition import (
    BrierTerms,
    EceTerms,
    LossTerms,
    brier_terms,
    brier_top_label_terms,
    ece_terms,
    loss_terms,
)
from calib_serve.metrics.evaluation import Evaluation
from calib_serve.metrics.event import (
    EventEvaluation,
    calibration_intercept,
    calibration_slope,
    e50,
    e90,
    evaluate_event,
    event_ece,
    event_smooth_ece,
    ici,
    observed_expected,
)
from calib_serve.metrics.intervals import (
    Estimate,
    conformal_rank,
    coverage_range,
    exact_interval,
    mean_interval,
    wilson_interval,
)
from calib_serve.metrics.labels import LabelEvaluation, LabelsEvaluation, decisions
from calib_serve.metrics.of_scores import evaluate, evaluate_labels
from calib_serve.metrics.ordinal import ranked_probability_score
from calib_serve.metrics.proper import brier, brier_top_label, entropy, nll, nll_from_logits
from calib_serve.metrics.refinement import (
    aupr_correct,
    aupr_incorrect,
    aurc,
    e_aurc,
    fpr95,
    ood_auroc,
    refinement_auroc,
)
from calib_serve.metrics.selective import (
    Abstention,
    SelectiveEvaluation,
    abstention,
    evaluate_abstention,
)
from calib_serve.metrics.sets import SetEvaluation, SizeGroup, evaluate_sets
from calib_serve.metrics.smooth import SmoothReliability, smooth_ece, smooth_reliability
from calib_serve.metrics.stream import Tally
from calib_serve.scores.links import log_probs, log_softmax, sigmoid, softmax, two_columns

__all__ = [
    "Abstention",
    "BrierTerms",
    "Change",
    "EceTerms",
    "Estimate",
    "Evaluation",
    "EventEvaluation",
    "LabelEvaluation",
    "LabelsEvaluation",
    "LossTerms",
    "SelectiveEvaluation",
    "SetEvaluation",
    "SizeGroup",
    "SmoothReliability",
    "Split",
    "Tally",
    "abstention",
    "accuracy",
    "ace",
    "adaptive_classwise_ece",
    "adaptive_ece",
    "aupr_correct",
    "aupr_incorrect",
    "aurc",
    "brier",
    "brier_terms",
    "brier_top_label",
    "brier_top_label_terms",
    "calibration_intercept",
    "calibration_slope",
    "classwise_ece",
    "classwise_rms_debiased",
    "conformal_rank",
    "coverage_range",
    "decisions",
    "e50",
    "e90",
    "e_aurc",
    "ece",
    "ece_terms",
    "entropy",
    "evaluate",
    "evaluate_abstention",
    "evaluate_event",
    "evaluate_labels",
    "evaluate_sets",
    "event_ece",
    "event_smooth_ece",
    "exact_interval",
    "fpr95",
    "ici",
    "log_probs",
    "log_softmax",
    "loss_terms",
    "mce",
    "mean_confidence",
    "mean_interval",
    "nll",
    "nll_from_logits",
    "noise_floor",
    "observed_expected",
    "ood_auroc",
    "overconfidence_error",
    "paired_changes",
    "ranked_probability_score",
    "refinement_auroc",
    "rms",
    "rms_debiased",
    "sigmoid",
    "signed_gap",
    "smooth_ece",
    "smooth_reliability",
    "softmax",
    "sweep_ece",
    "two_columns",
    "underconfidence_error",
    "welch",
    "wilson_interval",
]

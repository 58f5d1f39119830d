"""Scores of a classifier: of which kind they are, for which classes, and what belongs to each sample."""

from calib_serve.scores.kinds import (
    LABELS,
    ONE_COLUMN,
    PROBABILITIES,
    Outputs,
    alike,
    check_outputs,
    class_count,
    exact,
    from_probs,
    measured,
    to_logits,
    to_probs,
)
from calib_serve.scores.links import (
    LARGEST,
    LEAST,
    log_probs,
    log_softmax,
    sigmoid,
    softmax,
    two_columns,
)
from calib_serve.scores.scores import ProbsView, Scores

__all__ = [
    "LABELS",
    "LARGEST",
    "LEAST",
    "ONE_COLUMN",
    "PROBABILITIES",
    "Outputs",
    "ProbsView",
    "Scores",
    "alike",
    "check_outputs",
    "class_count",
    "exact",
    "from_probs",
    "log_probs",
    "log_softmax",
    "measured",
    "sigmoid",
    "softmax",
    "to_logits",
    "to_probs",
    "two_columns",
]

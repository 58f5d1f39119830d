"""Every metric of what a model gave, of whatever kind: the one door of ``calib_serve.scores`` before them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calib_serve.errors import InputError
from calib_serve.metrics.evaluation import Evaluation, evaluate_logits, evaluate_probs
from calib_serve.metrics.labels import LabelsEvaluation, evaluate_label_probs
from calib_serve.options.base import changed, fields_of
from calib_serve.options.evaluate import EvaluateOptions, MeasureOptions
from calib_serve.scores import Scores

__all__ = ["evaluate", "evaluate_labels"]


def evaluate(
    scores: Any,
    labels: Any = None,
    options: EvaluateOptions | None = None,
    **given: Any,
) -> Evaluation:
    """All metrics of a model's scores and labels, with intervals of the given level.

    ``scores`` and ``labels`` as in ``Scores.of``, or ``Scores`` themselves: probabilities or logits, arrays
    or frames. Each of the ``options`` may be ``given`` as a keyword argument. Of logits the NLL stays finite
    where a probability rounds to 0. Means, shares and the AUROC have analytic intervals; areas and noise
    floors are bootstrapped from ``replicates`` resamples (0: no intervals). Errors are debiased and have the
    interval of the true errors under which what is observed is no surprise; it starts at 0 where a calibrated
    model often shows as much, and may end below an observed error that is mostly chance. ``groups`` (n,) say
    which samples belong together, such as those of one patient: intervals then hold although these move
    together. ``Evaluation.remarks`` says what was guessed of the scores. Raises InputError or ShapeError.

    >>> e = evaluate([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10, replicates=0)
    >>> e.accuracy.value, round(e.ece.value, 12)  # (|0.7 - 1| + |0.6 - 0|) / 2
    (0.5, 0.45)
    """
    asked = changed(options or EvaluateOptions(), given)
    found = Scores.of(scores, labels, **asked.of_scores)
    y = found.labelled()
    if found.is_multilabel:
        raise InputError("any number of labels may be true of these samples: evaluate_labels measures them")
    if y.ndim > 1:
        raise InputError("soft labels are for fits, nll and brier; evaluate wants one class a sample")
    how: dict[str, Any] = {"sample_weight": found.weights, "groups": found.groups, **_of_metrics(asked)}
    of_logits = found.outputs in ("logits", "logit", "log_probs")
    of = evaluate_logits(found.logits, y, **how) if of_logits else evaluate_probs(found.probs, y, **how)
    return replace(of, remarks=found.remarks)


def evaluate_labels(
    scores: Any,
    labels: Any = None,
    options: EvaluateOptions | None = None,
    **given: Any,
) -> LabelsEvaluation:
    """All metrics of a multi-label model's scores (n, L) and labels (n, L), each 0 or 1, with intervals.

    Arguments as in ``evaluate``, without groups; without ``outputs``, scores are probabilities, each label's
    own. Raises InputError or ShapeError.
    """
    asked = changed(options or EvaluateOptions(), given)
    found = Scores.of(scores, labels, expected="label_probabilities", **asked.of_scores)
    if not found.is_multilabel:
        raise InputError(f"these scores are {found.outputs}, one class a sample: evaluate measures them")
    if found.groups is not None:
        raise InputError("groups are for one class a sample, not for labels; leave them out")
    how: dict[str, Any] = {"sample_weight": found.weights, **_of_metrics(asked)}
    return evaluate_label_probs(found.probs[:], found.labelled(), **how)


def _of_metrics(asked: EvaluateOptions) -> dict[str, Any]:
    return fields_of(MeasureOptions, asked)

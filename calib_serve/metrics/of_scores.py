"""Every metric of what a model gave, of whatever kind: the one door of ``calib_serve.scores`` before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calib_serve.bins import Edges
from calib_serve.errors import InputError
from calib_serve.metrics.evaluation import Evaluation, evaluate_logits, evaluate_probs
from calib_serve.metrics.labels import LabelsEvaluation, evaluate_label_probs
from calib_serve.scores import Outputs, Scores

__all__ = ["evaluate", "evaluate_labels"]


def evaluate(
    scores: Any,
    labels: Any = None,
    *,
    outputs: Outputs | None = None,
    columns: Sequence[str] | None = None,
    class_names: Sequence[Any] = (),
    sample_weight: Any = None,
    groups: Any = None,
    ignore_label: Any = None,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """All metrics of a model's scores and labels, with intervals of the given level.

    ``scores``, ``labels`` and the keywords before ``bins`` as in ``Scores.of``, or ``Scores`` themselves:
    probabilities or logits, arrays or frames. Of logits the NLL stays finite where a probability rounds to 0.
    Means, shares and the AUROC have analytic intervals; areas and noise floors are bootstrapped from
    ``replicates`` resamples (0: no intervals). Errors are debiased and have the interval of the true errors
    under which what is observed is no surprise; it starts at 0 where a calibrated model often shows as much,
    and may end below an observed error that is mostly chance. ``groups`` (n,) say which samples belong
    together, such as those of one patient: intervals then hold although these move together.
    ``Evaluation.remarks`` says what was guessed of the scores. Raises InputError or ShapeError.

    >>> e = evaluate([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10, replicates=0)
    >>> e.accuracy.value, round(e.ece.value, 12)  # (|0.7 - 1| + |0.6 - 0|) / 2
    (0.5, 0.45)
    """
    given = Scores.of(
        scores,
        labels,
        outputs=outputs,
        columns=columns,
        class_names=class_names,
        sample_weight=sample_weight,
        groups=groups,
        ignore_label=ignore_label,
    )
    y = given.labelled()
    if given.is_multilabel:
        raise InputError("any number of labels may be true of these samples: evaluate_labels measures them")
    if y.ndim > 1:
        raise InputError("soft labels are for fits, nll and brier; evaluate wants one class a sample")
    how: dict[str, Any] = {
        "bins": bins,
        "edges": edges,
        "replicates": replicates,
        "level": level,
        "seed": seed,
    }
    how |= {"sample_weight": given.weights, "groups": given.groups}
    of_logits = given.outputs in ("logits", "logit", "log_probs")
    found = evaluate_logits(given.logits, y, **how) if of_logits else evaluate_probs(given.probs, y, **how)
    return replace(found, remarks=given.remarks)


def evaluate_labels(
    scores: Any,
    labels: Any = None,
    *,
    outputs: Outputs | None = None,
    columns: Sequence[str] | None = None,
    class_names: Sequence[Any] = (),
    sample_weight: Any = None,
    ignore_label: Any = None,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> LabelsEvaluation:
    """All metrics of a multi-label model's scores (n, L) and labels (n, L), each 0 or 1, with intervals.

    Arguments as in ``evaluate``; without ``outputs``, scores are probabilities, each label's own. Raises
    InputError or ShapeError.
    """
    given = Scores.of(
        scores,
        labels,
        outputs=outputs,
        columns=columns,
        class_names=class_names,
        sample_weight=sample_weight,
        ignore_label=ignore_label,
        expected="label_probabilities",
    )
    if not given.is_multilabel:
        raise InputError(f"these scores are {given.outputs}, one class a sample: evaluate measures them")
    how: dict[str, Any] = {
        "bins": bins,
        "edges": edges,
        "replicates": replicates,
        "level": level,
        "seed": seed,
    }
    return evaluate_label_probs(given.probs[:], given.labelled(), sample_weight=given.weights, **how)

"""Metrics and a verdict of an artifact, before and after calibration, on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.core.errors import CalibServeError, FitError
from calib_serve.core.text import a_few, percent
from calib_serve.fit.facts import HeldOutFacts, measured, measured_on_folds
from calib_serve.fit.folds import FOLDS, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.held_out import facts_of_folds
from calib_serve.fit.samples import Samples
from calib_serve.metrics import (
    Estimate,
    Evaluation,
    LabelsEvaluation,
    Level,
    Moved,
    Verdict,
    evaluate_label_probs,
    evaluate_probs,
    gain_of,
    judge_probs,
)
from calib_serve.scores import ProbsView, sigmoid


def with_metrics(
    artifact: Artifact,
    logits: ArrayLike,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    on: str = "test",
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Artifact:
    """The artifact with metrics before and after and a verdict, on samples that nothing was fitted to.

    ``logits`` (n, K) of the model as it is, ``probs`` (n, K) calibrated, class ids ``labels`` (n,), of labels
    (n, L) each; ``on`` names the samples in ``artifact.data["measured_on"]``.
    """
    weighing: dict[str, Any] = {"sample_weight": sample_weight, "groups": groups}
    how: dict[str, Any] = {"replicates": 200, "seed": seed}
    moved = None
    before: Evaluation | LabelsEvaluation
    after: Evaluation | LabelsEvaluation
    if artifact.is_multilabel:
        before, after = (
            evaluate_label_probs(p, labels, sample_weight=sample_weight, **how)
            for p in (sigmoid(logits), probs)
        )
    else:
        as_it_is = ProbsView(np.asarray(logits), "logits")
        before, after = (evaluate_probs(p, labels, **weighing, **how) for p in (as_it_is, probs))
        moved = Moved.of_probs(as_it_is, probs, labels, **weighing)
    plain, calibrated = ({n: e.as_dict() for n, e in one.estimates().items()} for one in (before, after))
    said = judge_probs(probs, labels, class_names=artifact.class_names, **weighing)
    return measured(artifact, HeldOutFacts(plain, calibrated, said, moved), on=on, samples=after.n)


def cross_validated(
    artifact: Artifact,
    samples: Samples,
    fit: Callable[[Samples], Artifact],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Artifact:
    """The artifact with metrics before and after, each sample under a ``fit`` to the other folds.

    Of very many samples that is told of some. Where a fold cannot be fitted, because a class or the samples
    are too few, the artifact says so in ``data["measured_on"]`` and holds no metrics.
    """
    samples = samples.some(MEASURED.most_samples_cross_validated)
    folds = min(FOLDS, samples.units // 2)
    if folds < 2:
        return unmeasured(artifact, FitError(f"{samples.size_said} are too few to hold some of them out"))

    def of_fold(f: int) -> Artifact:
        if progress:
            progress(f, folds)
        return fit(samples.take(fold != f))

    try:
        fold = folds_of(samples, folds=folds, seed=seed)
        found = facts_of_folds(of_fold, samples, fold, artifact.class_names, seed=seed)
    except CalibServeError as error:
        return unmeasured(artifact, error)
    return measured_on_folds(artifact, found, folds=folds, samples=len(samples))


def unmeasured(artifact: Artifact, error: CalibServeError) -> Artifact:
    """The artifact with the reason why it was not measured."""
    return replace(artifact, data={**artifact.data, "measured_on": f"nothing: {error}"})


def verdict(artifact: Artifact) -> Verdict:
    """Return what ``judge`` said of the samples that an artifact was measured on, and the ECEs on them.

    Of two classes also the ECE of P(y = 1), of labels that of P(label), and which labels were not fitted
    alone. Where nothing was judged, the level is "too_little".

    Args:
        artifact: A calibration, with its metrics.

    >>> from calib_serve.artifact import LogitMap
    >>> known = {"before": {"ece": {"value": 0.0475}}, "after": {"ece": {"value": 0.0113}}}
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=10, **known)
    >>> found = verdict(replace(artifact, data={"measured_on": "test"}))
    >>> found.gain.replace(chr(160), " "), found.headline
    ('ECE 4.8 -> 1.1 %.', 'Measured on test.')
    """
    known, on = artifact.data, artifact.data.get("measured_on")
    named = [("P(label)", "positive_")] if artifact.is_multilabel else [("", ""), ("P(y = 1)", "positive_")]
    measured = artifact.metrics_before, artifact.metrics_after
    eces = [(what, of) for what, of in named if all(f"{of}ece" in metrics for metrics in measured)]
    if not eces:
        reason = str(on).removeprefix("nothing: ") if on else "there was nothing to measure it on"
        said = f"The calibration was not measured ({reason}); give held-out data to see what it does."
        return Verdict("too_little", said, tuple(_kept(artifact)))
    gain = gain_of(
        [(what, *(m[f"{of}ece"] for m in measured), measured[1].get(f"{of}noise_floor") or math.nan)
         for what, of in eces]
    )  # fmt: skip
    # The verdict judges calibration; no gain over the model, or unlike data, is said beside it.
    poor = [said for _, of in eces if (said := _poor(artifact, of))]
    reasons = (*poor[:1], *_lost(artifact), *_kept(artifact))
    if known.get("verdict") not in get_args(Level):
        headline = f"Measured on {on or 'held-out samples'}."
        return Verdict("too_little", headline, reasons, gain=gain)
    do = tuple(known.get("verdict_do", ()))
    changed = tuple(known.get("moved_says", ())) if artifact.steps else ()
    return Verdict(known["verdict"], str(known["verdict_says"]), reasons, do=do, changed=changed, gain=gain)


def _poor(artifact: Artifact, prefix: str) -> str | None:
    """Say where an ECE that is more than chance did not fall, or is unlike that of the calibration set."""
    before, after = (m[f"{prefix}ece"] for m in (artifact.metrics_before, artifact.metrics_after))
    floor = artifact.metrics_after.get(f"{prefix}noise_floor")
    low = float(after) if math.isnan(after.low) else after.low
    if not artifact.steps or (floor is not None and low <= _high(floor)):
        return None
    left = artifact.reference.ece() if artifact.reference is not None and not prefix else math.inf
    if floor is not None and low > 2 * left and artifact.data.get("measured_on") == "test":
        return (
            f"Of the error: far more than the {percent(left)} that the calibration set was left with. The "
            "two are not alike, and no calibrator fitted here repairs that; calibrate on samples like those "
            "that will be served."
        )
    if after < before:
        return None
    return "Of the error: no better than before; keep the model as it is, or give more calibration data."


def _high(estimate: Estimate) -> float:
    return float(estimate) if math.isnan(estimate.high) else estimate.high


def _lost(artifact: Artifact) -> list[str]:
    """Warn where accuracy falls, which confidence alone does not show."""
    before, after = (m.get("accuracy") for m in (artifact.metrics_before, artifact.metrics_after))
    # A correction of class shares changes predictions on purpose. No calibration is worth two points.
    if before is None or after is None or artifact.fit.prior or float(after) >= float(before) - 0.02:
        return []
    return [
        f"Accuracy falls from {percent(float(before))} to {percent(float(after))}: do not serve this; take a "
        "method that keeps the predicted class."
    ]


def _kept(artifact: Artifact) -> list[str]:
    """Name the labels that were not fitted alone, and the reason."""
    said, facts = [], artifact.fit.facts
    for kept, what in (
        ("kept_temperature", "keep the temperature of all, {shared_temperature:.3g},"),
        ("kept_weight", "keep the weight of all, {shared_weight:.3g}, with an offset of their own,"),
    ):
        for why, labels in facts.get(kept, {}).items():
            names = [artifact.class_names[k] if artifact.class_names else k for k in labels]
            said.append(
                f"{len(labels)} of {artifact.classes} labels {what.format_map(facts)} as each is {why}: "
                f"{a_few(names)}."
            )
    return said

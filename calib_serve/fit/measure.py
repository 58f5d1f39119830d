"""What a calibration changed, on samples that it was not fitted to, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError, FitError
from calib_serve.fit.facts import HeldOutFacts, judged, measured_on_folds
from calib_serve.fit.output import held_out_facts
from calib_serve.fit.samples import Samples
from calib_serve.metrics import (
    Estimate,
    Evaluation,
    LabelsEvaluation,
    sigmoid,
)
from calib_serve.metrics.comparison import Moved
from calib_serve.metrics.evaluation import evaluate_probs
from calib_serve.metrics.labels import evaluate_label_probs
from calib_serve.scores import ProbsView
from calib_serve.verdict import Level, Verdict, gain_of
from calib_serve.verdict.decide import judge_probs
from calib_serve.words import percent

__all__ = ["cross_validated", "measured", "on_folds", "unmeasured", "verdict"]

_FOLDS = 5
_MOST = 100_000  # samples that a calibration is measured on
_REPLICATES = 200
_LOSS = 0.02  # of accuracy: no calibration is worth it
_NAMED = 10  # labels in a sentence


def measured(
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
    """The artifact with every metric before and after and a verdict, on samples that nothing was fitted to.

    ``logits`` (n, K) of the model as it is, ``probs`` (n, K) calibrated, class ids ``labels`` (n,), of labels
    (n, L) each; ``on`` names the samples in ``artifact.data["measured_on"]``.
    """
    weighing: dict[str, Any] = {"sample_weight": sample_weight, "groups": groups}
    moved = None
    before: Evaluation | LabelsEvaluation
    after: Evaluation | LabelsEvaluation
    if artifact.is_multilabel:
        before, after = (
            evaluate_label_probs(p, labels, replicates=_REPLICATES, seed=seed, sample_weight=sample_weight)
            for p in (sigmoid(logits), probs)
        )
    else:
        how: dict[str, Any] = {"replicates": _REPLICATES, "seed": seed, **weighing}
        as_it_is = ProbsView(np.asarray(logits), "logits")
        before, after = (evaluate_probs(p, labels, **how) for p in (as_it_is, probs))
        moved = Moved.of_probs(as_it_is, probs, labels, **weighing)
    told = replace(
        artifact,
        before={name: e.as_dict() for name, e in before.estimates().items()},
        after={name: e.as_dict() for name, e in after.estimates().items()},
        data={**artifact.data, "measured_on": on, "measured_samples": after.n},
    )
    return judged(told, judge_probs(probs, labels, class_names=artifact.class_names, **weighing), moved)


def cross_validated(
    artifact: Artifact,
    samples: Samples,
    fit: Callable[[Samples], Artifact],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Artifact:
    """The artifact with metrics before and after, of every sample under a ``fit`` to the other folds.

    Of very many samples that is told of some. Where a fold cannot be fitted, because a class or the samples
    are too few, the artifact says so in ``data["measured_on"]`` and holds no metrics.
    """
    samples = samples.some(_MOST)
    names = artifact.class_names

    def facts(folds: int) -> HeldOutFacts:
        return held_out_facts(samples, fit, folds=folds, class_names=names, seed=seed, progress=progress)

    return on_folds(artifact, len(samples), facts)


def on_folds(artifact: Artifact, samples: int, facts: Callable[[int], HeldOutFacts]) -> Artifact:
    """The artifact with the ``facts`` of so many folds of its samples, or why there are none."""
    folds = min(_FOLDS, samples // 2)
    if folds < 2:
        return unmeasured(artifact, FitError(f"{samples} samples are too few to hold some of them out"))
    try:
        found = facts(folds)
    except CalibServeError as error:
        return unmeasured(artifact, error)
    return measured_on_folds(artifact, found, folds=folds, samples=samples)


def unmeasured(artifact: Artifact, error: CalibServeError) -> Artifact:
    """The artifact that says why there is nothing it could be measured on."""
    return replace(artifact, data={**artifact.data, "measured_on": f"nothing: {error}"})


def verdict(artifact: Artifact) -> Verdict:
    """What ``judge`` said of the samples that the artifact was measured on, and its ECE before and after.

    Of two classes also the ECE of P(y = 1), of labels that of P(label), and which labels were not fitted
    alone. Where nothing was judged, the level is "too_little".

    >>> from calib_serve.artifact import LogitMap
    >>> known = {"before": {"ece": {"value": 0.0475}}, "after": {"ece": {"value": 0.0113}}}
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=10, **known)
    >>> found = verdict(replace(artifact, data={"measured_on": "test"}))
    >>> found.gain.replace(chr(160), " "), found.headline
    ('ECE 4.8 -> 1.1 %.', 'Measured on test: better calibrated.')
    """
    on = artifact.data.get("measured_on")
    named = [("P(label)", "positive_")] if artifact.is_multilabel else [("", ""), ("P(y = 1)", "positive_")]
    eces = [found for what, prefix in named if (found := _Ece.of(artifact, what, prefix))]
    if not eces:
        reason = str(on).removeprefix("nothing: ") if on else "there was nothing to measure it on"
        said = f"The calibration was not measured ({reason}); give held-out data to see what it does."
        return Verdict("too_little", said, tuple(_kept(artifact)))
    gain = gain_of([(one.what, one.before, one.after, one.floor or math.nan) for one in eces])
    # Errors that cancel in the top class's confidence show in P(y = 1): the worse one is what is said.
    worst = max((_judged(artifact, found) for found in eces), key=lambda judged: judged[0])
    known = artifact.data
    if known.get("verdict") not in get_args(Level):
        headline = f"Measured on {on or 'held-out samples'}: {worst[1]}."
        return Verdict("too_little", headline, (*_lost(artifact), *_kept(artifact)), gain=gain)
    # Whether it is calibrated is judged; that it is no better, or of other data, is said as well.
    poor = (f"Of the error: {worst[1]}.",) if worst[0] > 1 else ()
    do = tuple(known.get("verdict_do", ()))
    reasons = (*poor, *_lost(artifact), *_kept(artifact))
    changed = tuple(known.get("moved_says", ())) if artifact.steps else ()
    return Verdict(known["verdict"], str(known["verdict_says"]), reasons, do=do, changed=changed, gain=gain)


@dataclass(frozen=True)
class _Ece:
    """An ECE before and after, the ECE that chance gives, and what is left on the calibration set."""

    what: str
    before: Estimate
    after: Estimate
    floor: Estimate | None
    left: float | None

    @classmethod
    def of(cls, artifact: Artifact, what: str, prefix: str) -> _Ece | None:
        before, after = (m.get(f"{prefix}ece") for m in (artifact.metrics_before, artifact.metrics_after))
        if before is None or after is None:
            return None
        left = artifact.reference.ece() if artifact.reference is not None and not prefix else None
        floor = artifact.metrics_after.get(f"{prefix}noise_floor")
        return cls(what, before, after, floor, left)


def _judged(artifact: Artifact, found: _Ece) -> tuple[int, str]:
    """How bad it is, from 0, and in words."""
    if not artifact.steps:
        return 0, "nothing was changed"
    floor, after = found.floor, found.after
    chance = None if floor is None else (float(floor) if math.isnan(floor.high) else floor.high)
    low = float(after) if math.isnan(after.low) else after.low
    if chance is not None and low <= chance:
        return 0, "no miscalibration is left that these samples could show"
    left = found.left
    if (
        chance is not None
        and left is not None
        and low > 2 * left
        and artifact.data.get("measured_on") == "test"
    ):
        return 3, (
            f"far more than the {percent(left)} that the calibration set was left with. The two are not "
            "alike, and no calibrator fitted here repairs that; calibrate on samples like those that will be "
            "served"
        )
    if after < found.before:
        rest = "" if chance is None else "; what is left is more than chance, so try another method or auto"
        return 1, f"better calibrated{rest}"
    return 2, "no better than before; keep the model as it is, or give more calibration data"


def _lost(artifact: Artifact) -> list[str]:
    """That accuracy falls, which confidence alone does not show."""
    before, after = (m.get("accuracy") for m in (artifact.metrics_before, artifact.metrics_after))
    # Under other class shares other classes are right.
    if before is None or after is None or "prior" in artifact.fit or float(after) >= float(before) - _LOSS:
        return []
    return [
        f"Accuracy falls from {percent(float(before))} to {percent(float(after))}: do not serve this; take a "
        "method that keeps the predicted class."
    ]


def _kept(artifact: Artifact) -> list[str]:
    """Which labels were not fitted alone, and why."""
    said = []
    for why, labels in artifact.fit.get("kept_temperature", {}).items():
        names = [artifact.class_names[k] if artifact.class_names else str(k) for k in labels[:_NAMED]]
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        said.append(
            f"{len(labels)} of {artifact.classes} labels keep the temperature of all, "
            f"{artifact.fit['shared_temperature']:.3g}, as each is {why}: {', '.join(names)}{more}."
        )
    return said

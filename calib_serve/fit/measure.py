"""Results of held-out samples: losses and metrics of fits to folds, and what an artifact says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import CalibServeError, FitError
from calib_serve.core.options.evaluate import MeasureOptions
from calib_serve.core.text import a_few, percent
from calib_serve.fit.facts import confusion_facts, tops_of
from calib_serve.fit.folds import FOLDS, fits_of_folds, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.samples import Samples
from calib_serve.metrics import (
    CALIBRATE,
    MORE,
    Drawn,
    Estimate,
    Evaluation,
    LabelsEvaluation,
    Level,
    Moved,
    Separation,
    Tops,
    Verdict,
    confidence_of_labels,
    evaluate_label_probs,
    evaluate_probs,
    gain_of,
    judge_probs,
    mean_interval,
)
from calib_serve.scores import ProbsView, log_probs, sigmoid, softmax

_DRAWS = 100  # of an ECE's possible truths, of each
_BINNED = ("ece", "noise_floor", "positive_ece", "positive_noise_floor", "refinement_auroc")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One candidate's held-out results per sample, each (n,); of labels means, and ``predicted`` is NaN."""

    nll: Floats
    brier: Floats
    confidence: Floats
    correct: Floats
    predicted: Floats

    @classmethod
    def of(cls, probs: Floats, labels: NDArray[np.intp]) -> HeldOut:
        """Describe probabilities (n, K) against class ids (n,), or (n, L) against labels of 0 and 1."""
        if labels.ndim > 1:
            # Means over a sample's labels: samples, not labels, are independent.
            confidence, right = confidence_of_labels(probs, labels)
            true = np.where(labels == 1, probs, 1 - probs)
            nll, brier = -log_probs(true), (1 - true) ** 2
            terms = [np.asarray(x, np.float64).mean(axis=1) for x in (nll, brier, confidence, right)]
            return cls(*[*terms, np.full(len(probs), np.nan)])
        p_true, top = probs[np.arange(len(probs)), labels], probs.argmax(axis=1)
        nll = -log_probs(p_true)  # finite where p_true is 0
        brier = np.einsum("nk,nk->n", probs, probs) - 2 * p_true + 1
        rows = np.stack([nll, brier, np.minimum(probs.max(axis=1), 1.0), top == labels, top])
        return cls(*rows)

    @property
    def tops(self) -> Tops:
        """The predicted classes with their confidences, and whether they are right."""
        return Tops(self.predicted.astype(np.intp), self.confidence, self.correct)


def over_folds(fits: Sequence[Artifact], samples: Samples, fold: NDArray[np.intp]) -> HeldOut:
    """The results of each fold under its fit, without holding all probabilities."""
    out = np.empty((5, len(samples)))
    for rows, probs in samples.held_out(fold, fits):
        held = HeldOut.of(probs, samples.labels[rows])
        out[:, rows] = list(vars(held).values())
    return HeldOut(*out)


def facts_of_folds(
    fits: Sequence[Artifact],
    samples: Samples,
    fold: NDArray[np.intp],
    class_names: Sequence[str],
    *,
    seed: int,
) -> HeldOutFacts:
    """Measure every sample under its fold's fit."""
    probs = np.empty((len(samples), samples.classes))
    for rows, p in samples.held_out(fold, fits):
        probs[rows] = p
    as_probs = sigmoid if samples.is_multilabel else softmax
    plain = np.concatenate([as_probs(z) for _, z in samples.chunks(np.float64)])
    found = facts_of_probabilities(plain, probs, samples, class_names=class_names, seed=seed)
    if samples.is_multilabel:
        return found
    tops = tops_of(len(samples), [(slice(None), probs)])
    return found._replace(confusion=confusion_facts(samples, *tops, on="held-out folds"))


def facts_of_probabilities(
    before: Floats,
    after: Floats,
    samples: Samples,
    *,
    class_names: Sequence[str] = (),
    seed: int = 0,
) -> HeldOutFacts:
    """Measure held-out probabilities (n, K), ``before`` and ``after`` calibration, of these samples."""
    weight, groups, y = samples.weight, samples.groups, samples.labels
    verdict = judge_probs(after, y, sample_weight=weight, groups=groups, class_names=class_names)
    if samples.is_multilabel:
        how = MeasureOptions(seed=seed)
        plain, calibrated = (
            evaluate_label_probs(p, y, how, sample_weight=weight).estimates() for p in (before, after)
        )
        return HeldOutFacts(plain, calibrated, verdict)
    held = [HeldOut.of(p, y) for p in (before, after)]
    plain, calibrated = (
        _estimates(one, p, samples, seed) for one, p in zip(held, (before, after), strict=True)
    )
    moved = Moved.between(*(one.tops for one in held), weight=weight, groups=groups)
    return HeldOutFacts(plain, calibrated, verdict, moved)


def _estimates(held: HeldOut, probs: Floats, samples: Samples, seed: int) -> dict[str, Estimate]:
    means = {"accuracy": held.correct, "nll": held.nll, "brier": held.brier}
    found = {
        name: mean_interval(x, weight=samples.weight, groups=samples.groups) for name, x in means.items()
    }
    if samples.weight is None and samples.groups is None:
        # Each of these is quick; evaluate_probs, which weights and groups need, computes far more.
        found |= _binned("", held.confidence, held.correct, seed)
        if samples.classes == 2:
            positive = np.clip(probs[:, 1], 0, 1)
            found |= _binned("positive_", positive, (samples.labels == 1).astype(float), seed)
        found["refinement_auroc"] = Estimate(float(Separation.of(held.confidence, held.correct).auroc()))
    else:
        told = evaluate_probs(
            probs,
            samples.labels,
            MeasureOptions(replicates=_DRAWS, seed=seed),
            sample_weight=samples.weight,
            groups=samples.groups,
        ).estimates()
        found |= {name: told[name] for name in _BINNED if name in told}
    return found


def _binned(prefix: str, p: Floats, came_true: Floats, seed: int) -> dict[str, Estimate]:
    """Estimate the ECE of probabilities (n,), and what chance alone gives."""
    bins = Bins.tally(p, came_true)
    ece = Drawn(_DRAWS, 0.95, seed).ece(bins)
    return {f"{prefix}ece": ece, f"{prefix}noise_floor": Estimate(bins.noise_floor())}


class HeldOutFacts(NamedTuple):
    """Held-out results of calibration samples, each under a fit to the other folds.

    Metrics ``before`` and ``after``; the ``verdict`` on what was held out; what
    ``moved``, of labels None; the facts of its ``confusion``, where it was counted.
    """

    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    verdict: Verdict
    moved: Moved | None = None
    confusion: Mapping[str, Any] | None = None


def measured_on_folds(artifact: Artifact, found: HeldOutFacts, *, folds: int, samples: int) -> Artifact:
    """The artifact with the held-out results of ``samples`` calibration samples on ``folds``."""
    whole = samples == artifact.data.get("samples", samples)
    of = "" if whole else f"{samples:,} samples of "
    return measured(artifact, found, on=f"{folds} folds of {of}the calibration set", samples=samples)


def measured(artifact: Artifact, found: HeldOutFacts, *, on: str, samples: int) -> Artifact:
    """The artifact with results of ``samples`` samples, which ``on`` names: metrics, verdict, what moved."""
    verdict, moved = found.verdict, found.moved
    told: dict[str, Any] = {
        "measured_on": on,
        "measured_samples": samples,
        **({} if found.confusion is None else {"confusion": found.confusion}),
        "verdict": verdict.level,
        "verdict_says": verdict.headline,
        # The advice to calibrate is pointless for an artifact that does.
        "verdict_do": [MORE if artifact.steps and line == CALIBRATE else line for line in verdict.do],
        **({} if moved is None else {"moved": moved.as_dict(), "moved_says": moved.says()}),
    }
    before, after = ({name: e.as_dict() for name, e in of.items()} for of in (found.before, found.after))
    return replace(artifact, before=before, after=after, data={**artifact.data, **told})


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
    how = MeasureOptions(replicates=200, seed=seed)
    moved = None
    before: Evaluation | LabelsEvaluation
    after: Evaluation | LabelsEvaluation
    if artifact.is_multilabel:
        before, after = (
            evaluate_label_probs(p, labels, how, sample_weight=sample_weight)
            for p in (sigmoid(logits), probs)
        )
    else:
        as_it_is = ProbsView(np.asarray(logits), "logits")
        before, after = (evaluate_probs(p, labels, how, **weighing) for p in (as_it_is, probs))
        moved = Moved.of_probs(as_it_is, probs, labels, **weighing)
    plain, calibrated = (one.estimates() for one in (before, after))
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
    try:
        fold = folds_of(samples, folds=folds, seed=seed)
        fits = fits_of_folds(samples, fold, fit, progress)
        found = facts_of_folds(fits, samples, fold, artifact.class_names, seed=seed)
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
    before, after = artifact.metrics_before, artifact.metrics_after
    eces = [(what, of) for what, of in named if f"{of}ece" in before and f"{of}ece" in after]
    if not eces:
        reason = str(on).removeprefix("nothing: ") if on else "there was nothing to measure it on"
        said = f"The calibration was not measured ({reason}); give held-out data to see what it does."
        return Verdict("too_little", said, tuple(_kept(artifact)))
    gain = gain_of(
        [
            (what, before[f"{of}ece"], after[f"{of}ece"], after.get(f"{of}noise_floor") or math.nan)
            for what, of in eces
        ]
    )
    # The verdict judges calibration; no gain over the model, or unlike data, is said beside it.
    poor = [why for _, of in eces if (why := _poor(artifact, of))]
    reasons = (*_lost(artifact), *_kept(artifact))
    if known.get("verdict") not in get_args(Level):
        headline = " ".join([f"Measured on {on or 'held-out samples'}.", *poor[:1]])
        return Verdict("too_little", headline, reasons, gain=gain)
    do = tuple(known.get("verdict_do", ()))
    changed = tuple(known.get("moved_says", ())) if artifact.steps else ()
    reasons = (*poor[:1], *reasons)
    return Verdict(known["verdict"], str(known["verdict_says"]), reasons, do=do, changed=changed, gain=gain)


def _poor(artifact: Artifact, prefix: str) -> str | None:
    """Say where an ECE that is more than chance did not fall, or is unlike that of the calibration set."""
    before, after = (m[f"{prefix}ece"] for m in (artifact.metrics_before, artifact.metrics_after))
    floor = artifact.metrics_after.get(f"{prefix}noise_floor")
    low = np.fmin(after, after.low)  # the number itself where it has no interval
    if not artifact.steps or (floor is not None and low <= np.fmax(floor, floor.high)):
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

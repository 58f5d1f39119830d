"""Metrics and a verdict of an artifact, before and after calibration, on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import some_of
from calib_serve.core.errors import CalibServeError, FitError
from calib_serve.core.text import percent
from calib_serve.fit.facts import judged, measured_on_folds
from calib_serve.fit.labels import LabelSamples, held_out_label_facts
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.output.selection import facts_of_probabilities, held_out_facts
from calib_serve.fit.samples import Samples, folds_of, stratified
from calib_serve.metrics import (
    Estimate,
    Evaluation,
    LabelsEvaluation,
    Level,
    LossTerms,
    Moved,
    Verdict,
    evaluate_label_probs,
    evaluate_probs,
    gain_of,
    judge_probs,
    sample_losses,
)
from calib_serve.scores import Outputs, ProbsView, Scores, log_probs, sigmoid, softmax

_FOLDS = 5
_MOST = 100_000  # samples that a calibration is measured on
_REPLICATES = 200
_LOSS = 0.02  # of accuracy: no calibration is worth it
_NAMED = 10  # labels in a sentence


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
    fit: Callable[[Any], Artifact],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Artifact:
    """The artifact with metrics before and after, each sample under a ``fit`` to the other folds.

    Of very many samples that is told of some. Where a fold cannot be fitted, because a class or the samples
    are too few, the artifact says so in ``data["measured_on"]`` and holds no metrics.
    """
    if not isinstance(samples, LabelSamples):
        samples = samples.some(_MOST)
    folds = min(_FOLDS, len(samples) // 2)
    how: dict[str, Any] = {"folds": folds, "class_names": artifact.class_names, "seed": seed}
    if folds < 2:
        return unmeasured(artifact, FitError(f"{len(samples)} samples are too few to hold some of them out"))
    try:
        if isinstance(samples, LabelSamples):
            found = held_out_label_facts(samples, fit, **how)
        else:
            found = held_out_facts(samples, fit, progress=progress, **how)
    except CalibServeError as error:
        return unmeasured(artifact, error)
    return measured_on_folds(artifact, found, folds=folds, samples=len(samples))


def cross_fitted(
    artifact: Artifact,
    logits: ArrayLike,
    labels: ArrayLike,
    probs_of: Callable[[NDArray[np.intp], NDArray[np.intp]], ArrayLike],
    *,
    seed: int = 0,
) -> Artifact:
    """The artifact of a model with metrics before and after, each sample held out of its fold's fit.

    ``logits`` (n, K) are of the model as it is. ``probs_of`` gets the rows of all folds but one, fits to
    them, and returns probabilities of the rows of that one. Where a fold cannot be fitted, the artifact says
    so as in ``cross_validated``.
    """
    samples = Samples.of(logits, labels, outputs="logits")
    probs = np.empty(samples.logits.shape)
    try:
        fold = stratified(samples.labels, folds=min(_FOLDS, len(samples) // 2), seed=seed)
        for f in np.unique(fold):
            kept, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
            probs[held] = probs_of(kept, held)
    except CalibServeError as error:
        return unmeasured(artifact, error)
    plain, names = softmax(samples.logits), artifact.class_names
    found = facts_of_probabilities(plain, probs, samples, class_names=names, seed=seed)
    return measured_on_folds(artifact, found, folds=int(fold.max()) + 1, samples=len(samples))


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
    # Errors that cancel in the top class's confidence show in P(y = 1): the worse ECE makes the headline.
    worst = max((_judged(artifact, found) for found in eces), key=lambda judged: judged[0])
    known = artifact.data
    if known.get("verdict") not in get_args(Level):
        headline = f"Measured on {on or 'held-out samples'}: {worst[1]}."
        return Verdict("too_little", headline, (*_lost(artifact), *_kept(artifact)), gain=gain)
    # The verdict judges calibration; no gain over the model, or unlike data, is said beside it.
    poor = (f"Of the error: {worst[1]}.",) if worst[0] > 1 else ()
    do = tuple(known.get("verdict_do", ()))
    reasons = (*poor, *_lost(artifact), *_kept(artifact))
    changed = tuple(known.get("moved_says", ())) if artifact.steps else ()
    return Verdict(known["verdict"], str(known["verdict_says"]), reasons, do=do, changed=changed, gain=gain)


@dataclass(frozen=True)
class _Ece:
    """An ECE before and after, the ECE that chance gives, and the ECE left on the calibration set."""

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
    """Rank an ECE from 0, the best, and say its rank in words."""
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
    """Warn where accuracy falls, which confidence alone does not show."""
    before, after = (m.get("accuracy") for m in (artifact.metrics_before, artifact.metrics_after))
    # A correction of class shares changes predictions on purpose.
    if before is None or after is None or artifact.fit.prior or float(after) >= float(before) - _LOSS:
        return []
    return [
        f"Accuracy falls from {percent(float(before))} to {percent(float(after))}: do not serve this; take a "
        "method that keeps the predicted class."
    ]


def _kept(artifact: Artifact) -> list[str]:
    """Name the labels that were not fitted alone, and the reason."""
    said = []
    for why, labels in artifact.fit.facts.get("kept_temperature", {}).items():
        names = [artifact.class_names[k] if artifact.class_names else str(k) for k in labels[:_NAMED]]
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        said.append(
            f"{len(labels)} of {artifact.classes} labels keep the temperature of all, "
            f"{artifact.fit['shared_temperature']:.3g}, as each is {why}: {', '.join(names)}{more}."
        )
    return said


_ENOUGH = 20_000  # samples, of which half teach a calibration as much as four fifths
_RECALIBRATED = 50_000  # samples that are recalibrated
_MANY = 1 << 20  # logits, above which only a temperature is fitted: others take minutes


@dataclass(frozen=True)
class Refinement:
    """NLL and Brier score split into calibration and refinement, under a recalibration.

    Args:
        method: Name of the recalibration.
        nll: Terms of the NLL, in nats.
        brier: Terms of the Brier score, 0 to 2.
    """

    method: str
    nll: LossTerms
    brier: LossTerms

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        terms = {name: vars(found) for name, found in (("nll", self.nll), ("brier", self.brier))}
        parts = {name: {k: e.as_dict() for k, e in found.items()} for name, found in terms.items()}
        return {"recalibration": self.method, **parts}

    def says(self) -> str:
        """The calibration part of the NLL in one sentence.

        >>> from calib_serve.metrics import Estimate
        >>> terms = LossTerms(Estimate(0.312), Estimate(0.021, 0.015, 0.027), Estimate(0.291))
        >>> Refinement("temperature", terms, terms).says()[:65]
        'Of the NLL 0.3120, 0.0210 (0.0150 to 0.0270) is calibration error'
        """
        whole, part, rest = self.nll.loss, self.nll.calibration, self.nll.refinement
        said = f"{part:.4f}" + ("" if math.isnan(part.low) else f" ({part.low:.4f} to {part.high:.4f})")
        by = f"recalibration ({self.method}, cross-validated)"
        if part.low > 0 or (math.isnan(part.low) and part > 0):
            return (
                f"Of the NLL {whole:.4f}, {said} is calibration error that {by} would remove; {rest:.4f} is "
                "refinement."
            )
        return (
            f"Of the NLL {whole:.4f}, {by} would remove nothing that these samples could show: {said}. It is "
            "refinement: another model or more training lowers it, no calibration does."
        )


def recalibrated_losses(
    scores: Any,
    labels: Any = None,
    *,
    outputs: Outputs | None = None,
    method: str | None = None,
    folds: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Refinement | None:
    """Decompose the losses of scores, each sample recalibrated by a fit to the other folds (Berta 2025).

    What a method cannot mend counts as refinement, so calibration is a lower bound. None where nothing can be
    fitted, as to few samples or where every answer is right.

    Args:
        scores: Class scores (n, K); or ``Scores``, with weights and groups. Of more than 50,000 rows some are
            used.
        labels: Class ids (n,), or names.
        outputs: Kind of the scores; found where None.
        method: Name of the recalibration; by default beta for two classes and structured vector scaling for
            more, or a temperature for more than a million logits and where those cannot be fitted.
        folds: Number of folds; by default 5, of 20,000 samples or more 2.
        level: Coverage of the intervals, a fraction.
        seed: Seed of the folds.
    """
    given = Scores.of(scores, labels, outputs=outputs)
    samples = Samples.of(given.take(some_of(len(given), _RECALIBRATED)))
    folds = min(folds or (_FOLDS if len(samples) < _ENOUGH else 2), len(samples) // 2)
    if folds < 2:
        return None
    best = "beta" if samples.classes == 2 else "structured-vector"
    best = best if samples.size <= _MANY else "temperature"
    for name in (method,) if method else tuple(dict.fromkeys((best, "temperature"))):
        try:
            return _decomposed(samples, name, folds=folds, level=level, seed=seed)
        except CalibServeError:
            if method:
                raise
    return None


def _decomposed(samples: Samples, method: str, *, folds: int, level: float, seed: int) -> Refinement:
    fold = folds_of(samples, folds=folds, seed=seed)
    losses = np.empty((2, 2, len(samples)))
    for rows, z in samples.chunks(np.float64):
        losses[0][:, rows] = _losses(softmax(z), samples.labels[rows])
    for held, probs in samples.held_out(fold, lambda f: fit_by_name(method, samples.take(fold != f))):
        losses[1][:, held] = _losses(probs, samples.labels[held])
    of: dict[str, Any] = {"level": level, "groups": samples.groups, "weight": samples.weight}
    nll, brier = (LossTerms.of(*losses[:, k], **of) for k in range(2))
    return Refinement(method, nll, brier)


def _losses(probs: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.float64]:
    """The NLL and Brier score (2, n) of each sample."""
    p_true = probs[np.arange(len(labels)), labels]
    return np.stack([-log_probs(p_true), sample_losses(probs, labels, "brier")])  # finite where p_true is 0

"""Results of held-out samples: a candidate's losses on its folds, and metrics and verdict of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.fit.facts import HeldOutFacts, confusion_facts, tops_of
from calib_serve.fit.folds import BEATEN
from calib_serve.fit.samples import Samples
from calib_serve.metrics import (
    Drawn,
    Estimate,
    Moved,
    Separation,
    Tops,
    confidence_of_labels,
    evaluate_label_probs,
    evaluate_probs,
    judge_probs,
    mean_error,
    mean_interval,
)
from calib_serve.scores import log_probs, sigmoid, softmax

FoldFit = Callable[[int], Artifact]
"""A fold -> the fit to all others."""

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


def raced(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    rivals: Mapping[str, HeldOut],
    criterion: str,
) -> HeldOut:
    """Held-out results of a ``fit``; FitError where the first fold alone shows that a rival is better.

    ``fit`` is asked for the first fold twice, so it should remember what it has fitted.
    """
    if rivals:
        first = np.flatnonzero(fold == 0)
        part = samples.take(first)
        ours = getattr(over_folds(fit, part, np.zeros(len(first), np.intp)), criterion)
        for name, rival in rivals.items():
            worse = ours - getattr(rival, criterion)[first]
            # By a twentieth of the score too: differences below are left to all folds.
            if worse.mean() > max(BEATEN * mean_error(worse, part.groups), 0.05 * ours.mean()):
                raise FitError(
                    f"dropped after the first fold: its {criterion} is {worse.mean():.4f} above {name}'s"
                )
    return over_folds(fit, samples, fold)


def over_folds(fit: FoldFit, samples: Samples, fold: NDArray[np.intp]) -> HeldOut:
    """The results of each fold's ``fit`` on that fold, without holding all probabilities."""
    out = np.empty((5, len(samples)))
    for rows, probs in samples.held_out(fold, fit):
        held = HeldOut.of(probs, samples.labels[rows])
        out[:, rows] = list(vars(held).values())
    return HeldOut(*out)


def facts_of_folds(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    class_names: Sequence[str],
    *,
    level: float,
    seed: int,
) -> HeldOutFacts:
    """Measure every sample under its fold's ``fit``."""
    probs = np.empty((len(samples), samples.classes))
    for rows, p in samples.held_out(fold, fit):
        probs[rows] = p
    as_probs = sigmoid if samples.is_multilabel else softmax
    plain = np.concatenate([as_probs(z) for _, z in samples.chunks(np.float64)])
    found = facts_of_probabilities(plain, probs, samples, class_names=class_names, level=level, seed=seed)
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
    level: float = 0.95,
    seed: int = 0,
) -> HeldOutFacts:
    """Measure held-out probabilities (n, K), ``before`` and ``after`` calibration, of these samples."""
    weight, groups, y = samples.weight, samples.groups, samples.labels
    verdict = judge_probs(after, y, sample_weight=weight, groups=groups, class_names=class_names)
    if samples.is_multilabel:
        how: dict[str, Any] = {"sample_weight": weight, "level": level, "seed": seed}
        plain, calibrated = (_facts(evaluate_label_probs(p, y, **how).estimates()) for p in (before, after))
        return HeldOutFacts(plain, calibrated, verdict)
    held = [HeldOut.of(p, y) for p in (before, after)]
    plain, calibrated = (
        _estimates(one, p, samples, level, seed) for one, p in zip(held, (before, after), strict=True)
    )
    moved = Moved.between(*(one.tops for one in held), level=level, weight=weight, groups=groups)
    return HeldOutFacts(plain, calibrated, verdict, moved)


def _facts(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: estimate.as_dict() for name, estimate in estimates.items()}


def _estimates(held: HeldOut, probs: Floats, samples: Samples, level: float, seed: int) -> dict[str, Any]:
    means = {"accuracy": held.correct, "nll": held.nll, "brier": held.brier}
    found = {
        name: mean_interval(x, level=level, weight=samples.weight, groups=samples.groups)
        for name, x in means.items()
    }
    if samples.weight is None and samples.groups is None:
        # Each of these is quick; evaluate_probs, which weights and groups need, computes far more.
        found |= _binned("", held.confidence, held.correct, level, seed)
        if samples.classes == 2:
            positive = np.clip(probs[:, 1], 0, 1)
            found |= _binned("positive_", positive, (samples.labels == 1).astype(float), level, seed)
        found["refinement_auroc"] = Estimate(float(Separation.of(held.confidence, held.correct).auroc()))
    else:
        told = evaluate_probs(
            probs,
            samples.labels,
            sample_weight=samples.weight,
            groups=samples.groups,
            replicates=_DRAWS,
            level=level,
            seed=seed,
        ).estimates()
        found |= {name: told[name] for name in _BINNED if name in told}
    return _facts(found)


def _binned(prefix: str, p: Floats, came_true: Floats, level: float, seed: int) -> dict[str, Estimate]:
    """Estimate the ECE of probabilities (n,), and what chance alone gives."""
    bins = Bins.tally(p, came_true)
    ece = Drawn(_DRAWS, level, seed).ece(bins)
    return {f"{prefix}ece": ece, f"{prefix}noise_floor": Estimate(bins.noise_floor())}

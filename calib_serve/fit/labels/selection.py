"""Choosing one method for all labels by cross-validation, as ``fit.output.select`` chooses for classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Score, Selection
from calib_serve.errors import CalibServeError, InputError
from calib_serve.fit.facts import HeldOutFacts, measured_on_folds
from calib_serve.fit.labels.fitters import fit_labels, label_options
from calib_serve.fit.labels.samples import LabelSamples
from calib_serve.fit.output.selection import RULE, HeldOut, harm_to_accuracy, rank
from calib_serve.fit.solve import stratified
from calib_serve.judgement import judge
from calib_serve.metrics import decisions, evaluate_labels, log_probs

__all__ = ["held_out_label_facts", "select_labels"]

Floats = NDArray[np.float64]
Criterion = Literal["nll", "brier"]

_CANDIDATES = ("none", "temperature", "platt")
_REPLICATES = 200


def select_labels(
    samples: LabelSamples,
    *,
    candidates: Sequence[str] | None = None,
    criterion: Criterion = "nll",
    folds: int = 5,
    tolerance: float = 0.005,
    level: float = 0.95,
    seed: int = 0,
    class_names: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Artifact:
    """Cross-validate ``candidates``, fit the chosen one to all samples, and record how it was chosen.

    A sample's score is the mean over its labels of the NLL (or (p - y)^2, "brier"); samples, not labels, are
    independent. A candidate that costs more accuracy of the decisions than ``tolerance``, beyond chance, is
    refused. Otherwise as ``fit.output.select``.
    """
    names = tuple(dict.fromkeys(("none", *(candidates or _CANDIDATES))))
    for name in names:
        label_options(name)
    if criterion not in ("nll", "brier"):
        raise InputError(f"the criterion for labels must be nll or brier, got {criterion!r}")
    found: dict[str, HeldOut] = {}
    refused: dict[str, str] = {}
    for name in names:
        if progress:
            progress(name)
        try:
            probs = _held_out(samples, partial(fit_labels, name), folds, seed)
        except CalibServeError as error:
            refused[name] = str(error)
            continue
        found[name] = _described(probs, samples.labels)
        if harm := harm_to_accuracy(found["none"], found[name], tolerance=tolerance, level=level):
            refused[name] = harm
    allowed = {name: held for name, held in found.items() if name not in refused}
    if not allowed:
        raise InputError(refused["none"])
    best, chosen, scores = rank(found, allowed, criterion, samples, seed)
    artifact = fit_labels(chosen, samples)
    selection = Selection(
        criterion=criterion,
        rule=RULE,
        folds=folds,
        seed=seed,
        tolerance=tolerance,
        level=level,
        best=best,
        chosen=chosen,
        scores=tuple(replace(scores.get(name, Score(name)), refused=refused.get(name)) for name in names),
    )
    facts = held_out_label_facts(
        samples, partial(fit_labels, chosen), folds=folds, class_names=class_names, level=level, seed=seed
    )
    told = replace(artifact, fit={**artifact.fit, "selection": selection.as_dict()})
    return measured_on_folds(told, facts, folds=folds, samples=len(samples))


def held_out_label_facts(
    samples: LabelSamples,
    fit: Callable[[LabelSamples], Artifact],
    *,
    folds: int,
    class_names: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> HeldOutFacts:
    """Metrics and verdict of every sample under a ``fit`` to the other folds."""
    held = [_held_out(samples, made, folds, seed) for made in (partial(fit_labels, "none"), fit)]
    before, after = (_estimates(probs, samples, level, seed) for probs in held)
    return HeldOutFacts(before, after, judge(held[1], samples.labels, class_names=class_names))


def _held_out(
    samples: LabelSamples, fit: Callable[[LabelSamples], Artifact], folds: int, seed: int
) -> Floats:
    """Probabilities (n, L) of every sample under a ``fit`` to the other folds.

    InputError for folds that the samples cannot fill.
    """
    fold = stratified(np.zeros(len(samples), np.intp), folds=folds, seed=seed)
    probs = np.empty(samples.logits.shape)
    for f in range(folds):
        held = np.flatnonzero(fold == f)
        artifact = fit(samples.take(fold != f))
        for part, chunk in samples.take(held).chunks(np.float64):
            probs[held[part]] = artifact.probs(chunk)
    return probs


def _described(probs: Floats, labels: NDArray[np.intp]) -> HeldOut:
    confidence, right = decisions(probs, labels)
    true = np.where(labels == 1, probs, 1 - probs)
    means = (-log_probs(true), (1 - true) ** 2, confidence, right)
    return HeldOut(*(np.asarray(m, np.float64).mean(axis=1) for m in means))


def _estimates(probs: Floats, samples: LabelSamples, level: float, seed: int) -> dict[str, Any]:
    found = evaluate_labels(probs, samples.labels, replicates=_REPLICATES, level=level, seed=seed)
    return {name: estimate.as_dict() for name, estimate in found.estimates().items()}

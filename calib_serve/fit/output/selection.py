"""Choosing a calibrator by cross-validation on the calibration set, and refusing those that do harm.

Every candidate is fitted on K - 1 folds and scored on the one left out. Of those that are no worse
than the best by more than one standard error of the paired difference, the simplest wins (Breiman
1984, section 3.4.3; paired, as all candidates see the same samples). A candidate that costs
accuracy or refinement, how well confidence tells right from wrong, is refused however well it
calibrates: a less informative model can be well calibrated (Singh 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Score, Selection
from calib_serve.bins import Bins, bin_index
from calib_serve.errors import CalibServeError, InputError, MissingDependency
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.output.candidates import fit_by_name, options_of
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.solve.strength import stratified
from calib_serve.metrics import log_probs
from calib_serve.metrics.intervals import (
    Estimate,
    bootstrap_interval,
    mean_interval,
    quantile_of,
    resamples,
)
from calib_serve.metrics.refinement import Separation

__all__ = ["Criterion", "default_candidates", "held_out_estimates", "held_out_metrics", "select"]

Floats = NDArray[np.float64]
Criterion = Literal["nll", "brier", "ece"]

_REPLICATES = 400
_FULL_MATRIX = 32  # classes up to which unstructured matrices are worth trying by default


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One candidate's held-out results per sample, each (n,)."""

    nll: Floats
    brier: Floats
    confidence: Floats
    correct: Floats


def default_candidates(classes: int) -> tuple[str, ...]:
    """The default candidates of ``select``, simplest first."""
    # No vector or matrix: the structured ones are the same, regularised as the data require.
    few = ("none", "temperature", "temperature-mixture", "ensemble-temperature", "structured-vector")
    full = ("ms-odir", "dirichlet-odir") if classes <= _FULL_MATRIX else ()
    return (*few, "structured-matrix", *full, "histogram-mass", "isotonic")


def select(
    logits: ArrayLike | Samples,
    labels: ArrayLike,
    *,
    candidates: Sequence[str] | None = None,
    criterion: Criterion = "nll",
    folds: int = 5,
    tolerance: float = 0.005,
    level: float = 0.95,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
    progress: Callable[[str], None] | None = None,
) -> Artifact:
    """Cross-validate ``candidates``, refit the one chosen on all samples, and record how it was chosen.

    ``candidates`` are method names, simplest first; "none" always is one. ``tolerance`` is how much
    accuracy and refinement AUROC may fall, as fractions: a candidate is refused when the whole
    ``level`` interval of its paired difference lies below. ``progress`` is called with each name.
    The scores, refusals, seed and criterion are ``artifact.selection``; ``metrics_before`` and
    ``metrics_after`` are held-out numbers of these folds. Raises InputError for invalid arrays and options.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    names = tuple(dict.fromkeys(("none", *(candidates or default_candidates(samples.classes)))))
    for name in names:
        options_of(name)
    if criterion not in ("nll", "brier", "ece"):
        raise InputError(f"criterion must be nll, brier or ece, got {criterion!r}")
    quantile_of(level)
    fold = stratified(samples.labels, folds=folds, seed=seed)
    found: dict[str, HeldOut] = {}
    refused: dict[str, str] = {}
    for name in names:
        if progress:
            progress(name)
        try:
            fit = partial(_fit, name, seed=seed)
            found[name] = _held_out(fit, samples, fold)
        except MissingDependency:
            raise  # never choose among fewer than were asked for
        except CalibServeError as error:
            refused[name] = str(error)
            continue
        harm = _harm(found["none"], found[name], tolerance=tolerance, level=level, seed=seed)
        if harm:
            refused[name] = harm
    allowed = {name: held for name, held in found.items() if name not in refused}
    best, chosen, scores = _rank(found, allowed, criterion, samples, seed)
    artifact = fit_by_name(chosen, samples, samples.labels, seed=seed)
    selection = Selection(
        criterion=criterion,
        rule="simplest within one standard error of the best",
        folds=folds,
        seed=seed,
        tolerance=tolerance,
        level=level,
        best=best,
        chosen=chosen,
        scores=tuple(replace(scores.get(name, Score(name)), refused=refused.get(name)) for name in names),
    )
    before, after = (_estimates(found[name], level, seed) for name in ("none", chosen))
    told = replace(artifact, fit={**artifact.fit, "selection": selection.as_dict()})
    return measured_on_folds(told, before, after, folds=folds, samples=len(samples))


def held_out_estimates(
    samples: Samples,
    fit: Callable[[Samples], Artifact],
    *,
    folds: int,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics without and with calibration, of every sample under a ``fit`` to the other folds.

    Each maps a metric to its value, low and high. Raises what ``fit`` raises, and InputError for folds
    that the samples cannot fill.
    """
    fold = stratified(samples.labels, folds=folds, seed=seed)
    none = _held_out(partial(_fit, "none", seed=seed), samples, fold)
    fitted = _held_out(fit, samples, fold, progress)
    return _estimates(none, level, seed), _estimates(fitted, level, seed)


def held_out_metrics(
    probs: Floats, labels: NDArray[np.intp], *, level: float = 0.95, seed: int = 0
) -> dict[str, Any]:
    """Metrics of held-out probabilities (n, K) and class ids (n,): each one's value, low and high."""
    return _estimates(HeldOut(*_describe(probs, labels)), level, seed)


def _fit(name: str, samples: Samples, *, seed: int) -> Artifact:
    return fit_by_name(name, samples, samples.labels, seed=seed)


def _held_out(
    fit: Callable[[Samples], Artifact],
    samples: Samples,
    fold: NDArray[np.intp],
    progress: Callable[[int, int], None] | None = None,
) -> HeldOut:
    out = np.empty((4, len(samples)))
    folds = int(fold.max()) + 1
    for f in range(folds):
        if progress:
            progress(f, folds)
        artifact = fit(samples.take(fold != f))
        index = np.flatnonzero(fold == f)
        test = samples.take(index)
        for part, chunk in test.chunks(np.float64):
            out[:, index[part]] = _describe(artifact.probs(chunk), test.labels[part])
    return HeldOut(*out)


def _describe(p: Floats, labels: NDArray[np.intp]) -> Floats:
    p_true = p[np.arange(len(p)), labels]
    nll = -log_probs(p_true)  # finite where p_true is 0
    brier = np.einsum("nk,nk->n", p, p) - 2 * p_true + 1
    return np.stack([nll, brier, np.minimum(p.max(axis=1), 1.0), p.argmax(axis=1) == labels])


def _harm(none: HeldOut, held: HeldOut, *, tolerance: float, level: float, seed: int) -> str | None:
    """Why a candidate must not be used, with the numbers; None where it does no significant harm."""
    accuracy = mean_interval(held.correct - none.correct, level=level)
    if accuracy.high < -tolerance:
        return (
            f"accuracy falls by {-accuracy.value:.4f} (interval {-accuracy.high:.4f} to "
            f"{-accuracy.low:.4f}), more than {tolerance:g}"
        )
    fall = _auroc(held) - _auroc(none)
    if not fall < -tolerance:  # also where it is not defined: all right or all wrong
        return None
    drawn = np.concatenate(
        [
            _auroc(held, weights) - _auroc(none, weights)
            for weights in resamples(len(held.correct), _REPLICATES, seed=seed)
        ]
    )
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    if high >= -tolerance:
        return None
    return (
        f"refinement AUROC falls by {-float(fall):.4f} (interval {-high:.4f} to {-low:.4f}), "
        f"more than {tolerance:g}"
    )


def _auroc(held: HeldOut, weights: Floats | None = None) -> Floats:
    """P(right above wrong) by confidence, for every row of sample weights (r, n)."""
    order = np.argsort(held.confidence, kind="stable")
    ends = np.flatnonzero(np.diff(held.confidence[order], append=np.inf)) + 1
    w = np.ones((1, len(order))) if weights is None else weights[:, order]
    right = np.cumsum(w * held.correct[order], axis=1)
    seen = np.cumsum(w, axis=1)
    at = np.concatenate([[0], ends])
    right, seen = (np.concatenate([np.zeros((len(w), 1)), c], axis=1)[:, at] for c in (right, seen))
    with np.errstate(invalid="ignore"):
        found = Separation(right, seen - right).auroc()
    return found if weights is not None else np.asarray(found[0])


def _rank(
    found: dict[str, HeldOut],
    allowed: dict[str, HeldOut],
    criterion: Criterion,
    samples: Samples,
    seed: int,
) -> tuple[str, str, dict[str, Score]]:
    """The best and the chosen method, and every method's score."""
    share = np.ones(len(samples)) if samples.weight is None else samples.weight
    share = share / share.sum()
    if criterion == "ece":
        weights = np.concatenate(list(resamples(len(samples), _REPLICATES, seed=seed)))
        value = {name: Bins.tally(held.confidence, held.correct).ece() for name, held in found.items()}
        drawn = {name: _ece(held, weights) for name, held in found.items()}
    else:
        value = {name: float(share @ getattr(held, criterion)) for name, held in found.items()}
        drawn = {}
    best = min(allowed, key=lambda name: value[name])
    scores = {}
    for name, held in found.items():
        if criterion == "ece":
            error = float((drawn[name] - drawn[best]).std())
        else:
            difference = getattr(held, criterion) - getattr(found[best], criterion)
            error = math.sqrt(float(share**2 @ (difference - share @ difference) ** 2))
        scores[name] = Score(name, value[name], value[name] - value[best], error)
    chosen = next(name for name in allowed if scores[name].above_best <= scores[name].standard_error)
    return best, chosen, scores


def _ece(held: HeldOut, weights: Floats, bins: int = 15) -> Floats:
    """ECE for every row of sample weights (r, n)."""
    member = np.eye(bins)[bin_index(held.confidence, bins=bins)]
    gaps = (weights * (held.confidence - held.correct)) @ member
    return np.asarray(np.abs(gaps).sum(axis=1) / weights.sum(axis=1))


def _estimates(held: HeldOut, level: float, seed: int) -> dict[str, Any]:
    means = {"accuracy": held.correct, "nll": held.nll, "brier": held.brier}
    found = {name: mean_interval(values, level=level) for name, values in means.items()}
    bins = Bins.tally(held.confidence, held.correct)
    drawn = np.concatenate([_ece(held, w) for w in resamples(len(held.correct), _REPLICATES, seed=seed)])
    found["ece"] = bootstrap_interval(bins.ece(), drawn, level=level, lowest=0, highest=1)
    found["noise_floor"] = Estimate(bins.noise_floor())
    found["refinement_auroc"] = Estimate(float(_auroc(held)))
    return {name: estimate.as_dict() for name, estimate in found.items()}

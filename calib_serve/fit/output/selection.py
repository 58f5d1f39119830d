"""Choosing a calibrator by cross-validation on the calibration set, and refusing those that do harm.

Every candidate is fitted on K - 1 folds and scored on the one left out. The simplest within a thousandth of
the best wins, and over all of them an average of structured scaling over its strengths, which is a
temperature as far as evidence for more is weak, unless another is clearly better: chance misleads the choice
of one more than the average. A candidate that costs accuracy is refused however well it calibrates: a less
informative model can be well calibrated (Singh 2021). So is one that costs refinement, how well confidence
tells right from wrong, unless the NLL is better than without calibration and the Brier score is not worse
beyond chance: refinement is a part of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calib_serve.artifact import Artifact, Score, Selection
from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.fit.folds import fits_of_folds, folds_of
from calib_serve.fit.measure import HeldOut, facts_of_folds, measured_on_folds, over_folds
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.averaged import Averaged, fit_structured_average
from calib_serve.fit.output.candidates import KEEPING, fit_by_name, fitter_of, options_of
from calib_serve.fit.output.learnable import sample_remarks
from calib_serve.fit.progress import Progress
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Separation, mean_error, mean_interval, resamples

_TOLERANCE = 0.005  # of accuracy, and of refinement AUROC
_LEVEL = 0.95  # of the interval that a fall must exceed
_AVERAGE = "structured-average"
_OF_LABELS = ("none", "temperature", "platt")  # tables need hundreds of samples in which a label is true


def default_candidates(*, for_shares: bool = False, keeping: bool = False) -> tuple[str, ...]:
    """The default candidates of ``select``, simplest first.

    Args:
        for_shares: Whether class shares must be correctable behind them.
        keeping: Whether they must keep every predicted class.
    """
    if keeping:
        return ("none", "temperature")
    if for_shares:  # which Bayes' rule cannot do behind the average's uniform share
        return ("none", "temperature", "structured-vector", "structured-matrix")
    # All others but mixtures and tables are maps within the average's reach, whatever the number of classes.
    return ("none", "temperature", _AVERAGE)


def select(
    samples: Samples,
    *,
    candidates: Sequence[str] | None = None,
    keep_predictions: bool = False,
    folds: int = 5,
    seed: int = 0,
    class_names: Sequence[str] = (),
    progress: Progress | None = None,
) -> Artifact:
    """Cross-validate methods, refit the one chosen on all samples, and record how it was chosen.

    Of a multi-label model a sample's score is the mean over its labels: samples, not labels, are independent.
    Refused is a candidate whose accuracy or refinement AUROC falls by more than half a point beyond chance.
    The scores, refusals and seed are ``artifact.selection``; ``metrics_before`` and
    ``metrics_after`` are held-out numbers of these folds; what the set cannot teach is
    ``artifact.fit.remarks``.

    Args:
        samples: The calibration set.
        candidates: Names of methods, simplest first; "none" always is one.
        keep_predictions: Whether to try none but methods that keep the order of the classes, and so every
            prediction.
        folds: Number of folds.
        seed: Seed by which folds are drawn.
        class_names: Names of the classes (K,).
        progress: Called with a name, how many methods are done, and of how many.

    Raises:
        InputError: For options that cannot be right.
        FitError: For sets that nothing can be learnt from: labels of one class, the same logits for all, not
            one sample right.
    """
    multilabel = samples.is_multilabel
    default = _OF_LABELS if multilabel else default_candidates(keeping=keep_predictions)
    names = tuple(dict.fromkeys(("none", *(candidates or default))))
    for name in names:
        options_of(name, multilabel)
        if keep_predictions and name not in KEEPING:
            keep = ", ".join(sorted(KEEPING))
            raise InputError(f"{name} may change predicted classes; of those that keep them choose {keep}")
    parameters = samples.classes * (samples.classes + 1)
    size = max(MEASURED.most_samples_cross_validated, MEASURED.samples_compared_a_parameter * parameters)
    few = samples.some(min(size, MEASURED.most_samples_compared))
    fold = folds_of(few, folds=folds, seed=seed)
    run = _compared(few, names, fold, seed, progress)
    said, chosen = [] if multilabel else sample_remarks(few), run.selection.chosen
    if len(few) < len(samples):
        said = [*said, f"the method is chosen on {len(few):,} of the {len(samples):,} samples"]
    if chosen == _AVERAGE and few is samples and run.averaged:
        artifact = run.averaged.artifact()
    elif chosen == _AVERAGE:
        artifact = fit_structured_average(samples, seed=seed)
    else:
        artifact = fit_by_name(chosen, samples, seed=seed)
    remarks = (*said, *_why_none(run.selection))
    fit = replace(artifact.fit, selection=run.selection, remarks=remarks)
    told = replace(artifact, fit=fit, class_names=tuple(class_names))
    measured = facts_of_folds(run.fits, few, fold, class_names, seed=seed)
    return measured_on_folds(told, measured, folds=folds, samples=len(few))


class _Comparison(NamedTuple):
    """The choice, the fits of the chosen method to the folds, and the average where it was tried."""

    selection: Selection
    fits: Sequence[Artifact]
    averaged: Averaged | None


def _compared(
    samples: Samples, names: Sequence[str], fold: Codes, seed: int, progress: Progress | None
) -> _Comparison:
    """Compare methods on folds (n,) of the samples; the first of them is "none"."""
    folds, averaged = int(fold.max()) + 1, None
    fits: dict[str, list[Artifact]] = {}
    found: dict[str, HeldOut] = {}
    refused: dict[str, str] = {}
    for done, name in enumerate(names):
        if progress:
            progress(name, done, len(names))
        try:
            if name == _AVERAGE:
                averaged = Averaged.of(samples, fold)
                fits[name] = [averaged.held_out(f) for f in range(folds)]
            else:
                fit = fitter_of(name, {}, samples.is_multilabel, seed=seed)
                fits[name] = fits_of_folds(samples, fold, fit)
            found[name] = over_folds(fits[name], samples, fold)
        except CalibServeError as error:
            refused[name] = str(error)
            continue
        if why := _harm(found["none"], found[name], samples, seed=seed):
            refused[name] = why
    allowed = {name: held for name, held in found.items() if name not in refused}
    if not allowed:
        raise InputError(refused["none"])
    best, chosen, scores = _ranked(found, allowed, samples)
    rule = "simplest within 0.1 % of the best"
    if _AVERAGE in found:
        rule = "the structured average, unless another is better by over a standard error and 1 / n"
    selection = Selection(
        criterion="nll",
        rule=rule,
        best=best,
        chosen=chosen,
        scores=tuple(replace(scores.get(n, Score(n)), refused=refused.get(n)) for n in names),
        folds=folds,
        seed=seed,
        tolerance=_TOLERANCE,
        level=_LEVEL,
    )
    return _Comparison(selection, fits[chosen], averaged)


def _why_none(selection: Selection) -> list[str]:
    """Say in a sentence why methods were refused, where nothing was fitted for it."""
    refused: dict[str, list[str]] = {}
    for score in selection.scores:
        if score.refused:
            refused.setdefault(score.refused, []).append(score.method)
    if selection.chosen != "none" or not refused:
        return []
    return ["nothing is fitted; " + "; ".join(f"{', '.join(by)}: {why}" for why, by in refused.items())]


def _harm(none: HeldOut, held: HeldOut, samples: Samples, *, seed: int) -> str | None:
    """Say why a candidate must not be used, with the numbers; None where it does no significant harm.

    Refinement may fall by less than calibration gains.
    """
    accuracy, nll, brier = (
        mean_interval(new - old, level=_LEVEL, weight=samples.weight, groups=samples.groups)
        for new, old in ((held.correct, none.correct), (held.nll, none.nll), (held.brier, none.brier))
    )
    if accuracy.high < -_TOLERANCE:
        return (
            f"accuracy falls by {-accuracy.value:.4f} (interval {-accuracy.high:.4f} to "
            f"{-accuracy.low:.4f}), more than {_TOLERANCE:g}"
        )
    # The proper scores gain, refinement included.
    pays = nll.value < 0 and brier.low <= 0
    if pays or samples.is_multilabel:
        return None

    def change(weight: Floats) -> Floats:
        new, old = (Separation.of(one.confidence, one.correct, weight).auroc() for one in (held, none))
        return np.asarray(new - old)

    fall = float(change(samples.weights))
    if not fall < -_TOLERANCE:  # also where it is not defined: all right or all wrong
        return None
    # Resamples are slow, and only asked for where the fall itself is too large.
    weights = resamples(len(samples), 400, seed=seed, groups=samples.groups)
    drawn = np.concatenate([change(w if samples.weight is None else w * samples.weight) for w in weights])
    low, high = np.nanquantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    if high >= -_TOLERANCE:
        return None
    ends = f"interval {-high:.4f} to {-low:.4f}"
    return f"refinement AUROC falls by {-fall:.4f} ({ends}), more than {_TOLERANCE:g}"


def _ranked(
    found: dict[str, HeldOut], allowed: dict[str, HeldOut], samples: Samples
) -> tuple[str, str, dict[str, Score]]:
    """The best and the chosen method, and every method's score."""
    share = samples.weights / samples.weights.sum()
    value = {name: float(share @ held.nll) for name, held in found.items()}
    best = min(allowed, key=lambda name: value[name])

    def error_of(one: str, other: str) -> float:
        """The standard error of the paired difference."""
        return mean_error(found[one].nll - found[other].nll, samples.groups, samples.weight)

    scores = {
        name: Score(name, value[name], value[name] - value[best], error_of(name, best)) for name in found
    }
    chosen = next(name for name in allowed if scores[name].above_best <= 1e-3 * abs(value[best]))
    if _AVERAGE in allowed and chosen != _AVERAGE:
        # The uniform share of one sample may cost an NLL of 1 / n, and is no reason against the average.
        slack = 1 / len(samples)
        if value[_AVERAGE] - value[chosen] <= error_of(_AVERAGE, chosen) + slack:
            chosen = _AVERAGE
    return best, chosen, scores

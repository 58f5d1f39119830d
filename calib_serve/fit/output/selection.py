"""Choosing a calibrator by cross-validation on the calibration set, and refusing those that do harm.

Every candidate is fitted on K - 1 folds and scored on the one left out; one that the first fold shows to
be beaten is dropped. The simplest within a thousandth of the best wins, and over all of them an average of
structured scaling over its strengths, which is a temperature as far as evidence for more is weak, unless
another is clearly better: chance misleads the choice of one more than the average. A candidate that costs
accuracy is refused however well it calibrates: a less informative model can be well calibrated (Singh 2021).
So is one that costs refinement, how well confidence tells right from wrong, unless the NLL is better than
without calibration and the Brier score is not worse beyond chance: refinement is a part of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Score, Selection
from calib_serve.bins import Bins, bin_index
from calib_serve.errors import CalibServeError, FitError, InputError
from calib_serve.fit.facts import HeldOutFacts, confusion_facts, measured_on_folds
from calib_serve.fit.output.averaged import Averaged
from calib_serve.fit.output.candidates import KEEPING, fit_by_name, options_of, remarks
from calib_serve.fit.samples import Samples, folds_of
from calib_serve.judgement.decide import judge_probs
from calib_serve.metrics import log_probs, softmax
from calib_serve.metrics.comparison import Moved, Tops
from calib_serve.metrics.evaluation import evaluate_probs
from calib_serve.metrics.intervals import Estimate, mean_interval, quantile_of, resamples
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.truths import Event, event_error

Floats = NDArray[np.float64]
FoldFit = Callable[[int], Artifact]
"""A fold -> the fit to all others."""

_BEATEN = 4.0  # standard errors, on the first fold
_MUCH = 0.05  # of the score


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One candidate's held-out results per sample, each (n,).

    ``predicted`` is the top class, not of labels; of two classes ``positive`` is P(y = 1), ``came_true``
    whether it was.
    """

    nll: Floats
    brier: Floats
    confidence: Floats
    correct: Floats
    predicted: Floats | None = None
    positive: Floats | None = None
    came_true: Floats | None = None


def raced(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    rivals: Mapping[str, HeldOut],
    criterion: str,
) -> HeldOut:
    """The held-out results; FitError where the first fold alone shows that a rival is better."""
    first = np.flatnonzero(fold == 0)

    def beaten(out: Floats) -> None:
        ours = getattr(HeldOut(*out), criterion)[first]
        for name, rival in rivals.items():
            worse = ours - getattr(rival, criterion)[first]
            if worse.mean() > max(_BEATEN * worse.std() / math.sqrt(len(first)), _MUCH * ours.mean()):
                raise FitError(
                    f"dropped after the first fold: its {criterion} is {worse.mean():.4f} above {name}'s"
                )

    return over_folds(fit, samples, fold, after_first=beaten if rivals else None)


def over_folds(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    *,
    progress: Callable[[int, int], None] | None = None,
    after_first: Callable[[Floats], None] | None = None,
    probs: Floats | None = None,
) -> HeldOut:
    """The results of each fold's ``fit`` on that fold; ``after_first`` sees those of the first.

    ``probs`` (n, K), where given, is filled with the held-out probabilities.
    """
    out = np.empty((7 if samples.classes == 2 else 5, len(samples)))
    folds = int(fold.max()) + 1
    for f in range(folds):
        if progress:
            progress(f, folds)
        artifact = fit(f)
        index = np.flatnonzero(fold == f)
        test = samples.take(index)
        for part, chunk in test.chunks(np.float64):
            held = artifact.of_logits(chunk)
            out[:, index[part]] = described(held, test.labels[part])
            if probs is not None:
                probs[index[part]] = held
        if f == 0 and after_first:
            after_first(out)
    return HeldOut(*out)


def described(p: Floats, labels: NDArray[np.intp]) -> Floats:
    """Rows of a HeldOut of probabilities (n, K) and class ids (n,)."""
    p_true = p[np.arange(len(p)), labels]
    nll = -log_probs(p_true)  # finite where p_true is 0
    brier = np.einsum("nk,nk->n", p, p) - 2 * p_true + 1
    positive = [np.clip(p[:, 1], 0, 1), labels == 1] if p.shape[1] == 2 else []
    top = p.argmax(axis=1)
    return np.stack([nll, brier, np.minimum(p.max(axis=1), 1.0), top == labels, top, *positive])


def auroc(held: HeldOut, weights: Floats | None = None) -> Floats:
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


_DRAWS = 100  # of an ECE's possible truths, of each
_BINNED = ("ece", "noise_floor", "positive_ece", "positive_noise_floor", "refinement_auroc")


def held_out_facts(
    samples: Samples,
    fit: Callable[[Samples], Artifact],
    *,
    folds: int,
    class_names: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeldOutFacts:
    """Metrics, verdict and confusion of every sample under a ``fit`` to the other folds.

    Raises what ``fit`` raises, and InputError for folds that the samples cannot fill.
    """
    fold = folds_of(samples, folds=folds, seed=seed)
    none = over_folds(partial(fit_fold, "none", samples, fold, seed=seed), samples, fold)

    def of_fold(f: int) -> Artifact:
        return fit(samples.take(fold != f))

    return facts_of_folds(
        none, of_fold, samples, fold, class_names, level=level, seed=seed, progress=progress
    )


def facts_of_probabilities(
    before: Floats,
    after: Floats,
    labels: NDArray[np.intp],
    *,
    class_names: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> HeldOutFacts:
    """The same of held-out probabilities (n, K) without and with calibration, and class ids (n,)."""
    alone = Samples.of_kind(np.zeros(before.shape), labels, "logits")
    plain, calibrated = (
        _estimates(HeldOut(*described(p, labels)), p, alone, level, seed) for p in (before, after)
    )
    moved = Moved.between(*(Tops.of(p, labels) for p in (before, after)), level=level)
    return HeldOutFacts(plain, calibrated, judge_probs(after, labels, class_names=class_names), moved)


def facts_of_folds(
    none: HeldOut,
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    class_names: Sequence[str],
    *,
    level: float,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> HeldOutFacts:
    """Those of the fold's fits, beside the results of ``none``, no calibration."""
    probs = np.empty((len(samples), samples.classes))
    held = over_folds(fit, samples, fold, progress=progress, probs=probs)
    plain = np.concatenate([softmax(z) for _, z in samples.chunks(np.float64)])
    before, after = (_estimates(one, p, samples, level, seed) for one, p in ((none, plain), (held, probs)))
    confusion = confusion_facts(samples, _classes(held), held.confidence, on="held-out folds")
    verdict = judge_probs(
        probs,
        samples.labels,
        sample_weight=samples.weight,
        groups=samples.groups,
        class_names=class_names,
    )
    tops = (Tops(_classes(one), one.confidence, one.correct) for one in (none, held))
    moved = Moved.between(*tops, level=level, **weighing(samples))
    return HeldOutFacts(before, after, verdict, moved, confusion)


def _classes(held: HeldOut) -> NDArray[np.intp]:
    assert held.predicted is not None, "one class a sample"
    return held.predicted.astype(np.intp)


def fit_fold(name: str, samples: Samples, fold: NDArray[np.intp], f: int, *, seed: int) -> Artifact:
    """The method called ``name``, fitted to all folds but one."""
    return fit_by_name(name, samples.take(fold != f), seed=seed)


def weighing(samples: Samples | None) -> dict[str, Any]:
    """The keywords of a mean over these samples."""
    return {} if samples is None else {"weight": samples.weight, "groups": samples.groups}


def _estimates(held: HeldOut, probs: Floats, samples: Samples, level: float, seed: int) -> dict[str, Any]:
    means = {"accuracy": held.correct, "nll": held.nll, "brier": held.brier}
    found = {name: mean_interval(x, level=level, **weighing(samples)) for name, x in means.items()}
    if samples.weight is None and samples.groups is None:
        found |= _binned("", held.confidence, held.correct, level, seed)
        if held.positive is not None and held.came_true is not None:
            found |= _binned("positive_", held.positive, held.came_true, level, seed)
        found["refinement_auroc"] = Estimate(float(auroc(held)))
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
    return {name: estimate.as_dict() for name, estimate in found.items()}


def _binned(prefix: str, p: Floats, came_true: Floats, level: float, seed: int) -> dict[str, Estimate]:
    """The ECE of probabilities (n,), and what chance alone gives."""
    bins = Bins.tally(p, came_true)
    ece = event_error(
        Event(p, bins=len(bins), edges="right"), came_true, draws=_DRAWS, level=level, seed=seed
    )
    return {f"{prefix}ece": ece, f"{prefix}noise_floor": Estimate(bins.noise_floor())}


Criterion = Literal["nll", "brier", "ece"]

RULE = "simplest within 0.1 % of the best"
_RULE = "the structured average, unless another is better by over a standard error and 1 / n"
_KEEP = ", ".join(sorted(KEEPING))
_MOST = 1_000_000  # samples that methods are compared on
_REPLICATES = 400
_NEAR = 1e-3  # of the best score
_AVERAGE = "structured-average"


def default_candidates(*, for_shares: bool = False, keeping: bool = False) -> tuple[str, ...]:
    """The default candidates of ``select``, simplest first; ``for_shares``: to be corrected for these.

    ``keeping``: those that keep every predicted class.
    """
    if keeping:
        return ("none", "temperature", "ensemble-temperature")
    if for_shares:  # which Bayes' rule cannot do behind the average's uniform share
        return ("none", "temperature", "structured-vector", "structured-matrix")
    # All others but mixtures and tables are maps within the average's reach, whatever the number of classes.
    return ("none", "temperature", _AVERAGE)


def select(
    samples: Samples,
    *,
    candidates: Sequence[str] | None = None,
    keep_predictions: bool = False,
    criterion: Criterion = "nll",
    folds: int = 5,
    tolerance: float = 0.005,
    level: float = 0.95,
    seed: int = 0,
    class_names: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Artifact:
    """Cross-validate ``candidates``, refit the one chosen on all samples, and record how it was chosen.

    ``candidates`` are method names, simplest first; "none" always is one. ``keep_predictions``: none but
    those that keep the order of the classes, and so every prediction. ``tolerance`` is how much accuracy and
    refinement AUROC may fall, as fractions: a candidate is refused when the whole ``level`` interval of its
    paired difference lies below. ``progress`` is called with each name.
    The scores, refusals, seed and criterion are ``artifact.selection``; ``metrics_before`` and
    ``metrics_after`` are held-out numbers of these folds; what the set cannot teach is
    ``artifact.fit["remarks"]``. Raises InputError for invalid arrays and options, FitError for sets that
    nothing can be learnt from: labels of one class, the same logits for all, not one sample right.
    """
    names = tuple(dict.fromkeys(("none", *(candidates or default_candidates(keeping=keep_predictions)))))
    for name in names:
        options_of(name)
        if keep_predictions and name not in KEEPING:
            raise InputError(f"{name} may change predicted classes; of those that keep them choose {_KEEP}")
    if criterion not in ("nll", "brier", "ece"):
        raise InputError(f"criterion must be nll, brier or ece, got {criterion!r}")
    quantile_of(level)
    whole, samples = samples, samples.some(_MOST)
    said = remarks(samples)
    if len(samples) < len(whole):
        said = [*said, f"the method is chosen on {len(samples):,} of the {len(whole):,} samples"]
    fold = folds_of(samples, folds=folds, seed=seed)
    found: dict[str, HeldOut] = {}
    refused: dict[str, str] = {}
    fits: dict[str, FoldFit] = {}
    averaged: Averaged | None = None
    for name in names:
        if progress:
            progress(name)
        try:
            if name == _AVERAGE:
                averaged = Averaged.of(samples, fold)
                fits[name] = cache(averaged.held_out)
            else:
                fits[name] = cache(partial(fit_fold, name, samples, fold, seed=seed))
            rivals = {} if name in ("none", _AVERAGE) or criterion == "ece" else found
            found[name] = raced(fits[name], samples, fold, rivals, criterion)
        except CalibServeError as error:
            refused[name] = str(error)
            continue
        pays = criterion != "ece" and _better(found["none"], found[name], samples, level)
        harm = _harm(found["none"], found[name], samples, pays, tolerance=tolerance, level=level, seed=seed)
        if harm:
            refused[name] = harm
    allowed = {name: held for name, held in found.items() if name not in refused}
    best, chosen, scores = rank(found, allowed, criterion, samples, seed)
    if chosen == _AVERAGE and averaged is not None:
        artifact = averaged.artifact(whole)
    else:
        artifact = fit_by_name(chosen, whole, seed=seed)
    selection = Selection(
        criterion=criterion,
        rule=_RULE if averaged else RULE,
        folds=folds,
        seed=seed,
        tolerance=tolerance,
        level=level,
        best=best,
        chosen=chosen,
        scores=tuple(replace(scores.get(name, Score(name)), refused=refused.get(name)) for name in names),
    )
    facts = {**artifact.fit, "selection": selection.as_dict()} | ({"remarks": said} if said else {})
    told = replace(artifact, fit=facts, class_names=tuple(class_names))
    measured = facts_of_folds(found["none"], fits[chosen], samples, fold, class_names, level=level, seed=seed)
    return measured_on_folds(told, measured, folds=folds, samples=len(samples))


def harm_to_accuracy(
    none: HeldOut, held: HeldOut, samples: Samples | None = None, *, tolerance: float, level: float
) -> str | None:
    """Why a candidate that costs accuracy must not be used, with the numbers; None where it costs none."""
    accuracy = mean_interval(held.correct - none.correct, level=level, **weighing(samples))
    if accuracy.high >= -tolerance:
        return None
    return (
        f"accuracy falls by {-accuracy.value:.4f} (interval {-accuracy.high:.4f} to "
        f"{-accuracy.low:.4f}), more than {tolerance:g}"
    )


def _better(none: HeldOut, held: HeldOut, samples: Samples, level: float) -> bool:
    """Whether the proper scores, which refinement is a part of, gain: the NLL falls, the Brier score may."""
    nll, brier = (
        mean_interval(new - old, level=level, **weighing(samples))
        for new, old in ((held.nll, none.nll), (held.brier, none.brier))
    )
    return nll.value < 0 and brier.low <= 0


def _harm(
    none: HeldOut,
    held: HeldOut,
    samples: Samples,
    pays: bool,
    *,
    tolerance: float,
    level: float,
    seed: int,
) -> str | None:
    """Why a candidate must not be used, with the numbers; None where it does no significant harm.

    Refinement that falls by less than calibration gains ``pays``.
    """
    harm = harm_to_accuracy(none, held, samples, tolerance=tolerance, level=level)
    if harm or pays:
        return harm
    own = samples.weights
    fall = float((auroc(held, own[None]) - auroc(none, own[None]))[0])
    if not fall < -tolerance:  # also where it is not defined: all right or all wrong
        return None
    drawn = np.concatenate(
        [auroc(held, weights) - auroc(none, weights) for weights in _resampled(samples, seed)]
    )
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    if high >= -tolerance:
        return None
    return (
        f"refinement AUROC falls by {-fall:.4f} (interval {-high:.4f} to {-low:.4f}), more than {tolerance:g}"
    )


def _resampled(samples: Samples, seed: int) -> Iterator[Floats]:
    """Weights (r, n) of resamples, of groups where there are any."""
    for weights in resamples(len(samples), _REPLICATES, seed=seed, groups=samples.groups):
        yield weights if samples.weight is None else weights * samples.weight


def rank(
    found: dict[str, HeldOut],
    allowed: dict[str, HeldOut],
    criterion: Criterion,
    samples: Samples,
    seed: int,
) -> tuple[str, str, dict[str, Score]]:
    """The best and the chosen method, and every method's score."""
    share = samples.weights
    share = share / share.sum()
    if criterion == "ece":
        weights = np.concatenate(list(_resampled(samples, seed)))
        value = {
            name: float(_ece(held.confidence, held.correct, share[None])[0]) for name, held in found.items()
        }
        drawn = {name: _ece(held.confidence, held.correct, weights) for name, held in found.items()}
    else:
        value = {name: float(share @ getattr(held, criterion)) for name, held in found.items()}
        drawn = {}
    best = min(allowed, key=lambda name: value[name])

    def error_of(one: str, other: str) -> float:
        """The standard error of the paired difference."""
        if criterion == "ece":
            return float((drawn[one] - drawn[other]).std())
        difference = getattr(found[one], criterion) - getattr(found[other], criterion)
        return math.sqrt(float(share**2 @ (difference - share @ difference) ** 2))

    scores = {
        name: Score(name, value[name], value[name] - value[best], error_of(name, best)) for name in found
    }
    chosen = next(name for name in allowed if scores[name].above_best <= _NEAR * abs(value[best]))
    if _AVERAGE in allowed and chosen != _AVERAGE:
        # The share of one sample that keeps probabilities above 0 may cost 1 / n, and is no reason.
        slack = 1 / len(samples) if criterion == "nll" else 0.0
        if value[_AVERAGE] - value[chosen] <= error_of(_AVERAGE, chosen) + slack:
            chosen = _AVERAGE
    return best, chosen, scores


def _ece(confidence: Floats, correct: Floats, weights: Floats, bins: int = 15) -> Floats:
    """ECE for every row of sample weights (r, n)."""
    member = np.eye(bins)[bin_index(confidence, bins=bins)]
    gaps = (weights * (confidence - correct)) @ member
    return np.asarray(np.abs(gaps).sum(axis=1) / weights.sum(axis=1))

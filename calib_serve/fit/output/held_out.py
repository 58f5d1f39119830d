"""Held-out results of a candidate: every sample under a fit to the other folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.bins import Bins
from calib_serve.errors import FitError
from calib_serve.fit.facts import HeldOutFacts, confusion_facts
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.fit.solve.folds import folds_of
from calib_serve.metrics import log_probs, softmax
from calib_serve.metrics.comparison import Moved, Tops
from calib_serve.metrics.evaluation import evaluate_probs
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.truths import Event, event_error
from calib_serve.verdict.decide import judge_probs

__all__ = [
    "FoldFit",
    "HeldOut",
    "auroc",
    "described",
    "facts_of_folds",
    "facts_of_probabilities",
    "fit_fold",
    "held_out_facts",
    "over_folds",
    "raced",
    "weighing",
]

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
    part = samples.take(fold != f)
    return fit_by_name(name, part, part.labels, seed=seed)


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

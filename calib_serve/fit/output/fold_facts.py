"""What held-out folds tell of a calibrator: metrics before and after, the verdict, the confusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.bins import Bins
from calib_serve.fit.facts import HeldOutFacts, confusion_facts
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.output.held_out import FoldFit, HeldOut, auroc, described, over_folds
from calib_serve.fit.samples import Samples
from calib_serve.fit.solve.strength import stratified
from calib_serve.judgement import judge
from calib_serve.metrics.event import Event
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.truths import event_error

__all__ = ["facts_of_folds", "facts_of_probabilities", "fit_fold", "held_out_facts"]

Floats = NDArray[np.float64]

_DRAWS = 100  # of an ECE's possible truths, of each


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
    fold = stratified(samples.labels, folds=folds, seed=seed)
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
    plain, calibrated = (_estimates(HeldOut(*described(p, labels)), level, seed) for p in (before, after))
    return HeldOutFacts(plain, calibrated, judge(after, labels, class_names=class_names))


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
    before, after = (_estimates(one, level, seed) for one in (none, held))
    assert held.predicted is not None
    top = held.predicted.astype(np.intp)
    confusion = confusion_facts(samples, top, held.confidence, on="held-out folds")
    return HeldOutFacts(before, after, judge(probs, samples.labels, class_names=class_names), confusion)


def fit_fold(name: str, samples: Samples, fold: NDArray[np.intp], f: int, *, seed: int) -> Artifact:
    """The method called ``name``, fitted to all folds but one."""
    part = samples.take(fold != f)
    return fit_by_name(name, part, part.labels, seed=seed)


def _estimates(held: HeldOut, level: float, seed: int) -> dict[str, Any]:
    means = {"accuracy": held.correct, "nll": held.nll, "brier": held.brier}
    found = {name: mean_interval(values, level=level) for name, values in means.items()}
    found |= _binned("", held.confidence, held.correct, level, seed)
    if held.positive is not None and held.came_true is not None:
        found |= _binned("positive_", held.positive, held.came_true, level, seed)
    found["refinement_auroc"] = Estimate(float(auroc(held)))
    return {name: estimate.as_dict() for name, estimate in found.items()}


def _binned(prefix: str, p: Floats, came_true: Floats, level: float, seed: int) -> dict[str, Estimate]:
    """The ECE of probabilities (n,), and what chance alone gives."""
    bins = Bins.tally(p, came_true)
    ece = event_error(
        Event(p, bins=len(bins), edges="right"), came_true, draws=_DRAWS, level=level, seed=seed
    )
    return {f"{prefix}ece": ece, f"{prefix}noise_floor": Estimate(bins.noise_floor())}

"""From logits and labels to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.fit.output import check_options, default_candidates, fit_by_name, options_of, select
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.workflows.measure import cross_validated, measured
from calib_serve.workflows.progress import Progress, stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.workflows.options import OutputOptions

__all__ = ["calibrate"]

_AUTO = ("candidates", "criterion", "folds", "tolerance", "level")


def calibrate(
    logits: ArrayLike,
    labels: ArrayLike,
    method: str = "auto",
    *,
    class_names: Sequence[str] = (),
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    cross_validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[OutputOptions],
) -> Artifact:
    """Fit an output calibrator to logits (n, K), or (n,) for one binary logit, and class ids (n,).

    ``method``: a name of ``calib_serve.fit.output.CANDIDATES``, or "auto", which chooses one by
    cross-validation and refuses those that cost accuracy or refinement. ``artifact.before`` and
    ``artifact.after`` are measured on ``test``, logits and labels that nothing was fitted to, else on
    held-out folds of the calibration set (``cross_validate``; costs one more fit a fold). ``options`` are the
    method's own, or those of "auto": candidates, criterion, folds, tolerance, level. Raises InputError for
    arrays, names and options that cannot be right, FitError where the method has no optimum.

    >>> artifact = calibrate([[0.0, 2.0]] * 40, [1, 1, 1, 0] * 10, "temperature")
    >>> round(artifact.fit["temperature"], 2)  # sigmoid(2 / T) = 3 / 4
    1.82
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    if method == "auto":
        artifact = _chosen(samples, options, seed=seed, progress=progress)
    else:
        known = [name for name in options_of(method) if name not in ("sample_weight", "class_weight", "seed")]
        check_options(method, options, known)
        if progress:
            progress(method, 0, 1)
        artifact = fit_by_name(method, samples, samples.labels, seed=seed, **options)
    artifact = replace(artifact, class_names=tuple(class_names))
    if test is not None:
        held = Samples.of(*test)
        return measured(artifact, held.logits, artifact.probs(held.logits), held.labels, seed=seed)
    if method != "auto" and cross_validate:
        return cross_validated(
            artifact,
            samples,
            lambda part: fit_by_name(method, part, part.labels, seed=seed, **options),
            seed=seed,
            progress=stage(progress, "cross-validation"),
        )
    return artifact


def _chosen(
    samples: Samples, options: Mapping[str, Any], *, seed: int, progress: Progress | None
) -> Artifact:
    check_options("auto", options, _AUTO)
    names = list(dict.fromkeys(("none", *(options.get("candidates") or default_candidates(samples.classes)))))
    tell = None if progress is None else (lambda name: progress(name, names.index(name), len(names)))
    return select(samples, samples.labels, **{**options, "candidates": names}, seed=seed, progress=tell)

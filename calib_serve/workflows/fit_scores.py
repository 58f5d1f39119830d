"""From logits and labels to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError, InputError
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.labels import (
    LABEL_METHODS,
    LabelSamples,
    fit_labels,
    held_out_label_facts,
    label_options,
    select_labels,
)
from calib_serve.fit.output import check_options, default_candidates, fit_by_name, options_of, select
from calib_serve.fit.priors import check_correctable, confused
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.priors import Given, as_shares
from calib_serve.scores import LABELS, Outputs
from calib_serve.workflows.measure import cross_validated, measured, unmeasured
from calib_serve.workflows.options import Progress, stage
from calib_serve.workflows.priors import fitted_for_shares

__all__ = ["calibrate", "calibrate_labels"]

_AUTO = ("candidates", "criterion", "folds", "tolerance", "level")
_FOLDS = 5


def calibrate_labels(
    samples: LabelSamples,
    method: str,
    options: Mapping[str, Any],
    *,
    test: tuple[ArrayLike, ArrayLike] | None,
    class_names: Sequence[str],
    cross_validate: bool,
    seed: int,
    progress: Progress | None,
) -> Artifact:
    """``calibrate`` of a multi-label model: a calibrator for each label."""
    if method == "auto":
        check_options("auto", options, _AUTO)
        tell = _teller(progress, options.get("candidates"))
        artifact = select_labels(samples, **{**options, "seed": seed}, class_names=class_names, progress=tell)
    else:
        check_options(method, options, label_options(method))
        if progress:
            progress(method, 0, 1)
        artifact = fit_labels(method, samples, **options)
    artifact = replace(artifact, class_names=tuple(class_names))
    if test is not None:
        held = LabelSamples.of(*test, outputs=samples.outputs)
        return measured(artifact, held.logits, artifact.probs(held.logits), held.labels, seed=seed)
    if method == "auto" or not cross_validate:
        return artifact
    folds = min(_FOLDS, len(samples) // 2)
    fit = partial(fit_labels, method, **options)
    try:
        found = held_out_label_facts(samples, fit, folds=folds, class_names=class_names, seed=seed)
    except CalibServeError as error:
        return unmeasured(artifact, error)
    return measured_on_folds(artifact, found, folds=folds, samples=len(samples))


def _teller(progress: Progress | None, candidates: Any) -> Any:
    names = list(dict.fromkeys(("none", *(candidates or LABEL_METHODS))))
    return None if progress is None else (lambda name: progress(name, names.index(name), len(names)))


if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.workflows.options import OutputOptions


def calibrate(
    logits: ArrayLike | Samples,
    labels: ArrayLike,
    method: str = "auto",
    *,
    outputs: Outputs | None = None,
    class_names: Sequence[str] = (),
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    prior: Given | None = None,
    cross_validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[OutputOptions],
) -> Artifact:
    """Fit an output calibrator to logits (n, K), or (n,) for one binary logit, and class ids (n,).

    Of a multi-label model (``outputs`` "label_logits" or "label_probabilities") to scores (n, L) and labels
    (n, L), each 0 or 1: a calibrator for each label, by ``calib_serve.fit.labels.fit_labels``.

    ``outputs`` says what the scores are (``calib_serve.scores``), by default logits; it is recorded in
    ``artifact.model``, and whoever puts the calibration into a model holds to it. Scores that are
    probabilities by their numbers are refused without it. ``method``: a name of
    ``calib_serve.fit.output.CANDIDATES``, or "auto", which chooses one by cross-validation and refuses those
    that cost accuracy or refinement. ``artifact.before`` and ``artifact.after`` are measured on ``test``,
    scores and labels that nothing was fitted to, else on held-out folds of the calibration set
    (``cross_validate``; costs one more fit a fold). ``prior``: the class shares (K,) of what will be served,
    or a mapping of class names to them, where these are not the calibration set's: probabilities are
    corrected for them, and ``artifact.fit["prior"]`` says so. ``options`` are the method's own, or those of
    "auto": candidates, criterion, folds, tolerance, level. Raises InputError for arrays, names and options
    that cannot be right, FitError where the method has no optimum.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10  # right three times of four
    >>> round(calibrate(z, y, "temperature").fit["temperature"], 2)  # sigmoid(2 / T) = 3 / 4
    1.82
    """
    if outputs in LABELS:
        if prior is not None:
            raise InputError("class shares (prior) are of classes of which one is true, not of labels")
        return calibrate_labels(
            LabelSamples.of(
                logits, labels, sample_weight=sample_weight, class_weight=class_weight, outputs=outputs
            ),
            method,
            options,
            test=test,
            class_names=class_names,
            cross_validate=cross_validate,
            seed=seed,
            progress=progress,
        )
    samples = Samples.of(
        logits, labels, sample_weight=sample_weight, class_weight=class_weight, outputs=outputs
    )
    shares = None if prior is None else as_shares(prior, samples.classes, class_names)
    if method == "auto":
        check_options("auto", options, _AUTO)
        artifact = _chosen(
            samples, {**options, "class_names": class_names, "seed": seed}, shares is not None, progress
        )
    else:
        known = [name for name in options_of(method) if name not in ("sample_weight", "class_weight", "seed")]
        check_options(method, options, known)
        if shares is not None:
            check_correctable([method], samples.classes, options.get("of"))
        if progress:
            progress(method, 0, 1)
        artifact = fit_by_name(method, samples, samples.labels, seed=seed, **options)
    artifact = confused(replace(artifact, class_names=tuple(class_names)), samples)

    def again(part: Samples) -> Artifact:
        name, own = (artifact.fit["selection"]["chosen"], {}) if method == "auto" else (method, options)
        return fit_by_name(name, part, part.labels, seed=seed, **own)

    if test is None and method != "auto" and cross_validate:
        told = stage(progress, "cross-validation")
        artifact = cross_validated(artifact, samples, again, seed=seed, progress=told)
    if shares is not None:
        refit = again if cross_validate and test is None else None
        artifact = fitted_for_shares(artifact, samples, shares, refit, seed=seed)
    if test is None:
        return artifact
    held = Samples.of(*test, outputs=samples.outputs)
    return measured(artifact, held.logits, artifact.probs(held.logits), held.labels, seed=seed)


def _chosen(
    samples: Samples, options: Mapping[str, Any], for_shares: bool, progress: Progress | None
) -> Artifact:
    given = options.get("candidates")
    if for_shares and given:
        check_correctable(given, samples.classes)
    names = list(dict.fromkeys(("none", *(given or default_candidates(for_shares=for_shares)))))
    tell = None if progress is None else (lambda name: progress(name, names.index(name), len(names)))
    return select(samples, samples.labels, **{**options, "candidates": names}, progress=tell)

"""From scores of a multi-label model and the truth of each label to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.labels import (
    LABEL_METHODS,
    LabelSamples,
    fit_labels,
    held_out_label_facts,
    label_options,
    select_labels,
)
from calib_serve.fit.output import check_options
from calib_serve.workflows.measure import measured, unmeasured
from calib_serve.workflows.progress import Progress

__all__ = ["calibrate_labels"]

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

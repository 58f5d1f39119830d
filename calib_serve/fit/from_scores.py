"""Calibrate scores: from logits and labels to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.options.base import divided
from calib_serve.core.options.fit import FitOptions
from calib_serve.core.text import percent
from calib_serve.fit._unseen import Unseen
from calib_serve.fit.facts import remarked
from calib_serve.fit.folds import FOLDS
from calib_serve.fit.measure import cross_validated, with_metrics
from calib_serve.fit.output.by_source import BY_SOURCE, fit_by_source
from calib_serve.fit.output.candidates import (
    TWO_CLASSES,
    check_options,
    check_values,
    fit_by_name,
    fitter_of,
    fitter_parameters,
    own_options,
)
from calib_serve.fit.output.offset import UNLABELLED, fit_unlabelled
from calib_serve.fit.output.selection import default_candidates, select
from calib_serve.fit.progress import Progress, stage
from calib_serve.fit.samples import Samples, has_names
from calib_serve.fit.shares import check_correctable, confused, fitted_for_shares
from calib_serve.metrics import ClassShares, as_shares, group_codes, mean_error, of_classes, row_blocks
from calib_serve.scores import Scores, alike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import FitKeywords

_OF_LABELS = ("candidates", "folds")
AUTO = (*_OF_LABELS, "keep_predictions")

Test = Union[Scores, tuple[Any, Any]]


def calibrate(
    scores: Any,
    labels: Any = None,
    method: str = "auto",
    options: FitOptions | None = None,
    *,
    test: Test | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[FitKeywords],
) -> Artifact:
    """Fit an output calibrator to a model's scores and labels.

    What the scores are, the classes in their order and what was guessed are recorded in the artifact, and
    whoever puts the calibration into a model holds to it. ``artifact.before`` and ``artifact.after`` are
    measured on ``test``, else on held-out folds of the calibration set, which never part a group and cost one
    more fit a fold. Probabilities are corrected for the class shares in ``prior``, and
    ``artifact.fit.prior`` says so.

    Args:
        scores: Class scores (n, K), log-odds (n, L) of labels, or ``Scores``; as in ``Scores.of``.
        labels: Class ids or names (n,); (n, L) of 0 and 1 of a multi-label model, each calibrated apart;
            None of "batch" and "contextual".
        method: A name of ``calib_serve.fit.CANDIDATES``, or "auto", which chooses by cross-validation
            and refuses methods that cost accuracy or refinement.
        options: A ``FitOptions``; keywords replace its fields.
        test: ``Scores``, or scores and labels, that nothing was fitted to.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``FitOptions``: ``by``, ``class_names``, ``class_weight``, ``columns``,
            ``cross_validate``, ``groups``, ``ignore_label``, ``missing``, ``outputs``, ``prior``,
            ``sample_weight``, ``schema``, ``seed``. Options of "auto": ``candidates``, ``folds``,
            ``keep_predictions``. Options of other methods: ``bins``, ``grid``, ``of``, ``smoothing``.

    Raises:
        InputError: For arrays, names and options that cannot be right.
        FitError: Where the method has no optimum.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10  # right three times of four
    >>> artifact = calibrate(z, y, "temperature", outputs="logits")
    >>> round(artifact.fit["temperature"], 2)  # sigmoid(2 / T) = 3 / 4
    1.82
    """
    asked, own = divided(options or FitOptions(), keywords, method_options(), verb=calibrate)
    found = Scores.of(scores, labels, by=asked.by, name="the calibration set", **asked.of_scores)
    held = None if test is None else _tested(test, found, asked)
    if found.labels is None and method in UNLABELLED:
        wanting = {"by": found.sources, "prior": asked.prior, "class_weight": asked.class_weight}
        if late := [name for name, value in wanting.items() if value is not None]:
            raise InputError(
                f"{late[0]} wants labels, and the samples have no labels: give them, or leave {late[0]} out"
            )
        check_options(method, own, [])
        artifact = fit_unlabelled(found, method)
        artifact = artifact if held is None else _with_test(artifact, held, asked.seed)
    elif method == "contextual":
        raise InputError(
            "contextual calibration is of answers to inputs without content, which have no labels"
        )
    elif found.is_multilabel and found.sources is not None:
        raise InputError("labels have no calibration by source: leave by (--by) out")
    else:
        artifact = fit_samples(
            Samples.of(found, class_weight=asked.class_weight),
            method,
            own,
            test=held,
            class_names=found.class_names,
            prior=asked.prior,
            by=found.schema.by,
            cross_validate=asked.cross_validate,
            seed=asked.seed,
            progress=progress,
        )
    known, scale = found.schema, None if found.schema.outputs == found.outputs else found.schema.outputs
    model = replace(artifact.model, scale=scale, columns=known.columns, class_axis=found.class_axis)
    artifact = replace(artifact, model=model)
    return remarked(artifact, before=found.remarks, after=_without_skill(found))


@cache
def method_options() -> tuple[str, ...]:
    """List the options of all methods on scores, and of the choice among them."""
    return tuple(dict.fromkeys([*own_options(), *AUTO]))


def _without_skill(scores: Scores) -> list[str]:
    """Warn where scores predict the labels no better than chance: rows in another order, or no class scores.

    Each score less its class's mean is summed over the true classes: 0 but for chance where scores and labels
    are independent. Below two standard errors it is said.
    """
    if scores.labels is None or scores.labels.ndim > 1 or len(scores) < 50:  # too few to tell skill
        return []
    # The covariance of a class's score with its indicator, summed over classes: shuffled labels make it 0.
    logits, labels = scores.logits, scores.labels.astype(np.intp)
    shares = np.bincount(labels, minlength=scores.classes) / len(scores)
    mean, told = logits.mean(axis=0, dtype=np.float64), np.empty(len(scores))
    for rows, block in row_blocks(logits):  # a copy of millions of rows is gigabytes
        centred = block - mean
        told[rows] = of_classes(centred, labels[rows]) - centred @ shares
    error = mean_error(told, group_codes(scores.groups, len(scores)))
    if told.mean() >= 2 * error or shares.max() == 1:
        return []
    right = float(np.mean(logits.argmax(axis=1) == labels))
    return [
        f"these scores do not tell the labels apart better than chance ({percent(right)} right): are they "
        "class scores, of the classes in this order, and the labels those of these samples?"
    ]


def _tested(test: Test, fitted: Scores, asked: FitOptions) -> Scores:
    """Samples to measure on, refused where their scores are of another kind than the fitted ones."""
    how: dict[str, Any] = {"expected": fitted.outputs, "name": "the test samples"}
    if isinstance(test, Scores):
        found = Scores.of(test, **how)
    else:
        scores, labels = test
        scale = fitted.schema.outputs if fitted.schema.outputs != fitted.outputs else None
        how |= {"outputs": scale, "ignore_label": asked.ignore_label}
        if has_names(scores):
            how["by"] = fitted.schema.by if fitted.sources is not None else None
        else:
            how["class_names"] = fitted.class_names
        found = Scores.of(scores, labels, **how)
    if not alike(found.outputs, fitted.outputs):
        raise InputError(f"the test samples are {found.outputs}, the calibration set {fitted.outputs}")
    return found.in_order(fitted.class_names, of="the calibration set")


def fit_samples(
    samples: Samples,
    method: str,
    options: Mapping[str, Any],
    *,
    test: Scores | None = None,
    class_names: Sequence[str] = (),
    prior: ClassShares | None = None,
    by: str | None = None,
    cross_validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Calibrate checked samples, of classes or of labels, as ``calibrate`` does.

    Args:
        samples: The calibration set.
        method: As in ``calibrate``.
        options: The method's own options.
        test: Scores with labels that nothing was fitted to.
        class_names: Names of the classes (K,).
        prior: Class shares (K,) to correct to.
        by: Name of the samples' sources, each of which has a map.
        cross_validate: Whether before and after are measured on held-out folds, without ``test``.
        seed: Seed of folds and draws.
        progress: Called with a stage, and how much of it is done, of how much.

    Raises:
        InputError: For options that cannot be right.
        FitError: Where the method has no optimum.
    """
    multilabel, keeping = samples.is_multilabel, options.get("keep_predictions", False)
    shares = None if prior is None else _shares(prior, samples, class_names, keeping=keeping, by=by)
    # Before any method is fitted: a probability of 0 or an absent class would decide the fit alone.
    unseen = Unseen.of(samples, method, keeping=keeping, seed=seed)
    chosen = selection = None
    if method == "auto":
        check_options("auto", options, _OF_LABELS if multilabel else AUTO)
        check_values("auto", options, fitter_parameters(select))
        # A fit of some classes alone takes no names of all; the whole artifact is then measured again.
        names = () if unseen.changes else class_names
        of_auto = {**options, "class_names": names, "seed": seed, "progress": progress}
        if by is None:
            chosen = unseen.fitted(samples, lambda s: _chosen(s, of_auto, for_shares=shares is not None))
            method = chosen.method
        else:
            can = [name for name in BY_SOURCE if samples.classes == 2 or name not in TWO_CLASSES]
            common = _chosen(samples, {"candidates": can, **of_auto}, for_shares=False)
            # That one map for all changes nothing says nothing of one for each.
            method, selection = common.method if common.method != "none" else can[0], common.selection
        options = {}
    elif by is None:
        if shares is not None:
            check_correctable([method], samples.classes, options.get("of"))
        if progress:
            progress(method, 0, 1)
    # Folds refit the method that was chosen: to choose again in each would cost as much as auto itself.
    if by is None:
        of_part = fitter_of(method, options, multilabel, seed=seed)
    else:
        check_options(f"{method} by {by}", options, [])
        of_part = partial(fit_by_source, method, by=by)

    def fit(part: Samples) -> Artifact:
        return unseen.fitted(part, of_part)

    artifact = fit(samples) if chosen is None else chosen
    if selection is not None:
        artifact = replace(artifact, fit=replace(artifact.fit, selection=selection))
    artifact = remarked(artifact, before=unseen.remarks(class_names))
    artifact = confused(replace(artifact, class_names=tuple(class_names)), samples)
    # The folds that auto chose by have measured it, unless it was fitted to other samples than are measured.
    if test is None and (cross_validate if chosen is None else unseen.changes):
        told = stage(progress, "cross-validation")
        artifact = cross_validated(artifact, samples, fit, seed=seed, progress=told)
    if shares is not None:
        refit = fit if cross_validate and test is None else None
        artifact = fitted_for_shares(artifact, samples, shares, refit, seed=seed)
    return artifact if test is None else _with_test(artifact, test, seed)


def _with_test(artifact: Artifact, test: Scores, seed: int) -> Artifact:
    return with_metrics(
        artifact,
        test.logits,
        artifact.of_segments(test.logits, test.sources)[0],
        test.labelled(),
        seed=seed,
        sample_weight=test.weights,
        groups=test.clusters,
    )


def _shares(
    prior: ClassShares, samples: Samples, names: Sequence[str], *, keeping: bool, by: str | None
) -> Floats:
    """The class shares to correct to, refused where the fit has no place for them."""
    if samples.is_multilabel:
        raise InputError("class shares (prior) are of classes of which one is true, not of labels")
    if keeping:
        raise InputError("class shares (prior) change predicted classes: leave keep_predictions out")
    if by is not None:
        raise InputError("class shares (prior) are of all traffic: leave them out, or by (--by)")
    return as_shares(prior, samples.classes, names)


def _chosen(samples: Samples, options: Mapping[str, Any], *, for_shares: bool) -> Artifact:
    """Fit the method that cross-validation chooses; to too few samples for that a temperature, or none."""
    given = options.get("candidates")
    if for_shares and given:
        check_correctable(given, samples.classes)
    folds = options.get("folds", min(FOLDS, samples.units // 2))
    # Fewer than four samples, or groups of them: folds would hold one each.
    if folds < 2:
        few = f"{samples.units} samples, or groups of them, are too few for folds to choose by"
        few = f"{folds} folds are too few to choose by" if "folds" in options else few
        try:
            fitted = fit_by_name("temperature", samples)
        except FitError as error:
            none = fit_by_name("none", samples)
            return remarked(none, after=[f"nothing is fitted; {few}; temperature: {error}"])
        return remarked(fitted, after=[f"a temperature is fitted; {few}"])
    if for_shares and not given:
        given = default_candidates(for_shares=True)
    return select(samples, **{**options, "candidates": given, "folds": folds})

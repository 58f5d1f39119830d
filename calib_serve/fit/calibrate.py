"""From logits and labels to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Union

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.errors import FitError, InputError
from calib_serve.fit._unseen import Absent, Floor, absent_of, floor_of
from calib_serve.fit.facts import HeldOutFacts
from calib_serve.fit.labels import (
    LABEL_METHODS,
    LabelSamples,
    fit_labels,
    held_out_label_facts,
    label_options,
    select_labels,
)
from calib_serve.fit.measure import cross_validated, measured, on_folds
from calib_serve.fit.output import (
    KEEPING,
    TWO_CLASSES,
    check_options,
    default_candidates,
    fit_by_name,
    options_of,
    select,
)
from calib_serve.fit.progress import Progress, stage
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.shares import check_correctable, confused, fitted_for_shares
from calib_serve.metrics.shares import Given, as_shares
from calib_serve.options.base import divided
from calib_serve.options.fit import FitOptions
from calib_serve.scores import Outputs, Scores, alike
from calib_serve.words import percent

_OF_LABELS = ("candidates", "criterion", "folds", "tolerance", "level")
_AUTO = (*_OF_LABELS, "keep_predictions")
_FOLDS = 5
_ENOUGH = 50  # labels, to tell skill from chance


def calibrate_labels(
    samples: LabelSamples,
    method: str,
    options: Mapping[str, Any],
    *,
    test: Scores | None,
    class_names: Sequence[str],
    cross_validate: bool,
    seed: int,
    progress: Progress | None,
) -> Artifact:
    """``calibrate`` of a multi-label model: a calibrator for each label."""
    if method == "auto":
        check_options("auto", options, _OF_LABELS)
        tell = _teller(progress, options.get("candidates"))
        artifact = select_labels(samples, **{**options, "seed": seed}, class_names=class_names, progress=tell)
    else:
        check_options(method, options, label_options(method))
        if progress:
            progress(method, 0, 1)
        artifact = fit_labels(method, samples, **options)
    artifact = replace(artifact, class_names=tuple(class_names))
    if test is not None:
        return _measured(artifact, test, seed)
    if method == "auto" or not cross_validate:
        return artifact
    fit = partial(fit_labels, method, **options)

    def facts(folds: int) -> HeldOutFacts:
        return held_out_label_facts(samples, fit, folds=folds, class_names=class_names, seed=seed)

    return on_folds(artifact, len(samples), facts)


def _measured(artifact: Artifact, test: Scores, seed: int) -> Artifact:
    return measured(
        artifact,
        test.logits,
        artifact.of_logits(test.logits),
        test.labelled(),
        seed=seed,
        sample_weight=test.weights,
        groups=test.groups,
    )


def _teller(progress: Progress | None, candidates: Any) -> Any:
    names = list(dict.fromkeys(("none", *(candidates or LABEL_METHODS))))
    return None if progress is None else (lambda name: progress(name, names.index(name), len(names)))


def calibrate(
    scores: Any,
    labels: Any = None,
    method: str = "auto",
    options: FitOptions | None = None,
    *,
    test: Test | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> Artifact:
    """Fit an output calibrator to a model's scores and labels.

    ``scores`` and ``labels`` as in ``Scores.of``, or ``Scores`` themselves; folds never part what is of one
    of the ``groups``. Of a multi-label model (n, L) and labels (n, L), each 0 or 1: a calibrator for each
    label, by ``calib_serve.fit.labels.fit_labels``. Each of the ``options`` may be ``given`` as a keyword
    argument, beside the method's own options.

    What the scores are, the classes in their order and what was guessed are recorded in the artifact, and
    whoever puts the calibration into a model holds to it. ``method``: a name of
    ``calib_serve.fit.output.CANDIDATES``, or "auto", which chooses one by cross-validation and refuses those
    that cost accuracy or refinement. ``artifact.before`` and ``artifact.after`` are measured on ``test``,
    ``Scores`` or a pair of scores and labels that nothing was fitted to, else on held-out folds of the
    calibration set (``cross_validate``; costs one more fit a fold). ``prior``: the class shares (K,) of what
    will be served, or a mapping of class names to them, where these are not the calibration set's:
    probabilities are corrected for them, and ``artifact.fit["prior"]`` says so. The options of "auto" are
    those of ``select``, and candidates and keep_predictions. Raises InputError for arrays, names and options
    that cannot be right, FitError where the method has no optimum.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10  # right three times of four
    >>> round(calibrate(z, y, "temperature").fit["temperature"], 2)  # sigmoid(2 / T) = 3 / 4
    1.82
    """
    asked, own = divided(options or FitOptions(), given)
    weight: ClassWeight = asked.class_weight
    how: dict[str, Any] = {"cross_validate": asked.cross_validate, "seed": asked.seed, "progress": progress}
    if isinstance(scores, Samples):
        samples = Samples.of(scores, labels, sample_weight=asked.sample_weight, class_weight=weight)
        names = asked.class_names or ()
        held = None if test is None else _tested(test, samples.outputs, names)
        return _fitted(samples, method, own, test=held, class_names=names, prior=asked.prior, **how)
    found = Scores.of(scores, labels, name="the calibration set", **asked.of_scores)
    held = None if test is None else _tested(test, found.outputs, found.class_names, asked.ignore_label)
    how |= {"test": held, "class_names": found.class_names}
    if found.is_multilabel:
        if asked.prior is not None:
            raise InputError("class shares (prior) are of classes of which one is true, not of labels")
        artifact = calibrate_labels(LabelSamples.of(found, class_weight=weight), method, own, **how)
    else:
        artifact = _fitted(Samples.of(found, class_weight=weight), method, own, prior=asked.prior, **how)
    remarks = [*found.remarks, *artifact.fit.get("remarks", ()), *_without_skill(found)]
    return replace(artifact, fit={**artifact.fit, "remarks": remarks}) if remarks else artifact


def _without_skill(scores: Scores) -> list[str]:
    """Say it where scores tell nothing of the labels: those of another order, or no scores of classes.

    Each score less its class's mean is summed over the true classes: 0 but for chance where scores and labels
    are independent. Below two standard errors it is said.
    """
    if scores.labels is None or scores.labels.ndim > 1 or len(scores) < _ENOUGH:
        return []
    centred = scores.logits - scores.logits.mean(axis=0)
    labels = scores.labels.astype(np.intp)
    shares = np.bincount(labels, minlength=scores.classes) / len(scores)
    told = centred[np.arange(len(scores)), labels] - centred @ shares
    if told.mean() >= 2 * told.std() / len(scores) ** 0.5 or shares.max() == 1:
        return []
    right = float(np.mean(scores.logits.argmax(axis=1) == labels))
    return [
        f"these scores do not tell the labels apart better than chance ({percent(right)} right): are they "
        "class scores, of the classes in this order, and the labels those of these samples?"
    ]


Test = Union[Scores, tuple[Any, Any]]


def _tested(test: Test, kind: Outputs, names: Sequence[str], ignore_label: Any = None) -> Scores:
    """Samples to measure on, as those that were fitted to."""
    scores, labels = (test, None) if isinstance(test, Scores) else test
    found = Scores.of(
        scores,
        labels,
        expected=kind,
        class_names=() if isinstance(test, Scores) or _has_names(scores) else names,
        ignore_label=ignore_label,
        name="the test samples",
    )
    if not alike(found.outputs, kind):
        raise InputError(f"the test samples are {found.outputs}, the calibration set {kind}")
    return found.in_order(names, of="the calibration set")


def _has_names(scores: Any) -> bool:
    return hasattr(scores, "columns") or hasattr(scores, "column_names") or isinstance(scores, Mapping)


def _fitted(
    samples: Samples,
    method: str,
    options: Mapping[str, Any],
    *,
    test: Scores | None,
    class_names: Sequence[str],
    prior: Given | None,
    cross_validate: bool,
    seed: int,
    progress: Progress | None,
) -> Artifact:
    """``calibrate`` of one class a sample."""
    keeping = bool(options.get("keep_predictions"))
    if keeping and prior is not None:
        raise InputError("class shares (prior) change predicted classes: leave keep_predictions out")
    setting = _Setting.of(samples, method, keeping=keeping, seed=seed)
    shares = None if prior is None else as_shares(prior, samples.classes, class_names)
    if method == "auto":
        check_options("auto", options, _AUTO)
        of_auto = {**options, "class_names": class_names, "seed": seed}
        artifact = setting.fitted(samples, lambda s: _chosen(s, of_auto, shares is not None, progress))
    else:
        check_options(method, options, options_of(method))
        if shares is not None:
            check_correctable([method], samples.classes, options.get("of"))
        if progress:
            progress(method, 0, 1)
        artifact = setting.fitted(samples, lambda s: fit_by_name(method, s, seed=seed, **options))
    remarks = [*setting.remarks(class_names), *artifact.fit.get("remarks", ())]
    fit = {**artifact.fit, "remarks": remarks} if remarks else artifact.fit
    artifact = confused(replace(artifact, class_names=tuple(class_names), fit=fit), samples)
    name, own = (artifact.method, {}) if method == "auto" else (method, options)

    def again(part: Samples) -> Artifact:
        return setting.fitted(part, lambda s: fit_by_name(name, s, seed=seed, **own))

    if test is None and cross_validate and (method != "auto" or setting.changes):
        told = stage(progress, "cross-validation")
        artifact = cross_validated(artifact, samples, again, seed=seed, progress=told)
    if shares is not None:
        refit = again if cross_validate and test is None else None
        artifact = fitted_for_shares(artifact, samples, shares, refit, seed=seed)
    if test is None:
        return artifact
    return _measured(artifact, test, seed)


@dataclass(frozen=True)
class _Setting:
    """What a fit does not see of its samples: probabilities of exactly 0, and classes without a sample."""

    floor: Floor | None
    absent: Absent | None

    @classmethod
    def of(cls, samples: Samples, method: str, *, keeping: bool, seed: int) -> _Setting:
        alone = keeping or method in KEEPING or (method in TWO_CLASSES and samples.classes > len(_SIDES))
        return cls(floor_of(samples, method, seed=seed), None if alone else absent_of(samples))

    @property
    def changes(self) -> bool:
        """Whether the samples are fitted otherwise than they are measured."""
        return self.absent is not None or (self.floor is not None and self.floor.least is not None)

    def fitted(self, samples: Samples, fit: Callable[[Samples], Artifact]) -> Artifact:
        """What ``fit`` makes of the samples as it is to see them, for samples as they are."""
        floored = samples if self.floor is None else self.floor.floored(samples)
        made = fit(floored if self.absent is None else self.absent.without(floored))
        made = made if self.absent is None else self.absent.back(made, floored)
        return made if self.floor is None else self.floor.before(made, samples)

    def remarks(self, class_names: Sequence[str]) -> list[str]:
        """What to know of it, a sentence each."""
        said = [] if self.floor is None else [self.floor.remark]
        return said if self.absent is None else [*said, self.absent.remark(class_names)]


_SIDES = ("negative", "positive")


def _chosen(
    samples: Samples, options: Mapping[str, Any], for_shares: bool, progress: Progress | None
) -> Artifact:
    """The method that cross-validation chooses; of too few samples for that a temperature, or none."""
    given = options.get("candidates")
    if for_shares and given:
        check_correctable(given, samples.classes)
    units = len(samples) if samples.groups is None else int(samples.groups.max()) + 1
    folds = options.get("folds") or min(_FOLDS, units // 2)
    if folds < 2:
        return _of_few(samples, seed=options["seed"])
    keeping = bool(options.get("keep_predictions"))
    default = default_candidates(for_shares=for_shares, keeping=keeping)
    names = list(dict.fromkeys(("none", *(given or default))))
    tell = None if progress is None else (lambda name: progress(name, names.index(name), len(names)))
    return select(samples, **{**options, "candidates": names, "folds": folds}, progress=tell)


def _of_few(samples: Samples, *, seed: int) -> Artifact:
    try:
        return fit_by_name("temperature", samples, seed=seed)
    except FitError:
        return fit_by_name("none", samples, seed=seed)

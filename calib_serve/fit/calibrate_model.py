"""From a deployed model and its calibration data to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array
from calib_serve.artifact import Artifact, made_up, response
from calib_serve.data import Dataset
from calib_serve.errors import CalibServeError, InputError
from calib_serve.fit.calibrate import calibrate
from calib_serve.fit.clamping import (
    GAMMAS,
    fit_neural_clamping,
    fit_neural_clamping_efficient,
    fit_neural_clamping_paper,
    fit_neural_clamping_toolkit,
)
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.gain import fit_best
from calib_serve.fit.heads import HEADS, HeadFit
from calib_serve.fit.masked import fit_masked_head
from calib_serve.fit.measure import measured
from calib_serve.fit.output import check_options, default_candidates, facts_of_probabilities, fit_by_name
from calib_serve.fit.progress import Progress, stage
from calib_serve.fit.samples import Samples, stratified
from calib_serve.fit.shares import correctable, for_shares, referenced
from calib_serve.fit.tuned_head import fit_tuned_head
from calib_serve.metrics import softmax
from calib_serve.metrics.shares import Given, as_shares
from calib_serve.model import Classifier, calibrated_probs, from_module, load_model, weights_remarks
from calib_serve.model.face import CachedClassifier, join, rank_device
from calib_serve.options.base import divided
from calib_serve.options.fit import ModelFitOptions
from calib_serve.pictures import Preprocessing
from calib_serve.scores import LABELS

if TYPE_CHECKING:
    from torch import nn


Data = tuple[ArrayLike, ArrayLike]
"""Inputs (n, *input_shape) as the model takes them, and class ids (n,)."""

_CLAMPING = ("gamma", "penalty", "resolution", "judge", "folds", "start", "norm_power", "normalisation")
MODEL_OPTIONS = {
    "neural-clamping": (*_CLAMPING, "clip", "input_range", "schedule"),
    "neural-clamping-efficient": ("search", "grid", "input_range"),
    "masked-head": ("reading", "held_share", "then"),
    "tuned-head": ("strength", "folds", "then"),
}
"""The methods that need the model itself, and their options."""

MODEL_FITTERS: dict[str, Callable[..., Artifact]] = {
    "neural-clamping": fit_neural_clamping,
    "neural-clamping-efficient": fit_neural_clamping_efficient,
    "masked-head": fit_masked_head,
    "tuned-head": fit_tuned_head,
}
"""Their names, and what fits by default."""

_SCHEDULES: dict[str, tuple[Callable[..., Artifact], tuple[str, ...]]] = {
    "ours": (fit_neural_clamping, (*_CLAMPING, "clip", "input_range")),
    "paper": (
        fit_neural_clamping_paper,
        ("gamma", "penalty", "start", "norm_power", "normalisation", "input_range"),
    ),
    "toolkit": (fit_neural_clamping_toolkit, ("gamma", "penalty", "normalisation")),
}
"""Neural Clamping's schedules: what fits by each, and the options it takes."""

_FOLDS = 5


def calibrate_model(
    model: Union[nn.Module, Classifier, str, Path],
    inputs: ArrayLike,
    labels: ArrayLike,
    method: str = "auto",
    options: ModelFitOptions | None = None,
    *,
    test: Data | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> Artifact:
    """Fit ``method`` to a deployed ``model`` and its calibration data: inputs (n, *input_shape), labels (n,).

    ``model``: an ``nn.Module`` in evaluation mode, a ``Classifier``, or what ``load_model`` reads: a
    .pt2, ONNX or TorchScript file, or ``module:factory`` with its ``weights``. ``method``: "neural-clamping",
    "neural-clamping-efficient", "masked-head", "tuned-head", any output method (fitted to the model's
    logits), or "auto": the best output method, and Neural Clamping instead where that gains on held-out
    folds. The masked head trains on ``train``, steered by the calibration data, or on a part of these. Before
    and after are measured on ``test``, else on samples that were held out (``cross_validate``). ``outputs``
    says what the model returns, where its numbers do not show it: of a multi-label model "label_logits" or
    "label_probabilities"; its labels are (n, L), 0 or 1, and it takes the methods of labels. ``pictures``:
    how pictures became the inputs, where they did; the artifact says so, and its archive prepares those that
    are sent in the same way. ``checkpoints``: a folder in which logits, features and the state of a fit are
    kept; a fit that was killed resumes from it. ``prior``: class shares of what will be served, as of
    ``calibrate``. Under torchrun the processes share the passes over the data, and each returns the same
    artifact. Raises InputError and ShapeError for data and options that do not fit, ModelError for a model
    that cannot be loaded or lacks what the method needs, FitError where the method has no optimum.
    """
    asked, own = divided(options or ModelFitOptions(), given)
    data = _dataset((inputs, labels), tuple(asked.class_names))
    shape = data.inputs.shape[1:]
    prepared = None if asked.pictures is None else Preprocessing.of(asked.pictures).for_input(shape)
    _check_normalised_once(prepared, own)
    classifier = _classifier(model, shape, asked)
    work = _Work(classifier, data, asked.checkpoints, asked.seed, progress)
    held = None if test is None else work.checked(test)
    work.check(data)
    shares = None if asked.prior is None else work.shares(asked.prior, method)
    if classifier.outputs in LABELS:
        artifact = work.of_labels(method, own, held, pictures=prepared)
        return _remarked(recognisable(artifact, classifier), weights_remarks(model, asked.weights))
    if method in MODEL_OPTIONS:
        check_options(method, own, MODEL_OPTIONS[method])
    measure = asked.cross_validate and held is None
    if method == "masked-head":
        trained_on = None if asked.train is None else work.checked(asked.train)
        artifact = work.heads(measure=measure).masked(trained_on, own)
    elif asked.train is not None:
        raise InputError(f"train is for the masked head; {method} fits on the calibration data alone")
    elif method == "tuned-head":
        artifact = work.heads(measure=measure).tuned(own)
    elif method == "neural-clamping":
        normalised = prepared is not None and set(prepared.std) != {1.0}
        artifact = work.clamped(own, normalised=normalised)
    elif method == "neural-clamping-efficient":
        artifact = work.clamped_efficiently(own, cross_validate=measure)
    elif method == "auto" and classifier.differentiable:
        artifact = work.best(own, corrected=shares is not None)
    else:
        artifact = work.output(method, own, cross_validate=measure, prior=shares)
    if shares is not None and "prior" not in artifact.fit:
        artifact = work.corrected(artifact, shares)
    if prepared is not None:
        artifact = replace(artifact, model=replace(artifact.model, pictures=prepared))
    artifact = _remarked(recognisable(artifact, classifier), weights_remarks(model, asked.weights))
    return artifact if held is None else work.measured(artifact, held)


def recognisable(artifact: Artifact, classifier: Classifier) -> Artifact:
    """Return the artifact with the numbers by which ``fuse_onnx`` knows another export of its model.

    They are the model's scores for made-up inputs; nothing is added where these tell too little: of texts, of
    bfloat16, and of inputs of any size.
    """
    known = artifact.model
    inputs = made_up(known.input_shape)
    # bfloat16 rounds too much to tell networks apart; ids are of texts.
    if inputs is None or known.mixed_precision or not (known.input_dtype or "").startswith("float"):
        return artifact
    try:
        found = response(classifier.logits(inputs), labels=artifact.is_multilabel)
    except CalibServeError:
        return artifact
    return replace(artifact, model=replace(known, response=found))


def _remarked(artifact: Artifact, said: Sequence[str]) -> Artifact:
    if not said:
        return artifact
    return replace(artifact, fit={**artifact.fit, "remarks": [*artifact.fit.get("remarks", ()), *said]})


def _check_normalised_once(pictures: Preprocessing | None, options: Mapping[str, Any]) -> None:
    """Delta is added to the inputs: where these are normalised already, it is behind that by itself."""
    if pictures is not None and "normalisation" in options and set(pictures.std) != {1.0}:
        raise InputError(
            f"the inputs are normalised already, by std {list(pictures.std)}, so delta acts behind that; "
            "leave out "
            "normalisation, which is for a model that takes [0, 1] and normalises inside"
        )


def _resolution(given: Any) -> Any:
    """``given`` with None for "full", as files and command lines have no None."""
    if isinstance(given, (list, tuple)):
        return [None if one == "full" else one for one in given]
    return None if given == "full" else given


def _dataset(data: Data, class_names: tuple[str, ...]) -> Dataset:
    return Dataset(as_array(data[0], "inputs"), as_array(data[1], "labels"), class_names)


def _classifier(model: Any, shape: tuple[int, ...], asked: ModelFitOptions) -> Classifier:
    """``model`` behind one face, with its results on disk where asked for, shared among torchrun's ranks."""
    how: dict[str, Any] = {
        "input_shape": tuple(asked.input_shape or shape),
        "last_linear": asked.last_linear,
        "device": asked.device or rank_device(),
        "batch_size": asked.batch_size,
        "mixed_precision": asked.mixed_precision,
        "outputs": asked.outputs,
    }
    if isinstance(model, (str, Path)):
        loaded = load_model(model, weights=asked.weights, **how)
    elif hasattr(model, "input_gradient"):
        loaded = model
    elif asked.weights is not None:
        raise InputError("weights belong to a factory, module:name; a module in memory has its own")
    else:
        loaded = from_module(model, **how)
    kept = asked.checkpoints
    return join(loaded if kept is None else CachedClassifier(loaded, Path(kept)))


@dataclass(frozen=True, eq=False)
class _Work:
    """One calibration of a model: what every method needs."""

    classifier: Classifier
    given: Dataset
    checkpoints: str | Path | None
    seed: int
    progress: Progress | None

    def checked(self, data: Data) -> Dataset:
        """``data`` that fits the model."""
        found = _dataset(data, self.given.class_names)
        self.check(found)
        return found

    def check(self, data: Dataset) -> None:
        """InputError unless ``data`` fits the model."""
        multilabel = self.classifier.outputs in LABELS
        data.check(self.classifier.input_shape, self.classifier.classes, multilabel=multilabel)

    def of_labels(
        self,
        method: str,
        options: Mapping[str, Any],
        held: Dataset | None,
        *,
        pictures: Preprocessing | None,
    ) -> Artifact:
        """An output method of labels on the model's log-odds."""
        if method in MODEL_OPTIONS:
            raise InputError(f"{method} is of one class a sample; labels have output methods, such as platt")
        test = None
        if held is not None:
            logits = self.classifier.logits(held.inputs, progress=stage(self.progress, "test logits"))
            test = logits, held.labels
        artifact = calibrate(
            self._logits(),
            self.given.labels,
            method,
            outputs="label_logits",
            class_names=self.given.class_names,
            test=test,
            seed=self.seed,
            progress=self.progress,
            **options,
        )
        return replace(artifact, model=replace(self.classifier.facts(), pictures=pictures))

    def shares(self, prior: Given, method: str) -> NDArray[np.float64]:
        """The class shares to correct to, checked before anything is fitted."""
        if self.classifier.outputs in LABELS:
            raise InputError("class shares (prior) are of classes of which one is true, not of labels")
        if method in HEADS:
            raise InputError(
                f"the {method.replace('-', ' ')} learns its class shares in training; weigh its training "
                "data, or calibrate the model that has it with prior"
            )
        return as_shares(prior, self.classifier.classes, self.given.class_names)

    def corrected(self, artifact: Artifact, shares: NDArray[np.float64]) -> Artifact:
        """An artifact inside the model corrected to other class shares, with the reference of these."""
        made = for_shares(artifact, shares, how="given")
        probs = calibrated_probs(self.classifier, self.given.inputs, made)
        return referenced(made, self._samples(self._logits(), self.given.labels), [(slice(None), probs)])

    def output(
        self,
        method: str,
        options: Mapping[str, Any],
        *,
        cross_validate: bool = True,
        prior: NDArray[np.float64] | None = None,
    ) -> Artifact:
        """An output method on the model's logits."""
        artifact = calibrate(
            self._samples(self._logits(), self.given.labels),
            self.given.labels,
            method,
            class_names=self.given.class_names,
            cross_validate=cross_validate,
            prior=prior,
            seed=self.seed,
            progress=self.progress,
            **options,
        )
        return replace(artifact, model=self.classifier.facts())

    def best(self, options: Mapping[str, Any], *, corrected: bool = False) -> Artifact:
        """The best output method on all samples, or Neural Clamping where it gains on held-out folds.

        ``corrected``: of those that class shares can be corrected behind.
        """
        logits = self._logits()
        given = self._samples(logits, self.given.labels)
        if corrected:
            names = options.get("candidates") or default_candidates(for_shares=True)
            options = {**options, "candidates": [n for n in names if correctable(n, given.classes)]}
        chosen = calibrate(given, self.given.labels, seed=self.seed, progress=self.progress, **options)
        if options.get("keep_predictions"):  # a perturbed input may be of another class
            return replace(chosen, model=self.classifier.facts())
        selection = chosen.fit["selection"]
        best = fit_best(
            self.classifier,
            self.given.inputs,
            self.given.labels,
            lambda z, y: fit_by_name(selection["chosen"], self._samples(z, y), y, seed=self.seed),
            logits=logits,
            seed=self.seed,
            progress=stage(self.progress, "neural-clamping beside it"),
        )
        if best.method != "neural-clamping":
            best = replace(best, before=chosen.before, after=chosen.after, data=chosen.data)
        names = self.given.class_names
        return replace(best, fit={**best.fit, "selection": selection}, class_names=names)

    def clamped(self, options: Mapping[str, Any], *, normalised: bool) -> Artifact:
        """Neural Clamping by one of its schedules; ``normalised``: so the inputs are known to come."""
        known = dict(options)
        if "resolution" in known:
            known["resolution"] = _resolution(known["resolution"])
        schedule = known.pop("schedule", "ours")
        if schedule not in _SCHEDULES:
            raise InputError(f"schedule must be one of {', '.join(map(repr, _SCHEDULES))}, got {schedule!r}")
        fit, takes = _SCHEDULES[schedule]
        check_options(f"neural-clamping under the schedule {schedule!r}", known, takes)
        if schedule == "toolkit" and "normalisation" not in known:
            if not normalised:
                raise InputError(
                    "the toolkit's schedule puts delta behind the normalisation: give the normalisation "
                    "(mean, std) that the model begins with, (0, 1) where the inputs are normalised already"
                )
            known["normalisation"] = (0.0, 1.0)
        if known.get("gamma") == "paper":
            if schedule == "toolkit":
                raise InputError("the toolkit's schedule chooses no gamma; give one number")
            known |= {"gamma": GAMMAS} | ({"judge": "calibration-ece"} if schedule == "ours" else {})
        return fit(
            self.classifier,
            self.given.inputs,
            self.given.labels,
            checkpoints=self.checkpoints,
            class_names=self.given.class_names,
            seed=self.seed,
            progress=stage(self.progress, "neural-clamping"),
            **known,
        )

    def clamped_efficiently(self, options: Mapping[str, Any], *, cross_validate: bool) -> Artifact:
        """Neural Clamping by one backward pass."""

        def fit(inputs: NDArray[Any], labels: NDArray[np.intp]) -> Artifact:
            return fit_neural_clamping_efficient(
                self.classifier,
                inputs,
                labels,
                class_names=self.given.class_names,
                progress=stage(self.progress, "neural-clamping-efficient"),
                **options,
            )

        artifact = fit(self.given.inputs, self.given.labels)
        return self._cross_validated(artifact, fit) if cross_validate else artifact

    def heads(self, *, measure: bool) -> HeadFit:
        """New heads for the model."""
        return HeadFit(self.classifier, self.given, measure, self.checkpoints, self.seed, self.progress)

    def measured(self, artifact: Artifact, held: Dataset) -> Artifact:
        """The artifact with its metrics on samples that nothing was fitted to."""
        z = self.classifier.logits(held.inputs, progress=stage(self.progress, "test logits"))
        if artifact.input_shift or artifact.head:
            probs = calibrated_probs(self.classifier, held.inputs, artifact)
        else:
            probs = artifact.of_logits(z)
        return measured(artifact, z, probs, held.labels, seed=self.seed)

    def _logits(self) -> NDArray[np.float32]:
        return self.classifier.logits(self.given.inputs, progress=stage(self.progress, "logits"))

    def _samples(self, logits: NDArray[Any], labels: NDArray[np.intp]) -> Samples:
        """Logits of the model as samples that know what it returns."""
        return Samples.of_kind(logits, labels, self.classifier.outputs)

    def _cross_validated(
        self, artifact: Artifact, fit: Callable[[NDArray[Any], NDArray[np.intp]], Artifact]
    ) -> Artifact:
        inputs, labels = self.given.inputs, self.given.labels
        fold = stratified(labels, folds=min(_FOLDS, len(labels) // 2), seed=self.seed)
        logits = self._logits()
        probs = np.empty(logits.shape)
        for k in np.unique(fold):
            kept, held = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            part = fit(inputs[kept], labels[kept])
            probs[held] = calibrated_probs(self.classifier, inputs[held], part)
        found = facts_of_probabilities(
            softmax(logits), probs, labels, class_names=artifact.class_names, seed=self.seed
        )
        return measured_on_folds(artifact, found, folds=int(fold.max()) + 1, samples=len(labels))
